"""BM25 with Anserini's defaults, the baseline of every comparison.

Anserini's analyzer of the language (English: Porter stemming, Lucene's stop words), k1 = 0.9, b = 0.4, and one field
with title and text joined, or one field each, whose scores are added (Anserini's "flat" and "multifield" indexes of
BEIR). The index is an ordinary Lucene index: stock ``pyserini.search.lucene --bm25`` reads it and returns the same
hits, with ``--language`` for another one than English, and ``--fields contents=1.0 title=1.0`` for two fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dupmae_ir import pyserini
from dupmae_ir.errors import UsageError
from dupmae_ir.index.format.manifest import make_empty
from dupmae_ir.index.format.row_set import RowSet
from dupmae_ir.index.lucene.impacts import LuceneReader, LuceneWriter, restricted
from dupmae_ir.io.jobs import RECORD, read_record
from dupmae_ir.models.languages import ENGLISH, LANGUAGES, check_language
from dupmae_ir.types import Document, Hit, Query

K1 = 0.9
B = 0.4


class BM25Writer(LuceneWriter):
    """Writes documents into a new BM25 index, one at a time."""

    def __init__(
        self, folder: str | Path, title_field: bool = False, language: str = ENGLISH
    ) -> None:
        pyserini.start_jvm()
        super().__init__(folder, _analyzer(language), _similarity(K1, B), norms=True)
        self._title_field = title_field

    def add(self, document: Document) -> None:
        """Add a document; one without words has an id and never matches."""
        with pyserini.java_errors(self.folder):
            if self._title_field:
                self._add(document.docid, document.text, document.title)
            else:
                self._add(document.docid, document.joined())


def build_bm25(
    documents: Iterable[Document],
    folder: str | Path,
    title_field: bool = False,
    language: str = ENGLISH,
) -> int:
    """Write a BM25 index of ``documents`` into ``folder`` (new or empty), titles in a field of their own or not.

    Returns the number of documents. Raises :class:`UsageError` for an unknown language.
    """
    folder = Path(folder)
    check_language(language)
    make_empty(folder)
    with BM25Writer(folder, title_field, language) as writer:
        for document in documents:
            writer.add(document)
    return writer.documents


class BM25Searcher(LuceneReader):
    """BM25 search of an index that :func:`build_bm25` or Anserini made.

    ``language``: of the queries; None is what ``index bm25`` recorded, or English.
    """

    def __init__(
        self, folder: str | Path, k1: float = K1, b: float = B, language: str | None = None
    ) -> None:
        if k1 < 0 or not 0 <= b <= 1:
            raise UsageError(f"BM25 needs k1 >= 0 and b between 0 and 1, got k1={k1} and b={b}")
        super().__init__(folder, lambda: _similarity(k1, b))
        self._analyzer = _analyzer(language or recorded_language(self.folder))
        with pyserini.java_errors(self.folder):
            self._fields = None
            if self.documents and self._reader.getSumDocFreq("title") > 0:
                self._fields = pyserini.autoclass("java.util.HashMap")()
                one = pyserini.autoclass("java.lang.Float")(1.0)  # the weight of both fields
                for field in ("contents", "title"):
                    self._fields.put(field, one)

    def search(
        self,
        queries: Sequence[Query],
        k: int = 1000,
        threads: int = 1,
        allowed: RowSet | None = None,
    ) -> dict[str, list[Hit]]:
        """The ``k`` best (allowed) documents of each query, score descending, equal scores in docid order."""
        found = self._hits(queries, self._build, k, threads, by_docid=True, allowed=allowed)
        return {
            query.qid: [
                Hit(docid, float(score))
                for docid, score in zip(hits.docids or (), hits.scores, strict=True)
            ]
            for query, hits in zip(queries, found, strict=True)
        }

    def top(
        self, texts: Sequence[str], k: int, threads: int = 1, allowed: RowSet | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The ``k`` best document numbers of each text and their scores: (m,) int64 and (m,) float64, best first.

        Documents without a word of the text are not listed; equal scores are in the order of document numbers. Lucene
        filters by ``allowed`` document numbers; scores do not depend on them.
        """
        found = self._hits(
            [Query("", text) for text in texts], self._build, k, threads, False, allowed
        )
        return [(hits.rows, hits.scores) for hits in found]

    def docids(self) -> tuple[np.ndarray, list[str]]:
        """All document numbers (n,) int64 and their ids, in the order of the ids."""
        everything = pyserini.autoclass("org.apache.lucene.search.MatchAllDocsQuery")
        (found,) = self._hits(
            [None], lambda _: everything(), max(1, self.documents), 1, by_docid=True
        )
        return found.rows, found.docids or []

    def scores(self, text: str, docids: Sequence[str]) -> list[tuple[int, float]]:
        """Document number and score of each of ``docids`` that has a word of the text, in no order."""
        if not docids:
            return []
        (found,) = self._hits(
            [text], lambda _: self._among(text, docids), len(docids), 1, by_docid=False
        )
        return list(zip(found.rows.tolist(), found.scores.tolist(), strict=True))

    def _build(self, query: Query) -> Any:
        # One call on one object: pyjnius binds an overloaded method, such as a builder's add, for all threads at once.
        return self._generator.buildQuery(self._fields or "contents", self._analyzer, query.text)

    def _among(self, text: str, docids: Sequence[str]) -> Any:
        """The query of ``text``, restricted to documents with these ids; the restriction does not change scores."""
        ids = pyserini.autoclass("java.util.ArrayList")()
        as_bytes = pyserini.autoclass("org.apache.lucene.util.BytesRef")
        for docid in docids:
            one = as_bytes(pyserini.char_sequence(docid))  # before add is bound
            ids.add(one)
        terms = pyserini.cast("java.util.Collection", ids)
        chosen = pyserini.autoclass("org.apache.lucene.search.TermInSetQuery")("id", terms)
        return restricted(self._build(Query("", text)), chosen)


def recorded_language(folder: str | Path) -> str:
    """The language that ``index bm25`` recorded in a folder; English if there is no record."""
    if not (Path(folder) / RECORD).is_file():
        return ENGLISH
    return str(read_record(folder)["settings"].get("language") or ENGLISH)


_CLASSES = {"cs": "cz.Czech", "ja": "ja.Japanese", "ko": "cjk.CJK", "zh": "cjk.CJK"}
_UNICODE_WORDS = ("eo", "he", "pl", "uk", "vi", "other")
"""Languages for which Lucene has no analyzer: words in lower case."""


def _analyzer(language: str) -> Any:
    """Pyserini's analyzer of a language, and Lucene's where Pyserini names none."""
    if language == ENGLISH:
        return pyserini.autoclass(
            "io.anserini.analysis.DefaultEnglishAnalyzer"
        ).newDefaultInstance()
    name = _CLASSES.get(language, f"{language}.{LANGUAGES[language]}")
    name = "standard.Standard" if language in _UNICODE_WORDS else name
    return pyserini.autoclass(f"org.apache.lucene.analysis.{name}Analyzer")()


def _similarity(k1: float, b: float) -> Any:
    return pyserini.autoclass("org.apache.lucene.search.similarities.BM25Similarity")(
        float(k1), float(b)
    )
