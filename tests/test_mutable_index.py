"""Every way of asking an index that changed gives the lists of an index that is made of the same documents at once."""

from __future__ import annotations

import asyncio
import json
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.mutable_index import TOPICS, Living, real_texts
from support.serving import serving

from dupmae_ir.integrations.passages import PassageSearch
from dupmae_ir.search.__main__ import main as search
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.servers.config import LoadConfig
from dupmae_ir.servers.load import run as load

pytestmark = pytest.mark.jvm
HITS = 8
MODES = ("dense", "impact", "hybrid")
Lists = dict[str, list[tuple[str, float]]]
"""Topic id -> ids and scores, best first."""
Ask = Callable[[Path, str], Lists]
"""The lists of all topics from an index folder, by a mode."""


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The index after add, update, delete and sync, and the one made at once. The best documents of each topic are
    updated or deleted, so that an old one would be seen."""
    where = tmp_path_factory.mktemp("mutable")
    pool = real_texts()
    with pytest.MonkeyPatch.context() as patch:
        # Most of the time of a change of a small index is waiting for the disk; no test here needs that.
        patch.setattr(os, "fsync", lambda fd: None)
        living = Living(where, pool[:40])
        living.add(pool[40:60])
        best = list(
            dict.fromkeys(
                docid for hits in by_topics(living.index, "hybrid").values() for docid, _ in hits
            )
        )
        living.update(
            [
                living.documents[d]._replace(text=f"{living.documents[d].text} edited")
                for d in best[:8]
            ]
        )
        living.delete(best[8:14])
        again = {
            docid: living.documents[docid]._replace(text="sort the dates of a list")
            for docid in best[4:8]
        }
        kept = [
            again.get(docid, document)
            for docid, document in living.documents.items()
            if docid not in best[14:18]
        ]
        living.sync([*kept, *pool[60:66]])
        (where / "rebuilt").mkdir()
        yield living.index, Living(where / "rebuilt", list(living.documents.values())).index


def pairs(hits: Any) -> list[tuple[str, float]]:
    return [(hit.docid, hit.score) for hit in hits]


def by_strings(index: Path, mode: str) -> Lists:
    searcher = Searcher.open(index)
    return {topic.qid: pairs(searcher.search(topic.text, HITS, mode)) for topic in TOPICS}


def by_threads(index: Path, mode: str) -> Lists:
    searcher = Searcher.open(index)
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda topic: pairs(searcher.search(topic.text, HITS, mode)), TOPICS * 4)
        )
    assert found == found[: len(TOPICS)] * 4
    return {topic.qid: hits for topic, hits in zip(TOPICS, found, strict=False)}


def by_topics(index: Path, mode: str) -> Lists:
    return {
        qid: pairs(hits) for qid, hits in Searcher.open(index).search(TOPICS, HITS, mode).items()
    }


def by_answers(index: Path, mode: str) -> Lists:
    return {
        answer.query.qid: pairs(answer.hits)
        for answer in Searcher.open(index).answers(TOPICS, HITS, mode)
    }


def by_batch_search(index: Path, mode: str) -> Lists:
    found = Searcher.open(index).batch_search(
        [t.text for t in TOPICS], [t.qid for t in TOPICS], HITS, mode=mode
    )
    return {qid: pairs(hits) for qid, hits in found.items()}


def by_passages(index: Path, mode: str) -> Lists:
    """What the frameworks for generation ask; it also reads the stored text of every hit."""
    search = PassageSearch(index, mode)
    return {topic.qid: pairs(search.search(topic.text, HITS)) for topic in TOPICS}


def by_http(index: Path, mode: str) -> Lists:
    pytest.importorskip("fastapi", reason="needs the extra: pip install 'dupmae-ir[serve]'")
    lists: Lists = {}
    with serving(index) as client:
        for topic in TOPICS:
            reply = client.post("/api/search", {"query": topic.text, "mode": mode, "hits": HITS})
            lists[topic.qid] = [
                (hit["docid"], hit["score"]) for hit in reply.json["results"][0]["hits"]
            ]
    return lists


def by_assistants(index: Path, mode: str) -> Lists:
    mcp = pytest.importorskip("mcp", reason="needs the extra: pip install 'dupmae-ir[mcp]'")
    from dupmae_ir.serve.mcp import make_tools

    async def ask(service: Any) -> Lists:
        lists: Lists = {}
        async with mcp.Client(make_tools(service)) as client:
            for topic in TOPICS:
                reply = await client.call_tool(
                    "search", {"query": topic.text, "mode": mode, "hits": HITS}
                )
                lists[topic.qid] = [
                    (hit["docid"], hit["score"]) for hit in reply.structured_content["hits"]
                ]
        return lists

    with serving(index) as client:
        return asyncio.run(ask(client.service))


def by_a_server(index: Path, mode: str) -> Lists:
    pytest.importorskip("qdrant_client", reason="pip install 'dupmae-ir[qdrant]'")
    url = f"qdrant://{index.with_name(index.name + '.qdrant')}"
    load(LoadConfig(index=str(index), to=url, table="mine", quiet=True))
    searcher = Searcher.open(index, server=url, table="mine")
    topics = {qid: pairs(hits) for qid, hits in searcher.search(TOPICS, HITS, mode).items()}
    assert {topic.qid: pairs(searcher.search(topic.text, HITS, mode)) for topic in TOPICS} == topics
    return topics


def by_langchain(index: Path, mode: str) -> Lists:
    retriever = framework("langchain").LangChainRetriever(index=index, k=HITS, mode=mode)
    return {t.qid: [(d.id, d.metadata["score"]) for d in retriever.invoke(t.text)] for t in TOPICS}


def by_llama_index(index: Path, mode: str) -> Lists:
    retriever = framework("llama_index").LlamaIndexRetriever(index, HITS, mode=mode)
    return {t.qid: [(n.node.node_id, n.score) for n in retriever.retrieve(t.text)] for t in TOPICS}


def by_haystack(index: Path, mode: str) -> Lists:
    retriever = framework("haystack").HaystackRetriever(index, top_k=HITS, mode=mode)
    return {t.qid: [(d.id, d.score) for d in retriever.run(t.text)["documents"]] for t in TOPICS}


def by_pyterrier(index: Path, mode: str) -> Lists:
    retriever = framework("pyterrier").PyTerrierRetriever(index, mode=mode, num_results=HITS)
    import pandas as pd

    lists: Lists = {topic.qid: [] for topic in TOPICS}
    for row in retriever(pd.DataFrame(TOPICS, columns=["qid", "query"])).itertuples():
        lists[row.qid].append((row.docno, row.score))
    return lists


def framework(name: str) -> Any:
    """A module of the integrations; the test is skipped where its framework is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(
            f"dupmae_ir.integrations.{name}",
            reason=f"{name} is not installed",
            exc_type=ImportError,
        )


WAYS: list[Ask] = [
    by_answers,
    by_strings,
    by_threads,
    by_topics,
    by_batch_search,
    by_passages,
    by_http,
    by_assistants,
    by_a_server,
    by_langchain,
    by_llama_index,
    by_haystack,
    by_pyterrier,
]


@pytest.fixture(scope="module")
def expected(indexes: tuple[Path, Path]) -> dict[str, Lists]:
    """The lists of the rebuilt index, by mode."""
    return {mode: by_answers(indexes[1], mode) for mode in MODES}


@pytest.mark.parametrize("ask", WAYS, ids=lambda ask: ask.__name__)
@pytest.mark.parametrize("mode", MODES)
def test_a_changed_index_is_the_rebuilt_one(
    indexes: tuple[Path, Path], expected: dict[str, Lists], ask: Ask, mode: str
) -> None:
    assert ask(indexes[0], mode) == expected[mode]


@pytest.mark.parametrize("mode", MODES)
def test_run_files_are_equal(indexes: tuple[Path, Path], mode: str) -> None:
    topics = indexes[0].parent / "topics.tsv"
    topics.write_text("".join(f"{topic.qid}\t{topic.text}\n" for topic in TOPICS))
    runs = []
    for index in indexes:
        run = index.parent / f"{mode}.trec"
        where = ["--index", str(index), "--topics", str(topics), "--output", str(run), "--quiet"]
        assert search([*where, f"--{mode}", "--hits", str(HITS)]) == 0
        runs.append(run.read_text())
    assert runs[0] == runs[1] != ""


@pytest.mark.parametrize("mode", MODES)
def test_the_command_line_prints_the_hits_of_one_query(
    indexes: tuple[Path, Path],
    expected: dict[str, Lists],
    mode: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for topic in TOPICS[:2]:
        query = ["--query", topic.text, f"--{mode}", "--hits", str(HITS), "--json"]
        assert search(["--index", str(indexes[0]), *query]) == 0
        hits = json.loads(capsys.readouterr().out)["hits"]
        assert [(hit["docid"], hit["score"]) for hit in hits] == expected[mode][topic.qid]
