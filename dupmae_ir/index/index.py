"""The index folder, opened.

    I/cls/index, I/cls/docid          the [CLS] vectors, as stock FaissSearcher reads them
    I/cls/KIND.{faiss,json}           smaller dense indexes, when built (see :mod:`dupmae_ir.index.format.dense_kinds`)
    I/ot/                             impact postings, as stock LuceneImpactSearcher reads them
    I/forward/{indptr,terms,impacts}.npy   the same impacts by document (see :mod:`dupmae_ir.index.format.forward`)
    I/texts/                          when stored: titles, texts and metadata (see :mod:`dupmae_ir.index.format.texts`)
    I/postings/                       the same impacts by term (:mod:`dupmae_ir.index.postings.postings`)
    I/docid, I/terms.txt              document ids by row, index terms by vocabulary id, one a line
    I/digests.bin                     16 bytes by row: what ``index update`` compares documents with
    I/meta.json                       the manifest, written last (see :mod:`dupmae_ir.index.format.manifest`)

    I/segments/                       after a change: further segments and deleted rows
                                      (see :mod:`dupmae_ir.index.changes.generations`)

    I/{cls,ot,forward,texts}/part.json      the index id (see :mod:`dupmae_ir.index.format.integrity`)

Row r of every part is line r of ``docid`` and Lucene document number r. :mod:`dupmae_ir.index.changes.builder` writes
it.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dupmae_ir import pyserini
from dupmae_ir.errors import EnvironmentProblem, IndexMismatch
from dupmae_ir.index.changes.generations import generation_of
from dupmae_ir.index.changes.object_store import local_index
from dupmae_ir.index.changes.places import Place, place_of
from dupmae_ir.index.format import integrity, manifest
from dupmae_ir.index.format.faiss import mapped_vectors, read_index
from dupmae_ir.index.format.forward import Forward
from dupmae_ir.index.format.manifest import AGAIN, Meta
from dupmae_ir.index.format.texts import TextStore
from dupmae_ir.index.lucene.impacts import ImpactSearcher
from dupmae_ir.index.postings.postings import PostingsSearcher, built

if TYPE_CHECKING:
    import faiss


class Index:
    """A finished index. Parts are loaded on first use; vectors and the forward index are memory-mapped.

    On the first use of a part its files are compared with their digests (see :mod:`dupmae_ir.index.format.integrity`);
    every property raises :class:`IndexMismatch` for a damaged one.
    """

    def __init__(self, path: Path | Place, meta: Meta, inside: str = "") -> None:
        """``inside``: the folder of a further segment, relative to ``path``."""
        self._place, self._inside = path, inside
        self.meta = meta
        self._checks = integrity.FileChecks(self.path, meta["files"] if self.sealed else {})

    @property
    def path(self) -> Path:
        """The folder; one that a compaction moved away is found again (see :mod:`dupmae_ir.index.changes.places`)."""
        base = self._place.path if isinstance(self._place, Place) else self._place
        return base / self._inside if self._inside else base

    @classmethod
    def open(cls, path: str | Path) -> Index:
        """Check that ``path`` is a whole index of one segment and open it.

        Raises :class:`InputError` for a path that is not a (finished) index, :class:`IndexMismatch` for parts that are
        missing, truncated or at odds with ``meta.json``, and for an index with further segments or deleted documents,
        which :func:`dupmae_ir.index.format.segments.open_index` opens.
        """
        place = place_of(local_index(path))
        folder = cls(place, manifest.read_meta(place.path))
        generation = generation_of(folder.meta)
        if not generation.plain:
            raise IndexMismatch(
                f"{path} has {1 + len(generation.segments)} segment(s) and "
                f"{generation.deleted.rows if generation.deleted else 0} deleted document(s), and this needs an index "
                f"in one piece; make it one with: dupmae-ir index compact {path}"
            )
        folder.check_parts()
        return folder

    def check_parts(self) -> None:
        """Compare ids and sizes of the required parts with ``meta.json``. Raises :class:`IndexMismatch`."""
        if not self.sealed:
            self.check_counts()
            return
        for part in self.required_parts:
            if problem := self.part_problem(part):
                raise IndexMismatch(f"{problem}; {AGAIN}")

    def check_counts(self) -> None:
        """Compare the counts of the required parts with ``meta.json``. Raises :class:`IndexMismatch`."""
        manifest.check_docids(self.path, self.meta)
        if self.dim is not None:
            manifest.check_vectors(self.path, self.meta)
        if self.has_ot:
            if self.has_lucene:
                manifest.check_lucene(self.path)
            manifest.check_impacts(self.path, self.meta, self.forward)

    @property
    def sealed(self) -> bool:
        """Whether the manifest records the files of the index and its own digest; older indexes have no records."""
        return manifest.is_sealed(self.meta)

    @property
    def required_parts(self) -> list[str]:
        """The parts that opening checks: ids, and the folders of vectors and impacts."""
        return ["ids", *(name for part in self.meta["parts"] for name in integrity.PARTS[part])]

    @property
    def unread(self) -> int:
        """Bytes of files whose digests are compared only by ``dupmae-ir index verify``; 0 for a small index."""
        return self._checks.unread

    @property
    def certifies(self) -> str | None:
        """Why lists of this index are not called certified; None where they are."""
        return None if self.sealed else f"index not sealed; see dupmae-ir index seal {self.path}"

    def part_problem(self, part: str) -> str | None:
        """Why ``part`` is not the recorded one, by ids and sizes; None where it is, or nothing is recorded."""
        return integrity.part_problem(self.path, self._checks.files, part, self.meta["digest"])

    def check_part(self, part: str, fix: str = AGAIN, everything: bool = False) -> None:
        """Raise :class:`IndexMismatch`, ending with ``fix``, unless ``part`` is the recorded one, byte by byte.

        Files above the limit of :mod:`dupmae_ir.index.format.integrity` are read only with ``everything``.
        """
        if self.sealed and part not in self.required_parts:
            self._adopt(manifest.read_meta(self.path))  # it may have been made since this index was opened
        if self.sealed and not any(integrity.part_of(name) == part for name in self._checks.files):
            raise IndexMismatch(f"{self.path / part}: meta.json does not list its files; {fix}")
        if problem := self.part_problem(part):
            raise IndexMismatch(f"{problem}; {fix}")
        self._checks.folder = self.path
        self._checks.require(part, fix, everything)

    def record_part(self, part: str) -> None:
        """Record the files of an optional part (``postings``, ``cls/KIND``) that was just made."""
        if meta := manifest.record_part(self.path, part):
            self._adopt(meta)

    def _adopt(self, meta: Meta) -> None:
        """Take over the records of optional parts from a newer manifest of the same index."""
        if meta["digest"] == self.meta["digest"] and meta.get("files") != self.meta["files"]:
            self.meta["files"] = meta["files"]
            self.meta[manifest.SEAL] = meta[manifest.SEAL]
            self._checks = integrity.FileChecks(self.path, meta["files"])

    @property
    def documents(self) -> int:
        """How many documents (rows) the index has, empty ones included."""
        return int(self.meta["documents"])

    @property
    def rows(self) -> int:
        """How many rows the arrays of the index have: as many as it has documents."""
        return self.documents

    @property
    def dim(self) -> int | None:
        """Width of the [CLS] vectors; None where the index has none."""
        return self.meta["dim"] if "cls" in self.meta["parts"] else None

    @property
    def has_ot(self) -> bool:
        """Whether the index has impacts."""
        return "ot" in self.meta["parts"]

    @property
    def has_lucene(self) -> bool:
        """Whether the impacts are in Lucene too; an index made without Pyserini has postings instead."""
        return self.has_ot and self.meta.get("lucene", True)

    @property
    def scale(self) -> float | None:
        """What OT weights were multiplied by before rounding (see :mod:`dupmae_ir.index.format.quantisation`)."""
        return self.meta["scale"]

    @cached_property
    def docids(self) -> list[str]:
        """The document id of each row."""
        self.check_part("ids")
        return manifest.read_lines(self.path / "docid")

    @cached_property
    def digests(self) -> np.ndarray | None:
        """(n, 16) uint8: the digest of each document's id, title and text; None for an index of an earlier version."""
        if not (self.path / integrity.DIGESTS).is_file():
            return None
        self.check_part("ids")
        return np.fromfile(self.path / integrity.DIGESTS, np.uint8).reshape(-1, integrity.DIGEST_BYTES)

    @cached_property
    def docid_rank(self) -> np.ndarray:
        """(n,) int64: the rank of each row's id among all ids in ascending order; breaks ties of scores."""
        rank = np.empty(self.documents, np.int64)
        rank[sorted(range(self.documents), key=self.docids.__getitem__)] = np.arange(self.documents)
        return rank

    @cached_property
    def terms(self) -> list[str]:
        """The index term of each vocabulary id; empty where the index has no impacts."""
        if not self.has_ot:
            return []
        self.check_part("ids")
        return manifest.read_lines(self.path / "terms.txt")

    @cached_property
    def term_ids(self) -> dict[str, int]:
        """Index term -> vocabulary id."""
        return {term: i for i, term in enumerate(self.terms)}

    @cached_property
    def faiss_index(self) -> faiss.IndexFlatIP:
        """The faiss ``IndexFlatIP`` of the [CLS] vectors."""
        return read_index(self._cls_file())

    @cached_property
    def vectors(self) -> np.ndarray:
        """(n, dim) float32, the vectors of :attr:`faiss_index`, mapped from its file and read-only."""
        return mapped_vectors(self._cls_file(), self.documents, int(self.meta["dim"]))

    def _cls_file(self) -> Path:
        self._need("cls", "[CLS] vectors", "--dense")
        self.check_part("cls")
        return self.path / "cls" / "index"

    @cached_property
    def forward(self) -> Forward:
        """The impacts by document."""
        self._need("ot", "impacts", "--impact")
        self.check_part("forward")
        return Forward.open(self.path / "forward", len(self.terms))

    @cached_property
    def texts(self) -> TextStore | None:
        """Titles, texts and metadata by row; None where the index does not store them."""
        if not self.has_texts:
            return None
        self.check_part("texts")
        store = TextStore(self.path / "texts")
        if len(store) != self.documents:
            raise IndexMismatch(
                f"{self.path / 'texts'} has {len(store)} documents, but meta.json records {self.documents}; {AGAIN}"
            )
        return store

    @property
    def has_texts(self) -> bool:
        """Whether the index stores titles, texts and metadata."""
        return self.has_part("texts")

    def has_part(self, part: str) -> bool:
        """Whether the manifest records files of ``part``: ``texts``, ``postings``, ``cls/KIND``."""
        return self.sealed and any(integrity.part_of(name) == part for name in self._checks.files)

    def postings_problem(self) -> str | None:
        """Why the postings are not to be used instead of Lucene, by their records; None where they can be."""
        if not self.sealed:
            return f"{self.path} is not sealed"
        self._adopt(manifest.read_meta(self.path))  # they may have been made since this index was opened
        if not self.has_part("postings"):
            return f"{self.path}/meta.json does not list its postings"
        return built(self).get("postings", "").partition("unusable: ")[2].partition(";")[0] or None

    @cached_property
    def searcher(self) -> ImpactSearcher:
        """The postings, opened in Lucene (starts the JVM)."""
        self._need("ot", "impacts", "--impact")
        if not self.has_lucene:
            raise IndexMismatch(
                f"{self.path} was made without Pyserini and has no Lucene part; use --impact-search postings, or "
                "encode the collection again where Pyserini is installed"
            )
        if not pyserini.installed():
            raise EnvironmentProblem(
                f"{self.path / 'ot'} is a Lucene index, which needs Pyserini: pip install 'pyserini>=1.6,<3,!=2.4.0'; "
                f"or search postings, which do not: dupmae-ir index postings --index {self.path}"
            )
        self.check_part("ot")
        searcher = ImpactSearcher(self.path / "ot")
        if searcher.documents != self.documents:
            raise IndexMismatch(
                f"{self.path / 'ot'} has {searcher.documents} documents, but meta.json records {self.documents}; "
                f"{AGAIN}"
            )
        return searcher

    @cached_property
    def postings(self) -> PostingsSearcher:
        """The postings of ``dupmae-ir index postings``, for whole topic sets (needs numba, no JVM)."""
        self._need("ot", "impacts", "--impact")
        return PostingsSearcher(self, lambda: self.docid_rank)

    def verify(self) -> None:
        """Read every byte and compare with the recorded digests, without decoding (``index verify`` also decodes).

        Raises :class:`IndexMismatch` for the first damaged file.
        """
        for part in dict.fromkeys(map(integrity.part_of, self._checks.files)):
            self.check_part(part, everything=True)
        if manifest.content_digest(self.path, self.dim) != self.meta["digest"]:
            raise IndexMismatch(f"{self.path}: the files are not the ones that meta.json describes; {AGAIN}")

    def _need(self, part: str, what: str, flag: str) -> None:
        if part not in self.meta["parts"]:
            has = ", ".join(self.meta["parts"])
            raise IndexMismatch(f"{self.path} has no {what}, which {flag} needs; it has only {has}")
