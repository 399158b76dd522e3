"""Write what docs/experiments.md, the README and the embedded model's card say of experiments/records, or with --check
say if it is up to date."""

from __future__ import annotations

import sys

from pages import ROOT, write_or_check

sys.path.insert(0, str(ROOT / "experiments"))
from embedded import scores
from records import read_records
from tables import choice, cost_table, difference_table, score_tables

RECORDS = ROOT / "experiments" / "records"
PAGES = (ROOT / "docs" / "experiments.md", ROOT / "README.md", ROOT / "dupmae_ir" / "default_model" / "README.md")


if __name__ == "__main__":
    embedded, cores = read_records(RECORDS / "embedded"), read_records(RECORDS / "cores")
    made = {
        "headline": lambda: "\n\n".join(score_tables(embedded, "systems", "bm25", ["nDCG@10"])),
        "embedded": lambda: "\n\n".join(score_tables(embedded, "systems", "bm25")),
        "embedded_differences": lambda: "\n\n".join(difference_table(embedded, c) for c in ("bm25", "minilm")),
        "scores": lambda: scores(embedded),
        "differences": lambda: difference_table(cores),
        "systems": lambda: "\n\n".join(score_tables(cores, "systems")),
        "ablations": lambda: "\n\n".join(score_tables(cores, "ablations", measures=["nDCG@10"])),
        "caps": lambda: "\n\n".join(score_tables(cores, "caps", measures=["nDCG@10"])),
        "costs": lambda: cost_table(cores),
        "choice": lambda: choice(cores),
    }
    write_or_check(PAGES, made, "experiments/records")
