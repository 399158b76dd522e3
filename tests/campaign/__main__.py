"""``python -m tests.campaign``: all parts or some of them, with a table for each. Exit status 1 if anything failed."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.campaign import PARTS
from tests.campaign.records import Records, read


def main() -> int:
    """Run the parts, each in a process of its own, and print their tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seconds", type=float, default=300.0, help="time for all trials together (300)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the places, moments and texts (0)")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        default=list(PARTS),
        metavar="PART",
        help=", ".join(PARTS),
    )
    parser.add_argument(
        "--add",
        type=Path,
        metavar="FILE",
        help="keep the records in FILE, beside those of other runs",
    )
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="print the tables of FILE and run nothing"
    )
    arguments = parser.parse_args()
    if arguments.table:
        return _print_tables(arguments.table, list(PARTS))
    with tempfile.TemporaryDirectory(prefix="campaign-") as where:
        kept = arguments.add or Path(where) / "records.jsonl"
        ends = []
        for part in arguments.only:
            seconds = arguments.seconds / len(arguments.only)
            words = [part, str(seconds), str(arguments.seed), str(kept)]
            # A part that needs forks must not share its process with one that starts a JVM.
            ends.append(
                subprocess.run(
                    [sys.executable, "-m", "tests.campaign.part", *words], check=False
                ).returncode
            )
        return _print_tables(kept, arguments.only) or int(any(ends))


def _print_tables(path: Path, parts: list[str]) -> int:
    wrong = 0
    for name in parts:
        part = PARTS[name]()
        records = Records(name, path).all
        if records:
            print(f"{part.TITLE}\n\n{part.table(records)}\n")
        for row in (row for row in records if part.is_wrong(row)):
            wrong += 1
            print(f"{name}: {row}", file=sys.stderr)
    if not read(path):
        print("no records", file=sys.stderr)
    return int(bool(wrong) or not read(path))


if __name__ == "__main__":
    began = time.monotonic()
    status = main()
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    sys.exit(status)
