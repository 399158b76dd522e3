"""Write requirements with hashes from pip's report of an installation: what ``make hashes`` prints.

    python -m pip install --dry-run --ignore-installed --report REPORT '.[dev,docs]'
    python tools/pin_hashes.py REPORT > constraints-hashes.txt

Each package is pinned to the one file that pip chose for this platform and Python, by its sha256.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

HEAD = """\
# Written by `make hashes` for Python {python} on {system} {machine}: the pinned set that CI uses, with the sha256 of
# each file. `make HASHES=1 test` installs these files and no others; elsewhere, or for another wheel of torch, write
# the list again.
"""


def pinned(report: dict[str, Any]) -> str:
    """The requirements of pip's report, sorted; the package itself, which has no file, is left out."""
    rows = []
    for item in report["install"]:
        digest = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if "dir_info" in item["download_info"]:
            continue
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        if not digest:
            raise SystemExit(f"{name}: pip's report has no sha256 of its file")
        # A local version (2.0+cpu) is that of the file; the hash says which file it is.
        version = item["metadata"]["version"].partition("+")[0]
        rows.append(f"{name}=={version} --hash=sha256:{digest}\n")
    found = report["environment"]
    places = {
        "python": found["python_version"],
        "system": found["platform_system"],
        "machine": found["platform_machine"],
    }
    return HEAD.format(**places) + "".join(sorted(rows))


if __name__ == "__main__":
    sys.stdout.write(pinned(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
