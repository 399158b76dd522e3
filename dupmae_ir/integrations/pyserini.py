"""Makes stock ``import pyserini`` work in a process that has imported dupmae_ir, and registers our encoders there.

    import dupmae_ir
    from pyserini.search.lucene import LuceneImpactSearcher    # on the Java that dupmae_ir finds, not PATH's

Importing dupmae_ir installs a finder that acts when Pyserini's own modules are imported: it starts a suitable JVM
before ``pyserini.pyclass``, which would start the first Java it finds, and it provides the key that Pyserini 1.6
demands when ``pyserini.encode`` is imported. Nothing happens before that, or in a process that does not import
Pyserini.

Pyserini's commands choose an encoder by a part of its name. Registered are ``dupmae:MODEL`` for [CLS] vectors and
``dupmae-ot:MODEL`` for impacts::

    python -m dupmae_ir.pyserini pyserini.encode input --corpus C output --embeddings E encoder --encoder dupmae:default
    python -m dupmae_ir.pyserini pyserini.search.faiss --encoder dupmae:default --index I/cls --topics T --output R
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader  # importing it takes a third of the time for dupmae_ir

    from dupmae_ir.encode.pyserini_encoders import DupmaeDocumentEncoder, DupmaeQueryEncoder

DENSE = "dupmae:"
"""Prefix of the names of encoders of [CLS] vectors on Pyserini's command lines."""
IMPACT = "dupmae-ot:"
"""Prefix of the names of encoders of impacts."""


def install() -> None:
    """Add the finder to ``sys.meta_path``, once."""
    if not any(isinstance(finder, StockImports) for finder in sys.meta_path):
        # Before the other finders: the first one that finds a module ends the search.
        sys.meta_path.insert(0, StockImports())


class StockImports:
    """Finds two modules of Pyserini as the other finders do, and prepares the process before they are executed."""

    def __init__(self) -> None:
        self._searching: set[str] = set()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """See :class:`importlib.abc.MetaPathFinder`."""
        if fullname not in _PREPARATIONS or fullname in self._searching:
            return None
        # The search below calls this finder again, which then leaves the module to the other finders.
        self._searching.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Prepared(spec.loader, _PREPARATIONS[fullname])  # type: ignore[assignment]  # as importlib.abc.Loader
        return spec


class _Prepared:
    """A loader that executes a module within a context."""

    def __init__(
        self, loader: Loader, preparation: Callable[[ModuleType], AbstractContextManager[None]]
    ) -> None:
        self._loader = loader
        self._preparation = preparation

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with self._preparation(module):
            self._loader.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        # Other methods of the loader, such as get_source and is_package, which runpy and inspect call.
        return getattr(self._loader, name)


@contextmanager
def _with_java(_: ModuleType) -> Iterator[None]:
    from dupmae_ir.pyserini import start_jvm

    start_jvm()
    yield


@contextmanager
def _with_our_encoders(module: ModuleType) -> Iterator[None]:
    from dupmae_ir.pyserini import openai_key

    with openai_key():
        yield
    # Only now has the module that was executed its maps of classes.
    _register(module.document_encoder_class_map, _document_encoder)
    _register(module.query_encoder_class_map, _query_encoder)


def _register(classes: dict[str, object], encoder: Callable[..., object]) -> None:
    """Put our prefixes first: Pyserini takes the first key that is a part of the encoder's name."""
    # In place, because Pyserini's modules import the dictionary itself.
    pyserini_classes = dict(classes)
    classes.clear()
    classes.update({IMPACT: encoder, DENSE: encoder}, **pyserini_classes)


def _document_encoder(model_name: str, device: str = "cpu", **_: object) -> DupmaeDocumentEncoder:
    from dupmae_ir.encode.pyserini_encoders import DupmaeDocumentEncoder

    view, model = _parse_name(model_name)
    return DupmaeDocumentEncoder(model, device=device, view=view)


def _query_encoder(encoder_dir: str, device: str = "cpu", **_: object) -> DupmaeQueryEncoder:
    from dupmae_ir.encode.pyserini_encoders import DupmaeQueryEncoder

    view, model = _parse_name(encoder_dir)
    return DupmaeQueryEncoder(model, device=device, view=view)


def _parse_name(name: str) -> tuple[str, str]:
    """View and model of an encoder's name: ``dupmae-ot:MODEL`` -> ("impact", MODEL)."""
    prefix, _, model = name.partition(":")
    view = "impact" if prefix + ":" == IMPACT else "dense"
    return view, model


_PREPARATIONS: Mapping[str, Callable[[ModuleType], AbstractContextManager[None]]] = {
    "pyserini.pyclass": _with_java,
    "pyserini.encode": _with_our_encoders,
}
