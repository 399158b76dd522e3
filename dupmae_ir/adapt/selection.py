"""Which model is better on held-out pseudo-queries: nDCG@10 by part, and a paired test of the sum."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from dupmae_ir.adapt.queries import PseudoQuery, pseudo_queries
from dupmae_ir.eval.significance import t_test
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.types import CollectionStatistics, Document

PARTS = ("dense", "impact", "hybrid")
CUTOFF = 10

Scores = dict[str, list[float]]
"""Part -> nDCG@10 of each held-out pseudo-query."""


class Split(NamedTuple):
    """Documents to train on, held-out pseudo-queries, and the other documents of the pool they are searched in."""

    training: list[Document]
    held_out: list[PseudoQuery]
    others: list[Document]


def split(documents: Sequence[Document], held_out: int, pool: int, kinds: Sequence[str], seed: int) -> Split:
    """A random split. At most a fifth of the documents that have a pseudo-query is held out, one query of each.

    The other documents of the pool are also trained on.
    """
    order = list(range(len(documents)))
    random.Random(f"{seed} held out").shuffle(order)
    chosen: dict[int, PseudoQuery] = {}
    most = min(held_out, len(documents) // 5)
    for row in order:
        if len(chosen) == most:
            break
        if found := pseudo_queries(documents[row], kinds):
            first = [q for q in found if q.kind == found[0].kind]
            chosen[row] = random.Random(f"{seed} {row}").choice(first)
    rest = [documents[row] for row in order if row not in chosen]
    return Split(rest, list(chosen.values()), rest[:pool])


def scores(folder: Path, held: Split, dtype: str, device: str) -> Scores:
    """nDCG@10 of a model on the held-out pseudo-queries; the pool has each one's passage without it."""
    encoder = TextEncoder.load(folder, dtype=dtype, device=device)
    pool = [q.passage for q in held.held_out] + held.others
    documents = encoder.encode_collection(pool)
    assert documents.cls is not None
    assert documents.ot is not None
    frequencies = np.bincount(documents.ot.indices, minlength=documents.ot.shape[1])
    encoder = encoder.for_collection(CollectionStatistics(len(pool), frequencies))
    queries = encoder.encode_queries([q.query for q in held.held_out])
    assert queries.cls is not None
    assert queries.ot is not None
    dense = queries.cls.astype(np.float64) @ documents.cls.T.astype(np.float64)
    impact = np.asarray(sp.csr_matrix(queries.ot @ documents.ot.T).todense(), np.float64)
    return {p: gains(s).tolist() for p, s in zip(PARTS, (dense, impact, dense + impact), strict=True)}


def gains(similarities: np.ndarray) -> np.ndarray:
    """(Q, D) similarities -> (Q,) nDCG@10, where query i has one relevant document, i; equal scores in order."""
    own = similarities.diagonal()[: len(similarities), None]
    ahead = np.arange(similarities.shape[1]) < np.arange(len(similarities))[:, None]
    rank = 1 + ((similarities > own) | ((similarities == own) & ahead)).sum(1)
    return np.where(rank <= CUTOFF, 1 / np.log2(1 + rank), 0.0)


class Verdict(NamedTuple):
    """Whether the adapted model is better, and the p value of the difference; None where it is undefined."""

    better: bool
    p: float | None


def verdict(before: Scores, after: Scores, level: float) -> Verdict:
    """The adapted model is better if the sum gains on average, and beyond chance at ``level`` (paired t-test)."""
    differences = np.array(after["hybrid"]) - np.array(before["hybrid"])
    p = t_test(differences)
    return Verdict(bool(differences.mean() > 0 and p is not None and p < level), p)
