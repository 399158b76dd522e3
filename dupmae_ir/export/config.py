"""Options of ``dupmae-ir export``."""

from __future__ import annotations

from dataclasses import dataclass

from dupmae_ir.config import OutputOptions, option


@dataclass(frozen=True, kw_only=True)
class ExportConfig(OutputOptions):
    """Options of ``dupmae-ir export``."""

    output: str = option(help="folder to create", metavar="FOLDER")
    model: str | None = option(None, "model folder or name (default: the embedded model)", metavar="MODEL")
    to: str = option(
        "sentence-transformers",
        "format: sentence-transformers, or compact: a model folder of this toolkit with weights in 8 bits",
        choices=("sentence-transformers", "compact"),
    )
    part: str = option(
        "cls", "dense vectors (cls) or sparse vectors (ot)", choices=("cls", "ot"), only_with="to=sentence-transformers"
    )
    overwrite: bool = option(False, "replace an existing export")
