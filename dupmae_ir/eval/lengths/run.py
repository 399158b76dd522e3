"""The work of ``dupmae-ir eval.lengths``: count the words of texts, one pass, constant memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dupmae_ir.console import table
from dupmae_ir.errors import UsageError
from dupmae_ir.eval.lengths.config import LengthsConfig
from dupmae_ir.io.collections import read_collection
from dupmae_ir.io.topics import read_topics


@dataclass(frozen=True)
class Lengths:
    """Words of the texts of one file. ``counts``: words -> texts of that length; a word has no white space."""

    source: str
    kind: str  #: queries or passages
    counts: Counter[int]

    @property
    def texts(self) -> int:
        """Number of texts."""
        return self.counts.total()

    @property
    def mean(self) -> float:
        """Mean number of words; 0 without texts."""
        return sum(words * texts for words, texts in self.counts.items()) / self.texts if self.texts else 0.0

    def quantile(self, share: float) -> int:
        """The smallest length that at least ``share`` of the texts do not exceed; 0 without texts."""
        seen = 0
        for words in sorted(self.counts):
            seen += self.counts[words]
            if seen >= share * self.texts:
                return words
        return 0

    def to_dict(self) -> dict[str, Any]:
        """The statistics as plain values."""
        quantiles = {"least": 0.0, "median": 0.5, "p95": 0.95, "most": 1.0}
        values = {name: self.quantile(share) for name, share in quantiles.items()}
        return {"source": self.source, "kind": self.kind, "texts": self.texts, "mean": self.mean, **values}


@dataclass(frozen=True)
class Statistics:
    """The lengths of all files."""

    files: tuple[Lengths, ...]

    def to_list(self) -> list[dict[str, Any]]:
        """The statistics as plain values."""
        return [lengths.to_dict() for lengths in self.files]

    def text(self, format: str) -> str:
        """A table; ``text`` or ``markdown``."""
        header = ["source", "texts", "words", "average", "median", "95 %"]
        rows = []
        for lengths in self.files:
            v = lengths.to_dict()
            words = f"{v['least']:,}~{v['most']:,}"
            source = f"{lengths.source} ({lengths.kind})"
            rows.append([source, f"{v['texts']:,}", words, f"{v['mean']:.1f}", f"{v['median']:,}", f"{v['p95']:,}"])
        if format == "text":
            return table(rows, header)
        lines = [header, [":--", *["--:"] * 5], *rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def run(config: LengthsConfig) -> Statistics:
    """The lengths of all ``--queries`` and ``--passages``, in this order. Raises :class:`UsageError` for none."""
    if not config.queries and not config.passages:
        raise UsageError("give --queries, --passages or both")
    found = [_counted(path, "queries", (topic.text for topic in read_topics(path))) for path in config.queries]
    for path in config.passages:
        documents = read_collection(path)
        texts = (document.joined() if config.with_titles else document.text for document in documents)
        found.append(_counted(path, "passages", texts))
    return Statistics(tuple(found))


def _counted(source: str, kind: str, texts: Iterable[str]) -> Lengths:
    return Lengths(source, kind, Counter(len(text.split()) for text in texts))
