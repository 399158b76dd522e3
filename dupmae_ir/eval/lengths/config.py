"""Options of ``dupmae-ir eval.lengths``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dupmae_ir.config import OneOf, OutputOptions, Requires, option


@dataclass(frozen=True, kw_only=True)
class LengthsConfig(OutputOptions):
    """Options of ``dupmae-ir eval.lengths``."""

    RULES: ClassVar[tuple[OneOf | Requires, ...]] = (Requires("with_titles", ("passages",)),)

    queries: tuple[str, ...] = option(
        (), "topics files, or Pyserini topics names, one row each", group="input", metavar="FILE"
    )
    passages: tuple[str, ...] = option(
        (), "collections: JSON lines, tsv, .gz of these, or folders, one row each", group="input", metavar="PATH"
    )
    with_titles: bool = option(False, "count the words of a passage's title, too", group="counting")
    format: str = option("text", "output format", group="output", choices=("text", "markdown"))
