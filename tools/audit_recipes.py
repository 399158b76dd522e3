"""Compare the recipes with the papers and print the differences.

    python tools/audit_recipes.py [--papers FOLDER] [--write docs/reproduction.md]

Checks that every recipe states every setting; compares the settings with eval/hyperparameters.toml; compares the
separator of titles in training and in the index; with ``--papers``, looks up every printed number of eval/*.toml in the
papers' texts. ``--write`` replaces the part of a page between the audit markers. Exits with 1 if there is a problem.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dupmae_ir.eval.regressions.audit import audit_numbers, audit_recipes

RECIPES = Path(__file__).resolve().parents[1] / "eval"
BEGIN, END = "<!-- audit: begin -->", "<!-- audit: end -->"


def main(argv: list[str] | None = None) -> int:
    """Print the outcome, or write it into a page; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", type=Path, default=RECIPES, help="folder of models.toml")
    parser.add_argument("--papers", type=Path, help="folder of the papers' texts")
    parser.add_argument("--write", type=Path, help="page to update between the audit markers")
    options = parser.parse_args(argv)
    audit = audit_recipes(options.recipes)
    text = "\n".join(audit.lines())
    missing = audit_numbers(options.recipes, options.papers) if options.papers else []
    if options.write:
        options.write.write_text(with_audit(options.write.read_text(encoding="utf-8"), text), encoding="utf-8")
    else:
        print(text)
        if options.papers:
            print("\n".join(["", f"Printed numbers that are not in the papers' texts: {len(missing)}", *missing]))
    return 1 if audit.problems or missing else 0


def with_audit(page: str, text: str) -> str:
    """``page`` with ``text`` between its audit markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main())
