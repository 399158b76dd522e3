"""A LlamaIndex retriever.

from dupmae_ir.integrations.llama_index import LlamaIndexRetriever

nodes = LlamaIndexRetriever("my-index", similarity_top_k=5).retrieve("how do I rotate the logs?")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dupmae_ir.integrations import missing
from dupmae_ir.integrations.passages import PassageSearch, Texts
from dupmae_ir.search.config import QUERY_HITS
from dupmae_ir.search.searcher import Searcher

try:
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
except ModuleNotFoundError as e:
    raise missing(e, "llama-index-core") from None


class LlamaIndexRetriever(BaseRetriever):
    """Retrieves nodes of an index folder by dense, impact or hybrid search.

    Args:
        index: index folder, or an open searcher.
        similarity_top_k: number of nodes.
        mode: dense, impact or hybrid; None is everything that the index has.
        filter: condition on the metadata, as ``dupmae-ir search --filter``.
        texts: document id -> document, for an index without stored texts.
        **kwargs: arguments of LlamaIndex's ``BaseRetriever``.
    """

    def __init__(
        self,
        index: str | Path | Searcher,
        similarity_top_k: int = QUERY_HITS,
        *,
        mode: str | None = None,
        filter: str | None = None,
        texts: Texts | None = None,
        **kwargs: Any,
    ) -> None:
        self._search = PassageSearch(index, mode, texts)
        self._filter = filter
        self.similarity_top_k = similarity_top_k
        super().__init__(**kwargs)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = self._search.search(query_bundle.query_str, self.similarity_top_k, self._filter)
        nodes = []
        for hit in hits:
            node = TextNode(id_=hit.docid, text=hit.text, metadata=hit.to_dict())
            nodes.append(NodeWithScore(node=node, score=hit.score))
        return nodes
