"""``dupmae-ir index delete``: mark rows as deleted; nothing is encoded or rewritten."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dupmae_ir.errors import InputError, UnknownName
from dupmae_ir.index.changes.changes import ChangeJob
from dupmae_ir.index.config import DeleteConfig
from dupmae_ir.index.index import Index


def run(config: DeleteConfig) -> dict[str, Any]:
    """Delete documents and return a summary. Ids that are deleted already are accepted.

    Raises :class:`UnknownName` for an id that the index does not contain; nothing is deleted then.
    """
    docids = config.ids or read_ids(config.ids_file or "-")
    with ChangeJob(config.index, "index delete", quiet=config.quiet) as job:
        index = job.current()
        rows = rows_to_delete(index, docids, config.index, config.ignore_unknown)
        now = {"deleted_now": len(rows)}
        return job.commit(index, rows, None, now) if len(rows) else job.unchanged(index, now)


def rows_to_delete(index: Index, docids: Sequence[str], name: str, ignore_unknown: bool = False) -> np.ndarray:
    """(m,) int64: the live rows of some ids."""
    asked = set(docids)
    rows = [row for row, docid in enumerate(index.docids) if docid in asked]
    if not ignore_unknown:
        unknown = asked - {index.docids[row] for row in rows}
        if unknown:
            first = next(docid for docid in docids if docid in unknown)
            more = f" and {len(unknown) - 1:,} more" if len(unknown) > 1 else ""
            raise UnknownName(
                f"{name} has no document {first!r}{more}; nothing was deleted. Pass `ignore_unknown` to "
                "delete the others"
            )
    return np.array([row for row in rows if index.live[row]], np.int64)


def read_ids(source: str) -> list[str]:
    """The ids of a file, one on each line; blank lines are skipped. ``-`` is standard input."""
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"{source}: cannot be read: {e}") from None
    ids = [line.strip() for line in text.splitlines() if line.strip()]
    for number, docid in enumerate(ids, start=1):
        if docid.split() != [docid]:
            raise InputError(
                f"{source}:{number}: {docid!r} contains white space; expected one document id on each line"
            )
    if not ids:
        raise InputError(f"{source}: no document ids in it")
    return ids
