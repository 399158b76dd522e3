"""Lengths of queries and passages in words (CoT-MoTE, Figure 1; counts as in MASTER, Table 1).

python eval/studies/lengths.py --queries scifact/queries.jsonl --passages scifact --with-titles
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, ClassVar

from study import study

from dupmae_ir import tables
from dupmae_ir.config import OneOf, OutputOptions, Requires, option
from dupmae_ir.console import visible
from dupmae_ir.errors import UsageError
from dupmae_ir.io.collections import read_collection
from dupmae_ir.io.topics import read_topics

QUANTILES = {"least": 0.0, "median": 0.5, "p95": 0.95, "most": 1.0}


@dataclass(frozen=True, kw_only=True)
class LengthsConfig(OutputOptions):
    """Statistics of a collection's queries and passages: the number of texts (MASTER, Table 1) and their lengths in
    words separated by white space (CoT-MoTE, Figure 1A: MS MARCO's queries have 1 to 75 words and 6 on average, its
    passages 1 to 362 and 56). One pass over the files.

    Examples:
        python eval/studies/lengths.py --queries msmarco-passage/queries.dev.tsv --passages msmarco-passage/corpus.jsonl
        python eval/studies/lengths.py --queries scifact/queries.jsonl --passages scifact --with-titles --json
    """

    RULES: ClassVar[tuple[OneOf | Requires, ...]] = (Requires("with_titles", ("passages",)),)

    queries: tuple[str, ...] = option(
        (), "topics files, or Pyserini topics names, one row each", group="input", metavar="FILE"
    )
    passages: tuple[str, ...] = option(
        (),
        "collections: JSON lines, tsv, .gz of these, or folders, one row each",
        group="input",
        metavar="PATH",
    )
    with_titles: bool = option(False, "count the words of a passage's title, too", group="counting")
    examples: int = option(
        0, "also print the first N texts of each file (Figure 1B)", group="output", at_least=0
    )
    format: str = option("text", "output format", group="output", choices=("text", "markdown"))


@dataclass(frozen=True)
class Lengths:
    """Words of the texts of one file. ``counts``: words -> texts of that length; a word has no white space."""

    source: str
    kind: str  #: queries or passages
    counts: Counter[int]
    examples: tuple[str, ...] = ()  #: its first texts

    @property
    def mean(self) -> float:
        """Mean number of words; 0 without texts."""
        texts = self.counts.total()
        return sum(words * count for words, count in self.counts.items()) / texts if texts else 0.0

    def quantile(self, share: float) -> int:
        """The smallest length that at least ``share`` of the texts do not exceed; 0 without texts."""
        seen = 0
        for words in sorted(self.counts):
            seen += self.counts[words]
            if seen >= share * self.counts.total():
                return words
        return 0

    def to_dict(self) -> dict[str, Any]:
        """The statistics as plain values."""
        values = {name: self.quantile(share) for name, share in QUANTILES.items()}
        return {
            "source": self.source,
            "kind": self.kind,
            "texts": self.counts.total(),
            "mean": self.mean,
            **values,
        } | ({"examples": list(self.examples)} if self.examples else {})


def run(config: LengthsConfig) -> list[Lengths]:
    """The lengths of all ``queries`` and ``passages``, in this order."""
    if not config.queries and not config.passages:
        raise UsageError("give `queries`, `passages` or both")
    lengths = [
        count_words(path, "queries", (topic.text for topic in read_topics(path)), config.examples)
        for path in config.queries
    ]
    for path in config.passages:
        documents = read_collection(path)
        texts = (
            document.joined() if config.with_titles else document.text for document in documents
        )
        lengths.append(count_words(path, "passages", texts, config.examples))
    return lengths


def count_words(source: str, kind: str, texts: Iterable[str], examples: int = 0) -> Lengths:
    """The lengths of ``texts`` in words, with the first ``examples`` texts."""
    left = iter(texts)
    first = tuple(islice(left, examples))
    return Lengths(source, kind, Counter(len(text.split()) for text in chain(first, left)), first)


def as_table(config: LengthsConfig, lengths: list[Lengths]) -> str:
    """One row per file."""
    rows = []
    for one in lengths:
        v = one.to_dict()
        words = f"{v['least']:,}~{v['most']:,}"
        source = f"{one.source} ({one.kind})"
        rows.append(
            [
                source,
                f"{v['texts']:,}",
                words,
                f"{v['mean']:.1f}",
                f"{v['median']:,}",
                f"{v['p95']:,}",
            ]
        )
    table = tables.render(
        ["source", "texts", "words", "average", "median", "95 %"], rows, config.format
    )
    examples = [
        f"{one.source} ({one.kind}): {visible(text, breaks=True)}"
        for one in lengths
        for text in one.examples
    ]
    return "\n".join([table, *([""] if examples else []), *examples])


main = study(
    "lengths",
    LengthsConfig,
    run,
    as_table,
    lambda lengths: [one.to_dict() for one in lengths],
    lambda _: "",
)

if __name__ == "__main__":
    sys.exit(main())
