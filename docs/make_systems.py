"""Write what docs/experiments.md and the README say of experiments/records, or with --check say if it is up to date."""

from __future__ import annotations

import sys

from pages import ROOT, write_or_check

sys.path.insert(0, str(ROOT / "experiments"))
from records import Record, read_records
from tables import TABLES, choice, cost_table, score_table

RECORDS = ROOT / "experiments" / "records"
PAGES = (ROOT / "docs" / "experiments.md", ROOT / "README.md")
MEASURES = ("nDCG@10", "MRR@10", "R@100")


def scores(records: list[Record], what: str, control: str | None = None, measures: tuple[str, ...] = MEASURES) -> str:
    """One of tables.py's tables, for each measure."""
    tables, usual = TABLES[what]
    return "\n\n".join(score_table(records, tables, control or usual, m) for m in measures)


if __name__ == "__main__":
    embedded, cores = read_records(RECORDS / "embedded"), read_records(RECORDS / "cores")
    made = {
        "headline": lambda: scores(embedded, "systems", "bm25", ("nDCG@10",)),
        "embedded": lambda: scores(embedded, "systems", "bm25"),
        "systems": lambda: scores(cores, "systems"),
        "costs": lambda: cost_table(cores),
        "choice": lambda: choice(cores),
    }
    write_or_check(PAGES, made, "experiments/records")
