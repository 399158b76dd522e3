"""How many queries [CLS], OT and their sum answer: the counts from which cases of a case study are selected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dupmae_ir.console import table
from dupmae_ir.eval.reports import page

FINDS = {
    "cls-hit-ot-miss": (True, False, None),
    "ot-hit-cls-miss": (False, True, None),
    "both-hit": (True, True, None),
    "both-miss": (False, False, None),
    "sum-hit-both-miss": (False, False, True),
    "sum-miss-cls-hit": (True, None, False),
    "sum-miss-ot-hit": (None, True, False),
}
"""``--find`` -> whether [CLS], OT and the sum must find an answer; None: either."""


@dataclass(frozen=True)
class Ranks3:
    """One query. Ranks of the first answer in the three lists; None if it is not among the first ``within``."""

    qid: str
    dense: int | None
    impact: int | None
    hybrid: int | None

    def satisfies(self, find: str) -> bool:
        """Whether the query is of the kind ``find``."""
        hits = (rank is not None for rank in (self.dense, self.impact, self.hybrid))
        return all(wanted in (None, hit) for hit, wanted in zip(hits, FINDS[find], strict=True))

    @property
    def clearness(self) -> tuple[int, int]:
        """Sort key: the best rank of an answer in [CLS] or OT, then in the sum; queries without one last."""
        last = 1 << 30
        return min(self.dense or last, self.impact or last), self.hybrid or last


@dataclass(frozen=True)
class Tally:
    """The queries with an answer in the index, in the order of the topics, and those of the kind ``find``."""

    find: str
    within: int
    ranks: tuple[Ranks3, ...]
    shown: int  #: cases shown of those found

    @property
    def found(self) -> list[Ranks3]:
        """Queries of the kind ``find``: best rank first, then in the order of the topics."""
        return sorted((r for r in self.ranks if r.satisfies(self.find)), key=lambda r: r.clearness)

    def cells(self) -> Iterator[tuple[bool, bool, int, int]]:
        """([CLS] hits, OT hits, queries, of these: queries for which the sum hits)."""
        for cls in (True, False):
            for ot in (True, False):
                inside = [r for r in self.ranks if (r.dense is not None, r.impact is not None) == (cls, ot)]
                yield cls, ot, len(inside), sum(r.hybrid is not None for r in inside)

    def sentence(self) -> str:
        """The number of queries found and the order of those shown."""
        return (
            f"{self.find}: {len(self.found):,} of {len(self.ranks):,} queries with an answer in the index; "
            f"{self.shown} shown, best rank first. A hit is an answer among the first {self.within}."
        )

    def as_text(self) -> str:
        """For a terminal."""
        return f"{self.sentence()}\n\n{table(self._rows(), self._header())}"

    def as_markdown(self) -> str:
        """A sentence and a table."""
        lines = ["| " + " | ".join(row) + " |" for row in (self._header(), ["--:"] * 4, *self._rows())]
        return "\n".join([self.sentence(), "", *(line.replace("[CLS]", "\\[CLS\\]") for line in lines)])

    def as_html(self) -> str:
        """A table with its sentence as the caption."""
        return page.table(self.sentence(), self._header(), self._rows())

    def to_dict(self) -> dict[str, Any]:
        """Counts, and the query ids of those found."""
        names = ("cls_hits", "ot_hits", "queries", "sum_hits")
        cells = [dict(zip(names, cell, strict=True)) for cell in self.cells()]
        found = [{"qid": r.qid, "cls": r.dense, "ot": r.impact, "sum": r.hybrid} for r in self.found]
        return {"find": self.find, "within": self.within, "queries": len(self.ranks), "cells": cells, "found": found}

    def _header(self) -> list[str]:
        return ["[CLS]", "OT", "queries", "the sum hits"]

    def _rows(self) -> list[list[str]]:
        words = {True: "hits", False: "misses"}
        return [[words[cls], words[ot], f"{n:,}", f"{kept:,}"] for cls, ot, n, kept in self.cells()]


def first_ranks(qid: str, lists: dict[str, Sequence[str]], answers: set[str], within: int) -> Ranks3:
    """Search mode -> docids, best first -> the rank of the first answer in each list, up to ``within``."""

    def rank(mode: str) -> int | None:
        return next((n for n, docid in enumerate(lists[mode][:within], 1) if docid in answers), None)

    return Ranks3(qid, rank("dense"), rank("impact"), rank("hybrid"))
