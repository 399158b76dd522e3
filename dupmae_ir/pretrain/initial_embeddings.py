"""Word embeddings and output bias of a new model, computed from the corpus in closed form.

A new masked LM spends most of its first updates on what counting tells: how frequent words are, and which words occur
together. The word embeddings become a truncated singular value decomposition of the positive pointwise mutual
information of words and their neighbours (Levy and Goldberg, "Neural word embedding as implicit matrix factorization",
2014), and the output bias the logarithm of the words' frequencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
"""Tokens that are counted; those of the first texts of each corpus, in proportion to its size."""
_CHUNK = 1 << 20


@torch.no_grad()
def initialise_embeddings(lm: PreTrainedModel, corpora: Sequence[Corpus], seed: int) -> None:
    """Set the word embeddings and the output bias of ``lm`` from the counts of the corpora.

    The vectors are scaled to the root mean square of the model's random ones. Pieces that do not occur, among them the
    special tokens, keep their random vectors and have the frequency of a piece that occurs once. The bias has mean 0.
    """
    head, table = head_of(lm), lm.get_input_embeddings().weight
    size, width = table.shape
    sample = [_sample(c, MAX_TOKENS, sum(len(c.texts.ids) for c in corpora)) for c in corpora]
    frequency = sum(np.bincount(ids, minlength=size) for ids, _ in sample)
    pairs = _count_pairs(sample, size)
    scores = positive_pmi(pairs)
    vectors = svd_vectors(scores, width, seed)
    known = np.diff(scores.indptr) > 0  # other rows are rounding errors
    vectors *= shape_of(lm.config).initial_std / np.sqrt(np.mean(vectors[known] ** 2))
    table[torch.from_numpy(known)] = torch.from_numpy(vectors[known]).to(table.dtype)
    if head.bias is not None:
        logs = np.log(np.maximum(frequency, 1))
        # A softmax ignores the offset, but the ReLU of the OT part cuts log-probabilities to zero.
        head.bias.copy_(torch.from_numpy(logs - logs.mean()))


def positive_pmi(pairs: csr_matrix) -> csr_matrix:
    """(V, V) counts of neighbours -> max(0, log(p(word, neighbour) / (p(word) p(neighbour)))) with smoothing."""
    total = pairs.sum()
    words = np.asarray(pairs.sum(1)).ravel() / total
    neighbours = np.asarray(pairs.sum(0)).ravel() ** SMOOTHING
    neighbours /= neighbours.sum()
    scores = pairs.tocoo()
    with np.errstate(divide="ignore"):
        values = (
            np.log(scores.data / total) - np.log(words[scores.row]) - np.log(neighbours[scores.col])
        )
    kept = values > 0
    return csr_matrix(
        (values[kept].astype(np.float32), (scores.row[kept], scores.col[kept])), shape=pairs.shape
    )


def svd_vectors(scores: csr_matrix, width: int, seed: int) -> np.ndarray:
    """(V, width) float32: left singular vectors times the square roots of their singular values.

    A matrix of a lower rank than ``width`` leaves the last columns zero.
    """
    rank = min(width, min(scores.shape) - 1)
    start = np.random.default_rng(seed).standard_normal(min(scores.shape)).astype(np.float32)
    left, values, _ = svds(scores, k=rank, v0=start)
    order = np.argsort(-values)
    vectors = np.zeros((scores.shape[0], width), np.float32)
    vectors[:, :rank] = left[:, order] * np.sqrt(np.maximum(values[order], 0))
    return vectors


def _sample(corpus: Corpus, most: int, total: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids, number of the text of each) of the first texts of a corpus, its share of ``most`` tokens."""
    offsets = corpus.texts.offsets
    texts = int(np.searchsorted(offsets, offsets[-1] * min(1.0, most / max(1, total))))
    ids = np.asarray(corpus.texts.ids[: offsets[texts]], np.int64)
    return ids, np.repeat(np.arange(texts), np.diff(offsets[: texts + 1]))


def _count_pairs(sample: Sequence[tuple[np.ndarray, np.ndarray]], size: int) -> csr_matrix:
    """(V, V) float64: how often two pieces stand at most :data:`WINDOW` pieces apart in a text; symmetric."""
    pairs = csr_matrix((size, size))
    for ids, text in sample:
        for start in range(0, len(ids), _CHUNK):
            part = slice(start, start + _CHUNK + WINDOW)
            chunk, number = ids[part], text[part]
            for apart in range(1, WINDOW + 1):
                together = number[:-apart] == number[apart:]
                together[_CHUNK:] = False  # counted with the next chunk
                where = chunk[:-apart][together], chunk[apart:][together]
                pairs = pairs + csr_matrix((np.ones(len(where[0])), where), shape=(size, size))
    return pairs + pairs.T
