"""The exact hybrid on whole collections: the same documents and scores as brute force, and honest certificates.

The encoder is weightless, so this is about search, not about quality. Its two parts disagree (the dense one is drawn
towards other documents), which is what makes lists deep.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.format.quantisation import quantise
from dupmae_ir.io.collections import read_collection
from dupmae_ir.io.topics import read_topics
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.testing import HashingEncoder
from dupmae_ir.types import Representation

pytestmark = [pytest.mark.jvm, pytest.mark.nightly]

SCALE = 60.0


class Disagreeing(HashingEncoder):
    """The dense part of a query is that of its last words, negated in every other dimension, as large as the other."""

    signs = np.where(np.arange(48) % 2, -1, 1).astype(np.float32) / 32

    def encode_queries(self, texts: Sequence[str], cap: int = 1024) -> Representation:
        found = super().encode_queries(texts, cap)
        tails = super().encode_queries([t[len(t) // 2 :] for t in texts])
        assert tails.cls is not None
        return Representation(tails.cls * self.signs, found.ot)


@pytest.mark.parametrize("name", ["scifact", "vaswani", "cranfield", "cacm"])
@pytest.mark.parametrize("kind", [HashingEncoder, Disagreeing])
def test_equals_brute_force_on(
    shared_data: Path, tmp_path: Path, name: str, kind: type[HashingEncoder]
) -> None:
    encoder = kind(dim=48, vocabulary=2048, top_k=64)
    documents = list(read_collection(shared_data / name / "corpus.jsonl"))
    topics = read_topics(shared_data / name / "queries.jsonl")[:100]
    stored = encoder.encode_documents([d.joined() for d in documents])
    with IndexBuilder(tmp_path / "I", dim=48, terms=encoder.terms, scale=SCALE) as builder:
        builder.add([d.docid for d in documents], stored.cls, stored.ot)
        builder.finish({})
    asked = encoder.encode_queries([q.text for q in topics])
    assert asked.cls is not None
    assert stored.cls is not None
    impacts = [quantise(r.ot, SCALE)[0].astype(np.int64) for r in (asked, stored)]
    scores = asked.cls.astype(np.float64) @ stored.cls.astype(np.float64).T
    scores += (impacts[0] @ impacts[1].T).toarray() / SCALE**2
    scores = np.round(scores, 10)  # copies of a document differ in a matrix product's last digits

    docids = np.array([d.docid for d in documents])
    reports = []
    for hits in (10, 100):
        for row, answer in enumerate(Searcher.open(tmp_path / "I", encoder).answers(topics, hits)):
            order = np.lexsort((docids, -scores[row]))[:hits]
            assert [h.docid for h in answer.hits] == docids[order].tolist()
            np.testing.assert_allclose(
                [h.score for h in answer.hits], scores[row][order], rtol=1e-5
            )
            assert answer.report is not None
            assert answer.report.exact
            reports.append(answer.report)
    depths = {r.depth_dense for r in reports if r.hits == 10}
    assert kind is HashingEncoder or len(depths) > 1, "deepening was not exercised"
    print(f"{name} {kind.__name__}: depths {sorted(d or 0 for d in depths)}")
