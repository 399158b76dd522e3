"""Certified lists against brute force, on collections made to mislead a search that stops early.

Vectors are copied, opposed, or equal but for the last bit; impacts are all at the limit, all alike, or of one term;
queries are blank, unknown, or as long as is allowed. Every list must contain the documents of the highest exact scores,
equal scores in the order of ids, whatever the engine and the dense index; also with a mask or a condition on metadata,
which leave the lists of the documents that satisfy them, of two indexes searched as one, and with BM25 as a third part
of the sum, whose scores are computed here by Lucene's formula.
"""

from __future__ import annotations

import itertools
import math
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from dupmae_ir.encode.run import encoder_record
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.format.rotated import build_rotated
from dupmae_ir.index.format.texts import StoredDocument
from dupmae_ir.index.index import Index
from dupmae_ir.index.lucene.bm25 import build_bm25
from dupmae_ir.index.postings import kernels
from dupmae_ir.index.postings.format import export_postings
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.testing import HashingEncoder
from dupmae_ir.types import Document, Hit, Metadata, Query
from tests.campaign.records import Record, Records, counted, sum_of

TITLE = "Exactness: certified lists against brute force on adversarial collections"
DIM = 8
TERMS = 40
SCALE = 10.0
BM25_WEIGHT = 0.6
K1 = np.float32(0.9)
B = np.float32(0.4)
WORDS = [f"v{n}" for n in range(60)]
Draw = np.random.Generator
Predicate = Callable[[Metadata], bool]
Case = tuple[str, list[Path], Any, "Collection"]
"""What is searched, the indexes, the filter, and the documents that satisfy it."""


def run(seconds: float, seed: int, records: Records) -> None:
    """New collections of every kind until the time is over."""
    end = time.monotonic() + seconds
    number = 0
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
    *(
        (mode, {"impact_search": engine})
        for mode in ("impact", "hybrid")
        for engine in ("lucene", "postings")
    ),
    ("dense", {}),
    ("dense", {"dense_index": "rotated", "batch_size": 1}),
    ("hybrid", {"dense_index": "rotated", "impact_search": "postings", "batch_size": 1}),
]
IMPACTS: dict[str, Callable[[Draw, int], np.ndarray]] = {
    "highest": lambda drawn, n: np.where(drawn.random((n, TERMS)) < 0.3, 255, 0),
    "alike": lambda drawn, n: np.full((n, TERMS), 7),
    "one term": lambda drawn, n: (
        np.eye(TERMS)[drawn.integers(0, 2, n)] * drawn.integers(1, 256, (n, 1))
    ),
    "none": lambda drawn, n: np.zeros((n, TERMS)),
    "few": lambda drawn, n: np.where(
        drawn.random((n, TERMS)) < 0.1, drawn.integers(1, 256, (n, TERMS)), 0
    ),
}


@dataclass(frozen=True)
class Collection:
    """What an index is made of: ids, vectors (n, DIM) float32, impacts (n, TERMS) uint8, texts and metadata; and
    ``bm25``: query -> scores (n,) of a third part."""

    ids: list[str]
    cls: np.ndarray
    ot: np.ndarray
    texts: list[str]
    metadata: list[Metadata]
    bm25: dict[str, np.ndarray] = field(default_factory=dict)

    def write(self, folder: Path, encoder: HashingEncoder) -> Path:
        """An index of it, with postings and codes."""
        columns = zip(self.ids, self.texts, self.metadata, strict=True)
        documents = [StoredDocument(docid, "", text, metadata) for docid, text, metadata in columns]
        with IndexBuilder(folder, dim=DIM, terms=encoder.terms, scale=SCALE, texts=True) as builder:
            builder.add_impacts(self.ids, self.cls, sp.csr_matrix(self.ot), documents=documents)
            builder.finish({"encoder": encoder_record(encoder, " ")})
        export_postings(Index.open(folder).only_segment)
        build_rotated(Index.open(folder).only_segment)
        return folder

    def part(self, rows: np.ndarray) -> Collection:
        """Some of the documents."""
        ids, texts, metadata = (
            [values[row] for row in rows] for values in (self.ids, self.texts, self.metadata)
        )
        bm25 = {text: scores[rows] for text, scores in self.bm25.items()}
        return Collection(ids, self.cls[rows], self.ot[rows], texts, metadata, bm25)

    def with_bm25(self, queries: Sequence[Query]) -> Collection:
        """The same with BM25 as a third part of the score."""
        return replace(
            self, bm25={query.text: bm25_scores(query.text, self.texts) for query in queries}
        )

    def problem(
        self, text: str, mode: str, k: int, hits: Sequence[Hit], encoder: HashingEncoder
    ) -> str:
        """What is wrong with the ``k`` best ``hits`` of a query; empty if nothing is."""
        scores, tolerance = self._scores(text, mode, encoder)
        eligible = np.flatnonzero(scores > 0) if mode == "impact" else np.arange(len(self.ids))
        row_of = {docid: row for row, docid in enumerate(self.ids)}
        rows = [row_of[hit.docid] for hit in hits]
        if len(set(rows)) != len(rows) or len(rows) != min(k, len(eligible)):
            return f"{len(rows)} hits"
        if any(
            abs(hit.score - scores[row]) > tolerance[row]
            for hit, row in zip(hits, rows, strict=True)
        ):
            return "a score is wrong"
        keys = [(-hit.score, hit.docid) for hit in hits]
        if keys != sorted(keys):
            return "the order is wrong"
        unseen = np.setdiff1d(eligible, rows)
        if (
            len(unseen)
            and (scores[unseen] > scores[rows[-1]] + tolerance[unseen] + tolerance[rows[-1]]).any()
        ):
            return "a better document is missing"
        return self._wrong_tie(set(rows), unseen)

    def _scores(
        self, text: str, mode: str, encoder: HashingEncoder
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores of all documents, summed exactly and rounded once, and how far a sum in float64 may be from them."""
        query = encoder.encode_queries([text])
        assert query.cls is not None
        assert query.ot is not None
        products = (
            self.cls.astype(np.float64) * query.cls[0].astype(np.float64) * (mode != "impact")
        )
        weights = np.minimum(np.rint(query.ot.toarray()[0].astype(np.float64) * SCALE), 255) * (
            mode != "dense"
        )
        impacts = self.ot.astype(np.float64) @ weights / SCALE**2
        bm25 = BM25_WEIGHT * self.bm25.get(text, np.zeros(len(self.ids)))
        parts = zip(products, impacts, bm25, strict=True)
        scores = np.array([math.fsum([*row, impact, lexical]) for row, impact, lexical in parts])
        # Lucene computes BM25 in float32, and weights that are alike may be rounded differently there.
        return scores, 1e-12 * (np.abs(products).sum(1) + impacts) + 1e-6 * bm25

    def _wrong_tie(self, found: set[int], unseen: np.ndarray) -> str:
        """Of documents with the same vector and impacts, those with the smallest ids must be found."""
        words = [" ".join(sorted(text.split())) if self.bm25 else "" for text in self.texts]
        contents = [
            self.cls[row].tobytes() + self.ot[row].tobytes() + words[row].encode()
            for row in range(len(words))
        ]
        last: dict[bytes, str] = {}
        for row in found:
            last[contents[row]] = max(last.get(contents[row], ""), self.ids[row])
        wrong = [row for row in unseen if self.ids[row] < last.get(contents[row], "")]
        return f"a tie: {self.ids[wrong[0]]} is missing" if wrong else ""


def _tried(drawn: Draw, vectors: Callable, impacts: Callable) -> tuple[int, int, str]:
    """Lists compared, wrong ones, and what is wrong with the first of those."""
    documents = int(drawn.integers(1, 400))
    cls = vectors(drawn, documents).astype(np.float32)
    ot = impacts(drawn, documents).astype(np.uint8)
    rng = random.Random(int(drawn.integers(2**31)))
    texts = [" ".join(rng.choices(WORDS, k=rng.choice((0, 1, 3, 50)))) for _ in range(documents)]
    made = Collection(
        [f"d{n}" for n in drawn.permutation(documents)],
        cls,
        ot,
        texts,
        [_metadata(rng) for _ in texts],
    )
    encoder = HashingEncoder(dim=DIM, vocabulary=TERMS)
    queries = [Query(str(n), text) for n, text in enumerate(_texts(rng))]
    made.metadata[0] = {"year": 2000, "lang": "en", "tags": ["a"]}  # every name is known
    (condition, holds), more = _condition(rng), made.with_bm25(queries)
    satisfied = np.flatnonzero([holds(values) for values in made.metadata])
    lists = 0
    problems = []
    mask = drawn.random(documents) < drawn.random()
    with tempfile.TemporaryDirectory() as name:
        whole = [made.write(Path(name) / "I", encoder)]
        halves = np.array_split(np.arange(documents), 2)
        both = [
            made.part(rows).write(Path(name) / f"I{n}", encoder)
            for n, rows in enumerate(halves)
            if len(rows)
        ]
        build_bm25(
            [Document(docid, text) for docid, text in zip(made.ids, texts, strict=True)],
            Path(name) / "B",
        )
        known: list[Case] = [("all", whole, None, made), ("two indexes", both, None, made)]
        known += [("mask", whole, mask, made.part(np.flatnonzero(mask)))]
        known += [
            (condition, folders, condition, made.part(satisfied)) for folders in (whole, both)
        ]
        third = {"bm25_index": str(Path(name) / "B"), "bm25_weight": BM25_WEIGHT}
        cases = [*itertools.product(CONFIGURATIONS, known)]
        cases += [(("hybrid", third), ("BM25", whole, None, more))]
        cases += [
            (("hybrid", third), (f"BM25, {condition}", whole, condition, more.part(satisfied)))
        ]
        for (mode, settings), (what, folders, chosen, expected) in cases:
            searcher = Searcher.open(folders, encoder, **settings)
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
    return [" ".join(drawn.choices(WORDS, k=k)) for k in (1, 2, 5, 30)] + ["v1 " * 30]


def bm25_scores(query: str, texts: Sequence[str]) -> np.ndarray:
    """(n,) float64: Lucene's BM25, in float32 as there; lengths above 39 are stored with 4 significant bits."""
    counts = [Counter(text.split()) for text in texts]
    filled = [count for count in counts if count]
    average = np.float32(sum(count.total() for count in filled) / max(1, len(filled)))
    lengths = np.array([_stored_length(count.total()) for count in counts], np.float32)
    inverse = np.float32(1) / (K1 * ((np.float32(1) - B) + B * lengths / average))
    scores = np.zeros(len(texts))
    for word, times in Counter(query.split()).items():
        found = np.array([count[word] for count in counts], np.float32)
        frequency = int((found > 0).sum())
        weight = np.float32(times) * np.float32(
            math.log(1 + (len(filled) - frequency + 0.5) / (frequency + 0.5))
        )
        scores += np.where(found > 0, weight - weight / (np.float32(1) + found * inverse), 0.0)
    return scores.astype(np.float32).astype(np.float64)


def _stored_length(length: int) -> int:
    """Lucene's ``SmallFloat``: the 24 smallest lengths as they are, the rest above 24 with four significant bits."""
    rest = length - 24
    bits = rest.bit_length()
    return length if rest < 0 or bits < 4 else 24 + (rest >> (bits - 4) << (bits - 4))


def _metadata(rng: random.Random) -> Metadata:
    """Values of several kinds, some missing."""
    values: dict[str, Any] = {
        "year": rng.choice((1999, 2000, 2000.5, 2001, "2000", True)),
        "lang": rng.choice(("en", "de", "é", "")),
        "tags": rng.choice((["a", "b"], ["a", 2], ["b"], "ab")),
    }
    return {name: value for name, value in values.items() if rng.random() < 0.8}


def _condition(rng: random.Random, depth: int = 2) -> tuple[str, Predicate]:
    """A condition, and what it means in plain Python."""
    if depth and rng.random() < 0.6:
        (one, first), (two, second) = _condition(rng, depth - 1), _condition(rng, depth - 1)
        joined: list[tuple[str, Predicate]] = [
            (f"({one}) and ({two})", lambda m: first(m) and second(m)),
            (f"({one}) or ({two})", lambda m: first(m) or second(m)),
            (f"not ({one})", lambda m: not first(m)),
        ]
        return rng.choice(joined)
    year = rng.choice((1999, 2000, 2000.5))
    lang = rng.choice(("en", "é", ""))
    tag = rng.choice(("a", "b"))

    def number(m: Metadata) -> float:
        value = m.get("year")
        return math.nan if isinstance(value, (str, bool, list)) or value is None else value

    def has(m: Metadata) -> bool:
        value = m.get("tags")
        return isinstance(value, (list, str)) and tag in value

    return rng.choice(
        [
            (f"year >= {year}", lambda m: number(m) >= year),
            (f"year < {year}", lambda m: number(m) < year),
            (f"year != {year}", lambda m: "year" in m and number(m) != year),
            (f"lang = '{lang}'", lambda m: m.get("lang") == lang),
            (
                f"lang not in ('{lang}', 'de')",
                lambda m: "lang" in m and m["lang"] not in (lang, "de"),
            ),
            (f"lang > '{lang}'", lambda m: "lang" in m and str(m["lang"]) > lang),
            (f"tags contains '{tag}'", has),
            (f"tags not contains '{tag}'", lambda m: "tags" in m and not has(m)),
            ("tags is missing", lambda m: "tags" not in m),
        ]
    )
