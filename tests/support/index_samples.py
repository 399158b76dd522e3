"""A small collection of made-up impacts that every index test can share."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.format.integrity import describe
from dupmae_ir.index.format.manifest import SEGMENTS, read_manifest, with_segments, write_meta
from dupmae_ir.index.format.segment import Segment
from dupmae_ir.index.index import Index

AWKWARD = [
    "|",
    "##x",
    "a b",
    "é",
    "É",
    "e\u0301",
    "\u00a0",
    "\u2028",
    "x\u3000y",
    "\U0001f600",
    "-1",
    "1|2",
    "ﬁ",
]
"""Terms that a tokenizer, a delimiter or a normaliser could spoil."""
TERMS = AWKWARD + [f"t{i}" for i in range(100)]
DIM = 8


def documents(count: int = 120, seed: int = 0) -> tuple[list[str], np.ndarray, sp.csr_matrix]:
    """Ids that do not sort like rows, (n, DIM) vectors and (n, V) float weights; every tenth document has no weight,
    and few distinct weights make many ties."""
    rng = np.random.default_rng(seed)
    weights = rng.integers(1, 4, (count, len(TERMS))) * (rng.random((count, len(TERMS))) < 0.2)
    weights[::10] = 0
    ids = [f"d{(7 * i) % count}" for i in range(count)]
    vectors = rng.standard_normal((count, DIM)).astype(np.float32)
    return ids, vectors, sp.csr_matrix(weights.astype(np.float32))


def queries(count: int = 20, seed: int = 1) -> list[dict[str, int]]:
    """Impact queries of 1 to 30 terms, an empty one, and one of every awkward term."""
    rng = np.random.default_rng(seed)
    made = [
        {
            TERMS[t]: int(rng.integers(1, 5))
            for t in rng.permutation(len(TERMS))[: rng.integers(1, 31)]
        }
        for _ in range(count)
    ]
    return [*made, {}, dict.fromkeys(AWKWARD, 2)]


def as_vector(query: dict[str, int]) -> np.ndarray:
    """(V,) int64; terms outside the vocabulary count for nothing."""
    vector = np.zeros(len(TERMS), np.int64)
    for term, weight in query.items():
        if term in TERMS:
            vector[TERMS.index(term)] = weight
    return vector


def first_segment(index: Path) -> Path:
    """The folder of the first segment of an index, also of a damaged one."""
    return sorted((index / SEGMENTS).glob("0*"))[0]


def opened(index: Path) -> Segment:
    """The segment of an index in one piece."""
    return Index.open(index).only_segment


def write_records(index: Path, folder: Path) -> None:
    """Let the manifest describe the files of the only segment as they are, as a writer with a bug would."""
    manifest = read_manifest(index)
    (record,) = manifest.segments
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    record = dataclasses.replace(record, files=describe(folder, names))
    write_meta(index, with_segments(manifest.meta, [record]))


def write_edited(index: Path, meta: dict[str, Any]) -> None:
    """Replace ``meta.json`` by these values, with the digest that belongs to them."""
    manifest = read_manifest(index)
    write_meta(index, with_segments(meta, manifest.segments, manifest.deleted))


def build(folder: Path, scale: float = 2.0, batch: int = 32, **documents_of: int) -> dict:
    """Write the sample collection as an index folder; returns its meta."""
    ids, vectors, weights = documents(**documents_of)
    with IndexBuilder(folder, dim=DIM, terms=TERMS, scale=scale) as builder:
        for start in range(0, len(ids), batch):
            part = slice(start, start + batch)
            builder.add(ids[part], vectors[part], weights[part])
        return builder.finish({"encoder": {"name": "sample"}})
