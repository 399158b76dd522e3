"""An index of several segments, or with deleted documents, opened for reading as one.

    index = open_index("I")                 # Index, or SegmentedIndex after a change
    index = open_indexes(["A", "B", "C"])   # index folders of one model and scale, as one

Rows are numbered through all segments (see :mod:`dupmae_ir.index.changes.generations`). ``live`` says which of them are
not deleted; every array by row has deleted rows as well. The generation is the one that was current when the index was
opened: later changes add files and replace ``meta.json``, and a compaction leaves the folder to those who hold it
(:mod:`dupmae_ir.index.changes.places`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from dupmae_ir.errors import IndexMismatch, UnknownName
from dupmae_ir.index.changes.generations import Generation, SegmentRecord, generation_of, read_deleted
from dupmae_ir.index.changes.object_store import local_index
from dupmae_ir.index.changes.places import Place, place_of
from dupmae_ir.index.format import manifest
from dupmae_ir.index.format.docids import MappedDocids
from dupmae_ir.index.format.forward import Forward
from dupmae_ir.index.format.manifest import AGAIN, META, Meta
from dupmae_ir.index.format.texts import Column, StoredDocument, TextStore
from dupmae_ir.index.index import Index
from dupmae_ir.registry import suggest

_ATTEMPTS = 100
"""How often a generation that is replaced while it is read is read again."""
_ADDED = ("empty_documents", "postings", "sum_of_impacts", "clipped", "dropped")
_SHARED = ("name", "digest", "document_length", "query_length", "top_k", "activation", "title_separator", "normalize")


class SegmentedIndex:
    """Segments read as one index. Use :func:`open_index` or :func:`open_indexes`.

    ``folders``: the segments in the order of their rows. ``starts`` (s + 1,): the first row of each, and the number of
    rows. ``live`` (rows,) bool: the rows that are not deleted.
    """

    def __init__(
        self, path: Path, folders: Sequence[Index], live: np.ndarray, generation: Generation, mapped: bool = False
    ) -> None:
        """``mapped``: read ids from their files when they are needed, for more documents than memory has room for."""
        self.path = path
        self._mapped = mapped
        self.folders = list(folders)
        self.starts = np.concatenate(([0], np.cumsum([folder.documents for folder in folders]))).astype(np.int64)
        self.live = live
        self.generation = generation

    @property
    def rows(self) -> int:
        """Rows of all segments, deleted ones included."""
        return int(self.starts[-1])

    @cached_property
    def documents(self) -> int:
        """Documents that are not deleted."""
        return int(np.count_nonzero(self.live))

    @cached_property
    def meta(self) -> Meta:
        """The manifest of the first segment, with the counts of all of them (deleted documents included, except in
        ``documents``) and the digest of the generation."""
        first = self.folders[0].meta
        sums = {name: sum(folder.meta.get(name) or 0 for folder in self.folders) for name in _ADDED}
        return {**first, **sums, "documents": self.documents, "digest": self.generation.digest}

    @property
    def sealed(self) -> bool:
        """Whether the manifests of all segments record their files."""
        return all(folder.sealed for folder in self.folders)

    @property
    def certifies(self) -> str | None:
        """Why lists of this index are not called certified; None where they are."""
        return next((reason for folder in self.folders if (reason := folder.certifies)), None)

    @property
    def unread(self) -> int:
        """Bytes of files whose digests are compared only by ``dupmae-ir index verify``."""
        return sum(folder.unread for folder in self.folders)

    @property
    def dim(self) -> int | None:
        """Width of the [CLS] vectors; None where the index has none."""
        return self.folders[0].dim

    @property
    def has_ot(self) -> bool:
        """Whether the index has impacts."""
        return self.folders[0].has_ot

    @property
    def scale(self) -> float | None:
        """What OT weights were multiplied by before rounding; the same for all segments."""
        return self.folders[0].scale

    @property
    def terms(self) -> list[str]:
        """The index term of each vocabulary id; the same for all segments."""
        return self.folders[0].terms

    @property
    def term_ids(self) -> dict[str, int]:
        """Index term -> vocabulary id."""
        return self.folders[0].term_ids

    @cached_property
    def docids(self) -> Sequence[str]:
        """The document id of each row. An updated document has a deleted row and a live one."""
        if self._mapped:
            for folder in self.folders:
                folder.check_part("ids")
            return MappedDocids([folder.path / "docid" for folder in self.folders])
        return [docid for folder in self.folders for docid in folder.docids]

    @cached_property
    def docid_rank(self) -> np.ndarray:
        """(rows,) int64: the rank of each row's id among all ids in ascending order; breaks ties of scores."""
        rank = np.empty(self.rows, np.int64)
        rank[self._order] = np.arange(self.rows)
        if self._mapped:  # a folder would read its ids as strings to rank them
            for folder, start, live in self.slices():
                own = rank[start : start + len(live)]
                folder.docid_rank = np.argsort(np.argsort(own))
        return rank

    @property
    def _order(self) -> np.ndarray:
        docids = self.docids
        if isinstance(docids, MappedDocids):
            return docids.order()
        return np.array(sorted(range(self.rows), key=docids.__getitem__), np.int64)

    @cached_property
    def forward(self) -> SegmentedForward:
        """The impacts by document."""
        return SegmentedForward([folder.forward for folder in self.folders], self.starts, self.live)

    @property
    def has_texts(self) -> bool:
        """Whether all segments store titles, texts and metadata."""
        return all(folder.has_texts for folder in self.folders)

    @cached_property
    def texts(self) -> SegmentedTexts | None:
        """Titles, texts and metadata by row; None where the index does not store them."""
        parts = [folder.texts for folder in self.folders if folder.texts is not None] if self.has_texts else []
        return SegmentedTexts(self.path, parts, self.starts) if parts else None

    def locate(self, row: int) -> tuple[int, int]:
        """The segment of a row, and its row there."""
        return _located(self.starts, row)

    def slices(self) -> Iterator[tuple[Index, int, np.ndarray]]:
        """Each segment with its first row and its part of :attr:`live`."""
        for number, folder in enumerate(self.folders):
            start, end = int(self.starts[number]), int(self.starts[number + 1])
            yield folder, start, self.live[start:end]

    def verify(self) -> None:
        """Compare every byte with the recorded digests. Raises :class:`IndexMismatch` for the first damaged file."""
        for folder in self.folders:
            folder.verify()


class SegmentedForward:
    """The forward indexes of all segments, by row of the whole."""

    def __init__(self, parts: Sequence[Forward], starts: np.ndarray, live: np.ndarray) -> None:
        self._parts, self._starts, self._live = parts, starts, live

    def __len__(self) -> int:
        return int(self._starts[-1])

    def row(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Vocabulary ids and impacts of one document."""
        segment, inside = _located(self._starts, row)
        return self._parts[segment].row(inside)

    def scores(self, rows: np.ndarray, query_ids: np.ndarray, query_impacts: np.ndarray) -> np.ndarray:
        """Exact inner products with one query: (m,) rows, (t,) vocabulary ids, (t,) impacts -> (m,) int64."""
        out = np.zeros(len(rows), np.int64)
        for segment, here, inside in shares(self._starts, rows):
            out[here] = self._parts[segment].scores(inside, query_ids, query_impacts)
        return out

    @cached_property
    def frequencies(self) -> np.ndarray:
        """(V,) int64: the number of documents of each term, without deleted documents."""
        counts = np.sum([part.frequencies for part in self._parts], axis=0)
        for part, live in zip(self._parts, np.split(self._live, self._starts[1:-1]), strict=True):
            gone = [part.row(row)[0] for row in np.flatnonzero(~live).tolist()]
            if gone:
                counts -= np.bincount(np.concatenate(gone), minlength=len(counts))
        return counts


class SegmentedTexts:
    """The text stores of all segments, by row of the whole; see :class:`~dupmae_ir.index.format.texts.TextStore`."""

    def __init__(self, path: Path, parts: Sequence[TextStore], starts: np.ndarray) -> None:
        self._path, self._parts, self._starts = path, parts, starts

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def columns(self) -> list[str]:
        """Names of the metadata columns of all segments, in the order of their first use."""
        return list(dict.fromkeys(name for part in self._parts for name in part.columns))

    def get(self, row: int) -> StoredDocument:
        """The document of a row."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        segment, inside = _located(self._starts, row)
        return self._parts[segment].get(inside)

    def get_all(self, rows: Sequence[int]) -> list[StoredDocument]:
        """The documents of several rows, in their order."""
        return [self.get(row) for row in rows]

    def column(self, name: str) -> Column:
        """One metadata column of all rows. Raises :class:`UnknownName` for a name that no document has."""
        if name not in self.columns:
            known = ", ".join(self.columns) or "none"
            raise UnknownName(f"{self._path} has no metadata {name!r}; known: {known}.{suggest(name, self.columns)}")
        places: dict[str, int] = {json.dumps(None): 0}
        codes = [_translated(part, name, places) for part in self._parts]
        return Column([json.loads(text) for text in places], np.concatenate(codes))


def _translated(part: TextStore, name: str, places: dict[str, int]) -> np.ndarray:
    """The codes of a segment's column as places in the values of all segments, to which new values are added."""
    if name not in part.columns:
        return np.zeros(len(part), np.uint32)
    column = part.column(name)
    # The text tells 1, 1.0 and true apart, which are equal as keys.
    codes = [places.setdefault(json.dumps(value), len(places)) for value in column.values]
    return np.array(codes, np.uint32)[column.codes]


def _located(starts: np.ndarray, row: int) -> tuple[int, int]:
    segment = int(np.searchsorted(starts, row, side="right")) - 1
    return segment, row - int(starts[segment])


def shares(starts: np.ndarray, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Divide (m,) rows of an index by segment: yields the segment's number, positions in ``rows``, and its own rows."""
    rows = np.asarray(rows, np.int64)
    owner = np.searchsorted(starts, rows, side="right") - 1
    for segment in np.unique(owner):
        here = np.flatnonzero(owner == segment)
        yield int(segment), here, rows[here] - starts[segment]


AnyIndex = Index | SegmentedIndex
"""An index opened for reading."""


def open_index(path: str | Path) -> AnyIndex:
    """Open an index, of one segment or several, in its current generation.

    ``path``: a folder, or the URL of one (:func:`~dupmae_ir.index.changes.object_store.local_index`). Raises
    :class:`InputError` for a path that is not a (finished) index, :class:`IndexMismatch` for a damaged one.
    """
    path = local_index(path)
    place = place_of(path)
    for _ in range(_ATTEMPTS):
        folder = Index(place, manifest.read_meta(place.path))
        generation = generation_of(folder.meta)
        if generation.plain:
            folder.check_parts()
            return folder
        try:
            return _segmented(path, place, folder, generation)
        except FileNotFoundError as e:
            if generation_of(manifest.read_meta(place.path)).number == generation.number:
                raise IndexMismatch(f"{e.filename} is missing; {AGAIN}") from None
    raise IndexMismatch(f"{path}: changes too often to be opened; try again")


def open_indexes(paths: Sequence[str | Path]) -> AnyIndex:
    """Open several index folders as one; a single one as :func:`open_index` does.

    Raises :class:`IndexMismatch` for folders of different models, scales or parts, and for an id in two of them.
    """
    opened = [open_index(path) for path in paths]
    if len(opened) == 1:
        return opened[0]
    first = opened[0]
    for path, other in zip(paths[1:], opened[1:], strict=True):
        check_alike(first, other, f"{paths[0]} and {path}")
    folders = [folder for index in opened for folder in folders_of(index)]
    live = np.concatenate([live_rows(index) for index in opened])
    digest = hashlib.sha256("".join(digest_of(index) for index in opened).encode()).hexdigest()
    whole = SegmentedIndex(Path(paths[0]), folders, live, Generation(0, int(np.count_nonzero(live)), digest), True)
    _check_distinct(whole, [str(path) for path in paths])
    return whole


def folders_of(index: AnyIndex) -> list[Index]:
    """The segments of an index."""
    return index.folders if isinstance(index, SegmentedIndex) else [index]


def live_rows(index: AnyIndex) -> np.ndarray:
    """(rows,) bool: the rows that are not deleted."""
    return index.live if isinstance(index, SegmentedIndex) else np.ones(index.documents, bool)


def digest_of(index: AnyIndex) -> str:
    """The id of what the index contains: another one after every change."""
    return str(index.meta["digest"])


def _segmented(path: Path, place: Place, first: Index, generation: Generation) -> SegmentedIndex:
    folders = [first, *(_segment(place, first, record) for record in generation.segments)]
    for folder in folders:
        folder.check_parts()
    rows = sum(folder.documents for folder in folders)
    live = np.ones(rows, bool)
    live[read_deleted(place.path, generation.deleted, rows)] = False
    if np.count_nonzero(live) != generation.documents:
        raise IndexMismatch(f"{path / META}: {generation.documents} documents recorded, {live.sum()} found; {AGAIN}")
    return SegmentedIndex(path, folders, live, generation)


def _segment(place: Place, first: Index, record: SegmentRecord) -> Index:
    meta = manifest.read_meta(place.path / record.path)
    folder = Index(place, meta, record.path)
    if (meta["digest"], meta["documents"]) != (record.digest, record.documents):
        raise IndexMismatch(f"{folder.path} is not the segment that {place.path / META} describes; {AGAIN}")
    check_alike(first, folder, str(folder.path))
    return folder


def check_alike(first: AnyIndex, other: AnyIndex, names: str) -> None:
    """Raise :class:`IndexMismatch` for two indexes whose scores cannot be compared: another encoder, scale or parts."""
    mine, theirs = (
        {
            "parts": index.meta["parts"],
            "scale": index.meta["scale"],
            "dim": index.meta["dim"],
            **{name: (index.meta.get("encoder") or {}).get(name) for name in _SHARED},
        }
        for index in (first, other)
    )
    if differing := [name for name in mine if mine[name] != theirs[name]]:
        values = ", ".join(f"{name} {mine[name]} and {theirs[name]}" for name in differing)
        raise IndexMismatch(f"{names} cannot be searched as one: {values}; encode with one model and one --scale")


def _check_distinct(index: SegmentedIndex, paths: Sequence[str]) -> None:
    order = np.argsort(index.docid_rank)
    order = order[index.live[order]]
    docids = index.docids
    # Equal ids are neighbours in this order, and rows of different folders: look only where the folder changes.
    owner = np.searchsorted(index.starts, order, side="right")
    places = np.flatnonzero(np.diff(owner))
    for before, after in zip(order[places].tolist(), order[places + 1].tolist(), strict=True):
        if docids[before] == docids[after]:
            raise IndexMismatch(
                f"the document id {docids[before]!r} is in two of {', '.join(paths)}; every document needs its own id"
            )
