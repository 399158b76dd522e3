"""A segment of an index: an immutable folder with everything about some documents, opened.

    cls/index, cls/docid          the [CLS] vectors, as stock FaissSearcher reads them
    cls/rotated.bin               codes of the vectors, when made (see :mod:`dupmae_ir.index.format.rotated`)
    excerpts/                     the vectors of excerpts, if wanted (see :mod:`dupmae_ir.index.format.excerpts`)
    ot/                           impact postings, as stock LuceneImpactSearcher reads them
    forward/{indptr,terms,impacts}.npy   the same impacts by document (see :mod:`dupmae_ir.index.format.forward`)
    texts/                        when stored: titles, texts and metadata (see :mod:`dupmae_ir.index.format.texts`)
    postings/                     the same impacts by term (:mod:`dupmae_ir.index.postings.format`)
    docid, terms.txt              document ids by row, index terms by vocabulary id, one a line
    digests.bin                   16 bytes by row: what ``index update`` compares documents with
    {cls,ot,forward,excerpts,texts}/part.json   the id of the segment (see :mod:`dupmae_ir.index.format.integrity`)

Row r of every part is line r of ``docid`` and Lucene document number r. :mod:`dupmae_ir.index.changes.builder` writes
it. Only ``cls/rotated`` and ``postings`` may be made later, and made again.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dupmae_ir import pyserini
from dupmae_ir.errors import EnvironmentProblem, IndexMismatch
from dupmae_ir.index.format import integrity, manifest
from dupmae_ir.index.format.excerpts import Excerpts, open_excerpts
from dupmae_ir.index.format.faiss import mapped_vectors, read_index
from dupmae_ir.index.format.forward import Forward
from dupmae_ir.index.format.integrity import AGAIN, EXCERPTS
from dupmae_ir.index.format.lines import MappedLines, read_lines
from dupmae_ir.index.format.manifest import SEGMENTS, Manifest, SegmentRecord, link_parts
from dupmae_ir.index.format.texts import TextStore
from dupmae_ir.index.lucene.impacts import ImpactSearcher

if TYPE_CHECKING:
    import faiss

    from dupmae_ir.index.postings.searcher import PostingsSearcher

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

TERMS = "terms.txt"
LOCKED = "docid"
"""The file on which readers hold a shared lock. Every segment has it, so none has a file only for locks."""


_TERMS: weakref.WeakValueDictionary[str, MappedLines] = weakref.WeakValueDictionary()
"""sha256 of a file of terms -> the terms, while a segment uses them. All segments of an index have the same ones: the
131,072 of the embedded model take 3 MB, and an index that follows a folder has up to 20 segments."""


class Segment:
    """One segment. Parts are loaded on first use; vectors and the forward index are memory-mapped.

    On the first use of a part its files are compared with their digests (see :mod:`dupmae_ir.index.format.integrity`);
    every property raises :class:`IndexMismatch` for a damaged file. The folder stays while this object exists, even if
    a change removes the segment from the index. ``digest``: the id of the segment, the digest of its ids, vectors and
    impacts; ``documents``: how many rows it has, empty and deleted documents included.
    """

    def __init__(self, index: Path, index_manifest: Manifest, record: SegmentRecord) -> None:
        """``index``: the folder of the index. Raises :class:`FileNotFoundError` for a segment that was removed."""
        self.index = index
        self.record = record
        self.path = index / record.path
        self.digest = record.digest
        self.documents = record.documents
        self.parts = index_manifest.parts
        self.dim = index_manifest.dim if "cls" in self.parts else None
        self.scale = index_manifest.scale
        self._checks = integrity.FileChecks(self.path, record.files)
        # Held for as long as this object exists.
        self._reader = Reader(self.path)

    @property
    def required_parts(self) -> list[str]:
        """The parts that opening checks: ids, and the folders of vectors and impacts."""
        names = ["ids"]
        for part in self.parts:
            names.extend(integrity.PARTS[part])
        return names

    @property
    def unread(self) -> int:
        """Bytes of files whose digests are compared only by ``dupmae-ir index verify``; 0 for a small segment."""
        return self._checks.unread

    def part_problem(self, part: str) -> str | None:
        """Why ``part`` is not the recorded one, by ids and sizes; None if it is."""
        return integrity.part_problem(self.path, self.record.files, part, self.digest)

    def check_part(self, part: str, fix: str = AGAIN, everything: bool = False) -> None:
        """Raise :class:`IndexMismatch`, ending with ``fix``, unless ``part`` is the recorded one, byte by byte.

        Files above the limit of :mod:`dupmae_ir.index.format.integrity` are read only with ``everything``.
        """
        try:
            self._check_recorded(part, fix, everything)
        except IndexMismatch:
            if part in self.required_parts:
                raise
            # It may have been made, or made again, since this segment was opened.
            self._read_record()
            self._check_recorded(part, fix, everything)

    def _check_recorded(self, part: str, fix: str, everything: bool) -> None:
        """:meth:`check_part` by the record that was read."""
        if not any(integrity.part_of(name) == part for name in self.record.files):
            raise IndexMismatch(
                f"{self.path / part}: {manifest.META} does not list its files; {fix}"
            )
        problem = self.part_problem(part)
        if problem:
            raise IndexMismatch(f"{problem}; {fix}")
        self._checks.require(part, fix, everything)

    def record_part(self, part: str) -> None:
        """Record the files of an optional part (``postings``, ``cls/rotated``) that was just made."""
        self._adopt(manifest.record_part(self.index, self.record, part))

    def _read_record(self) -> None:
        """Read the record again: optional parts may have been made since this segment was opened."""
        for record in manifest.read_manifest(self.index).segments:
            if record.path == self.record.path and record.digest == self.digest:
                self._adopt(record)
                return

    def _adopt(self, record: SegmentRecord | None) -> None:
        """Use a newer record; None for a segment that is no longer in the index, which keeps its record."""
        if record is not None and record != self.record:
            self.record = record
            self._checks = integrity.FileChecks(self.path, record.files)

    @property
    def has_ot(self) -> bool:
        """Whether the segment has impacts."""
        return "ot" in self.parts

    @property
    def has_lucene(self) -> bool:
        """Whether the impacts are in Lucene too; a segment made without Pyserini has postings instead."""
        return self.has_ot and self.record.lucene

    @cached_property
    def docids(self) -> list[str]:
        """The document id of each row."""
        self.check_part("ids")
        return read_lines(self.path / "docid")

    @cached_property
    def digests(self) -> np.ndarray | None:
        """(n, 16) uint8: the digest of each document's id, title and text; None if they are not known."""
        if integrity.DIGESTS not in self.record.files:
            return None
        self.check_part("ids")
        digests = np.fromfile(self.path / integrity.DIGESTS, np.uint8)
        return digests.reshape(-1, integrity.DIGEST_BYTES)

    @cached_property
    def docid_rank(self) -> np.ndarray:
        """(n,) int64: the rank of each row's id among all ids in ascending order; breaks ties of scores."""
        rank = np.empty(self.documents, np.int64)
        rank[sorted(range(self.documents), key=self.docids.__getitem__)] = np.arange(self.documents)
        return rank

    @cached_property
    def terms(self) -> Sequence[str]:
        """The index term of each vocabulary id; empty if the segment has no impacts."""
        if not self.has_ot:
            return []
        self.check_part("ids")
        digest = self.record.files[TERMS].sha256
        terms = _TERMS.get(digest)
        if terms is None:
            terms = _TERMS[digest] = MappedLines([self.path / TERMS])
        return terms

    @cached_property
    def faiss_index(self) -> faiss.IndexFlatIP:
        """The faiss ``IndexFlatIP`` of the [CLS] vectors."""
        return read_index(self._cls_file())

    @cached_property
    def vectors(self) -> np.ndarray:
        """(n, dim) float32, the vectors of :attr:`faiss_index`, mapped from its file and read-only."""
        path = self._cls_file()
        return mapped_vectors(path, self.documents, self.dim or 0)

    @cached_property
    def excerpts(self) -> Excerpts | None:
        """The vectors of excerpts by row; None if the segment has none."""
        if not self.has_part(EXCERPTS):
            return None
        self.check_part(EXCERPTS)
        return open_excerpts(self.path / EXCERPTS, self.documents, self.dim or 0)

    def _cls_file(self) -> Path:
        self._need("cls", "[CLS] vectors")
        self.check_part("cls")
        return self.path / "cls" / "index"

    @cached_property
    def forward(self) -> Forward:
        """The impacts by document."""
        self._need("ot", "impacts")
        self.check_part("forward")
        return Forward.open(self.path / "forward", len(self.terms))

    @cached_property
    def texts(self) -> TextStore | None:
        """Titles, texts and metadata by row; None if the segment does not store them."""
        if not self.has_part("texts"):
            return None
        self.check_part("texts")
        store = TextStore(self.path / "texts")
        if len(store) != self.documents:
            raise IndexMismatch(
                f"{self.path / 'texts'} has {len(store)} documents, but {manifest.META} records {self.documents}; "
                f"{AGAIN}"
            )
        return store

    def has_part(self, part: str) -> bool:
        """Whether the manifest records files of ``part``: ``excerpts``, ``texts``, ``postings``, ``cls/rotated``."""
        return self.record.has(part)

    def postings_problem(self) -> str | None:
        """Why the postings cannot be used instead of Lucene, by their records; None if they can."""
        problem = self._recorded_postings_problem()
        if problem:
            # They may have been made since this segment was opened.
            self._read_record()
            problem = self._recorded_postings_problem()
        return problem

    def _recorded_postings_problem(self) -> str | None:
        """:meth:`postings_problem` by the record that was read."""
        from dupmae_ir.index.postings.format import postings_problem

        if not self.has_part("postings"):
            return f"{self.index / manifest.META} does not list its postings"
        return postings_problem(self)

    @cached_property
    def searcher(self) -> ImpactSearcher:
        """The impacts, opened in Lucene (starts the JVM)."""
        self._need("ot", "impacts")
        if not self.has_lucene:
            raise IndexMismatch(
                f"{self.path} was made without Pyserini and has no Lucene part; use `impact_search` postings, or "
                "encode the collection again where Pyserini is installed"
            )
        if not pyserini.installed():
            raise EnvironmentProblem(
                f"{self.path / 'ot'} is a Lucene index, which needs Pyserini: pip install 'pyserini>=1.6,<3,!=2.4.0'; "
                f"or search postings, which do not: build them with dupmae-ir index postings"
            )
        self.check_part("ot")
        searcher = ImpactSearcher(self.path / "ot")
        if searcher.documents != self.documents:
            raise IndexMismatch(
                f"{self.path / 'ot'} has {searcher.documents} documents, but {manifest.META} records "
                f"{self.documents}; {AGAIN}"
            )
        return searcher

    @cached_property
    def postings(self) -> PostingsSearcher:
        """The postings of ``dupmae-ir index postings``, for complete topic sets (needs numba, no JVM)."""
        from dupmae_ir.index.postings.searcher import PostingsSearcher

        self._need("ot", "impacts")
        # Referring to each other, both would stay open until Python looks for cycles among all objects.
        segment = weakref.proxy(self)
        return PostingsSearcher(segment, lambda: segment.docid_rank)

    def verify(self) -> None:
        """Read every byte and compare with the recorded digests, without decoding (``index verify`` also decodes).

        Raises :class:`IndexMismatch` for the first damaged file.
        """
        for part in dict.fromkeys(map(integrity.part_of, self.record.files)):
            self.check_part(part, everything=True)
        if manifest.content_digest(self.path, self.dim) != self.digest:
            raise IndexMismatch(
                f"{self.path}: the files are not the ones that meta.json describes; {AGAIN}"
            )

    def _need(self, part: str, what: str) -> None:
        if part not in self.parts:
            raise IndexMismatch(f"{self.index} has no {what}; it has only {', '.join(self.parts)}")


class Reader:
    """Keeps the folder of a segment from being removed, until the last reference to this object is gone.

    It holds a shared lock, which any number of readers can have. :func:`remove_unread` needs an exclusive one. The
    kernel releases the lock of a reader that was killed.

    Raises :class:`FileNotFoundError` if the folder was removed. On a file system without locks nothing is held.
    """

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / LOCKED, os.O_RDONLY)
        if fcntl is None:
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH)
        except OSError:
            return
        # It may have been removed between our open and our lock.
        if not os.path.samestat(os.fstat(self._fd), (folder / LOCKED).stat()):
            raise FileNotFoundError(2, os.strerror(2), str(folder / LOCKED))

    def __del__(self) -> None:
        fd = getattr(self, "_fd", None)  # missing if the file could not be opened
        if fd is not None:
            os.close(fd)


def remove_unread(folder: Path) -> None:
    """Remove the folder of a segment unless a process reads it. The caller holds the lock of the index."""
    # The lock is held until the folder is gone: a reader that opens it meanwhile waits, and then sees that it is.
    with ExitStack() as locks:
        if fcntl is not None:
            # Errors: a folder that was removed in part, or a file system without locks, on which no reader has one.
            with suppress(OSError):
                fd = os.open(folder / LOCKED, os.O_RDONLY)
                locks.callback(os.close, fd)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return
        shutil.rmtree(folder, ignore_errors=True)


def sweep_segments(index: Path, manifest: Manifest) -> None:
    """Link ``I/cls`` and ``I/ot`` to the first segment, and remove what the manifest does not name.

    Segments that a process reads stay until the next change. The caller holds the lock of the index.
    """
    # First the links, so that they never point to a segment that was removed.
    link_parts(index, manifest.segments[0], manifest.parts)
    named = {Path(segment.path).name for segment in manifest.segments}
    if manifest.deleted:
        named.add(Path(manifest.deleted.path).name)
    for path in (index / SEGMENTS).iterdir():
        if path.name in named:
            continue
        if path.is_dir():
            remove_unread(path)
        else:
            path.unlink()
