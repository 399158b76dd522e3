"""Write the tables of the registered experiment into docs/experiments.md, from experiments/records/mae-from-scratch.

With --check, exit 1 when the page is out of date.
"""

from __future__ import annotations

import sys

from pages import ROOT, write_or_check

sys.path.insert(0, str(ROOT / "experiments"))
from mae_tables import report

RECORDS = ROOT / "experiments" / "records" / "mae-from-scratch"

if __name__ == "__main__":
    write_or_check([ROOT / "docs" / "experiments.md"], {"scratch": lambda: report(RECORDS)}, "experiments/records")
