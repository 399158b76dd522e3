"""dupmae_ir: pre-train, fine-tune, encode, search and evaluate masked-auto-encoder retrievers.

The public names are imported on first use, so ``import dupmae_ir`` costs nothing and never starts a JVM.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_NAMES = {
    "Document": "types",
    "Query": "types",
    "Hit": "types",
    "Run": "types",
    "Qrels": "types",
    "Representation": "types",
    "Encoder": "types",
    "EncoderSettings": "types",
    "DupmaeError": "errors",
    "load_encoder": "models",
    "IndexFolder": "index.folder",
    "Searcher": "search",
    "evaluate": "eval.evaluate",
    "read_collection": "io.collections",
    "read_topics": "io.topics",
    "read_qrels": "io.qrels",
    "read_run": "io.runs",
    "write_run": "io.runs",
}
__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
