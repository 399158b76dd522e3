"""Counts over the topics of a run, for its summary."""

from __future__ import annotations

import statistics
from typing import Any

from dupmae_ir.search.exact.ranking import Answer


class RunCounts:
    """Accumulates the counts of a run, one answer at a time.

    ``certifies``: whether exact lists of the index are called certified (:attr:`Index.certifies`).
    """

    def __init__(self, certifies: bool = True) -> None:
        self.certifies = certifies
        self.blank = self.without_hits = self.exact = self.reported = 0
        self.uncertified: list[str] = []
        self.short: list[str] = []  #: topics whose passages were exhausted before there were enough documents
        self.depths: dict[str, list[int]] = {"dense": [], "impact": [], "bm25": [], "sum": []}

    def add(self, answer: Answer) -> None:
        """Count one topic's answer."""
        self.blank += not answer.query.text.strip()
        self.without_hits += not answer.hits
        if answer.report is None:
            return
        self.reported += 1
        self.exact += answer.report.exact
        if not answer.report.exact:
            self.uncertified.append(answer.query.qid)
        for depths, depth in (
            (self.depths["dense"], answer.report.depth_dense),
            (self.depths["impact"], answer.report.depth_impact),
            (self.depths["bm25"], answer.report.depth_bm25),
            (self.depths["sum"], answer.report.depth_sum),
        ):
            if depth is not None:
                depths.append(depth)

    def as_dict(self) -> dict[str, Any]:
        """The counts as JSON-able values; depths as median and maximum."""
        counts: dict[str, Any] = {"blank": self.blank, "without_hits": self.without_hits}
        if self.short:
            counts["short"] = self.short
        if self.reported:
            counts |= {"exact": self.exact, "certified": self.exact if self.certifies else 0}
            counts["uncertified"] = self.uncertified
            for part, depths in self.depths.items():
                if depths:
                    counts[f"depth_{part}"] = {"median": int(statistics.median(depths)), "max": max(depths)}
        return counts
