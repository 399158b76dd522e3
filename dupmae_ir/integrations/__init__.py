"""Thin classes for other people's frameworks. Each module needs its framework and nothing else:

=================  ==========================================================================
``langchain``      ``LangChainRetriever``, a LangChain retriever
``llama_index``    ``LlamaIndexRetriever``, a LlamaIndex retriever
``haystack``       ``HaystackRetriever``, a Haystack component
``pyterrier``      ``PyTerrierRetriever``, a PyTerrier transformer for pipelines and experiments
``mteb``           ``DupmaeSearch`` (retrieval by both parts) and ``DupmaeEncoder`` ([CLS] vectors)
=================  ==========================================================================

BEIR's loop is in :mod:`dupmae_ir.eval.beir`, Pyserini's encoders in :mod:`dupmae_ir.encode.pyserini_encoders`.
"""

from __future__ import annotations


def missing(error: ModuleNotFoundError, package: str) -> ModuleNotFoundError:
    """The error to raise if the framework of a module is not installed."""
    return ModuleNotFoundError(
        f"{error.name} is not installed; run: pip install {package}", name=error.name
    )
