"""Write docs/python.md, the Python reference, from the packages' public names. With --check, exit 1 when it is old.

mkdocstrings reads the source without running it and cannot follow names that are imported on first use, so this
script writes the module in which each public name is defined.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).with_name("python.md")
INTRODUCTION = """\
# Python API

Generated from the packages' public names by `make docs`; do not edit. Importing `dupmae_ir` costs nothing: names are
imported on first use. Every command `dupmae-ir X` is also a function `run(config)` of `dupmae_ir.X`, with a frozen
dataclass for its options ([Commands](cli.md)).

The first section is the interface that most programs need; all of its names can be imported from `dupmae_ir`.
"""
SECTIONS = {
    "dupmae_ir": "The front: read files, encode, search, evaluate.",
    "dupmae_ir.encode": "Encoding a collection, and encoders in the shape that Pyserini's searchers expect.",
    "dupmae_ir.search": "Settings, results and reports of a search, and the fusion of ranked lists.",
    "dupmae_ir.finetune": "Fine-tuning from a program or a notebook.",
    "dupmae_ir.pretrain": "Pre-training from a program or a notebook.",
    "dupmae_ir.eval": "trec_eval's measures under ir_measures' names.",
    "dupmae_ir.collections": "Public test collections by name.",
}


def page() -> str:
    """One section per package, one entry per public function or class; each entry appears once."""
    parts, seen = [INTRODUCTION], set()
    for name, purpose in SECTIONS.items():
        package = importlib.import_module(name)
        homes = [home for public in sorted(package.__all__) if (home := _home(package, public)) not in seen]
        seen.update(homes)
        entries = "\n".join(f"::: {home}\n" for home in homes if home)
        parts.append(f"## {name}\n\n{purpose}\n\n{entries}")
    return "\n".join(parts)


def _home(package: ModuleType, name: str) -> str | None:
    """``module.name`` where the object is defined; None for constants and type aliases, which have no entry."""
    value = getattr(package, name)
    home = getattr(value, "__module__", "")
    if not home.startswith("dupmae_ir") or getattr(value, "__name__", None) != name:
        return None
    return f"{home}.{name}"


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        sys.exit(
            0 if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text else "docs/python.md is old: make docs"
        )
    PAGE.write_text(text, encoding="utf-8")
