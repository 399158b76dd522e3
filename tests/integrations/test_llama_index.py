"""The LlamaIndex retriever."""

from __future__ import annotations

import pytest

from dupmae_ir.errors import UsageError
from dupmae_ir.types import Document

pytestmark = pytest.mark.jvm


def test_nodes_are_the_hits_with_their_texts(framework, searcher):
    retriever = framework("llama_index").LlamaIndexRetriever(searcher, similarity_top_k=3)
    nodes = retriever.retrieve("rotate log files")
    hits = searcher.search("rotate log files", 3)
    assert [(n.node.node_id, n.score) for n in nodes] == [(h.docid, h.score) for h in hits]
    assert nodes[0].node.get_content() == "rotate the log files every night and compress them"
    assert nodes[0].metadata["title"] == "Rotating logs"


def test_texts_may_come_from_elsewhere(framework, index_without_texts):
    module = framework("llama_index")
    own = {
        docid: Document(docid, f"text of {docid}") for docid in ("logs", "mail", "time", "files")
    }
    nodes = module.LlamaIndexRetriever(index_without_texts, 1, texts=own).retrieve(
        "rotate log files"
    )
    assert nodes[0].node.get_content() == "text of logs"
    with pytest.raises(UsageError, match="stores no texts"):
        module.LlamaIndexRetriever(index_without_texts)
