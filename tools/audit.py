"""Compare the installed packages with the published advisories, and say what could not be compared.

    python tools/audit.py          # what `make audit` runs; needs the package pip-audit and the network

pip-audit reports "no known vulnerabilities" also where the place it asks knows none, as mirrors of the package index
may. Therefore a release whose advisories have been published for years is asked for first. Exit status 0: every package
was compared and none has an advisory; 1: one has; 3: some or all could not be compared.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CONTROL = "jinja2==2.4.1"
"""Has several advisories (CVE-2014-1402 and later ones)."""
UNKNOWN = 3


def audited(*words: str) -> tuple[list[dict[str, Any]], str]:
    """pip-audit's rows, one per package, and its last words where it failed."""
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--progress-spinner",
        "off",
        "--format",
        "json",
        *words,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout)["dependencies"], ""
    except (ValueError, KeyError, TypeError):
        return [], (done.stderr.strip().splitlines() or ["pip-audit printed nothing"])[-1]


def control() -> str:
    """Why nothing can be compared; empty where the control's advisories are found."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "control.txt"
        path.write_text(f"{CONTROL}\n", encoding="utf-8")
        rows, error = audited("--requirement", str(path), "--no-deps", "--disable-pip")
    if error:
        return error
    if any(row.get("vulns") for row in rows):
        return ""
    return f"it knows no advisory of {CONTROL}, which has several"


def report(rows: list[dict[str, Any]]) -> int:
    """Print what was found and return the exit status."""
    compared = [row for row in rows if "vulns" in row]
    advisories = 0
    for row in compared:
        for advisory in row["vulns"]:
            advisories += 1
            fixed = ", ".join(advisory.get("fix_versions") or []) or "no release"
            print(f"{row['name']} {row['version']}: {advisory['id']}, fixed in {fixed}")
    print(f"{len(compared)} packages compared, {advisories} advisories")
    skipped = [f"{row['name']} ({row['skip_reason']})" for row in rows if "vulns" not in row]
    if skipped:
        print(f"{len(skipped)} could not be compared: {'; '.join(skipped)}", file=sys.stderr)
    if advisories:
        return 1
    return UNKNOWN if skipped or not compared else 0


def main() -> int:
    """Compare the control, then everything that is installed."""
    problem = control()
    if problem:
        print(
            f"nothing was compared: no advisories were to be had from the package index: {problem}",
            file=sys.stderr,
        )
        return UNKNOWN
    rows, error = audited("--local", "--skip-editable")
    if error:
        print(f"nothing was compared: {error}", file=sys.stderr)
        return UNKNOWN
    return report(rows)


if __name__ == "__main__":
    sys.exit(main())
