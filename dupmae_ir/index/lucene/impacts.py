"""Impact postings in Lucene, written directly through its IndexWriter and searched as an inner product.

Anserini builds the same index from JSONL in which each term is repeated as often as its weight. Here the rows of a CSR
matrix cross to Java in one call for many documents, and a small Java class (dupmae_ir/java/ImpactFeed.java) passes them
to Lucene as tokens with frequencies. In a JVM without that class a document is one string of ``term, weight`` pairs,
which Lucene's ``delimitedTermFrequency`` filter turns into the same postings. Hits and scores are the same as
Anserini's; writing is many times faster and needs no intermediate files. Stock ``LuceneImpactSearcher`` reads the
result.

A search can be restricted to some rows: another small class (dupmae_ir/java/RowFilter.java) is a Lucene query that
matches them, and joins the search as a filter clause, so that Lucene skips by it. For nearly all rows (an index with
some deleted documents), and in a JVM without that class, longer lists are fetched until they have enough of the rows.

Lucene document number = row: one thread writes, merges join neighbours only, and one segment is left at the end.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from dupmae_ir import pyserini
from dupmae_ir.errors import IndexMismatch, InputError, UsageError
from dupmae_ir.index.format.forward import PartWriter
from dupmae_ir.index.format.quantisation import HIGHEST_IMPACT
from dupmae_ir.index.format.row_set import RowSet
from dupmae_ir.io.collections import LONGEST_ID

if TYPE_CHECKING:
    import scipy.sparse as sp

T = TypeVar("T")
R = TypeVar("R")

UNFILTERED_SHARE = 4
"""If at most one row in this many is excluded, a search is not filtered by Lucene."""
MAX_CLAUSES = 1024
"""Most terms of a query that Lucene accepts."""

_WEIGHT_DELIMITER = "\x01"
"""Between a term and its weight; spaces and '|' occur in vocabularies."""
_TERM_DELIMITER = "\x02"
"""Between terms."""
_RESERVED = (_WEIGHT_DELIMITER, _TERM_DELIMITER, "\n", "\0")
_ROWS = 1024
"""Documents passed to Java at a time: about a megabyte."""
_BUFFER_MB = 32.0
"""Postings that Lucene keeps in memory before it writes a segment; less in a small heap."""
_COLLECTED = 1 << 15
"""Documents after which Java is asked to free what is not used any more, which takes some hundredths of a second."""
WRITERS_YOUNG = "24m"
"""New objects of a JVM that is started for writing. Without a limit, they fill more memory the longer it writes."""


class LuceneWriter(PartWriter):
    """Writes documents into a new Lucene index, in order.

    Fields are ``id`` (stored, and sortable as in Anserini), ``contents``, which subclasses analyse differently, and
    ``title``, which only BM25 has.
    """

    def __init__(self, folder: str | Path, analyzer: Any, similarity: Any, norms: bool) -> None:
        self.folder = Path(folder)
        self.documents = 0
        with pyserini.java_errors(self.folder):
            self._writer = _index_writer(self.folder, analyzer, similarity)
            self._make_document(norms)

    def _make_document(self, norms: bool) -> None:
        """Create Java documents whose fields are reused, which halves the number of calls."""
        document = "org.apache.lucene.document."
        kind = pyserini.autoclass(document + "FieldType")()
        kind.setIndexOptions(
            pyserini.autoclass("org.apache.lucene.index.IndexOptions").DOCS_AND_FREQS
        )
        kind.setTokenized(True)
        kind.setOmitNorms(not norms)
        kind.freeze()
        self._kind = kind
        store = pyserini.autoclass(document + "Field$Store")
        self._bytes = pyserini.autoclass("org.apache.lucene.util.BytesRef")
        self._id = pyserini.autoclass(document + "StringField")("id", "", store.YES)
        self._sort_id = pyserini.autoclass(document + "BinaryDocValuesField")("id", self._bytes())
        field_class = pyserini.autoclass(document + "Field")
        self._contents = field_class("contents", pyserini.char_sequence(""), kind)
        self._title = field_class("title", pyserini.char_sequence(""), kind)
        # A document has only the fields that have text, so there is one for each combination.
        self._documents = {}  # (has contents, has a title) -> document
        for has_contents, has_title in itertools.product((False, True), repeat=2):
            fields = [self._id, self._sort_id]
            if has_contents:
                fields.append(self._contents)
            if has_title:
                fields.append(self._title)
            java_document = pyserini.autoclass(document + "Document")()
            for field in fields:
                java_document.add(field)
            self._documents[has_contents, has_title] = java_document

    def _add(self, docid: str, contents: str, title: str = "") -> None:
        """Add a document; without contents it has an id and a number."""
        self._id.setStringValue(docid)
        self._sort_id.setBytesValue(self._bytes(pyserini.char_sequence(docid)))
        for field, text in ((self._contents, contents), (self._title, title)):
            if text:
                field.setStringValue(text)
        self._writer.addDocument(self._documents[bool(contents), bool(title)])
        self._added(1)

    def _added(self, count: int) -> None:
        before = self.documents
        self.documents += count
        if self.documents // _COLLECTED > before // _COLLECTED:
            self._collect()

    def _collect(self) -> None:
        """Free what Lucene has written. Java would do so when its heap is nearly half full, after 0.2 GB or more."""
        pyserini.autoclass("java.lang.System").gc()

    def close(self) -> None:
        """Merge to one segment, commit, and release the folder, also on failure."""
        writer = self._writer
        self._writer = None
        if writer is None:
            return
        with pyserini.java_errors(self.folder):
            try:
                self._collect()
                writer.forceMerge(1)
                writer.commit()
                writer.close()
            except BaseException:
                writer.rollback()
                raise
            self._collect()
        (self.folder / "write.lock").unlink(missing_ok=True)  # Lucene leaves it behind

    def abandon(self) -> None:
        """Discard what was not committed."""
        writer = self._writer
        self._writer = None
        if writer is not None:
            with pyserini.java_errors(self.folder):
                writer.rollback()


class ImpactWriter(LuceneWriter):
    """Writes impact postings over the vocabulary ``terms`` (one string per id) into a new folder."""

    def __init__(self, folder: str | Path, terms: Sequence[str]) -> None:
        check_terms(terms)
        pyserini.start_jvm(young=WRITERS_YOUNG)
        super().__init__(folder, _weighted_terms(), _impact_similarity(), norms=False)
        self._terms = list(terms)
        self._feed = self._open_feed()

    def add(self, docid: str, term_ids: np.ndarray, impacts: np.ndarray) -> None:
        """Add a document: (t,) distinct vocabulary ids and their impacts in 1..255; none for an empty document."""
        self._add_rows(
            [docid], np.array([0, len(term_ids)]), np.asarray(term_ids), np.asarray(impacts)
        )

    def add_batch(self, docids: Sequence[str], impacts: sp.csr_matrix) -> None:
        """Add n documents: ``impacts`` (n, V), whose non-zero values are integers in 1..255."""
        if len(docids) != impacts.shape[0]:
            raise UsageError(f"{len(docids)} document ids for {impacts.shape[0]} rows of impacts")
        for start in range(0, len(docids), _ROWS):
            ends = impacts.indptr[start : start + _ROWS + 1]
            postings = slice(ends[0], ends[-1])
            self._add_rows(
                docids[start : start + _ROWS],
                ends - ends[0],
                impacts.indices[postings],
                impacts.data[postings],
            )

    def _add_rows(
        self, docids: Sequence[str], ends: np.ndarray, term_ids: np.ndarray, impacts: np.ndarray
    ) -> None:
        """Add n documents, whose postings are delimited by ``ends`` (n + 1,)."""
        if len(term_ids) != len(impacts):
            raise UsageError(f"{len(term_ids)} terms with {len(impacts)} impacts")
        if len(impacts) and not (impacts.min() >= 1 and impacts.max() <= HIGHEST_IMPACT):
            raise UsageError(
                f"impacts must be 1 to {HIGHEST_IMPACT}, got {impacts.min()} to {impacts.max()}"
            )
        with pyserini.java_errors(self.folder):
            if self._feed is not None:
                # One array of bytes, read in this order by ImpactFeed.java: a call crosses to Java once for all rows.
                names = [docid.encode("utf-8") for docid in docids]
                name_ends = _int32(np.cumsum([len(name) for name in names]))
                values = impacts.astype(np.uint8).tobytes()
                batch = b"".join([_int32(ends[1:]), name_ends, _int32(term_ids), values, *names])
                self._feed.add(batch, len(docids), len(impacts))
                self._added(len(docids))
                return
            for docid, (start, end) in zip(docids, itertools.pairwise(ends.tolist()), strict=True):
                self._add(docid, self._contents_of(term_ids[start:end], impacts[start:end]))

    def _contents_of(self, term_ids: np.ndarray, impacts: np.ndarray) -> str:
        """The contents of a document as a string, which the analyzer splits again."""
        terms = self._term_strings
        weights = self._impact_strings
        pairs = zip(term_ids.tolist(), impacts.tolist(), strict=True)
        return "".join([terms[term] + weights[int(impact)] for term, impact in pairs])

    @cached_property
    def _term_strings(self) -> list[str]:
        """Each term with its delimiter."""
        return [term + _WEIGHT_DELIMITER for term in self._terms]

    @cached_property
    def _impact_strings(self) -> list[str]:
        """Each impact, from 0, with its delimiter."""
        return [f"{impact}{_TERM_DELIMITER}" for impact in range(HIGHEST_IMPACT + 1)]

    def _open_feed(self) -> Any | None:
        """The ImpactFeed of this writer; None if the JVM does not have the class."""
        feed_class = pyserini.own_class("ImpactFeed")
        if feed_class is None:
            return None
        encoded = [term.encode("utf-8") for term in self._terms]
        lengths = _int32([len(term) for term in encoded])
        vocabulary = b"".join([lengths, *encoded])
        with pyserini.java_errors(self.folder):
            return feed_class(self._writer, self._kind, vocabulary, len(encoded))


def _int32(numbers: Sequence[int] | np.ndarray) -> bytes:
    return np.asarray(numbers, "<i4").tobytes()


class Hits(NamedTuple):
    """The hits of one query, best first."""

    rows: np.ndarray  #: (m,) int64, document numbers
    scores: np.ndarray  #: (m,) float64
    docids: list[str] | None  #: only if ties are in docid order


class LuceneReader:
    """A Lucene index open for searching with one similarity."""

    def __init__(self, folder: str | Path, similarity: Callable[[], Any]) -> None:
        self.folder = Path(folder)
        if not any(self.folder.glob("segments_*")):
            raise IndexMismatch(f"{self.folder} is not a Lucene index: it has no segments file")
        pyserini.start_jvm()
        with pyserini.java_errors(self.folder, InputError):
            directory = _directory(self.folder, "MMapDirectory")
            self._reader = pyserini.autoclass("org.apache.lucene.index.DirectoryReader").open(
                directory
            )
            self._searcher = pyserini.autoclass("org.apache.lucene.search.IndexSearcher")(
                pyserini.cast("org.apache.lucene.index.IndexReader", self._reader)
            )
            self._searcher.setSimilarity(similarity())
            self._generator = pyserini.autoclass(
                "io.anserini.search.query.BagOfWordsQueryGenerator"
            )()
            self._mapper = pyserini.autoclass("com.fasterxml.jackson.databind.ObjectMapper")()
            search = "org.apache.lucene.search."
            sort_field = pyserini.autoclass(search + "SortField")
            string_type = pyserini.autoclass(search + "SortField$Type").STRING_VAL
            # The order of hits: score, then id.
            self._by_docid = pyserini.autoclass(search + "Sort")(
                sort_field.FIELD_SCORE, sort_field("id", string_type)
            )
        # A filter lives as long as its set of rows.
        self._filters: WeakKeyDictionary[RowSet, Any] = WeakKeyDictionary()

    @property
    def documents(self) -> int:
        """Number of documents in the index."""
        return int(self._reader.maxDoc())

    @property
    def postings(self) -> int:
        """Number of postings of ``contents``: pairs of a document and a term."""
        if not self.documents:
            return 0
        with pyserini.java_errors(self.folder, InputError):
            return int(self._reader.getSumDocFreq("contents"))

    def docid(self, row: int) -> str:
        """The id stored with document number ``row``."""
        with pyserini.java_errors(self.folder, InputError):
            return str(self._reader.storedFields().document(row).get("id"))

    def close(self) -> None:
        """Close the files."""
        self._reader.close()

    def _hits(
        self,
        queries: Iterable[T],
        build: Callable[[T], Any],
        k: int,
        threads: int,
        by_docid: bool,
        allowed: RowSet | None = None,
    ) -> list[Hits]:
        """Build and run each query. Hits cross from Java as one string: a call per hit costs more than the search."""
        if k < 1:
            raise UsageError(f"the number of hits must be at least 1, got {k}")
        pyserini.check_process()
        row_filter: Any | None = None
        if allowed is not None:
            with pyserini.java_errors(self.folder, InputError):
                row_filter = self._filter(allowed)

        def run(query: T, depth: int) -> Hits:
            java_query = build(query)
            if row_filter is not None:
                java_query = restricted(java_query, row_filter)
            if by_docid:
                top_docs = self._searcher.search(java_query, depth, self._by_docid, True)
            else:
                top_docs = self._searcher.search(java_query, depth)
            return _hits(json.loads(self._mapper.writeValueAsString(top_docs)), by_docid)

        def search(query: T) -> Hits:
            depth = max(1, min(k, self.documents))
            if allowed is None or row_filter is not None:
                return run(query, depth)
            return self._search_deeper(lambda deeper: run(query, deeper), depth, allowed)

        with pyserini.java_errors(self.folder, InputError):
            return _parallel(search, list(queries), threads)

    def _filter(self, allowed: RowSet) -> Any | None:
        """A Lucene query that matches the allowed rows; None if the JVM does not have the class, and for most of the
        rows: then a slightly longer list of all rows is faster than a filter."""
        if UNFILTERED_SHARE * len(allowed) >= (UNFILTERED_SHARE - 1) * self.documents:
            return None
        if allowed not in self._filters:
            filter_class = pyserini.own_class("RowFilter")
            self._filters[allowed] = None
            if filter_class is not None:
                self._filters[allowed] = filter_class(allowed.bits.tobytes(), self.documents)
        return self._filters[allowed]

    def _search_deeper(self, run: Callable[[int], Hits], k: int, allowed: RowSet) -> Hits:
        """The ``k`` best allowed rows, from lists of all rows that grow until they contain enough of them."""
        # As long as it must be if the allowed rows are spread evenly, and a margin.
        depth = min(k * self.documents // max(1, len(allowed)) + k // 2, self.documents)
        while True:
            hits = run(max(1, depth))
            positions = np.flatnonzero(allowed.mask[hits.rows])[:k]
            is_complete = len(hits.rows) < depth or depth == self.documents
            if len(positions) == k or is_complete:
                docids = None
                if hits.docids is not None:
                    docids = [hits.docids[position] for position in positions.tolist()]
                return Hits(hits.rows[positions], hits.scores[positions], docids)
            depth = min(4 * depth, self.documents)


class ImpactSearcher(LuceneReader):
    """Exact inner products of impact queries with the documents of an impact index."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder, _impact_similarity)
        self._float = pyserini.autoclass("java.lang.Float")
        self._map = pyserini.autoclass("java.util.HashMap")
        self._floats = [self._float(float(w)) for w in range(HIGHEST_IMPACT + 1)]

    def top(
        self,
        queries: list[dict[str, int]],
        k: int,
        threads: int = 1,
        by_docid: bool = False,
        allowed: RowSet | None = None,
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The ``k`` best (allowed) rows of each query and their scores: (m,) int64 twice, m <= k, best first.

        A query maps terms to positive integer weights; common terms are not dropped, unknown ones match nothing. Rows
        that share no term are never returned. Equal scores come in row order, also at rank k; with
        ``by_docid`` in ascending docid order (about half as fast for large k). Scores are exact up to 2**24 and
        rounded to float32 above. Raises :class:`UsageError` for more than 1,024 terms or a weight that is not
        positive. ``threads`` queries run at a time.
        """
        for query in queries:
            if len(query) > MAX_CLAUSES:
                raise UsageError(
                    f"a query of {len(query)} terms; Lucene takes at most {MAX_CLAUSES}: keep the strongest"
                )
            for term, weight in query.items():
                if weight < 1 or weight != int(weight):
                    raise UsageError(
                        f"the query weight of {term!r} must be a positive whole number, got {weight!r}"
                    )
        # A query without terms matches nothing, so Lucene does not see it.
        nonempty = [query for query in queries if query]
        hits_of_nonempty = iter(self._hits(nonempty, self._build, k, threads, by_docid, allowed))
        lists = []
        for query in queries:
            if not query:
                lists.append((np.zeros(0, np.int64), np.zeros(0, np.int64)))
                continue
            hits = next(hits_of_nonempty)
            lists.append((hits.rows, np.rint(hits.scores).astype(np.int64)))
        return lists

    def _build(self, query: dict[str, int]) -> Any:
        weights = self._map()
        for term, weight in query.items():
            # Usual weights are Java objects already: making one costs a call.
            if weight <= HIGHEST_IMPACT:
                java_weight = self._floats[weight]
            else:
                java_weight = self._float(float(weight))
            weights.put(term, java_weight)
        terms = pyserini.cast("java.util.Map", weights)
        return self._generator.buildQuery("contents", terms)


def restricted(scored: Any, restriction: Any) -> Any:
    """``scored`` for the documents that match ``restriction``, which does not change scores."""
    lucene = "org.apache.lucene.search."
    occur = pyserini.autoclass(lucene + "BooleanClause$Occur")
    builder = pyserini.autoclass(lucene + "BooleanQuery$Builder")()
    must = occur.MUST
    only_filter = occur.FILTER
    scored_query = pyserini.cast(lucene + "Query", scored)
    filter_query = pyserini.cast(lucene + "Query", restriction)
    # pyjnius binds a method of all objects of a class at once: no other call between taking it and calling it.
    builder.add(scored_query, must)
    builder.add(filter_query, only_filter)
    return builder.build()


def check_terms(terms: Sequence[str]) -> None:
    """Raise :class:`UsageError` for a term that is repeated, empty, too long, or has a reserved character."""
    if len(set(terms)) != len(terms):
        seen: set[str] = set()
        for term in terms:
            if term in seen:
                raise UsageError(
                    f"the vocabulary has the term {term!r} twice; terms must be unique"
                )
            seen.add(term)
    for number, term in enumerate(terms):
        is_reserved = any(character in term for character in _RESERVED)
        is_too_long = len(term.encode("utf-8", "replace")) > LONGEST_ID
        if not term or is_reserved or is_too_long:
            raise UsageError(
                f"term {number} of the vocabulary, {term[:40]!r}, cannot be indexed: it is empty, too long, or "
                "contains a control character that the index reserves"
            )


class _BytesRef(TypedDict):
    """Lucene's BytesRef in JSON; ``bytes`` in base64."""

    bytes: str
    offset: int
    length: int


class _ScoreDoc(TypedDict):
    """A hit of Lucene in JSON; ``fields`` are what hits are sorted by, if not by score alone: score and id."""

    doc: int
    score: float
    fields: tuple[float, _BytesRef]


class _TopDocs(TypedDict):
    """Lucene's TopDocs in JSON."""

    scoreDocs: list[_ScoreDoc]


def _hits(top_docs: _TopDocs, by_docid: bool) -> Hits:
    hits = top_docs["scoreDocs"]
    rows = np.fromiter((hit["doc"] for hit in hits), np.int64, len(hits))
    scores = np.fromiter((hit["score"] for hit in hits), np.float64, len(hits))
    docids = None
    if by_docid:
        docids = [_text(hit["fields"][1]) for hit in hits]
    return Hits(rows, scores, docids)


def _text(ref: _BytesRef) -> str:
    start = ref["offset"]
    encoded = base64.b64decode(ref["bytes"])[start : start + ref["length"]]
    return encoded.decode("utf-8")


def _parallel(work: Callable[[T], R], items: list[T], threads: int) -> list[R]:
    """``[work(i) for i in items]`` on Python threads: calls to Java release the GIL."""
    if threads <= 1 or len(items) < 2:
        return [work(item) for item in items]
    threads = min(threads, len(items))

    def work_on_share(start: int) -> list[R]:
        try:
            return [work(item) for item in items[start::threads]]
        finally:
            # A thread that called Java must be detached from the JVM before it ends.
            pyserini.detach_thread()

    # One task for each thread, not for each item, so that every thread detaches itself once.
    with ThreadPoolExecutor(threads) as pool:
        shares = list(pool.map(work_on_share, range(threads)))
    return [shares[i % threads][i // threads] for i in range(len(items))]


def _index_writer(folder: Path, analyzer: Any, similarity: Any) -> Any:
    index = "org.apache.lucene.index."
    config = pyserini.autoclass(index + "IndexWriterConfig")(analyzer)
    config.setSimilarity(similarity)
    config.setOpenMode(pyserini.autoclass(index + "IndexWriterConfig$OpenMode").CREATE)
    heap_mb = pyserini.autoclass("java.lang.Runtime").getRuntime().maxMemory() / 2**20
    config.setRAMBufferSizeMB(min(_BUFFER_MB, heap_mb / 4))
    # A segment flushed as a compound file would be rewritten as separate files, even if it is the only one.
    config.setUseCompoundFile(False)
    # The default policy merges segments that are not adjacent, so rows would no longer be document numbers.
    config.setMergePolicy(pyserini.autoclass(index + "LogByteSizeMergePolicy")())
    # Merges through a mapping would count every page of the index as memory of this process.
    return pyserini.autoclass(index + "IndexWriter")(_directory(folder, "NIOFSDirectory"), config)


def _directory(folder: Path, kind: str) -> Any:
    path = pyserini.autoclass("java.nio.file.Paths").get(str(folder.resolve()))
    return pyserini.autoclass(f"org.apache.lucene.store.{kind}")(path)


def _weighted_terms() -> Any:
    """The analyzer of an impact document: splits at one delimiter, reads the weight after another."""
    options = pyserini.autoclass("java.util.HashMap")
    split_options = options()
    split_options.put("pattern", _TERM_DELIMITER)
    weight_options = options()
    weight_options.put("delimiter", _WEIGHT_DELIMITER)
    builder = pyserini.autoclass("org.apache.lucene.analysis.custom.CustomAnalyzer").builder()
    return (
        builder.withTokenizer("simplePatternSplit", split_options)
        .addTokenFilter("delimitedTermFrequency", weight_options)
        .build()
    )


def _impact_similarity() -> Any:
    """Anserini's similarity: score = frequency times boost."""
    return pyserini.autoclass("io.anserini.search.similarity.ImpactSimilarity")()
