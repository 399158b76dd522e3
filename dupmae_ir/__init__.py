"""dupmae_ir: pre-train, fine-tune, encode, search and evaluate masked-auto-encoder retrievers.

The public names are imported on first use, so ``import dupmae_ir`` is instant and does not start a JVM. It makes a
later ``import pyserini`` start a suitable one (see :mod:`dupmae_ir.integrations.pyserini`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dupmae_ir.integrations.pyserini import install as _install

if TYPE_CHECKING:
    from dupmae_ir.api import build_index as build_index
    from dupmae_ir.api import compact_index as compact_index
    from dupmae_ir.api import compare as compare
    from dupmae_ir.api import delete_documents as delete_documents
    from dupmae_ir.api import export_model as export_model
    from dupmae_ir.api import fine_tune as fine_tune
    from dupmae_ir.api import pre_train as pre_train
    from dupmae_ir.api import serve_indexes as serve_indexes
    from dupmae_ir.api import update_index as update_index
    from dupmae_ir.errors import DupmaeError as DupmaeError
    from dupmae_ir.eval.evaluate import evaluate as evaluate
    from dupmae_ir.index.index import Index as Index
    from dupmae_ir.io.collections import read_collection as read_collection
    from dupmae_ir.io.qrels import read_qrels as read_qrels
    from dupmae_ir.io.runs import read_run as read_run
    from dupmae_ir.io.runs import write_run as write_run
    from dupmae_ir.io.topics import read_topics as read_topics
    from dupmae_ir.models import load_encoder as load_encoder
    from dupmae_ir.search.searcher import Searcher as Searcher
    from dupmae_ir.types import Document as Document
    from dupmae_ir.types import Hit as Hit
    from dupmae_ir.types import Query as Query

__version__ = "0.1.0"

_MODULES = {
    "api": (
        "build_index compact_index compare delete_documents export_model fine_tune pre_train serve_indexes update_index"
    ),
    "errors": "DupmaeError",
    "eval.evaluate": "evaluate",
    "index.index": "Index",
    "io.collections": "read_collection",
    "io.qrels": "read_qrels",
    "io.runs": "read_run write_run",
    "io.topics": "read_topics",
    "models": "load_encoder",
    "search.searcher": "Searcher",
    "types": "Document Hit Query",
}
"""Module -> the public names that are imported from it."""
_NAMES: dict[str, str] = {}
"""Public name -> its module."""
for _module, _public_names in _MODULES.items():
    for _name in _public_names.split():
        _NAMES[_name] = _module
__all__ = sorted(_NAMES)

# At import, because a program may import Pyserini right after this package and nothing else of it.
_install()


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
