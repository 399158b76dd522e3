"""Compare the recipes with the papers and print the differences.

    python tools/audit_recipes.py [--papers FOLDER] [--write docs/recipes.md]

Checks that every recipe states every setting; compares the settings with eval/hyperparameters.toml; compares the
separator of titles in training and in the index; with ``--papers``, looks up every printed number of eval/*.toml in the
papers' texts. ``--write`` replaces the parts of a page between the audit markers, that of the printed numbers only with
``--papers``. Exits with 1 if there is a problem.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dupmae_ir.eval.regressions.audit import audit_numbers, audit_recipes

RECIPES = Path(__file__).resolve().parents[1] / "eval"
MARKERS = ("<!-- {}: begin -->", "<!-- {}: end -->")


def main(argv: list[str] | None = None) -> int:
    """Print the outcome, or write it into a page; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", type=Path, default=RECIPES, help="folder of models.toml")
    parser.add_argument("--papers", type=Path, help="folder of the papers' texts")
    parser.add_argument("--write", type=Path, help="page to update between the audit markers")
    options = parser.parse_args(argv)
    audit = audit_recipes(options.recipes)
    parts = {"audit": "\n".join(audit.lines())}
    numbers = audit_numbers(options.recipes, options.papers) if options.papers else None
    if numbers:
        parts["numbers"] = "\n".join(numbers.lines())
    if options.write:
        page = options.write.read_text(encoding="utf-8")
        for name, text in parts.items():
            page = with_part(page, name, text)
        options.write.write_text(page, encoding="utf-8")
    else:
        print("\n\n".join(parts.values()))
    return 1 if audit.problems or (numbers and numbers.missing) else 0


def with_part(page: str, name: str, text: str) -> str:
    """``page`` with ``text`` between the markers of ``name``."""
    first, last = (marker.format(name) for marker in MARKERS)
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise SystemExit(f"the page has no {first} ... {last}")
    return f"{before}{first}\n{text}\n{last}{after}"


if __name__ == "__main__":
    sys.exit(main())
