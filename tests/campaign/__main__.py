"""``python -m tests.campaign [--seconds N] [--seed S]``: damage an index in many ways and print the table of counts."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from .damage import run_damage, table


def main() -> int:
    """Run, print, and return 1 if any variant gave other answers without a word, a traceback or a crash."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="stop after this time (300)")
    parser.add_argument("--seed", type=int, default=0, help="of the places that are damaged (0)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="campaign-") as where:
        results = run_damage(Path(where), arguments.seconds, arguments.seed)
    print(table(results))
    bad = [result for result in results if result.verdict in ("other answers", "traceback", "crash")]
    for result in bad:
        print(f"{result.verdict}: {result.variant}: {result.words}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
