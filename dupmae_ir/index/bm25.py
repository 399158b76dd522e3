"""BM25 with Anserini's defaults, the baseline of every comparison.

Anserini's analyzer (Porter stemming, Lucene's stop words), k1 = 0.9, b = 0.4, and one field with title and text joined.
The index is an ordinary Lucene index: stock ``pyserini.search.lucene --bm25`` reads it and returns the same hits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dupmae_ir import pyserini
from dupmae_ir.errors import UsageError
from dupmae_ir.index.builder import make_empty
from dupmae_ir.index.lucene import LuceneReader, LuceneWriter
from dupmae_ir.types import Document, Hit, Query

K1 = 0.9
B = 0.4


class BM25Writer(LuceneWriter):
    """Writes documents into a new BM25 index, one at a time."""

    def __init__(self, folder: str | Path) -> None:
        pyserini.start_jvm()
        super().__init__(folder, _analyzer(), _similarity(K1, B), norms=True)

    def __enter__(self) -> BM25Writer:
        return self

    def add(self, document: Document) -> None:
        """Add a document; one without words has an id and never matches."""
        with pyserini.java_errors(self.folder):
            self._add(document.docid, document.joined())


def build_bm25(documents: Iterable[Document], folder: str | Path) -> int:
    """Write a BM25 index of ``documents`` into ``folder`` (new or empty). Returns their number."""
    folder = Path(folder)
    make_empty(folder)
    with BM25Writer(folder) as writer:
        for document in documents:
            writer.add(document)
    return writer.documents


class BM25Searcher(LuceneReader):
    """BM25 search of an index that :func:`build_bm25` or Anserini made."""

    def __init__(self, folder: str | Path, k1: float = K1, b: float = B) -> None:
        if k1 < 0 or not 0 <= b <= 1:
            raise UsageError(f"BM25 needs k1 >= 0 and b between 0 and 1, got k1={k1} and b={b}")
        super().__init__(folder, lambda: _similarity(k1, b))
        self._analyzer = _analyzer()

    def search(self, queries: Sequence[Query], k: int = 1000, threads: int = 1) -> dict[str, list[Hit]]:
        """The ``k`` best documents of each query, score descending, equal scores in docid order."""
        found = self._hits(queries, self._build, k, threads, by_docid=True)
        return {
            query.qid: [Hit(docid, float(score)) for docid, score in zip(hits.docids or (), hits.scores, strict=True)]
            for query, hits in zip(queries, found, strict=True)
        }

    def top(self, texts: Sequence[str], k: int, threads: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
        """The ``k`` best document numbers of each text and their scores: (m,) int64 and (m,) float64, best first.

        Documents without a word of the text are not listed; equal scores are in the order of document numbers.
        """
        found = self._hits([Query("", text) for text in texts], self._build, k, threads, by_docid=False)
        return [(hits.rows, hits.scores) for hits in found]

    def docids(self) -> tuple[np.ndarray, list[str]]:
        """All document numbers (n,) int64 and their ids, in the order of the ids."""
        everything = pyserini.autoclass("org.apache.lucene.search.MatchAllDocsQuery")
        (found,) = self._hits([None], lambda _: everything(), max(1, self.documents), 1, by_docid=True)
        return found.rows, found.docids or []

    def scores(self, text: str, docids: Sequence[str]) -> list[tuple[int, float]]:
        """Document number and score of each of ``docids`` that has a word of the text, in no order."""
        if not docids:
            return []
        (found,) = self._hits([text], lambda _: self._among(text, docids), len(docids), 1, by_docid=False)
        return list(zip(found.rows.tolist(), found.scores.tolist(), strict=True))

    def _build(self, query: Query) -> Any:
        return self._generator.buildQuery("contents", self._analyzer, query.text)

    def _among(self, text: str, docids: Sequence[str]) -> Any:
        """The query of ``text``, restricted to documents with these ids; the restriction does not change scores."""
        lucene = "org.apache.lucene.search."
        ids, as_bytes = (
            pyserini.autoclass("java.util.ArrayList")(),
            pyserini.autoclass("org.apache.lucene.util.BytesRef"),
        )
        for docid in docids:
            ids.add(as_bytes(pyserini.char_sequence(docid)))
        chosen = pyserini.autoclass(lucene + "TermInSetQuery")("id", pyserini.cast("java.util.Collection", ids))
        occur = pyserini.autoclass(lucene + "BooleanClause$Occur")
        both = pyserini.autoclass(lucene + "BooleanQuery$Builder")()
        both.add(pyserini.cast(lucene + "Query", self._build(Query("", text))), occur.MUST)
        both.add(pyserini.cast(lucene + "Query", chosen), occur.FILTER)
        return both.build()


def _analyzer() -> Any:
    return pyserini.autoclass("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()


def _similarity(k1: float, b: float) -> Any:
    return pyserini.autoclass("org.apache.lucene.search.similarities.BM25Similarity")(float(k1), float(b))
