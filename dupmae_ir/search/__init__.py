"""Search: dense, impact and exact hybrid lists of an index folder; fusion of lists. Names are imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = {
    "Searcher": "searcher",
    "Settings": "searcher",
    "Answer": "searcher",
    "Report": "searcher",
    "Explanation": "searcher",
    "TermShare": "searcher",
    "Fusion": "fusion",
    "rrf": "fusion",
    "interpolate": "fusion",
    "pyserini_hybrid": "fusion",
    "SearchConfig": "run",
}
__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
