"""Search of an index that changed equals search of an index of the same documents made at once, bit for bit."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.lexical_models import make_lexical
from support.mutable_index import (
    TOPICS,
    WAYS,
    Living,
    at_once,
    hashing,
    lists,
    real_texts,
    step,
    write_documents,
)
from support.seeds import seeds

from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.errors import IndexMismatch, UnknownName
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.index import Index, for_index
from dupmae_ir.index.lucene.bm25 import build_bm25
from dupmae_ir.index.postings.format import export_postings
from dupmae_ir.models import load_encoder
from dupmae_ir.search.__main__ import main as search
from dupmae_ir.search.fusion import Fusion
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Document, Query

# Lists of ids name documents that these indexes lack: unknown ids are left out everywhere alike.
pytestmark = [pytest.mark.jvm, pytest.mark.filterwarnings("ignore:`within`")]
POOL = real_texts()


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the time of a change of a small index is waiting for the disk; no test here needs that."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def check_sequence(seed: int, where: Path) -> None:
    """Random changes of an index; after each, or every other one, all ways of searching it are compared."""
    rng = random.Random(seed)
    encoder = hashing()
    living = Living(where, rng.sample(POOL, 30))
    done = []
    for number in range(5):
        done.append(step(living, rng, POOL))
        if number % 2 and number < 4:
            continue
        expected = at_once(where / f"at-once-{number}", living.documents.values(), encoder)
        index = Index.open(living.index)
        assert index.documents == len(living.documents), done
        for engine, dense, mode in WAYS:
            for hits in (7, 1000):
                found = lists(index, encoder, engine, dense, mode, hits)
                assert found == lists(expected, encoder, engine, dense, mode, hits), (
                    done,
                    engine,
                    dense,
                    mode,
                    hits,
                )


@pytest.mark.parametrize("seed", seeds())
def test_random_changes(seed: int, tmp_path: Path) -> None:
    check_sequence(seed, tmp_path)


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Living, Path]:
    """An index of three segments with deleted documents, and the index of the same documents made at once."""
    where = tmp_path_factory.mktemp("changed")
    living = Living(where, POOL[:40])
    living.update([d._replace(text=f"{d.text} edited") for d in POOL[:5]])
    living.delete([document.docid for document in POOL[10:16]])
    living.add(POOL[40:52])
    return living, at_once(where / "expected", living.documents.values(), hashing())


def both(changed: tuple[Living, Path], **settings: Any) -> tuple[Searcher, Searcher]:
    found, expected = (
        Searcher.open(i, hashing(), threads=1, **settings) for i in (changed[0].index, changed[1])
    )
    return found, expected


def test_the_report_of_one_pass_counts_all_segments(changed: tuple[Living, Path]) -> None:
    found, expected = both(changed, impact_search="postings")
    for a, b in zip(found.answers(TOPICS, 5), expected.answers(TOPICS, 5), strict=True):
        assert a.report
        assert b.report
        assert (a.report.depth_dense, a.report.depth_impact) == (46, 46)
        assert (a.report.kth, a.report.exact, a.report.hits) == (b.report.kth, True, 5)


def test_a_batch_of_many_queries_is_the_same(changed: tuple[Living, Path]) -> None:
    """From 16 queries on, faiss multiplies matrices; scores do not depend on it."""
    topics = [Query(document.docid, document.text[:80]) for document in POOL[:30]]
    for engine in ("lucene", "postings"):
        for mode in ("dense", "impact", "hybrid"):
            found, expected = both(changed, impact_search=engine)
            assert found.search(topics, 9, mode) == expected.search(topics, 9, mode)
            options = {"remove_query": True}
            assert found.search(topics, 9, mode, **options) == expected.search(
                topics, 9, mode, **options
            )


@pytest.mark.parametrize("engine", ["lucene", "postings"])
def test_a_search_within_some_documents(changed: tuple[Living, Path], engine: str) -> None:
    """Also with ids that were deleted, or updated, or are all in one segment."""
    found, expected = both(changed, impact_search=engine)
    for within in (POOL[::3], POOL[10:16] + POOL[:2], POOL[40:44]):
        ids = [document.docid for document in within]
        for mode in ("dense", "impact", "hybrid"):
            assert found.search(TOPICS, 9, mode, within=ids) == expected.search(
                TOPICS, 9, mode, within=ids
            )
        assert found.selection(ids).unknown == expected.selection(ids).unknown


def test_conditions_on_metadata(changed: tuple[Living, Path]) -> None:
    """Columns of several segments are joined; a value may be in one segment only."""
    found, expected = both(changed)
    for condition in ('module = "argparse"', 'module != "argparse"', 'module = "nothing"'):
        assert found.search(TOPICS, 9, filter=condition) == expected.search(
            TOPICS, 9, filter=condition
        )


def test_fusions_and_explanations(changed: tuple[Living, Path]) -> None:
    found, expected = both(changed)
    for method in ("rrf", "interpolation"):
        fusion = Fusion(method=method)
        assert found.search(TOPICS, 9, fusion=fusion) == expected.search(TOPICS, 9, fusion=fusion)
    ids = [POOL[0].docid, POOL[20].docid, POOL[45].docid]
    assert found.explain_all(TOPICS[0].text, ids) == expected.explain_all(TOPICS[0].text, ids)
    assert found.document(POOL[0].docid) == expected.document(POOL[0].docid)
    with pytest.raises(UnknownName, match="has no document"):
        found.explain(TOPICS[0].text, POOL[12].docid)


def test_bm25_in_the_sum(changed: tuple[Living, Path], tmp_path: Path) -> None:
    """Its index must have the documents that are not deleted."""
    living = changed[0]
    build_bm25(living.documents.values(), tmp_path / "bm25")
    settings = {"bm25_index": str(tmp_path / "bm25"), "bm25_weight": 0.7}
    found, expected = both(changed, **settings)
    assert found.search(TOPICS, 9) == expected.search(TOPICS, 9)
    ids = [document.docid for document in POOL[::3]]
    assert found.search(TOPICS, 9, within=ids) == expected.search(TOPICS, 9, within=ids)
    assert found.explain_all(TOPICS[1].text, ids[:2]) == expected.explain_all(
        TOPICS[1].text, ids[:2]
    )
    build_bm25([*living.documents.values(), POOL[12]], tmp_path / "old")
    with pytest.raises(
        IndexMismatch, match=r"not the same ones.*build it again with 'dupmae-ir index bm25'"
    ):
        both(changed, bm25_index=str(tmp_path / "old"))


def test_documents_ranked_by_their_best_passage(tmp_path: Path) -> None:
    passages = [
        Document(f"{d.docid}#{n}", d.text[n * 60 : n * 60 + 90])
        for d in POOL[:24]
        for n in range(3)
    ]
    living = Living(tmp_path, passages[:40])
    living.update([p._replace(text=f"{p.text} edited") for p in passages[:4]])
    living.add(passages[40:])
    living.delete([passages[7].docid])
    encode(
        EncodeConfig(
            corpus=write_documents(tmp_path / "all.jsonl", living.documents.values()),
            index=str(tmp_path / "W"),
            model="testing:hashing",
            scale=70.0,
            quiet=True,
        )
    )
    topics = tmp_path / "topics.tsv"
    topics.write_text("".join(f"{topic.qid}\t{topic.text}\n" for topic in TOPICS))
    for index in (living.index, tmp_path / "W"):
        flags = [
            "--topics",
            str(topics),
            "--hits",
            "9",
            "--max-passage",
            "--output",
            f"{index}.trec",
            "--quiet",
        ]
        assert search(["--index", str(index), *flags]) == 0
    assert Path(f"{living.index}.trec").read_text() == (tmp_path / "W.trec").read_text()


def test_query_weights_of_a_lexical_model_count_the_live_documents(tmp_path: Path) -> None:
    """The reference has the same stored vectors: those of this model depend on the batch by rounding."""
    model = str(make_lexical(tmp_path))
    living = Living(tmp_path, POOL[:30], model)
    living.update([*POOL[30:40], *(d._replace(text=f"{d.text} cats running") for d in POOL[:8])])
    living.delete([document.docid for document in POOL[12:20]])
    index = Index.open(living.index)
    assert isinstance(index, Index)
    rows = np.flatnonzero(index.live)
    with IndexBuilder(
        tmp_path / "W", dim=index.dim, terms=index.terms, scale=index.scale
    ) as builder:
        for row in rows[::-1].tolist():
            segment, inside = index.locate(row)
            ids, impacts = index.forward.row(row)
            builder._ot.add(index.docids[row], ids, impacts)
            builder._forward.add(np.array([0, len(ids)]), ids, impacts)
            builder._cls.add(index.segments[segment].vectors[inside : inside + 1])
            builder._docids.write(f"{index.docids[row]}\n")
            builder._counts.update(postings=len(ids))
            builder.documents += 1
        builder.finish({"encoder": index.meta["encoder"]})
    export_postings(Index.open(tmp_path / "W").only_segment)
    assert np.array_equal(index.forward.frequencies, Index.open(tmp_path / "W").forward.frequencies)
    encoder = load_encoder(model)
    first = Index(index.path, index.manifest, index.segments[:1], np.ones(30, np.bool_))
    before = for_index(encoder, first).encode_queries(["cats running"]).ot
    assert (before != for_index(encoder, index).encode_queries(["cats running"]).ot).nnz
    for engine in ("lucene", "postings"):
        for mode in ("impact", "hybrid"):
            found = lists(index, encoder, engine, "flat", mode, 9)
            assert found == lists(tmp_path / "W", encoder, engine, "flat", mode, 9)
    living.compact()
    assert lists(living.index, encoder, "lucene", "flat", "hybrid", 9) == lists(
        tmp_path / "W", encoder, "lucene", "flat", "hybrid", 9
    )


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Path]:
    """Three index folders, one of them with changes, and the index of all of their documents."""
    where = tmp_path_factory.mktemp("shards")
    made = []
    for n, part in enumerate((POOL[:20], POOL[20:45], POOL[45:60])):
        (where / str(n)).mkdir()
        made.append(Living(where / str(n), part))
    made[1].update([POOL[22]._replace(text="sort a list of months"), *POOL[60:64]])
    documents = [document for living in made for document in living.documents.values()]
    return [living.index for living in made], at_once(where / "expected", documents, hashing())


def test_several_folders_are_searched_as_one(shards: tuple[list[Path], Path]) -> None:
    folders, expected = shards
    for engine, dense, mode in WAYS:
        for hits in (7, 1000):
            assert lists(folders, hashing(), engine, dense, mode, hits) == lists(
                expected, hashing(), engine, dense, mode, hits
            )
    ids = [document.docid for document in POOL[::3]]
    found, whole = (
        Searcher.open(index, hashing()).search(TOPICS, 9, within=ids)
        for index in (folders, expected)
    )
    assert found == whole


def test_several_folders_on_the_command_line(
    shards: tuple[list[Path], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    query = ["--query", TOPICS[0].text, "--quiet", "--json"]
    assert search(["--index", *map(str, shards[0]), *query, "--model", "testing:hashing"]) == 0
    found = json.loads(capsys.readouterr().out)
    (expected,) = Searcher.open(shards[1], hashing()).search([TOPICS[0]], 10).values()
    assert [(hit["docid"], hit["score"]) for hit in found["hits"]] == expected
    assert found["documents"] == 64


def test_folders_that_do_not_belong_together_are_refused(
    shards: tuple[list[Path], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(IndexMismatch, match=r"document id .* is in two of"):
        Index.open(*[shards[0][0], shards[0][1], shards[0][0]])
    other = tmp_path / "other"
    corpus = write_documents(tmp_path / "c.jsonl", POOL[70:75])
    encode(
        EncodeConfig(
            corpus=corpus, index=str(other), model="testing:hashing", scale=33.0, quiet=True
        )
    )
    with pytest.raises(IndexMismatch, match=r"cannot be searched as one: scale 70\.0 and 33\.0"):
        Index.open(*[shards[0][0], other])
    build_bm25(POOL[:3], tmp_path / "bm25")
    assert search(["--index", str(shards[0][0]), str(tmp_path / "bm25"), "--query", "x"]) == 2
    assert "cannot be searched together" in capsys.readouterr().err
