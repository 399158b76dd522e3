"""Word embeddings and output bias in closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from support.tiny_models import tiny_config
from transformers import BertForMaskedLM

from dupmae_ir.pretrain import initial_embeddings as init
from dupmae_ir.pretrain.tokens import Corpus, Ragged


def corpus_of(texts):
    ids = np.array([i for text in texts for i in text], np.uint16)
    ragged = Ragged(ids, np.cumsum([0, *map(len, texts)]))
    return Corpus(
        "texts", ragged, np.arange(len(texts)), ragged, np.zeros(1), ragged, np.zeros(1), None
    )


def test_pairs_are_counted_inside_the_window_and_not_across_texts(monkeypatch):
    texts = [[5, 6, 7], [8, 5], [6, 9, 10, 11, 12, 13, 7]]
    expected = np.zeros((14, 14))
    for text in texts:
        for i, a in enumerate(text):
            for j, b in enumerate(text):
                expected[a, b] += 0 < abs(i - j) <= init.WINDOW
    for chunk in (1 << 20, 3):
        monkeypatch.setattr(init, "_CHUNK", chunk)
        pairs = init._count_pairs([init._sample(corpus_of(texts), 100, 12)], 14)
        np.testing.assert_array_equal(pairs.toarray(), expected)


def test_positive_pmi_is_the_formula():
    counts = np.array([[0.0, 4, 1], [4, 0, 0], [1, 0, 2]])
    share = counts / counts.sum()
    smooth = counts.sum(0) ** init.SMOOTHING
    with np.errstate(divide="ignore"):
        expected = np.log(share / (share.sum(1, keepdims=True) * (smooth / smooth.sum())))
    np.testing.assert_allclose(
        init.positive_pmi(csr_matrix(counts)).toarray(),
        np.maximum(expected, 0),
        rtol=1e-5,
        atol=1e-6,
    )


def test_the_vectors_reproduce_a_matrix_of_low_rank():
    rng = np.random.default_rng(0)
    factor = rng.standard_normal((30, 4))
    matrix = factor @ factor.T
    vectors = init.svd_vectors(csr_matrix(matrix), 8, seed=0)
    np.testing.assert_allclose(vectors @ vectors.T, matrix, atol=1e-3)


def test_the_model_gets_vectors_of_the_usual_size_and_log_frequencies():
    config = tiny_config()
    lm = BertForMaskedLM(config)
    before = lm.get_input_embeddings().weight.detach().clone()
    rng = np.random.default_rng(0)
    texts = [rng.integers(10, 28, 12).tolist() for _ in range(40)]
    init.initialise_embeddings(lm, [corpus_of(texts)], seed=0)
    after = lm.get_input_embeddings().weight.detach()
    occurs = torch.zeros(config.vocab_size, dtype=torch.bool)
    occurs[10:28] = True
    assert torch.equal(after[~occurs], before[~occurs])
    assert float(after[occurs].square().mean().sqrt()) == pytest.approx(
        config.initializer_range, rel=1e-4
    )
    counts = np.bincount(np.concatenate(texts), minlength=config.vocab_size)
    bias = lm.cls.predictions.bias.detach().numpy()
    logs = np.log(np.maximum(counts, 1))
    np.testing.assert_allclose(bias, logs - logs.mean(), rtol=1e-4, atol=1e-6)
    assert lm.cls.predictions.decoder.weight is lm.get_input_embeddings().weight
