"""From finished parts to the index folder: built aside, moved into place in one step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dupmae_ir.encode.windows import Part
from dupmae_ir.errors import UsageError
from dupmae_ir.io.publishing import move_into_place
from dupmae_ir.types import EncoderSettings

if TYPE_CHECKING:
    from dupmae_ir.types import Encoder


def publish_index(
    parts: Iterable[Part],
    aside: Path,
    target: Path,
    *,
    dim: int | None,
    terms: list[str] | None,
    scale: float | None,
    describe: Callable[[], dict[str, Any]],
    on_documents: Callable[[int], Any] = lambda _: None,
) -> dict[str, Any]:
    """Build the index of ``parts`` in ``aside``, then let it take the place of ``target``. Returns its meta.

    ``describe`` is called after the last part and gives what the meta says beyond the counts. ``aside`` must be on
    the file system of ``target``; it is removed again when anything fails.
    """
    from dupmae_ir.index.folder import IndexBuilder

    shutil.rmtree(aside, ignore_errors=True)
    try:
        with IndexBuilder(aside, dim=dim, terms=terms, scale=scale) as builder:
            for part in parts:
                builder.add_impacts(part.docids, part.cls, part.impacts, part.clipped, part.dropped)
                on_documents(len(part.docids))
            meta = builder.finish(describe())
        move_into_place(aside, target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return meta


def check_target(target: Path) -> None:
    """Refuse to take the place of anything that is not an index folder or an empty one."""
    if not target.exists():
        return
    if not target.is_dir():
        raise UsageError(f"{target}: is a file; --index wants a folder, new or of an older index")
    with suppress(OSError):
        if any(target.iterdir()) and not _is_index(target):
            raise UsageError(f"{target}: a folder that is no index; nothing in it was touched, name another --index")


def _is_index(folder: Path) -> bool:
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(meta, dict) and {"format", "documents", "parts", "digest"} <= set(meta)


def encoder_record(encoder: Encoder, separator: str) -> dict[str, Any]:
    """What the meta says of the encoder: everything that a query must share."""
    settings: EncoderSettings = encoder.settings
    return {
        "name": encoder.name,
        "digest": encoder.digest,
        "document_length": settings.document_length,
        "query_length": settings.query_length,
        "top_k": settings.top_k,
        "activation": settings.activation,
        "dtype": settings.dtype,
        "title_separator": separator,
        "normalize": settings.normalize,
    }
