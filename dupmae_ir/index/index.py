"""An index, opened: a manifest and the segments that it names, read as one.

    index = Index.open("I")              # a folder, or the URL of one
    index = Index.open("A", "B", "C")    # index folders of one model and scale, as one

    I/meta.json                     the manifest, written last (see :mod:`dupmae_ir.index.format.manifest`)
    I/segments/0001-1a2b3c4d/       a segment (see :mod:`dupmae_ir.index.format.segment`); a fresh index has one
    I/segments/deleted-000003.npy   (m,) int64: rows deleted as of generation 3, ascending
    I/cls, I/ot                     links to the first segment's folders, for stock Pyserini

Rows are numbered through the segments in their order. A document that is updated is deleted from its segment and added
to a new one, so segments never change. Replacing ``meta.json`` is what makes a generation the current one; what it does
not name belongs to no generation. An opened index does not change: later changes add files and replace ``meta.json``,
and the folder of a segment stays as long as a process reads it (:mod:`dupmae_ir.index.format.segment`).
:mod:`dupmae_ir.index.changes.changes` makes the next generation.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import lzma
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dupmae_ir.arguments import checked
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.changes.object_store import local_index
from dupmae_ir.index.format.integrity import AGAIN, content_problem
from dupmae_ir.index.format.joined import JoinedForward, JoinedTexts, locate
from dupmae_ir.index.format.lines import MappedLines
from dupmae_ir.index.format.manifest import (
    META,
    SUMS,
    DeletedRecord,
    Manifest,
    Meta,
    SegmentRecord,
    read_manifest,
    record_of,
)
from dupmae_ir.index.format.segment import Segment
from dupmae_ir.index.format.unread import is_unread, share_read
from dupmae_ir.io.transfer import is_url
from dupmae_ir.models.languages import ENGLISH, LANG
from dupmae_ir.types import CollectionStatistics, Encoder, LanguageStatistics, LexicalEncoder

_ATTEMPTS = 100
"""How often a generation that is replaced while it is read is read again."""
_SHARED = (
    "name",
    "digest",
    "document_length",
    "query_length",
    "top_k",
    "activation",
    "title_separator",
    "normalize",
    "language",
    "excerpts",
)
"""Settings of an encoder that indexes must share to be searched as one."""


class IndexSource(NamedTuple):
    """What a copy of an index in another process opens, and the digest of the contents that it must have."""

    paths: tuple[str, ...]
    record: bool
    digest: str


class Index:
    """An index of n >= 1 segments; :meth:`open` opens it.

    ``segments`` in the order of their rows. ``starts`` (n + 1,): the first row of each, and the number of rows.
    ``live`` (rows,) bool: the rows that are not deleted; arrays by row have deleted rows as well. Of the manifest:
    ``meta``, its contents (how the index was made, and the counts of all segments); ``digest``, the id of what the
    index contains, another one after every change; ``documents``, those that are not deleted, empty ones included;
    ``parts``, ``cls`` and ``ot`` as far as the index has them; ``scale``, what OT weights were multiplied by before
    rounding (see :mod:`dupmae_ir.index.format.quantisation`).
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        segments: Sequence[Segment],
        live: np.ndarray,
        mapped: bool = False,
    ) -> None:
        """``mapped``: read ids from their files when they are needed, for more documents than memory has room for."""
        self.path = path
        self.manifest = manifest
        self.segments = list(segments)
        self.live = live
        self.meta = manifest.meta
        self.digest = manifest.digest
        self.documents = manifest.documents
        self.parts = manifest.parts
        self.scale = manifest.scale
        self.starts = np.cumsum([0, *(segment.documents for segment in segments)], dtype=np.int64)
        self._mapped = mapped
        self._source: IndexSource | None = None

    @classmethod
    @checked
    def open(cls, *paths: str | Path, record: bool = False) -> Index:
        """Open the index at ``paths``, a folder or the URL of one, in its current generation; several ones as one.

        ``record``: also open the record of an index (:meth:`record`), which has no segments.

        Raises :class:`InputError` for a path that is not a (finished) index, :class:`IndexMismatch` for a damaged one,
        for several ones of different models, scales or parts, and for an id in two of them.
        """
        if not paths:
            raise UsageError("`paths`: give the folder of an index, or several ones")
        indexes = []
        for path in paths:
            indexes.append(_open(Path(local_index(path)), str(path), record and len(paths) == 1))
        index = indexes[0]
        if len(indexes) > 1:
            index = _join(indexes, [str(path) for path in paths])
        index._source = IndexSource(tuple(_absolute(path) for path in paths), record, index.digest)
        return index

    def __reduce__(self) -> tuple[Callable[[IndexSource], Index], tuple[IndexSource]]:
        """An index is pickled by its paths and the digest of its contents; loading it opens it anew."""
        if self._source is None:
            raise UsageError("an index that `Index.open` did not open cannot be pickled")
        return _reopened, (self._source,)

    @property
    def only_segment(self) -> Segment:
        """The segment of an index in one piece. Raises :class:`IndexMismatch` for any other index."""
        if len(self.segments) > 1 or self.documents < self.rows:
            deleted = f"{self.rows - self.documents} deleted document(s)"
            raise IndexMismatch(
                f"{self.path} has {len(self.segments)} segment(s) and {deleted}, and this needs an index in one piece; "
                f"make it one with: dupmae-ir index compact {self.path}"
            )
        return self.segments[0]

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}: {self.documents:,} documents, {' + '.join(self.meta['parts'])})"

    @property
    def rows(self) -> int:
        """Rows of all segments, deleted ones included."""
        return int(self.starts[-1])

    @property
    def unread(self) -> int:
        """Bytes of files whose digests are compared only by ``dupmae-ir index verify``; 0 for a small index."""
        return sum(segment.unread for segment in self.segments)

    def record(self) -> Meta:
        """The manifest of a record of this index."""
        lexical = self.has_ot and (self.meta.get("encoder") or {}).get("ot") == "lexical"
        # Queries need the document frequencies, which a record has no rows to count.
        frequencies = pack_frequencies(self.frequencies) if lexical else ""
        facts: dict[str, object] = {
            "columns": None if self.texts is None else self.texts.columns,
            "frequencies": frequencies,
        }
        languages = {}
        for language, statistics in self.language_statistics.items():
            packed = pack_frequencies(statistics.frequencies)
            languages[language] = {"documents": statistics.documents, "frequencies": packed}
        if languages:
            facts["languages"] = languages
        return record_of(self.meta, **facts)

    @property
    def dim(self) -> int | None:
        """Width of the [CLS] vectors; None if the index has none."""
        return self.manifest.dim if "cls" in self.parts else None

    @property
    def has_ot(self) -> bool:
        """Whether the index has impacts."""
        return "ot" in self.parts

    @cached_property
    def terms(self) -> Sequence[str]:
        """The index term of each vocabulary id; empty for an index without impacts, and for a record.

        Segments that have documents in additional languages have terms that others lack.
        """
        return max((segment.terms for segment in self.segments), key=len, default=[])

    @property
    def vocabulary(self) -> int:
        """The number of vocabulary ids that documents of this index have, or can get in additional languages."""
        encoder = self.meta.get("encoder") or {}
        if encoder.get("vocabulary") and "languages" in encoder:
            return 2 * int(encoder["vocabulary"]["size"])
        return len(self.terms)

    @property
    def frequencies(self) -> np.ndarray:
        """(V,) int64: the number of documents of each term, without deleted documents."""
        if self.segments:
            return self.forward.frequencies
        return unpack_frequencies(self.meta["record"]["frequencies"])

    @property
    def language(self) -> str:
        """The language of the words of most documents; a code of ``models.languages``."""
        return str((self.meta.get("encoder") or {}).get("language") or ENGLISH)

    @cached_property
    def languages(self) -> dict[str, int]:
        """Each language but :attr:`language` -> the number of documents in it."""
        return {code: found.documents for code, found in self.language_statistics.items()}

    @cached_property
    def language_statistics(self) -> dict[str, LanguageStatistics]:
        """Each language but :attr:`language` -> the statistics of the documents in it."""
        known = (self.meta.get("encoder") or {}).get("languages")
        if not known:
            return {}
        statistics = {}
        if not self.segments:
            for language, facts in (self.meta["record"].get("languages") or {}).items():
                frequencies = unpack_frequencies(facts["frequencies"])
                statistics[language] = LanguageStatistics(
                    facts["documents"], frequencies, known[language]
                )
            return statistics
        if self.texts is None:
            return {}
        column = self.texts.column(LANG)
        for language in known:
            if language not in column.values:
                continue
            rows = self.live & (column.codes == column.values.index(language))
            if rows.any():
                frequencies = self.forward.frequencies_of(rows)
                statistics[language] = LanguageStatistics(
                    int(rows.sum()), frequencies, known[language]
                )
        return statistics

    @property
    def part_weights(self) -> tuple[float, float]:
        """The weights of the dense and the impact score in the sum (1 and 1 in Eq. 12), as recorded for the encoder."""
        weights = (self.meta.get("encoder") or {}).get("part_weights") or {}
        return float(weights.get("dense", 1.0)), float(weights.get("impact", 1.0))

    @cached_property
    def term_ids(self) -> dict[str, int]:
        """Index term -> vocabulary id."""
        return {term: i for i, term in enumerate(self.terms)}

    @cached_property
    def docids(self) -> Sequence[str]:
        """The document id of each row. An updated document has a deleted row and a live one."""
        if self._mapped:
            for segment in self.segments:
                segment.check_part("ids")
            return MappedLines([segment.path / "docid" for segment in self.segments])
        if len(self.segments) == 1:
            return self.segments[0].docids
        docids: list[str] = []
        for segment in self.segments:
            docids.extend(segment.docids)
        return docids

    @cached_property
    def docid_rank(self) -> np.ndarray:
        """(rows,) int64: the rank of each row's id among all ids in ascending order; breaks ties of scores."""
        if len(self.segments) == 1 and not self._mapped:
            return self.segments[0].docid_rank
        docids = self.docids
        rank = np.empty(self.rows, np.int64)
        if isinstance(docids, MappedLines):
            # Sorted without a string for each id.
            rank[docids.order()] = np.arange(self.rows)
        else:
            rank[sorted(range(self.rows), key=docids.__getitem__)] = np.arange(self.rows)
        if self._mapped:  # a segment would read its ids as strings to rank them
            for segment, start, live in self.slices():
                segment.docid_rank = np.argsort(np.argsort(rank[start : start + len(live)]))
        return rank

    @cached_property
    def digests(self) -> np.ndarray | None:
        """(rows, 16) uint8: the digest of each document's id, title and text; None if a segment has none."""
        digests = []
        for segment in self.segments:
            if segment.digests is None:
                return None
            digests.append(segment.digests)
        return np.concatenate(digests)

    @cached_property
    def forward(self) -> JoinedForward:
        """The impacts by document."""
        return JoinedForward([segment.forward for segment in self.segments], self.starts, self.live)

    @property
    def has_texts(self) -> bool:
        """Whether all segments store titles, texts and metadata."""
        if not self.segments:
            return self.meta["record"]["columns"] is not None
        return all(segment.has_part("texts") for segment in self.segments)

    @property
    def missing(self) -> str | None:
        """What a search of this index cannot find yet, in words: the vectors that ``encode`` is reading; None for a
        complete index."""
        if not is_unread(self.meta):
            return None
        return f"meaning {share_read(self.path):.0%} read"

    @property
    def excerpts(self) -> Mapping[str, float] | None:
        """``word_pieces`` of an excerpt at most, and the ``share`` of the best one in the score by meaning; None for an
        index without excerpts."""
        return (self.meta.get("encoder") or {}).get("excerpts")

    @property
    def has_excerpts(self) -> bool:
        """Whether documents have vectors of excerpts."""
        return self.excerpts is not None

    @cached_property
    def texts(self) -> JoinedTexts | None:
        """Titles, texts and metadata by row; None if the index does not store them, and for a record."""
        if not self.segments or not self.has_texts:
            return None
        stores = [segment.texts for segment in self.segments if segment.texts is not None]
        # Only documents in another language than the index record theirs.
        has_languages = (self.meta.get("encoder") or {}).get("languages")
        usual = {LANG: self.language} if has_languages else {}
        return JoinedTexts(self.path, stores, self.starts, usual)

    @cached_property
    def files(self) -> Mapping[str, np.ndarray]:
        """The files that the index was made of: path -> (m,) int64, the rows of its passages. Empty for a collection
        that was not read as files."""
        if self.texts is None or not {"path", "start", "end"} <= set(self.texts.columns):
            return {}
        column = self.texts.column("path")
        rows = np.flatnonzero(self.live)
        codes = column.codes[rows]
        # Sorted by path, and split where the path changes; stable, so that rows stay in order.
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order])) + 1
        files = {}
        for group in np.split(rows[order], starts):
            if len(group):
                path = column.values[int(column.codes[group[0]])]
                if isinstance(path, str):
                    files[path] = group
        return files

    def size_in_words(self, documents: int | None = None) -> str:
        """``3,229 passages of 76 files`` for an index of files, ``5,183 documents`` for others; ``documents``: if not
        all of them are meant."""
        count = self.documents if documents is None else documents
        if not self.files:
            return f"{count:,} documents"
        if documents is not None:
            return f"{count:,} passages"
        return f"{count:,} passages of {len(self.files):,} files"

    def locate(self, row: int) -> tuple[int, int]:
        """The segment of a row, and its row there."""
        return locate(self.starts, row)

    def slices(self) -> Iterator[tuple[Segment, int, np.ndarray]]:
        """Each segment with its first row and its part of :attr:`live`."""
        for segment, start, end in zip(
            self.segments, self.starts.tolist(), self.starts[1:].tolist(), strict=False
        ):
            yield segment, start, self.live[start:end]

    def verify(self) -> None:
        """Read every byte and compare with the recorded digests, without decoding (``index verify`` also decodes).

        Raises :class:`IndexMismatch` for the first damaged file.
        """
        for segment in self.segments:
            segment.verify()


def pack_frequencies(frequencies: np.ndarray) -> str:
    """(V,) integers, compressed, as text."""
    return base64.b64encode(lzma.compress(frequencies.astype("<i8").tobytes())).decode()


def unpack_frequencies(packed: str) -> np.ndarray:
    """(V,) int64 of :func:`pack_frequencies`."""
    return np.frombuffer(lzma.decompress(base64.b64decode(packed)), "<i8")


def _open(path: Path, name: str, record: bool) -> Index:
    # Without a lock: opening must not wait for a change. A change may remove files between reading the manifest and
    # opening what it names; then the manifest is a newer one, and is read again. From the moment at which a segment is
    # opened, it is held.
    for _ in range(_ATTEMPTS):
        manifest = read_manifest(path, record)
        try:
            segments = [Segment(path, manifest, record) for record in manifest.segments]
            live = np.ones(sum(segment.documents for segment in segments), bool)
            if manifest.deleted:
                live[read_deleted(path, manifest.deleted, len(live))] = False
        except FileNotFoundError as e:
            # The same generation: the file is really missing.
            if read_manifest(path).generation == manifest.generation:
                raise IndexMismatch(f"{e.filename} is missing; {AGAIN}") from None
            continue
        # Sizes and ids only. Digests are compared when a part is first used.
        for segment in segments:
            for part in segment.required_parts:
                problem = segment.part_problem(part)
                if problem:
                    raise IndexMismatch(f"{problem}; {AGAIN}")
        return Index(path, manifest, segments, live)
    raise IndexMismatch(f"{name}: changes too often to be opened; try again")


def read_deleted(index: Path, record: DeletedRecord, rows: int) -> np.ndarray:
    """(m,) int64: the deleted rows, ascending. ``rows``: how many the segments have.

    Raises :class:`FileNotFoundError` for a file of an older generation that was removed, :class:`IndexMismatch` for a
    damaged one.
    """
    path = index / record.path
    path.stat()  # raises for a file that is not there
    problem = content_problem(path, record.sha256)
    if problem:
        raise IndexMismatch(f"{problem}; {AGAIN}")
    deleted: np.ndarray = np.load(path, allow_pickle=False)
    # The rows are ascending, so the first and the last are enough.
    if len(deleted) != record.rows or (len(deleted) and not 0 <= deleted[0] <= deleted[-1] < rows):
        raise IndexMismatch(
            f"{path}: {len(deleted)} rows of {rows}, not those that {META} describes; {AGAIN}"
        )
    return deleted


def _join(indexes: Sequence[Index], paths: Sequence[str]) -> Index:
    """Several indexes as one."""
    first = indexes[0].manifest
    for path, other in zip(paths[1:], indexes[1:], strict=True):
        _check_alike(indexes[0], other, f"{paths[0]} and {path}")
    facts: Meta = {}
    for name in ("documents", *SUMS):
        facts[name] = sum(index.meta.get(name) or 0 for index in indexes)
    # No folder alone has this digest, since a search of it finds something else.
    digests = "".join(index.digest for index in indexes)
    facts["digest"] = hashlib.sha256(digests.encode()).hexdigest()
    weights = {index.part_weights for index in indexes}
    if len(weights) > 1:
        # Measured on each collection, so they differ a little: the lowest, whatever the order of the folders.
        dense, impact = map(min, zip(*weights, strict=True))
        facts["encoder"] = {
            **first.meta["encoder"],
            "part_weights": {"dense": dense, "impact": impact},
        }
    languages: dict[str, float] = {}
    for index in indexes:
        languages |= (index.meta.get("encoder") or {}).get("languages") or {}
    if languages:
        encoder = facts.get("encoder") or first.meta["encoder"]
        facts["encoder"] = {**encoder, "languages": languages}
    records: list[SegmentRecord] = []
    segments: list[Segment] = []
    for index in indexes:
        records.extend(index.manifest.segments)
        segments.extend(index.segments)
    joined = Index(
        indexes[0].path,
        dataclasses.replace(
            first,
            documents=facts["documents"],
            digest=facts["digest"],
            generation=0,
            segments=tuple(records),
            deleted=None,
            meta={**first.meta, **facts},
        ),
        segments,
        np.concatenate([index.live for index in indexes]),
        mapped=True,
    )
    _check_distinct(joined, paths)
    return joined


def _check_alike(first: Index, other: Index, names: str) -> None:
    """Raise :class:`IndexMismatch` for two indexes whose scores cannot be compared: another encoder, scale or parts."""
    mine = _compared_values(first)
    theirs = _compared_values(other)
    differing = [name for name in mine if mine[name] != theirs[name]]
    if differing:
        values = ", ".join(f"{name} {mine[name]} and {theirs[name]}" for name in differing)
        raise IndexMismatch(
            f"{names} cannot be searched as one: {values}; encode with one model and one scale"
        )


def _compared_values(index: Index) -> dict[str, object]:
    """What two indexes must share to be searched as one."""
    values = {"parts": index.meta["parts"], "scale": index.scale, "dim": index.dim}
    encoder = index.meta.get("encoder") or {}
    for name in _SHARED:
        values[name] = encoder.get(name)
    return values


def _check_distinct(index: Index, paths: Sequence[str]) -> None:
    """Raise :class:`IndexMismatch` for an id that is live in two folders."""
    order = np.argsort(index.docid_rank)
    order = order[index.live[order]]
    docids = index.docids
    # Equal ids are neighbours in this order, and rows of different folders: look only where the folder changes.
    owner = np.searchsorted(index.starts, order, side="right")
    changes = np.flatnonzero(np.diff(owner))
    for before, after in zip(order[changes].tolist(), order[changes + 1].tolist(), strict=True):
        if docids[before] == docids[after]:
            raise IndexMismatch(
                f"the document id {docids[before]!r} is in two of {', '.join(paths)}; every document needs its own id"
            )


def for_index(encoder: Encoder, index: Index) -> Encoder:
    """``encoder`` with the document frequencies of ``index`` if its OT part is lexical; otherwise itself.

    Deleted documents are not counted.
    """
    if encoder.settings.ot != "lexical" or not index.has_ot:
        return encoder
    if not isinstance(encoder, LexicalEncoder):
        return encoder
    return encoder.for_collection(
        CollectionStatistics(index.documents, index.frequencies, index.language_statistics)
    )


def _absolute(path: str | Path) -> str:
    """A path that names the same index in another folder; a URL as it is."""
    return str(path) if is_url(path) else str(Path(path).absolute())


def _reopened(source: IndexSource) -> Index:
    """The index of a pickle. Raises :class:`IndexMismatch` if it has changed since, or is not one of this version."""
    if not isinstance(source, IndexSource) or not isinstance(source.paths, tuple):
        raise IndexMismatch("not an index that this version pickled; open it, and pickle it again")
    index = Index.open(*source.paths, record=source.record)
    if index.digest != source.digest:
        raise IndexMismatch(
            f"{index.path} has changed since it was pickled; open it, and pickle it again"
        )
    return index
