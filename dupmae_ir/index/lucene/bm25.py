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
from dupmae_ir.index.lucene.impacts import WRITERS_YOUNG, LuceneReader, LuceneWriter, restricted
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
        pyserini.start_jvm(young=WRITERS_YOUNG)
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
    """Write a BM25 index of ``documents`` into ``folder`` (new or empty).

    ``title_field``: titles get a separate field. Returns the number of documents. Raises :class:`UsageError` for an
    unknown language.
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
                weight = pyserini.autoclass("java.lang.Float")(1.0)
                for field in ("contents", "title"):
                    self._fields.put(field, weight)

    def search(
        self,
        queries: Sequence[Query],
        k: int = 1000,
        threads: int = 1,
        allowed: RowSet | None = None,
    ) -> dict[str, list[Hit]]:
        """The ``k`` best (allowed) documents of each query, score descending, equal scores in docid order."""
        lists = self._hits(queries, self._build, k, threads, by_docid=True, allowed=allowed)
        run = {}
        for query, hits in zip(queries, lists, strict=True):
            scored = zip(hits.docids or (), hits.scores, strict=True)
            run[query.qid] = [Hit(docid, float(score)) for docid, score in scored]
        return run

    def top(
        self, texts: Sequence[str], k: int, threads: int = 1, allowed: RowSet | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The ``k`` best document numbers of each text and their scores: (m,) int64 and (m,) float64, best first.

        Documents without a word of the text are not listed; equal scores are in the order of document numbers. Lucene
        filters by ``allowed`` document numbers; scores do not depend on them.
        """
        queries = [Query("", text) for text in texts]
        lists = self._hits(queries, self._build, k, threads, by_docid=False, allowed=allowed)
        return [(hits.rows, hits.scores) for hits in lists]

    def docids(self) -> tuple[np.ndarray, list[str]]:
        """All document numbers (n,) int64 and their ids, in the order of the ids."""
        everything = pyserini.autoclass("org.apache.lucene.search.MatchAllDocsQuery")
        count = max(1, self.documents)
        (hits,) = self._hits([None], lambda _: everything(), count, 1, by_docid=True)
        return hits.rows, hits.docids or []

    def scores(self, text: str, docids: Sequence[str]) -> list[tuple[int, float]]:
        """Document number and score of each of ``docids`` that has a word of the text, in no order."""
        if not docids:
            return []
        (hits,) = self._hits(
            [text], lambda _: self._among(text, docids), len(docids), 1, by_docid=False
        )
        return list(zip(hits.rows.tolist(), hits.scores.tolist(), strict=True))

    def _build(self, query: Query) -> Any:
        # One call on one object: pyjnius binds an overloaded method, such as a builder's add, for all threads at once.
        return self._generator.buildQuery(self._fields or "contents", self._analyzer, query.text)

    def _among(self, text: str, docids: Sequence[str]) -> Any:
        """The query of ``text``, restricted to documents with these ids; the restriction does not change scores."""
        ids = pyserini.autoclass("java.util.ArrayList")()
        as_bytes = pyserini.autoclass("org.apache.lucene.util.BytesRef")
        for docid in docids:
            encoded = as_bytes(pyserini.char_sequence(docid))  # before add is bound
            ids.add(encoded)
        terms = pyserini.cast("java.util.Collection", ids)
        id_filter = pyserini.autoclass("org.apache.lucene.search.TermInSetQuery")("id", terms)
        return restricted(self._build(Query("", text)), id_filter)


def recorded_language(folder: str | Path) -> str:
    """The language that ``index bm25`` recorded in a folder; English if there is no record."""
    if not (Path(folder) / RECORD).is_file():
        return ENGLISH
    return str(read_record(folder)["settings"].get("language") or ENGLISH)


_CLASSES = {"cs": "cz.Czech", "ja": "ja.Japanese", "ko": "cjk.CJK", "zh": "cjk.CJK"}
"""Languages whose analyzer is not named after them."""
_UNICODE_WORDS = ("eo", "he", "pl", "uk", "vi", "other")
"""Languages for which Lucene has no analyzer: words in lower case."""


def _analyzer(language: str) -> Any:
    """Pyserini's analyzer of a language, or Lucene's if Pyserini names none."""
    if language == ENGLISH:
        english = pyserini.autoclass("io.anserini.analysis.DefaultEnglishAnalyzer")
        return english.newDefaultInstance()
    if language in _UNICODE_WORDS:
        name = "standard.Standard"
    else:
        name = _CLASSES.get(language, f"{language}.{LANGUAGES[language]}")
    return pyserini.autoclass(f"org.apache.lucene.analysis.{name}Analyzer")()


def _similarity(k1: float, b: float) -> Any:
    similarity = pyserini.autoclass("org.apache.lucene.search.similarities.BM25Similarity")
    return similarity(float(k1), float(b))
