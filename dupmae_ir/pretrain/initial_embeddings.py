"""Word embeddings and output bias of a new model, computed from the corpus in closed form.

A new masked LM spends most of its first updates learning what can be counted: how frequent words are, and which words
occur together. The word embeddings become a truncated singular value decomposition of the positive pointwise mutual
information of words and their neighbours (Levy and Goldberg, "Neural word embedding as implicit matrix factorization",
2014), and the output bias the logarithm of the words' frequencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import svds

from dupmae_ir.models.heads.masked_lm import head_of, shape_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from dupmae_ir.pretrain.tokens import Corpus

WINDOW = 5
"""Neighbours of a word on each side."""
SMOOTHING = 0.75
"""Exponent of the neighbours' frequencies, as in word2vec: it lowers the scores of rare neighbours."""
MAX_TOKENS = 10_000_000
"""Tokens that are counted, from the first texts of each corpus, in proportion to its size."""
_CHUNK = 1 << 20
"""Tokens whose pairs are counted together, which limits memory."""


@torch.no_grad()
def initialise_embeddings(lm: PreTrainedModel, corpora: Sequence[Corpus], seed: int) -> None:
    """Set the word embeddings and the output bias of ``lm`` from the counts of the corpora.

    The vectors are scaled to the root mean square of the model's random ones. Pieces that do not occur, among them the
    special tokens, keep their random vectors and have the frequency of a piece that occurs once. The bias has mean 0.
    """
    head = head_of(lm)
    embeddings = lm.get_input_embeddings().weight
    size, width = embeddings.shape
    total = sum(len(corpus.texts.ids) for corpus in corpora)
    samples = [_sample(corpus, MAX_TOKENS, total) for corpus in corpora]

    scores = positive_pmi(_count_pairs(samples, size))
    vectors = svd_vectors(scores, width, seed)
    # A piece without a neighbour has a row of zeros, and its vector is rounding errors.
    has_scores = np.diff(scores.indptr) > 0
    vectors *= shape_of(lm.config).initial_std / np.sqrt(np.mean(vectors[has_scores] ** 2))
    rows = torch.from_numpy(has_scores)
    embeddings[rows] = torch.from_numpy(vectors[has_scores]).to(embeddings.dtype)

    if head.bias is not None:
        frequency = sum(np.bincount(sample.ids, minlength=size) for sample in samples)
        logs = np.log(np.maximum(frequency, 1))
        # A softmax ignores the offset, but the ReLU of the OT part cuts log-probabilities to zero.
        head.bias.copy_(torch.from_numpy(logs - logs.mean()))


def positive_pmi(pairs: csr_matrix) -> csr_matrix:
    """(V, V) counts of neighbours -> max(0, log(p(word, neighbour) / (p(word) p(neighbour)))) with smoothing."""
    total = pairs.sum()
    p_word = np.asarray(pairs.sum(1)).ravel() / total
    p_neighbour = np.asarray(pairs.sum(0)).ravel() ** SMOOTHING
    p_neighbour /= p_neighbour.sum()

    counts = pairs.tocoo()
    with np.errstate(divide="ignore"):
        log_joint = np.log(counts.data / total)
        pmi = log_joint - np.log(p_word[counts.row]) - np.log(p_neighbour[counts.col])
    positive = pmi > 0
    entries = counts.row[positive], counts.col[positive]
    return csr_matrix((pmi[positive].astype(np.float32), entries), shape=pairs.shape)


def svd_vectors(scores: csr_matrix, width: int, seed: int) -> np.ndarray:
    """(V, width) float32: left singular vectors times the square roots of their singular values.

    A matrix of a lower rank than ``width`` leaves the last columns zero.
    """
    dimension = min(scores.shape)
    rank = min(width, dimension - 1)  # ARPACK computes fewer values than the dimension
    start = np.random.default_rng(seed).standard_normal(dimension).astype(np.float32)
    left, values, _ = svds(scores, k=rank, v0=start)
    # svds does not promise an order.
    order = np.argsort(-values)
    vectors = np.zeros((scores.shape[0], width), np.float32)
    vectors[:, :rank] = left[:, order] * np.sqrt(np.maximum(values[order], 0))
    return vectors


class _Sample(NamedTuple):
    """The first texts of a corpus, joined."""

    ids: np.ndarray  #: (n,) int64
    texts: np.ndarray  #: (n,) int64: number of the text that each id belongs to


def _sample(corpus: Corpus, max_tokens: int, total: int) -> _Sample:
    """The sample of a corpus: its share of ``max_tokens``, where the corpora have ``total`` tokens together."""
    offsets = corpus.texts.offsets
    share = min(1.0, max_tokens / max(1, total))
    count = int(np.searchsorted(offsets, offsets[-1] * share))
    ids = np.asarray(corpus.texts.ids[: offsets[count]], np.int64)
    return _Sample(ids, np.repeat(np.arange(count), np.diff(offsets[: count + 1])))


def _count_pairs(samples: Sequence[_Sample], size: int) -> csr_matrix:
    """(V, V) float64: how often two pieces are at most :data:`WINDOW` pieces apart in a text; symmetric."""
    pairs = csr_matrix((size, size))
    for sample in samples:
        for start in range(0, len(sample.ids), _CHUNK):
            # The chunk, and the neighbours of its last pieces.
            part = slice(start, start + _CHUNK + WINDOW)
            ids = sample.ids[part]
            texts = sample.texts[part]
            for distance in range(1, WINDOW + 1):
                same_text = texts[:-distance] == texts[distance:]
                same_text[_CHUNK:] = False  # counted with the next chunk
                words = ids[:-distance][same_text]
                neighbours = ids[distance:][same_text]
                ones = np.ones(len(words))
                pairs = pairs + csr_matrix((ones, (words, neighbours)), shape=(size, size))
    # Each pair was counted once, from its first piece to its second.
    return pairs + pairs.T
