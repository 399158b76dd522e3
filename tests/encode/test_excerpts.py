"""Vectors of excerpts: which texts have them, exact lists, changes, and what is refused."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.lexical_models import make_lexical

from dupmae_ir import Searcher
from dupmae_ir.encode import EncodeConfig
from dupmae_ir.encode import excerpts as excerpts_module
from dupmae_ir.encode.changes import run_add
from dupmae_ir.encode.excerpts import encode_excerpts, excerpt_measure, excerpts_of
from dupmae_ir.encode.merge import MergeConfig
from dupmae_ir.encode.merging import run as merge
from dupmae_ir.encode.run import run as encode
from dupmae_ir.encode.window_encoding import represent, represent_with_excerpts
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.changes.changes import run_compact, run_delete
from dupmae_ir.index.config import AddConfig, CompactConfig, DeleteConfig, DenseConfig, VerifyConfig
from dupmae_ir.index.format.excerpts import Excerpts
from dupmae_ir.index.index import Index
from dupmae_ir.index.run import run_dense, verify
from dupmae_ir.models import WEIGHTLESS, load_encoder
from dupmae_ir.servers.config import LoadConfig
from dupmae_ir.servers.load import run as load_into_server
from dupmae_ir.types import Document, Query

WORDS = ["boiler", "error", "water", "pipe", "bees", "sun", "clouds", "heap", "queue", "list"]
SHORT = "Bees find the sun."


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("excerpts")
    return str(make_lexical(folder, document_length=64))


@pytest.fixture(autouse=True)
def short_excerpts(monkeypatch):
    """The tiny model reads 64 word pieces, so its excerpts are shorter than those of others."""
    monkeypatch.setattr(excerpts_module, "LENGTH", 20)


def texts(count: int = 40, seed: int = 0) -> dict[str, str]:
    """Documents of zero to nine sentences."""
    rng = random.Random(seed)
    found = {}
    for number in range(count):
        sentences = []
        for _ in range(rng.randrange(10)):
            sentences.append(" ".join(rng.choices(WORDS, k=6)).capitalize() + ".")
        found[f"d{number}"] = " ".join(sentences)
    return found


def make(folder: Path, model: str, documents: dict[str, str], **settings: object) -> str:
    corpus = write(folder.with_suffix(".jsonl"), documents)
    values = {"corpus": corpus, "index": str(folder), "model": model, "quiet": True, **settings}
    encode(EncodeConfig(**{"excerpts": True, **values}))
    return str(folder)


def write(path: Path, documents: dict[str, str]) -> str:
    with path.open("w") as f:
        for docid, text in documents.items():
            group = docid.rstrip("0123456789")
            f.write(json.dumps({"id": docid, "text": text, "group": group}) + "\n")
    return str(path)


def decoded(excerpts: Excerpts) -> list[np.ndarray]:
    """The vectors of each document's excerpts, in float64."""
    vectors = excerpts.codes.astype(np.float64) * excerpts.steps[:, None]
    return np.split(vectors, excerpts.starts[1:-1])


def meaning(index: Index, query: np.ndarray) -> dict[str, float]:
    """The score by meaning of every document, from the definition."""
    scores = {}
    for segment, start, _ in index.slices():
        for row, windows in enumerate(decoded(segment.excerpts)):
            own = float(segment.vectors[row].astype(np.float64) @ query)
            if len(windows):
                own = 0.6 * own + 0.4 * float((windows @ query).max())
            scores[start + row] = own
    return {index.docids[row]: scores[row] for row in np.flatnonzero(index.live).tolist()}


def test_excerpts_are_runs_of_sentences_that_overlap_by_half():
    sentences = [f"Sentence number {i} is about boilers." for i in range(12)]
    document = Document("a", " ".join(sentences), "Boilers")
    measure = excerpt_measure(None)
    found = list(excerpts_of(document, measure))
    assert len(found) > 3
    for excerpt in found:
        assert excerpt.title == "Boilers"
        assert excerpt.text.startswith("Sentence number")
        assert excerpt.text.endswith("boilers.")
        assert len(measure.starts(excerpt.text)) <= 20
    for before, after in pairwise(found):
        assert after.text.partition(".")[0] in before.text
    assert list(excerpts_of(Document("b", SHORT), measure)) == [Document("b", SHORT)]


def test_codes_are_as_near_as_one_byte_is():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((50, 16)).astype(np.float32)
    vectors[7] = 0
    excerpts = Excerpts.of(vectors, [20, 0, 30])
    assert len(excerpts) == 3
    stored = np.concatenate(decoded(excerpts))
    assert np.abs(stored - vectors).max() <= np.abs(vectors).max() / 254 * 1.001
    assert not stored[7].any()
    some = excerpts.of_rows(np.array([2, 1, 0]))
    assert some.starts.tolist() == [0, 30, 30, 50]
    assert np.array_equal(some.codes, np.concatenate([excerpts.codes[20:], excerpts.codes[:20]]))


def test_a_window_has_the_excerpts_of_its_documents(model):
    encoder = load_encoder(model)
    documents = [Document(docid, text) for docid, text in texts(6).items()]
    measure = excerpt_measure(model)
    together, excerpts = represent_with_excerpts(encoder, documents, " ", None, measure)
    assert np.array_equal(together.cls, represent(encoder, documents, " ").cls)
    counts = [len(list(excerpts_of(document, measure))) for document in documents]
    expected = [count if count > 1 else 0 for count in counts]
    assert np.diff(excerpts.starts).tolist() == expected
    assert 0 < sum(count > 0 for count in expected) < len(expected)
    none = encode_excerpts(encoder, [Document("a", SHORT)], measure, " ")
    assert none.codes.shape == (0, 8)


@pytest.mark.parametrize("impact_search", ["lucene", "postings"])
@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_lists_are_those_of_the_definition(tmp_path, model, mode, impact_search):
    path = make(tmp_path / "i", model, texts(), window=16)
    run_add(
        AddConfig(
            index=path, corpus=write(tmp_path / "more.jsonl", {"e1": texts(9)["d8"]}), quiet=True
        )
    )
    run_delete(DeleteConfig(index=path, ids=("d3",), quiet=True))
    searcher = Searcher.open(path, impact_search=impact_search)
    index = searcher.index
    questions = ["boiler error", "Where do bees find the sun?", "heap queue list"]
    for k in (1, 5, 60):
        for question in questions:
            (answer,) = searcher.answers([Query("q", question)], k, mode)
            query = searcher.encoder.encode_queries([question]).cls[0].astype(np.float64)
            scores = meaning(index, query)
            if mode == "hybrid":
                dense_weight, _ = searcher.part_weights
                for docid in scores:
                    explained = searcher.explain(question, docid)
                    assert explained.dense == pytest.approx(scores[docid], rel=1e-9)
                    scores[docid] = dense_weight * scores[docid] + explained.impact
            best = sorted(scores, key=lambda docid: (-scores[docid], docid))[:k]
            assert [hit.docid for hit in answer.hits] == best
            assert [hit.score for hit in answer.hits] == pytest.approx(
                [scores[docid] for docid in best], rel=1e-9
            )
            assert answer.report.exact


def test_lists_of_some_rows_and_of_a_few_equal_documents(tmp_path, model):
    documents = texts(30) | {f"same{i}": texts(9)["d8"] for i in range(3)}
    searcher = Searcher.open(make(tmp_path / "i", model, documents))
    for mode in ("dense", "hybrid"):
        hits = searcher.search("boiler error", 4, mode, filter='group = "same"')
        assert [hit.docid for hit in hits] == ["same0", "same1", "same2"]
        assert len({hit.score for hit in hits}) == 1


def test_short_documents_score_as_without_excerpts(tmp_path, model):
    documents = {"a": SHORT, "b": "The boiler shows an error."}
    with_excerpts = Searcher.open(make(tmp_path / "i", model, documents))
    without = Searcher.open(make(tmp_path / "j", model, documents, excerpts=False))
    assert with_excerpts.search("boiler") == without.search("boiler")


def test_shards_changes_and_copies_keep_the_excerpts(tmp_path, model):
    whole = make(tmp_path / "whole", model, texts(), window=8)
    shards = [make(tmp_path / f"s{n}", model, texts(), window=8, shard=f"{n}/2") for n in range(2)]
    merged = str(tmp_path / "merged")
    merge(MergeConfig(index=merged, shards=tuple(shards), quiet=True))
    assert Index.open(merged).digest == Index.open(whole).digest

    grown = make(tmp_path / "grown", model, dict(list(texts().items())[:24]), window=8)
    rest = write(tmp_path / "rest.jsonl", dict(list(texts().items())[24:]))
    run_add(AddConfig(index=grown, corpus=rest, quiet=True))
    expected = Searcher.open(whole).search("boiler error", 20)
    assert Searcher.open(grown).search("boiler error", 20) == expected

    run_delete(DeleteConfig(index=grown, ids=("d0",), quiet=True))
    run_compact(CompactConfig(index=grown, quiet=True))
    verify(VerifyConfig(index=grown))
    by_meaning = Searcher.open(whole).search("boiler error", 40, "dense")
    kept = [hit for hit in by_meaning if hit.docid != "d0"]
    assert Searcher.open(grown).search("boiler error", 40, "dense") == kept


def test_excerpts_are_part_of_what_an_index_is(tmp_path, model):
    with_excerpts = make(tmp_path / "i", model, texts())
    without = make(tmp_path / "j", model, texts(), excerpts=False)
    assert Index.open(with_excerpts).digest != Index.open(without).digest
    other = make(
        tmp_path / "k",
        model,
        {f"x{docid}": text for docid, text in texts().items()},
        excerpts=False,
    )
    with pytest.raises(IndexMismatch, match="excerpts"):
        Index.open(with_excerpts, other)
    with pytest.raises(IndexMismatch, match=r"other settings.*excerpts"):
        make(tmp_path / "i", model, texts(), excerpts=False)


def test_damaged_excerpts_are_noticed(tmp_path, model):
    path = make(tmp_path / "i", model, texts())
    (codes,) = Path(path).glob("segments/*/excerpts/codes.npy")
    damaged = bytearray(codes.read_bytes())
    damaged[-1] ^= 1
    codes.write_bytes(damaged)
    with pytest.raises(IndexMismatch, match=r"codes\.npy is damaged"):
        Searcher.open(path).search("boiler", mode="dense")
    codes.unlink()
    with pytest.raises(IndexMismatch, match=r"codes\.npy is missing"):
        Searcher.open(path).search("boiler", mode="dense")


def test_what_has_no_excerpts_is_refused(tmp_path, model):
    path = make(tmp_path / "i", model, texts())
    with pytest.raises(UsageError, match="no codes"):
        run_dense(DenseConfig(index=path, quiet=True))
    with pytest.raises(UsageError, match="no codes"):
        Searcher.open(path, dense_index="rotated").search("boiler", mode="dense")
    with pytest.raises(UsageError, match="does not rank by"):
        load_into_server(LoadConfig(index=path, to=f"milvus:{tmp_path}/m.db", quiet=True))
    with pytest.raises(UsageError, match=r"`excerpts`.*`parts`"):
        make(tmp_path / "j", model, texts(), parts="ot")
    with pytest.raises(UsageError, match="no word pieces"):
        make(tmp_path / "k", WEIGHTLESS, texts())
