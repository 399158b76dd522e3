"""Certified lists against brute force, on collections made to mislead a search that stops early.

Vectors are copied, opposed, or equal but for the last bit; impacts are all at the limit, all alike, or of one term;
queries are blank, unknown, or as long as is allowed. Every list must contain the documents of the highest exact scores,
equal scores in the order of ids, whatever the engine and the dense index; also with a filter, which leaves the lists of
the documents that satisfy it, and of two indexes searched as one.
"""

from __future__ import annotations

import itertools
import math
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from dupmae_ir.encode.run import encoder_record
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.format.rotated import build_rotated
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings import kernels
from dupmae_ir.index.postings.format import export_postings
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.testing import HashingEncoder
from dupmae_ir.types import Hit, Query
from tests.campaign.records import Record, Records, counted, sum_of

TITLE = "Exactness: certified lists against brute force on adversarial collections"
DIM, TERMS, SCALE = 8, 40, 10.0
Draw = np.random.Generator


def run(seconds: float, seed: int, records: Records) -> None:
    """New collections of every kind until the time is over."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for kind, vectors in VECTORS.items():
            for shape, impacts in IMPACTS.items():
                if time.monotonic() > end:
                    return
                drawn = np.random.default_rng([seed, number])
                number += 1
                lists, wrong, words = _tried(drawn, vectors, impacts)
                records.add(collection=f"{kind}, {shape}", lists=lists, wrong=wrong, words=words)


def table(records: Sequence[Record]) -> str:
    """Lists and those that differ, by kind of collection."""
    counts = {"indexes": len, "lists": sum_of("lists"), "wrong": sum_of("wrong")}
    return counted(records, "collection", counts, "vectors, impacts")


def is_wrong(record: Record) -> bool:
    """Whether a list was not the exact one."""
    return record["wrong"] > 0


def _copies(drawn: Draw, n: int) -> np.ndarray:
    return drawn.standard_normal((3, DIM))[drawn.integers(0, 3, n)]


def _opposed(drawn: Draw, n: int) -> np.ndarray:
    return drawn.standard_normal((1, DIM)) * np.where(drawn.random((n, 1)) < 0.5, 1, -1)


def _last_bit(drawn: Draw, n: int) -> np.ndarray:
    base = np.repeat(drawn.standard_normal((1, DIM)).astype(np.float32), n, 0)
    return np.where(drawn.random((n, DIM)) < 0.5, base, np.nextafter(base, np.float32(9)))


def _tiny_and_huge(drawn: Draw, n: int) -> np.ndarray:
    return drawn.standard_normal((n, DIM)) * 10.0 ** drawn.integers(-6, 4, (n, 1))


def _zero(drawn: Draw, n: int) -> np.ndarray:
    return np.zeros((n, DIM))


VECTORS: dict[str, Callable[[Draw, int], np.ndarray]] = {
    "copies": _copies,
    "opposed": _opposed,
    "last bit": _last_bit,
    "tiny and huge": _tiny_and_huge,
    "zero": _zero,
    "normal": lambda drawn, n: drawn.standard_normal((n, DIM)),
}
assert kernels  # loaded, so that small collections are searched by compiled loops too
CONFIGURATIONS: list[tuple[str, dict[str, Any]]] = [
    *((mode, {"impact_search": engine}) for mode in ("impact", "hybrid") for engine in ("lucene", "postings")),
    ("dense", {}),
    ("dense", {"dense_index": "rotated", "batch_size": 1}),
    ("hybrid", {"dense_index": "rotated", "impact_search": "postings", "batch_size": 1}),
]
IMPACTS: dict[str, Callable[[Draw, int], np.ndarray]] = {
    "highest": lambda drawn, n: np.where(drawn.random((n, TERMS)) < 0.3, 255, 0),
    "alike": lambda drawn, n: np.full((n, TERMS), 7),
    "one term": lambda drawn, n: np.eye(TERMS)[drawn.integers(0, 2, n)] * drawn.integers(1, 256, (n, 1)),
    "none": lambda drawn, n: np.zeros((n, TERMS)),
    "few": lambda drawn, n: np.where(drawn.random((n, TERMS)) < 0.1, drawn.integers(1, 256, (n, TERMS)), 0),
}


@dataclass(frozen=True)
class Collection:
    """What an index is made of: ids, vectors (n, DIM) float32 and impacts (n, TERMS) uint8."""

    ids: list[str]
    cls: np.ndarray
    ot: np.ndarray

    def write(self, folder: Path, encoder: HashingEncoder) -> Path:
        """An index of it, with postings and codes."""
        with IndexBuilder(folder, dim=DIM, terms=encoder.terms, scale=SCALE) as builder:
            builder.add_impacts(self.ids, self.cls, sp.csr_matrix(self.ot))
            builder.finish({"encoder": encoder_record(encoder, " ")})
        export_postings(Index.open(folder).only_segment)
        build_rotated(Index.open(folder).only_segment)
        return folder

    def part(self, rows: np.ndarray) -> Collection:
        """Some of the documents."""
        return Collection([self.ids[row] for row in rows], self.cls[rows], self.ot[rows])

    def problem(self, text: str, mode: str, k: int, hits: Sequence[Hit], encoder: HashingEncoder) -> str:
        """What is wrong with the ``k`` best ``hits`` of a query; empty if nothing is."""
        scores, tolerance = self._scores(text, mode, encoder)
        eligible = np.flatnonzero(scores > 0) if mode == "impact" else np.arange(len(self.ids))
        row_of = {docid: row for row, docid in enumerate(self.ids)}
        rows = [row_of[hit.docid] for hit in hits]
        if len(set(rows)) != len(rows) or len(rows) != min(k, len(eligible)):
            return f"{len(rows)} hits"
        if any(abs(hit.score - scores[row]) > tolerance[row] for hit, row in zip(hits, rows, strict=True)):
            return "a score is wrong"
        keys = [(-hit.score, hit.docid) for hit in hits]
        if keys != sorted(keys):
            return "the order is wrong"
        unseen = np.setdiff1d(eligible, rows)
        if len(unseen) and (scores[unseen] > scores[rows[-1]] + tolerance[unseen] + tolerance[rows[-1]]).any():
            return "a better document is missing"
        return self._wrong_tie(set(rows), unseen)

    def _scores(self, text: str, mode: str, encoder: HashingEncoder) -> tuple[np.ndarray, np.ndarray]:
        """Scores of all documents, summed exactly and rounded once, and how far a sum in float64 may be from them."""
        query = encoder.encode_queries([text])
        assert query.cls is not None
        assert query.ot is not None
        products = self.cls.astype(np.float64) * query.cls[0].astype(np.float64) * (mode != "impact")
        weights = np.minimum(np.rint(query.ot.toarray()[0].astype(np.float64) * SCALE), 255) * (mode != "dense")
        impacts = self.ot.astype(np.float64) @ weights / SCALE**2
        scores = np.array([math.fsum([*row, impact]) for row, impact in zip(products, impacts, strict=True)])
        return scores, 1e-12 * (np.abs(products).sum(1) + impacts)

    def _wrong_tie(self, found: set[int], unseen: np.ndarray) -> str:
        """Of documents with the same vector and impacts, those with the smallest ids must be found."""
        contents = [self.cls[row].tobytes() + self.ot[row].tobytes() for row in range(len(self.ids))]
        last: dict[bytes, str] = {}
        for row in found:
            last[contents[row]] = max(last.get(contents[row], ""), self.ids[row])
        wrong = [row for row in unseen if self.ids[row] < last.get(contents[row], "")]
        return f"a tie: {self.ids[wrong[0]]} is missing" if wrong else ""


def _tried(drawn: Draw, vectors: Callable, impacts: Callable) -> tuple[int, int, str]:
    """Lists compared, wrong ones, and what is wrong with the first of those."""
    documents = int(drawn.integers(1, 400))
    cls, ot = vectors(drawn, documents).astype(np.float32), impacts(drawn, documents).astype(np.uint8)
    made = Collection([f"d{n}" for n in drawn.permutation(documents)], cls, ot)
    encoder = HashingEncoder(dim=DIM, vocabulary=TERMS)
    queries = [Query(str(n), text) for n, text in enumerate(_texts(random.Random(int(drawn.integers(2**31)))))]
    lists, problems = 0, []
    mask = drawn.random(documents) < drawn.random()
    with tempfile.TemporaryDirectory() as name:
        whole = [made.write(Path(name) / "I", encoder)]
        halves = np.array_split(np.arange(documents), 2)
        both = [made.part(rows).write(Path(name) / f"I{n}", encoder) for n, rows in enumerate(halves) if len(rows)]
        for (mode, settings), (what, folders, chosen) in itertools.product(
            CONFIGURATIONS, (("all", whole, None), ("filter", whole, mask), ("two indexes", both, None))
        ):
            searcher = Searcher.open(folders, encoder, **settings)
            expected = made if chosen is None else made.part(np.flatnonzero(chosen))
            for k in (1, 10, documents):
                for answer in searcher.answers(queries, k, mode, filter=chosen):
                    lists += 1
                    problem = expected.problem(answer.query.text, mode, k, answer.hits, encoder)
                    if answer.report is None or not answer.report.exact:
                        problem = problem or "not certified"
                    if problem:
                        words = f"{what}, {mode} {settings} {k} of {documents} {answer.query.text!r}: {problem}"
                        problems.append(words)
    return lists, len(problems), (problems or [""])[0]


def _texts(drawn: random.Random) -> list[str]:
    words = [f"v{n}" for n in range(60)]
    return [" ".join(drawn.choices(words, k=k)) for k in (1, 2, 5, 30)] + ["v1 " * 30]
