"""Sparse engines of others behind one interface, for benchmarks/impact_peers.py.

Each is built once from a finished index folder (its forward index: the same impacts) and then searched one query at a
time on one thread. Packages are imported where they are used, so that a missing one leaves the others usable.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from processes import Taken
from pyserini_process import Pyserini

from dupmae_ir.index.index import Index

Weights = dict[str, int]
BMP_BLOCK = 32
"""Documents of a block of Block-Max Pruning."""
BMP_MAX_WEIGHT = 32
"""Block-Max Pruning scales a query so that its largest weight is 32 and rounds the others up."""
BMP_MAX_TERMS = 1 << 16
"""Block-Max Pruning keeps the ids of terms in 16 bits and returns wrong scores for more terms."""
ROWS_AT_A_TIME = 20_000


class Engine(Protocol):
    """A built index of a peer. ``files`` is the pattern of the files that a search reads."""

    name: str
    exact: bool
    files: str

    def adapted(self, query: Weights) -> Weights:
        """The query whose exact answer the peer gives."""

    def prepare(self, query: Weights) -> Any:
        """The query as the peer's search takes it, converted outside the timing."""

    def search(self, prepared: Any, k: int) -> Any:
        """The peer's answer, not converted: this is what is timed."""

    def hits(self, answer: Any) -> tuple[np.ndarray, np.ndarray]:
        """Rows (m,) int64 and scores (m,) float64 of an answer."""


def rounded_to(query: Weights, max_weight: int) -> Weights:
    """``query`` with weights of at most ``max_weight``: scaled in float32 and rounded up, as Block-Max Pruning does."""
    largest = max(query.values())
    if largest <= max_weight:
        return query
    scale = np.float32(max_weight / largest)
    return {term: int(np.ceil(np.float32(weight) * scale)) for term, weight in query.items()}


def documents(index: Index) -> Iterator[tuple[int, list[str], list[int]]]:
    """Row, terms and impacts of every document."""
    names = np.array(index.terms, object)
    forward = index.only_segment.forward
    for row in range(index.documents):
        part = slice(int(forward.indptr[row]), int(forward.indptr[row + 1]))
        yield row, names[forward.terms[part]].tolist(), forward.impacts[part].tolist()


def most_frequent(index: Index, count: int) -> frozenset[str]:
    """The ``count`` terms of the index with the highest document frequencies, without those of no document."""
    frequencies = np.bincount(index.only_segment.forward.terms, minlength=len(index.terms))
    best = np.argsort(-frequencies, kind="stable")[:count]
    return frozenset(index.terms[t] for t in best if frequencies[t])


def once(folder: Path, build: Callable[[], None]) -> float | None:
    """Run ``build`` unless ``folder`` records that it was completed, and return the seconds that it took."""
    mark = folder / "built.json"
    if not mark.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        build()
        seconds = round(time.perf_counter() - start, 1)
        mark.write_text(json.dumps({"seconds": seconds}), encoding="utf-8")
    return json.loads(mark.read_text(encoding="utf-8"))["seconds"]


def size_of(folder: Path, names: str = "*") -> int:
    """Bytes of all files below ``folder`` whose names match the pattern ``names``."""
    return sum(file.stat().st_size for file in folder.rglob(names) if file.is_file())


class Bmp:
    """Block-Max Pruning (package ``bmp``), exact: alpha = beta = 1."""

    name = "bmp"
    exact = True
    files = "index.bmp"

    def __init__(self, index: Index, work: Path) -> None:
        import bmp

        self.folder = work / "bmp"
        self.terms = most_frequent(index, BMP_MAX_TERMS)
        file = str(self.folder / "index.bmp")

        def build() -> None:
            writer = bmp.Indexer(file, bsize=BMP_BLOCK, compress_range=False)
            for row, terms, impacts in documents(index):
                vector = {}
                for term, impact in zip(terms, impacts, strict=True):
                    if term in self.terms:
                        vector[term] = impact
                writer.add_document(str(row), vector)
            writer.finish()

        self.took = once(self.folder, build)
        self.searcher = bmp.Searcher(file)

    def adapted(self, query: Weights) -> Weights:
        indexed = {term: weight for term, weight in query.items() if term in self.terms}
        if not indexed:
            return {}
        return rounded_to(indexed, BMP_MAX_WEIGHT)

    def prepare(self, query: Weights) -> dict[str, float]:
        return {term: float(weight) for term, weight in query.items()}

    def search(self, prepared: dict[str, float], k: int) -> tuple[list[str], list[float]]:
        return self.searcher.search(prepared, k=k, alpha=1.0, beta=1.0)

    def hits(self, answer: tuple[list[str], list[float]]) -> tuple[np.ndarray, np.ndarray]:
        names, scores = answer
        rows = np.array([int(name) for name in names], np.int64)
        return rows, np.array(scores, np.float64)


def impact_sums(index: Index) -> Iterator[np.ndarray]:
    """The sum of the impacts of each document, for ``ROWS_AT_A_TIME`` documents at a time."""
    forward = index.only_segment.forward
    for first in range(0, index.documents, ROWS_AT_A_TIME):
        starts = np.asarray(forward.indptr[first : first + ROWS_AT_A_TIME + 1])
        up_to = np.cumsum(forward.impacts[starts[0] : starts[-1]], dtype=np.int64)
        yield np.diff(np.concatenate(([0], up_to))[starts - starts[0]])


def write_pisa(index: Index, folder: Path) -> None:
    """Write the collection in PISA's binary format: uint32 runs of rows and impacts, terms sorted by name."""
    from pyterrier_pisa import _pisathon

    forward = index.only_segment.forward
    rows = index.documents
    csr = (forward.impacts, forward.terms, forward.indptr)
    by_term = sp.csr_matrix(csr, (rows, len(index.terms))).tocsc()
    used = np.flatnonzero(np.diff(by_term.indptr)).tolist()
    # By bytes, as PISA compares the strings of its lexicon.
    term_ids = sorted(used, key=lambda term_id: index.terms[term_id].encode())
    with open(folder / "inv.docs", "wb") as docs, open(folder / "inv.freqs", "wb") as freqs:
        docs.write(np.array([1, rows], np.uint32).tobytes())
        for term_id in term_ids:
            part = slice(by_term.indptr[term_id], by_term.indptr[term_id + 1])
            count = np.array([part.stop - part.start], np.uint32).tobytes()
            docs.write(count + by_term.indices[part].astype(np.uint32).tobytes())
            freqs.write(count + by_term.data[part].astype(np.uint32).tobytes())
    sizes = np.concatenate(([rows], *impact_sums(index))).astype(np.uint32)
    (folder / "inv.sizes").write_bytes(sizes.tobytes())

    document_lines = "".join(f"{row}\n" for row in range(rows))
    (folder / "fwd.documents").write_text(document_lines, encoding="utf-8")
    term_lines = "".join(f"{index.terms[term_id]}\n" for term_id in term_ids)
    (folder / "fwd.terms").write_text(term_lines, encoding="utf-8")
    _pisathon.build_binlex(str(folder / "fwd.documents"), str(folder / "fwd.doclex"))
    _pisathon.build_binlex(str(folder / "fwd.terms"), str(folder / "fwd.termlex"))
    meta = {
        "type": "sparse_index",
        "format": "pisa",
        "package_hint": "pyterrier-pisa",
        "stemmer": "none",
    }
    (folder / "pt_meta.json").write_text(json.dumps(meta), encoding="utf-8")


class Pisa:
    """PISA by ``pyterrier-pisa``: impacts compressed by block_simdbp, scores are inner products.

    Searches call the compiled retrieval below its transformer, without the data frame (1.5 ms a query) around it. The
    package hands a weight of w to PISA as w copies of the term.
    """

    exact = True
    files = "quantized*"

    def __init__(self, index: Index, work: Path, algorithm: str, name: str) -> None:
        import pyterrier_pisa

        self.name = name
        self.algorithm = algorithm
        self.folder = work / "pisa"
        self.took = once(self.folder, lambda: write_pisa(index, self.folder))
        self._native = pyterrier_pisa._pisathon
        opened = pyterrier_pisa.PisaIndex(str(self.folder), stemmer="none", stops="none", threads=1)
        self._retrieve = opened.quantized(num_results=10, query_algorithm=algorithm, toks_scale=1.0)

    def adapted(self, query: Weights) -> Weights:
        return query

    def prepare(self, query: Weights) -> list[tuple[int, dict[str, float]]]:
        return [(0, {term: float(weight) for term, weight in query.items()})]

    def search(
        self, prepared: list[tuple[int, dict[str, float]]], k: int
    ) -> tuple[int, np.ndarray, np.ndarray]:
        numbers = np.empty(k, np.int32)
        names = np.empty(k, object)
        ranks = np.empty(k, np.int32)
        scores = np.empty(k, np.float32)
        count = self._native.retrieve(
            self._retrieve._ctxt,
            self.algorithm,
            prepared,
            k=k,
            threads=1,
            query_weighted=1,
            pretokenised=True,
            result_qidxs=numbers,
            result_docnos=names,
            result_ranks=ranks,
            result_scores=scores,
        )
        return count, names, scores

    def hits(self, answer: tuple[int, np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        count, names, scores = answer
        rows = np.array([int(name) for name in names[:count]], np.int64)
        return rows, scores[:count].astype(np.float64)


class Seismic:
    """Seismic (package ``pyseismic-lsr``) with its defaults for building; approximate."""

    name = "seismic"
    exact = False
    files = "index*"
    QUERY_CUT = 16
    HEAP_FACTOR = 0.8

    def __init__(self, index: Index, work: Path) -> None:
        import seismic

        # SeismicIndexRaw keeps the ids of terms in 16 bits.
        large = len(index.terms) > 1 << 16
        kind = seismic.SeismicIndexRawLV if large else seismic.SeismicIndexRaw
        self.term_ids = index.term_ids
        self.folder = work / "seismic"
        saved = self.folder / "index"

        def build() -> None:
            source = self.folder / "documents.bin"
            write_seismic(index, source)
            kind.build(str(source)).save(str(saved))
            source.unlink()

        self.took = once(self.folder, build)
        self.index = kind.load(str(next(self.folder.glob("index*"))))

    def adapted(self, query: Weights) -> Weights:
        return query

    def prepare(self, query: Weights) -> tuple[np.ndarray, np.ndarray]:
        pairs = sorted((self.term_ids[term], weight) for term, weight in query.items())
        term_ids = np.array([term_id for term_id, _ in pairs], np.int32)
        weights = np.array([weight for _, weight in pairs], np.float32)
        return term_ids, weights

    def search(self, prepared: tuple[np.ndarray, np.ndarray], k: int) -> list[tuple[float, int]]:
        return self.index.search(*prepared, k, self.QUERY_CUT, self.HEAP_FACTOR, 0, True)

    def hits(self, answer: list[tuple[float, int]]) -> tuple[np.ndarray, np.ndarray]:
        rows = np.array([row for _, row in answer], np.int64)
        scores = np.array([score for score, _ in answer], np.float64)
        return rows, scores


def write_seismic(index: Index, path: Path) -> None:
    """Write Seismic's binary format: the number of documents; for each its length, components and float32 values."""
    forward = index.only_segment.forward
    with open(path, "wb") as file:
        file.write(np.array([index.documents], np.uint32).tobytes())
        for first in range(0, index.documents, ROWS_AT_A_TIME):
            indptr = np.asarray(forward.indptr[first : first + ROWS_AT_A_TIME + 1])
            terms = np.asarray(forward.terms[indptr[0] : indptr[-1]]).astype(np.uint32)
            values = np.asarray(forward.impacts[indptr[0] : indptr[-1]]).astype(np.float32)
            bounds = indptr - indptr[0]
            pieces = []
            for start, end in itertools.pairwise(bounds):
                count = np.array([end - start], np.uint32).tobytes()
                pieces += [count, terms[start:end].tobytes(), values[start:end].tobytes()]
            file.write(b"".join(pieces))


class Lucene:
    """Pyserini's LuceneImpactSearcher, one query at a time, of the Pyserini that the interpreter ``python`` has."""

    exact = True
    files = "index/*"

    def __init__(self, index: Index, work: Path, python: str) -> None:
        self._pyserini = Pyserini(python, index.only_segment.path, work)
        self.name = self._pyserini.name
        self.folder = self._pyserini.folder
        self.took = self._pyserini.took

    def adapted(self, query: Weights) -> Weights:
        return query

    def prepare(self, query: Weights) -> Weights:
        return query

    def search(self, prepared: Weights, k: int) -> tuple[list[int], list[float]]:
        return self._pyserini.hits([prepared], k)[0]

    def hits(self, answer: tuple[list[int], list[float]]) -> tuple[np.ndarray, np.ndarray]:
        rows, scores = answer
        return np.array(rows, np.int64), np.array(scores, np.float64)

    def taken(self, queries: list[Weights], k: int) -> Taken:
        """The time that its process takes for all queries, without the exchange between the processes."""
        return self._pyserini.search(queries, k)


def engines(
    index: Index, work: Path, wanted: Sequence[str], pythons: Sequence[str] = ()
) -> tuple[list[Any], dict[str, str]]:
    """The installed engines, one more for each interpreter with a Pyserini, and why others are missing."""
    makers: dict[str, Callable[[], Any]] = {
        "bmp": lambda: Bmp(index, work),
        "pisa": lambda: Pisa(index, work, "maxscore", "PISA MaxScore"),
        "pisa-bmw": lambda: Pisa(index, work, "block_max_wand", "PISA BlockMax-WAND"),
        "seismic": lambda: Seismic(index, work),
    }
    built: list[Any] = []
    missing = {}
    for name in wanted:
        try:
            built.append(makers[name]())
        except ImportError as e:
            missing[name] = f"not installed: {e}"
            hint = "pip install 'dupmae-ir[benchmarks]'"
            print(f"{name} is left out, {missing[name]}; {hint}", flush=True)
    built += [Lucene(index, work, python) for python in pythons]
    return built, missing
