"""Dense, impact and exact hybrid search of an index folder, and fusion of lists. Names are imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = {
    "Searcher": "searcher",
    "SearchSettings": "config",
    "SearchConfig": "config",
    "Answer": "exact.ranking",
    "Report": "exact.ranking",
    "Explanation": "view.explain",
    "TermShare": "view.explain",
    "Fusion": "fusion.config",
    "fuse": "fusion.methods",
    "rrf": "fusion.methods",
    "interpolate": "fusion.methods",
    "pyserini_hybrid": "fusion.methods",
}
__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
