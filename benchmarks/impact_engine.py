"""Search by postings against Lucene: the whole of a topic set, one thread each.

    python benchmarks/impact_engine.py [--documents 100000] [--queries 500] [--work FOLDER] [--curve 10000 100000]

The collection is made up: topics with vocabularies of their own over a common background, about 207 terms a document
with impacts of a gamma distribution, questions of about 48 terms drawn from a document and the background. Its index is
written once into --work and used again. The peer is Pyserini's LuceneImpactSearcher.batch_search with one thread; its
queries come ready made, so that no encoder is in the figure. Before anything is timed, every query must have the same
documents with the same scores in the same order from both, and from this package's own Lucene searcher.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from harness import Claim, arguments, curves, in_turns, middle, report, speedup

from dupmae_ir import pyserini
from dupmae_ir.index.folder import IndexBuilder, IndexFolder
from dupmae_ir.index.postings import export_postings, folder_of

VOCABULARY, TOPICS, TOPIC_TERMS = 28_000, 2_000, 300
BATCH = 5_000
"""Documents drawn at a time; each batch has a seed of its own, so memory does not grow with the collection."""
GOALS = {(1000, 10): (100_000, 50.0), (1000, 11): (1_000_000, 10.0)}
LUCENE, OURS = "Pyserini LuceneImpactSearcher", "postings"


class Collection:
    """The made-up documents and questions."""

    def __init__(self, documents: int) -> None:
        self.documents = documents
        rng = np.random.default_rng(0)
        self.topics = np.stack([rng.choice(VOCABULARY, TOPIC_TERMS, replace=False) for _ in range(TOPICS)])
        self.within = _cumulative(TOPIC_TERMS, 0.7)
        self.background = _cumulative(VOCABULARY, 0.8)

    def batches(self) -> Iterator[sp.csr_matrix]:
        """(n, V) uint8 impacts."""
        for first in range(0, self.documents, BATCH):
            yield self.batch(first // BATCH)

    def batch(self, number: int) -> sp.csr_matrix:
        """Documents ``number * BATCH`` and on: some words of a main topic, of a second one, and of the background."""
        rng = np.random.default_rng([1, number])
        count = min(BATCH, self.documents - number * BATCH)
        lengths = np.clip(rng.lognormal(np.log(190), 0.3, count), 128, 384).astype(np.int64)
        main, second = (lengths * 0.9).astype(np.int64), (lengths * 0.2).astype(np.int64)
        common = lengths - main // 2 - second
        columns, rows, strengths = [], [], []
        for share, strength, topical in ((main, 1.6, True), (second, 1.0, True), (common, 0.7, False)):
            owner = np.repeat(np.arange(count), share)
            if topical:
                topic = rng.integers(0, TOPICS, count)[owner]
                columns.append(self.topics[topic, np.searchsorted(self.within, rng.random(len(owner)))])
            else:
                columns.append(np.searchsorted(self.background, rng.random(len(owner))))
            rows.append(owner)
            strengths.append(np.full(len(owner), strength))
        # The first of equal terms of a document counts.
        cells, first = np.unique(np.concatenate(rows) * VOCABULARY + np.concatenate(columns), return_index=True)
        scaled = rng.gamma(1.1, 28, len(cells)) * np.concatenate(strengths)[first]
        impacts = np.clip(np.round(scaled), 1, 255).astype(np.uint8)
        indptr = np.searchsorted(cells, np.arange(count + 1) * VOCABULARY)
        return sp.csr_matrix((impacts, (cells % VOCABULARY).astype(np.int32), indptr), shape=(count, VOCABULARY))

    def queries(self, count: int) -> list[dict[str, int]]:
        """Questions: three quarters of their terms are strong ones of some document, the rest are background."""
        rng = np.random.default_rng(2)
        made = []
        batches: dict[int, sp.csr_matrix] = {}
        for _ in range(count):
            row = int(rng.integers(min(self.documents, 4 * BATCH)))
            number = row // BATCH
            document = batches.setdefault(number, self.batch(number))[row % BATCH] if number not in batches else (
                batches[number][row % BATCH])
            length = int(rng.integers(32, 65))
            own = int(length * 0.75)
            chance = document.data / document.data.sum(dtype=np.float64)
            drawn = rng.choice(document.indices, own, replace=False, p=chance)
            other = np.searchsorted(self.background, rng.random(length - own))
            weights = {int(t): rng.gamma(1.0, 20) for t in other} | {int(t): rng.gamma(1.5, 40) for t in drawn}
            made.append({f"t{t}": int(np.clip(np.round(w), 1, 255)) for t, w in weights.items()})
        return made


def _cumulative(count: int, exponent: float) -> np.ndarray:
    shares = np.arange(1, count + 1) ** -exponent
    total = np.cumsum(shares / shares.sum())
    total[-1] = 1.0
    return total


def opened(work: Path, documents: int) -> tuple[IndexFolder, dict[str, float]]:
    """The index of the collection with its postings, written unless it is there, and what the writing took."""
    folder, took = work / f"impacts-{documents}", {}
    if not (folder / "meta.json").is_file():
        collection, written = Collection(documents), 0
        start = time.perf_counter()
        terms = [f"t{i}" for i in range(VOCABULARY)]
        with IndexBuilder(folder, dim=None, terms=terms, scale=1.0) as builder:
            for impacts in collection.batches():
                rows = range(written, written + impacts.shape[0])
                builder.add_impacts([str(row) for row in rows], None, impacts)
                written += impacts.shape[0]
            builder.finish({})
        took["lucene_and_forward_s"] = round(time.perf_counter() - start, 1)
    index = IndexFolder.open(folder)
    if not (folder_of(folder) / "meta.json").is_file():
        start = time.perf_counter()
        export_postings(index)
        took["postings_s"] = round(time.perf_counter() - start, 1)
    return index, took
