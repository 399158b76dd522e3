"""The served indexes: opened, kept while they are searched, and exchanged for newer ones.

An index folder is opened with everything that a search reads, searched once, and only then put in the place of the
one before it. A batch of requests takes the generation that is current when the batch starts (:attr:`OpenIndexes.lock`
is held meanwhile), so every answer comes from one generation and none is lost. A folder that cannot be opened leaves
the old generation in place.

Requests name an index; folders come from the command line alone.

Encodings of recent queries are kept (:class:`CachingEncoder`), so that one text in several modes, requests or
explanations is encoded once. New texts are divided among threads that compute alone. One computation on several threads
joins them after every product, a hundred times for a query: where a core is busy with other work, all wait for it each
time.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import scipy.sparse as sp

from dupmae_ir.config import subset
from dupmae_ir.device import torch_threads
from dupmae_ir.errors import DupmaeError, InputError, UnknownName
from dupmae_ir.index.format.manifest import META, read_meta
from dupmae_ir.long_running import give_back_memory
from dupmae_ir.registry import suggest
from dupmae_ir.search.config import MODES, SearchSettings
from dupmae_ir.search.query.encoder import COMPARED
from dupmae_ir.search.query.words import SpanEncoder
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.serve.config import ServeConfig
from dupmae_ir.types import (
    CollectionStatistics,
    Document,
    EncodedRows,
    Encoder,
    LazyEncoder,
    LexicalEncoder,
    Query,
    QuickEncoder,
    Representation,
    WordEncoder,
)

Signature = tuple[str, int, int, int]
"""What tells one state of an index folder from another: the folder itself, and ``meta.json``'s inode, time and size."""

FIRST_QUERY = "the first query"
"""Searched before any client asks."""
ROWS_OF_A_THREAD = 50_000
"""Documents that one thread ranks in about the time that it takes to encode a query; fewer are not worth another."""


class _Row(NamedTuple):
    """One text: its [CLS] vector, and the ids and weights of its words; None for a part that the encoder lacks."""

    cls: np.ndarray | None
    words: tuple[np.ndarray, np.ndarray] | None


class CachingEncoder:
    """``encoder`` with a cache of its query encodings. For one thread at a time.

    Args:
        encoder: the encoder.
        most: encodings kept after :meth:`trim`, the least recently used dropped first.
        threads: number of threads that encode the texts of a call.
    """

    def __init__(self, encoder: Encoder, most: int, threads: int = 1) -> None:
        self.encoder = encoder
        self.most = most
        self.threads = threads
        self.name = encoder.name
        self.digest = encoder.digest
        self.dim = encoder.dim
        self.settings = encoder.settings
        self.encoded = 0  #: texts encoded so far
        self._rows: OrderedDict[tuple[int, str], _Row] = OrderedDict()

    @property
    def terms(self) -> Sequence[str] | None:
        """The index terms of the encoder."""
        return self.encoder.terms

    def encode_documents(self, texts: Sequence[str]) -> Representation:
        """Encode documents; these are not cached."""
        return self.encoder.encode_documents(texts)

    def encode_queries(self, texts: Sequence[str], cap: int = 1024) -> Representation:
        """The encodings of queries; only texts that are not cached are encoded, in one call."""
        if not texts:
            return self.encoder.encode_queries([])
        cls, rows = self.encode_rows(texts, cap)
        if rows is None:
            return Representation(cls, None)
        starts = np.cumsum([0, *(len(ids) for ids, _ in rows)])
        ids = np.concatenate([ids for ids, _ in rows])
        weights = np.concatenate([weights for _, weights in rows])
        shape = (len(rows), len(self.terms or ()))
        return Representation(cls, sp.csr_matrix((weights, ids, starts), shape))

    def is_quick(self, queries: int) -> bool:  # noqa: ARG002
        """As :meth:`QuickEncoder.is_quick`: always, since what is in the cache are rows."""
        return True

    def encode_rows(
        self, texts: Sequence[str], cap: int = 1024, threads: int | None = None
    ) -> EncodedRows:
        """As :meth:`QuickEncoder.encode_rows`, on the threads of this encoder."""
        del threads
        self.prepare(texts, cap)
        rows = [self._rows[cap, text] for text in texts]
        vectors = [row.cls for row in rows if row.cls is not None]
        words = [row.words for row in rows if row.words is not None]
        return EncodedRows(
            np.stack(vectors) if self.dim is not None else None,
            words if self.terms is not None else None,
        )

    def prepare(self, texts: Sequence[str], cap: int) -> None:
        """Encode the queries that are not cached. Nothing is dropped before :meth:`trim`."""
        new = [text for text in dict.fromkeys(texts) if (cap, text) not in self._rows]
        if new:
            self.encoded += len(new)
            self._encode_and_keep(new, cap)
        for text in texts:
            self._rows.move_to_end((cap, text))

    def _encode_and_keep(self, texts: list[str], cap: int) -> None:
        """Encode texts on the threads of this encoder, and put the encodings into the cache."""
        encoder = self.encoder
        if isinstance(encoder, QuickEncoder) and encoder.is_quick(len(texts)):
            self._keep(texts, cap, encoder.encode_rows(texts, cap, self.threads))
            return
        thread_count = min(self.threads, len(texts))
        if thread_count == 1:
            self._keep(texts, cap, EncodedRows.of(encoder.encode_queries(texts, cap)))
            return

        def encode(share: list[str]) -> EncodedRows:
            with torch_threads(1):
                return EncodedRows.of(encoder.encode_queries(share, cap))

        # Dealt out in turn by length, so that every thread gets about as much to do.
        by_length = sorted(texts, key=len)
        shares = [by_length[thread::thread_count] for thread in range(thread_count)]
        with ThreadPoolExecutor(thread_count, "encode") as pool:
            encodings = list(pool.map(encode, shares))
        for share, encoding in zip(shares, encodings, strict=True):
            self._keep(share, cap, encoding)

    def trim(self) -> None:
        """Drop the least recently used encodings beyond ``most``."""
        while len(self._rows) > self.most:
            self._rows.popitem(last=False)

    def forget(self) -> None:
        """Drop all encodings and the count."""
        self._rows.clear()
        self.encoded = 0

    def _keep(self, texts: list[str], cap: int, encoded: EncodedRows) -> None:
        # Copies: a view would keep the memory of the complete batch.
        for i, text in enumerate(texts):
            cls = None
            if encoded.cls is not None:
                cls = encoded.cls[i].copy()
            words = None
            if encoded.ot is not None:
                ids, weights = encoded.ot[i]
                words = (ids.copy(), weights.copy())
            self._rows[cap, text] = _Row(cls, words)


class CachingLexicalEncoder(CachingEncoder):
    """:class:`CachingEncoder` for an encoder whose weights depend on the collection."""

    def __init__(self, encoder: Encoder, most: int, threads: int = 1) -> None:
        super().__init__(encoder, most, threads)
        assert isinstance(encoder, LexicalEncoder)
        self.lexical = encoder

    def encode_collection(
        self,
        documents: Sequence[Document],
        separator: str | None = None,
        languages: Sequence[str] | None = None,
    ) -> Representation:
        """Encode a collection; nothing is cached."""
        return self.lexical.encode_collection(documents, separator, languages)

    def for_collection(self, collection: CollectionStatistics) -> Encoder:
        """The encoder for a collection, with a cache of its own."""
        return cached(self.lexical.for_collection(collection), self.most, self.threads)

    def without_vectors(self) -> Encoder | None:
        """As :meth:`WordEncoder.without_vectors`; its encodings are not cached, since they take as long to find."""
        if isinstance(self.lexical, WordEncoder):
            return self.lexical.without_vectors()
        return None

    def term_names(self, text: str) -> dict[str, str]:
        """Index term -> the word of ``text`` that it stands for."""
        return self.lexical.term_names(text)


class CachingSpanEncoder(CachingLexicalEncoder):
    """:class:`CachingLexicalEncoder` for an encoder that knows where in a text each index term is from."""

    def term_spans(self, text: str) -> list[tuple[str, int, int]]:
        """(index term, start, end) of each word of ``text``."""
        assert isinstance(self.encoder, SpanEncoder)
        return self.encoder.term_spans(text)


def cached(encoder: Encoder, most: int, threads: int = 1) -> CachingEncoder:
    """``encoder`` with a cache of ``most`` query encodings, on ``threads`` threads."""
    if not isinstance(encoder, LexicalEncoder):
        return CachingEncoder(encoder, most, threads)
    kind = CachingSpanEncoder if isinstance(encoder, SpanEncoder) else CachingLexicalEncoder
    return kind(encoder, most, threads)


@dataclass(frozen=True)
class OpenIndex:
    """One state of an index, opened. ``number`` counts the states that this server has opened, from 1."""

    name: str
    number: int
    searcher: Searcher
    encoder: CachingEncoder
    modes: tuple[str, ...]
    signature: Signature
    opened: float  #: seconds since the epoch

    @property
    def id(self) -> str:
        """The id of the index: a digest of its contents."""
        return str(self.searcher.index.meta["digest"])[:16]

    @property
    def documents(self) -> int:
        """Number of documents."""
        return int(self.searcher.index.documents)

    def close(self) -> None:
        """Close Lucene's files if they are open; the rest is freed with the object."""
        for segment in self.searcher.index.segments:
            lucene = vars(segment).pop("searcher", None)
            if lucene is not None:
                lucene.close()


@dataclass(frozen=True)
class IndexReload:
    """What a reload did to one index: ``opened``, ``removed``, or ``failed`` with the reason."""

    name: str
    what: Literal["opened", "removed", "failed"]
    reason: str = ""


class OpenIndexes:
    """The indexes of one server, by name."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.settings = subset(config, SearchSettings)
        # Locks are taken in this order: _reloading, lock, _holding.
        #: held while a batch is answered and while an index is exchanged
        self.lock = threading.Lock()
        self._reloading = threading.Lock()
        # Held for a moment, while ``_users`` or ``_retired`` changes.
        self._holding = threading.Lock()
        # Requests by the id() of the generation that answers them.
        self._users: Counter[int] = Counter()
        # Generations that were exchanged and are not closed yet.
        self._retired: list[OpenIndex] = []
        self._current: dict[str, OpenIndex] = {}
        self._encoders: list[Encoder] = []
        self._failed: dict[str, Signature | None] = {}
        self._numbers: dict[str, itertools.count[int]] = {}

    def open_all(self) -> None:
        """Open every index. Raises :class:`DupmaeError` for the first that cannot be opened."""
        folders = self.folders()
        if not folders:
            raise InputError(f"{self.config.indexes} contains no finished index")
        for name, path in folders.items():
            self._current[name] = self._open(name, path)

    def folders(self) -> dict[str, Path]:
        """Name -> folder of the indexes to serve."""
        if self.config.indexes is None:
            return dict(self.config.named)
        try:
            records = sorted(Path(self.config.indexes).glob(f"*/{META}"))
            return {record.parent.name: record.parent for record in records}
        except OSError as e:
            raise InputError(f"{self.config.indexes}: cannot be read: {e.strerror}") from None

    @property
    def names(self) -> list[str]:
        """The names of the indexes; the first is the default."""
        return list(self._current)

    def get(self, name: str | None = None) -> OpenIndex:
        """The current generation of an index, or of the default index. Raises :class:`UnknownName`."""
        current = self._current
        if name is None and current:
            return next(iter(current.values()))
        if name is None or name not in current:
            hint = suggest(str(name)[:100], current)
            raise UnknownName(f"no index has this name; served: {', '.join(current)}.{hint}")
        return current[name]

    @contextmanager
    def hold(self, name: str | None) -> Iterator[OpenIndex]:
        """:meth:`get`; the generation stays open meanwhile, though another one replaces it."""
        with self._holding:
            # Found and counted under one lock: in between, `close_unused` would take it for unused.
            held = self.get(name)
            self._users[id(held)] += 1
        try:
            yield held
        finally:
            with self._holding:
                self._users[id(held)] -= 1

    def reload(self) -> list[IndexReload]:
        """Open what is new or changed, drop what is gone from the folder of indexes, and return what was done."""
        with self._reloading:
            try:
                folders = self.folders()
            except InputError as e:
                return [IndexReload("", "failed", str(e))]
            changes = []
            for name, path in folders.items():
                change = self._refresh(name, path)
                if change is not None:
                    changes.append(change)
            for name in self.names:
                if name not in folders:
                    self._exchange(name, None)
                    changes.append(IndexReload(name, "removed"))
            # Otherwise the generation before would stay open until the next request, if one held it meanwhile.
            if self._retired:
                with self.lock:
                    self.close_unused()
            if changes:
                give_back_memory()
            return changes

    def close(self) -> None:
        """Close every index."""
        for name in self.names:
            self._exchange(name, None)

    def _refresh(self, name: str, path: Path) -> IndexReload | None:
        signature = _signature(path)
        current = self._current.get(name)
        if current and signature == current.signature:
            return None
        # A state that could not be opened is not tried again; () is the signature of none.
        if self._failed.get(name, ()) == signature:
            return None
        try:
            opened = self._open(name, path)
        except (DupmaeError, OSError) as e:
            # A folder that is being replaced may be incomplete; the next look finds all of it.
            self._failed[name] = signature
            return IndexReload(name, "failed", str(e))
        self._failed.pop(name, None)
        self._exchange(name, opened)
        return IndexReload(name, "opened")

    def _exchange(self, name: str, new: OpenIndex | None) -> None:
        with self.lock:
            old = self._current.get(name)
            # A new dict, since other threads read the old one without a lock.
            current = dict(self._current)
            if new is not None:
                current[name] = new
            else:
                current.pop(name, None)
            self._current = current
            if old is not None:
                self._retired.append(old)
            self.close_unused()

    def close_unused(self) -> None:
        """Close the generations that were exchanged and answer no request any more. Needs :attr:`lock`."""
        with self._holding:
            unused = [retired for retired in self._retired if not self._users[id(retired)]]
            self._retired = [retired for retired in self._retired if self._users[id(retired)]]
            for retired in unused:
                # A generation opened later may have the id() of a freed one, and must not inherit its entry.
                self._users.pop(id(retired), None)
                retired.close()

    def _open(self, name: str, path: Path) -> OpenIndex:
        # Read before and after opening: if it has changed, parts of two states may have been read.
        signature = _signature(path)
        searcher = self._searcher(path)
        searcher.load_reranker()
        workers = self.settings.workers
        searcher = searcher.with_settings(
            threads=min(workers, 1 + searcher.index.documents // ROWS_OF_A_THREAD)
        )
        threads = workers if searcher.encoder.settings.device == "cpu" else 1
        searcher.encoder = encoder = cached(searcher.encoder, self.config.query_cache, threads)
        # Reads the ids, which the first request would otherwise wait for.
        searcher.row("")
        parts = set(searcher.index.meta["parts"])
        modes = tuple(mode for mode, needed in MODES.items() if parts >= set(needed))
        if self.settings.bm25_index:
            modes = ("hybrid",)
        warm_up(searcher, encoder, modes, self.lock)
        # The queries of the warm-up are not those of a client.
        encoder.forget()
        if signature is None or signature != _signature(path):
            raise InputError(f"{path} changed while it was opened")
        # Counted only now, so that a state that could not be opened takes no number.
        number = next(self._numbers.setdefault(name, itertools.count(1)))
        return OpenIndex(name, number, searcher, encoder, modes, signature, time.time())

    def _searcher(self, path: Path) -> Searcher:
        """A searcher with an encoder that another index already loaded, or with its own."""
        # Parts are opened later, when a link may lead to another index.
        path = path.resolve()
        config = self.config
        meta = read_meta(path)
        recorded = meta.get("encoder") or {}
        needs_vectors = "cls" in meta["parts"]
        for encoder in self._encoders:
            # That of an index of words has no vectors.
            if needs_vectors and encoder.dim is None:
                continue
            if recorded.get("digest") == encoder.digest and all(
                recorded.get(name) in (None, getattr(encoder.settings, name)) for name in COMPARED
            ):
                return Searcher.open(path, encoder, settings=self.settings)
        searcher = Searcher.open(
            path, config.model, device=config.device, dtype=config.dtype, settings=self.settings
        )
        encoder = searcher.encoder
        if isinstance(encoder, LazyEncoder) and not encoder.is_quick(2):
            # Loaded now, so that no search waits for it.
            encoder.whole()
        self._encoders.append(searcher.encoder)
        return searcher


def warm_up(
    searcher: Searcher, encoder: CachingEncoder, modes: tuple[str, ...], lock: threading.Lock
) -> None:
    """Search once in every mode and describe a hit, so that every file is open and no first request waits.

    ``lock`` is held where the model or its words are used, which batches of other generations use as well: they are for
    one thread at a time. Files are opened without it, which takes most of the time.
    """
    queries = [Query("", FIRST_QUERY)]
    with lock:
        encoder.prepare([FIRST_QUERY], searcher.settings.query_terms)
    for mode in modes:
        if mode != "impact":  # its words may be encoded on their own, not taken from the cache
            list(searcher.answers(queries, 1, mode))
    _ = searcher.index.texts
    with lock:
        for mode in modes:
            for answer in searcher.answers(queries, 1, mode):
                searcher.describe(FIRST_QUERY, [hit.docid for hit in answer.hits])


def watch(
    catalogue: OpenIndexes,
    every: float,
    stopped: threading.Event,
    report: Callable[[IndexReload], None],
) -> None:
    """Reload every ``every`` seconds until ``stopped`` is set."""
    while not stopped.wait(every):
        for change in catalogue.reload():
            report(change)


def _signature(path: Path) -> Signature | None:
    """None for a folder without ``meta.json``."""
    try:
        folder = path.resolve()
        # A new generation replaces this file by a rename, last of all, so its inode or time differs.
        status = (folder / META).stat()
    except OSError:
        return None
    return str(folder), status.st_ino, status.st_mtime_ns, status.st_size
