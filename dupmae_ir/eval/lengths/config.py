"""Options of ``dupmae-ir eval.lengths``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dupmae_ir.config import OneOf, OutputOptions, Requires, option


@dataclass(frozen=True, kw_only=True)
class LengthsConfig(OutputOptions):
    """Statistics of a collection's queries and passages: the number of texts (MASTER, Table 1) and their lengths in
        words
    separated by white space (CoT-MoTE, Figure 1A: MS MARCO's queries have 1 to 75 words and 6 on average, its passages
    1 to 362 and 56). One pass over the files.

    Examples:
        dupmae-ir eval.lengths --queries msmarco-passage/queries.dev.tsv --passages msmarco-passage/corpus.jsonl
        python -m dupmae_ir.eval.lengths --queries scifact/queries.jsonl --passages scifact --with-titles --json
    """

    RULES: ClassVar[tuple[OneOf | Requires, ...]] = (Requires("with_titles", ("passages",)),)

    queries: tuple[str, ...] = option(
        (), "topics files, or Pyserini topics names, one row each", group="input", metavar="FILE"
    )
    passages: tuple[str, ...] = option(
        (), "collections: JSON lines, tsv, .gz of these, or folders, one row each", group="input", metavar="PATH"
    )
    with_titles: bool = option(False, "count the words of a passage's title, too", group="counting")
    format: str = option("text", "output format", group="output", choices=("text", "markdown"))
