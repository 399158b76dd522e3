"""An index of made-up texts by the hashing encoder, as the tests of searching need it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dupmae_ir.encode.run import encoder_record
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.testing import HashingEncoder


def write_index(
    folder: Path,
    ids: Sequence[str],
    texts: Sequence[str],
    encoder: HashingEncoder | None = None,
    scale: float = 50.0,
    described: bool = True,
) -> Path:
    """Encode ``texts`` into the new index ``folder``; without ``described``, it does not name its encoder."""
    encoder = encoder or HashingEncoder()
    both = encoder.encode_documents(texts)
    with IndexBuilder(
        folder, dim=encoder.dim, terms=encoder.terms, scale=scale if encoder.terms else None
    ) as builder:
        builder.add(ids, both.cls, both.ot)
        builder.finish({"encoder": encoder_record(encoder, " ")} if described else {})
    return folder
