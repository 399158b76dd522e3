"""The standing campaign: kills, damage, bad inputs, adversarial collections and concurrency on purpose, counted.

python -m tests.campaign --seconds 300                          # a share of everything
python -m tests.campaign --only kills --seconds 900 --add FILE  # one part; FILE collects the counts of several runs
python -m tests.campaign --table FILE                           # the tables of tests/campaign/README.md
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

_TESTS = Path(__file__).parents[1]
sys.path += [str(_TESTS), str(_TESTS / "finetune")]  # modules that tests share


def _module(name: str) -> Callable[[], ModuleType]:
    return lambda: importlib.import_module(f"tests.campaign.{name}")


_NAMES = [
    "damage",
    "models",
    "inputs",
    "hostile",
    "readers",
    "exactness",
    "oracle",
    "kills",
    "faults",
    "servers",
    "transfers",
    "processes",
    "opens",
    "soak",
    "generations",
    "strangers",
    "load",
]
PARTS = {name: _module(name) for name in _NAMES}
"""Name of a part -> its module, which has ``run(seconds, seed, records)``, ``table``, ``is_wrong`` and ``TITLE``."""
