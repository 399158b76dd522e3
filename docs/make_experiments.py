"""Write the tables of the registered experiments into docs/experiments.md and
experiments/archive.md, from experiments/records.

With --check, exit 1 when a page is out of date.
"""

from __future__ import annotations

import sys

from pages import ROOT, write_or_check

sys.path.insert(0, str(ROOT / "experiments"))
from mae_tables import conclusion, further_tables, seeds_table, stages_table, table_6
from mae_target_tables import report as targets_report
from sentences_tables import all_scores, costs_table, decision

RECORDS = ROOT / "experiments" / "records" / "mae-from-scratch"
SENTENCES = ROOT / "experiments" / "records" / "sentences-and-titles"

if __name__ == "__main__":
    pages = [ROOT / "docs" / "experiments.md", ROOT / "experiments" / "archive.md"]
    parts = {
        "scratch": lambda: conclusion(RECORDS),
        "scratch_again": lambda: conclusion(RECORDS, 1),
        "seeds": lambda: seeds_table(RECORDS),
        "targets": lambda: targets_report(RECORDS),
        "table_6": lambda: table_6(RECORDS),
        "scratch_recall": lambda: further_tables(RECORDS),
        "stages": lambda: stages_table(RECORDS),
        "sentences": lambda: decision(SENTENCES),
        "sentences_costs": lambda: costs_table(SENTENCES),
        "sentences_scores": lambda: all_scores(SENTENCES),
    }
    write_or_check(pages, parts, "experiments/records")
