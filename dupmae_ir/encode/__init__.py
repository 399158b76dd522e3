"""Encoding: the resumable run, shards and their merging, and encoders with Pyserini's interface.

Names are imported on first use, so that ``import dupmae_ir.encode`` is fast.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "DupmaeDocumentEncoder": "pyserini_encoders",
    "DupmaeQueryEncoder": "pyserini_encoders",
    "EncodeConfig": "config",
    "MergeConfig": "merge",
    "write_queries": "pyserini_files",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
