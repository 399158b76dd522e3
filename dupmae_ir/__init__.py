"""dupmae_ir: pre-train, fine-tune, encode, search and evaluate masked-auto-encoder retrievers.

The public names are imported on first use, so ``import dupmae_ir`` is instant and does not start a JVM. It makes a
later ``import pyserini`` start a suitable one (see :mod:`dupmae_ir.integrations.pyserini`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dupmae_ir.integrations.pyserini import install as _install

if TYPE_CHECKING:
    from dupmae_ir.errors import DupmaeError as DupmaeError
    from dupmae_ir.eval.evaluate import evaluate as evaluate
    from dupmae_ir.index.index import Index as Index
    from dupmae_ir.io.collections import read_collection as read_collection
    from dupmae_ir.io.qrels import read_qrels as read_qrels
    from dupmae_ir.io.runs import read_run as read_run
    from dupmae_ir.io.runs import write_run as write_run
    from dupmae_ir.io.topics import read_topics as read_topics
    from dupmae_ir.models import load_encoder as load_encoder
    from dupmae_ir.search import Searcher as Searcher
    from dupmae_ir.types import Document as Document
    from dupmae_ir.types import Encoder as Encoder
    from dupmae_ir.types import EncoderSettings as EncoderSettings
    from dupmae_ir.types import Hit as Hit
    from dupmae_ir.types import Qrels as Qrels
    from dupmae_ir.types import Query as Query
    from dupmae_ir.types import Representation as Representation
    from dupmae_ir.types import Run as Run

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
    "Index": "index.index",
    "Searcher": "search",
    "evaluate": "eval.evaluate",
    "read_collection": "io.collections",
    "read_topics": "io.topics",
    "read_qrels": "io.qrels",
    "read_run": "io.runs",
    "write_run": "io.runs",
}
__all__ = sorted(_NAMES)


_install()


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
