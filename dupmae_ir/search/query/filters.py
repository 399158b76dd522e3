"""Which documents a search is restricted to: those that satisfy a condition, or have one of some ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dupmae_ir.errors import UsageError
from dupmae_ir.index.conditions import Node
from dupmae_ir.index.filters import DocumentFilter, Filter, satisfying
from dupmae_ir.index.format.row_set import RowSet, row_set
from dupmae_ir.io.lines import numbered_lines
from dupmae_ir.search.candidates.server import ServerIndex
from dupmae_ir.search.opened_index import OpenedIndex


@dataclass(frozen=True)
class Selection:
    """The documents to search. ``allowed`` is None for all of them; ``unknown`` are ids that the index lacks."""

    documents: int  #: number of documents selected
    allowed: RowSet | None
    unknown: tuple[str, ...] = ()
    #: selects the same documents, where a condition in words alone does
    condition: Node | None = None


def select(
    index: OpenedIndex, within: Iterable[str] | None = None, condition: DocumentFilter | None = None
) -> Selection:
    """The documents of ``index`` whose ids are ``within`` and that satisfy ``condition``; None does not restrict.

    Raises :class:`UsageError` for a condition that is malformed, that names metadata which no document has, or that
    needs metadata where the index stores none.
    """
    if within is None and condition is None:
        return Selection(index.folder.documents, index.live)
    live = index.folder.live
    unknown: tuple[str, ...] = ()
    if within is not None:
        mask, unknown = with_ids(index.folder.docids, within, live)
    elif live is not None:
        mask = live.copy()
    else:
        mask = np.ones(len(index.folder.docids), np.bool_)
    if condition is not None:
        mask &= satisfying(index.folder, condition, mask)
    tree = None
    if isinstance(condition, str) and within is None:
        tree = Filter.parse(condition).tree
    return Selection(int(mask.sum()), row_set(mask, len(mask)), unknown, tree)


def select_on(
    server: ServerIndex, within: Iterable[str] | None, condition: DocumentFilter | None
) -> Selection:
    """:func:`select` for the record of an index, whose rows only the server has."""
    columns = server.index.meta["record"]["columns"]
    if within is not None and condition is None:
        ids = list(dict.fromkeys(within))
        on_server = {row.docid for row in server.read(ids, ())}
        allowed = server.restrict(tuple(on_server))
        unknown = tuple(docid for docid in ids if docid not in on_server)
        return Selection(len(allowed), allowed, unknown)
    if within is not None or not isinstance(condition, str) or columns is None:
        raise UsageError(
            f"{server.index.path} is a record, which takes ids or, if texts are stored, a condition; use the index"
        )
    parsed = Filter.parse(condition)
    parsed.check(columns)
    allowed = server.restrict(parsed.tree)
    return Selection(len(allowed), allowed, condition=parsed.tree)


def with_ids(
    docids: Sequence[str], within: Iterable[str], live: np.ndarray | None = None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """(n,) bool, True for (``live``) rows whose id is ``within``; and the ids that no such row has, in order."""
    ids = dict.fromkeys(within)
    mask = np.fromiter((docid in ids for docid in docids), np.bool_, len(docids))
    if live is not None:
        mask &= live
    # The usual case: every id is in the index, and none needs to be looked for.
    if int(mask.sum()) == len(ids):
        return mask, ()
    in_index = {docids[row] for row in np.flatnonzero(mask).tolist()}
    return mask, tuple(docid for docid in ids if docid not in in_index)


def read_ids(path: str | Path) -> list[str]:
    """The ids in a file, one a line; blank lines are skipped. Raises :class:`InputError` as ``numbered_lines``."""
    return [line for _, line in numbered_lines(path)]
