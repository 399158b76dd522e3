"""A lexical model from encode to search: brute force, engines, shards, resumption, explanations, Pyserini's files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.lexical_models import make_lexical
from support.tiny_models import WORDS

from dupmae_ir.encode.__main__ import main as encode
from dupmae_ir.encode.merge import main as merge
from dupmae_ir.encode.pyserini_encoders import DupmaeDocumentEncoder, DupmaeQueryEncoder
from dupmae_ir.index.__main__ import main as index_main
from dupmae_ir.index.format.quantisation import quantise
from dupmae_ir.index.index import Index
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import CollectionStatistics, Document, Query

pytestmark = pytest.mark.jvm
RNG = random.Random(2)
DOCUMENTS = [
    Document(
        f"d{i}",
        " ".join(RNG.choices([*WORDS, "running", "sorted", "Cats"], k=i % 12)),
        "a quick list" * (i % 4 == 0),
    )
    for i in range(230)
]
TOPICS = [
    Query(f"q{i}", " ".join(RNG.choices([*WORDS, "runner", "cats"], k=1 + i % 6)))
    for i in range(25)
]
TOPICS += [Query("unknown", "zyzzyva")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(folder with corpus.jsonl and the index I, model folder)."""
    where = tmp_path_factory.mktemp("lexical")
    model = make_lexical(where)
    lines = [
        json.dumps({"_id": d.docid, "title": d.title, "text": d.text}) + "\n" for d in DOCUMENTS
    ]
    (where / "corpus.jsonl").write_text("".join(lines))
    run(where, model, "I")
    assert index_main(["postings", "--index", str(where / "I"), "--quiet"]) == 0
    return where, model


def run(where: Path, model: Path, index: str, *more: str) -> None:
    flags = [
        "--corpus",
        str(where / "corpus.jsonl"),
        "--index",
        str(where / index),
        "--model",
        str(model),
    ]
    assert encode([*flags, "--window", "30", "--quiet", *more]) == 0


def oracle(index: Index, model: Path) -> dict[str, np.ndarray]:
    """Brute force over what the index should hold."""
    encoder = TextEncoder.load(model)
    stored = encoder.encode_collection(DOCUMENTS)
    d = quantise(stored.ot, 255)[0].astype(np.int64).toarray()
    statistics = CollectionStatistics(len(DOCUMENTS), (d > 0).sum(0))
    asked = encoder.for_collection(statistics).encode_queries([q.text for q in TOPICS])
    q = quantise(asked.ot, 255, 8191)[0].astype(np.int64).toarray()
    dense = asked.cls.astype(np.float64) @ stored.cls.astype(np.float64).T
    return {"dense": dense, "impact": (q @ d.T) / 255**2, "hybrid": dense + (q @ d.T) / 255**2}


@pytest.mark.parametrize("engine", ["lucene", "postings"])
@pytest.mark.parametrize("mode", ["impact", "hybrid"])
def test_equals_brute_force(made: tuple[Path, Path], engine: str, mode: str) -> None:
    searcher = Searcher.open(made[0] / "I", impact_search=engine)
    scores = oracle(searcher.index, made[1])[mode]
    for row, answer in enumerate(searcher.answers(TOPICS, 7, mode)):
        found = scores[row] if mode == "hybrid" else np.where(scores[row] > 0, scores[row], -np.inf)
        want = sorted(
            (-round(s, 5), d.docid) for s, d in zip(found, DOCUMENTS, strict=True) if s > -np.inf
        )[:7]
        np.testing.assert_allclose([h.score for h in answer.hits], [-s for s, _ in want], atol=1e-4)
        if mode == "impact":  # integers: exact, also the order of ties
            exact = sorted(
                (-s, d.docid) for s, d in zip(found, DOCUMENTS, strict=True) if s > -np.inf
            )[:7]
            assert [(h.docid, h.score) for h in answer.hits] == [(d, -s) for s, d in exact]
        assert answer.report is not None
        assert answer.report.exact


def test_shards_merged_are_the_unsharded_index(made: tuple[Path, Path], capsys: Any) -> None:
    where, model = made
    for i in (0, 1, 2):
        run(where, model, f"S.{i}", "--shard", f"{i}/3")
    assert merge([*map(str, sorted(where.glob("S.*"))), "--index", str(where / "S")]) == 0
    whole, merged = (Index.open(where / name) for name in ("I", "S"))
    assert merged.meta["digest"] == whole.meta["digest"]
    assert merged.forward.frequencies.tolist() == whole.forward.frequencies.tolist()
    assert whole.meta["encoder"]["ot"] == "lexical"
    assert whole.scale == 255


def test_an_interrupted_run_resumes_to_the_same_index(
    made: tuple[Path, Path], monkeypatch: Any, capsys: Any
) -> None:
    where, model = made
    plain = TextEncoder.encode_collection
    left = [3]

    def dying(self: TextEncoder, *given: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return plain(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(TextEncoder, "encode_collection", dying)
        flags = [
            "--corpus",
            str(where / "corpus.jsonl"),
            "--index",
            str(where / "R"),
            "--model",
            str(model),
        ]
        assert encode([*flags, "--window", "30", "--quiet"]) == 130
    run(where, model, "R")
    assert Index.open(where / "R").meta["digest"] == Index.open(where / "I").meta["digest"]


def test_explanations_name_words(made: tuple[Path, Path]) -> None:
    searcher = Searcher.open(made[0] / "I")
    hit = searcher.search("runner lists", 1, "hybrid")[0]
    found = searcher.explain("runner lists", hit.docid)
    assert found.score == pytest.approx(hit.score)
    assert sum(term.share for term in found.terms) == pytest.approx(found.impact)
    assert "lists" in {term.term for term in found.terms}
    assert not [term.term for term in found.terms if term.term.startswith("=")]


def test_pyserini_encoders_give_the_same_impacts(made: tuple[Path, Path]) -> None:
    searcher = Searcher.open(made[0] / "I")
    queries = DupmaeQueryEncoder.for_index(made[0] / "I")
    encoded = searcher.encoder.encode_queries([TOPICS[5].text]).ot
    want = quantise(encoded, 255, 8191)[0]
    terms = searcher.index.terms
    assert queries.impact.encode(TOPICS[5].text) == {
        terms[i]: int(w) for i, w in zip(want.indices, want.data, strict=True)
    }
    documents = DupmaeDocumentEncoder(made[1])
    row = searcher.index.forward.row(4)
    given = documents.impact.encode([DOCUMENTS[4].text], [DOCUMENTS[4].title])
    assert given == [{terms[i]: int(w) for i, w in zip(*row, strict=True)}]
