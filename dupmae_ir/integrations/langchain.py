"""A LangChain retriever.

    from dupmae_ir.integrations.langchain import LangChainRetriever

    retriever = LangChainRetriever(index="my-index", k=5)
    documents = retriever.invoke("how do I rotate the logs?")

A document's ``page_content`` is the text, its ``metadata`` has docid, score, title and what the index stores.
"""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, PrivateAttr

from dupmae_ir.integrations import missing
from dupmae_ir.integrations.passages import PassageSearch
from dupmae_ir.search.config import QUERY_HITS

try:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
except ModuleNotFoundError as e:
    raise missing(e, "langchain-core") from None


class LangChainRetriever(BaseRetriever):
    """Retrieves documents of an index folder by dense, impact or hybrid search.

    Attributes:
        index: index folder, or an open :class:`~dupmae_ir.search.searcher.Searcher`.
        k: number of documents; ``invoke(query, k=...)`` overrides it.
        mode: dense, impact or hybrid; None is everything that the index has.
        filter: condition on the metadata, as ``dupmae-ir search --filter``; ``invoke(query, filter=...)`` overrides it.
        texts: document id -> :class:`~dupmae_ir.types.Document`, for an index without stored texts.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    index: Any
    k: int = QUERY_HITS
    mode: str | None = None
    filter: str | None = None
    texts: Any = None
    _search: PassageSearch = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Open the index."""
        super().model_post_init(context)
        self._search = PassageSearch(self.index, self.mode, self.texts)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002 (part of LangChain's interface)
        k: int | None = None,
        filter: str | None = None,
    ) -> list[Document]:
        if k is None:
            k = self.k
        if filter is None:
            filter = self.filter
        documents = []
        for hit in self._search.search(query, k, filter):
            document = Document(id=hit.docid, page_content=hit.text, metadata=hit.to_dict())
            documents.append(document)
        return documents
