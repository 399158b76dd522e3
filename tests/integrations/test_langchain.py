"""The LangChain retriever, with LangChain's own standard tests where they are installed."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

pytestmark = pytest.mark.jvm

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("langchain_core", reason="langchain-core is not installed")
    standard = pytest.importorskip(
        "langchain_tests.integration_tests", reason="langchain-tests is not installed"
    )
    from dupmae_ir.integrations.langchain import LangChainRetriever


class TestStandard(standard.RetrieversIntegrationTests):
    """LangChain's tests for retrievers."""

    @pytest.fixture(autouse=True)
    def _opened(self, searcher: Any) -> None:
        self.searcher = searcher

    @property
    def retriever_constructor(self) -> type[LangChainRetriever]:
        return LangChainRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"index": self.searcher}

    @property
    def retriever_query_example(self) -> str:
        return "read and rotate log files, print time, send mail"


def test_documents_have_texts_scores_and_metadata(searcher, index):
    found = LangChainRetriever(index=str(index), k=2).invoke("rotate log files")
    assert [d.id for d in found] == [hit.docid for hit in searcher.search("rotate log files", 2)]
    assert found[0].page_content == "rotate the log files every night and compress them"
    assert found[0].metadata["title"] == "Rotating logs"
    assert found[0].metadata["score"] == searcher.search("rotate log files", 1)[0].score


def test_modes_filters_and_blank_queries(searcher):
    retriever = LangChainRetriever(index=searcher, mode="impact", k=4)
    assert [d.id for d in retriever.invoke("log files")] == [
        h.docid for h in searcher.search("log files", 4, "impact")
    ]
    assert {d.id for d in retriever.invoke("log files", filter="number >= 3")} == {"files"}
    assert retriever.invoke("  ") == []
