"""The index folder, opened.

    I/cls/index, I/cls/docid          the [CLS] vectors, as stock FaissSearcher reads them
    I/cls/KIND.{faiss,json}           smaller dense indexes, when built (see :mod:`dupmae_ir.index.dense_kinds`)
    I/ot/                             impact postings, as stock LuceneImpactSearcher reads them
    I/forward/{indptr,terms,impacts}.npy   the same impacts by document (see :mod:`dupmae_ir.index.forward`)
    I/postings/                       when built: the same impacts by term (see :mod:`dupmae_ir.index.postings`)
    I/docid, I/terms.txt              document ids by row, index terms by vocabulary id, one a line
    I/meta.json                       the manifest, written last (see :mod:`dupmae_ir.index.manifest`)

Row r of every part is line r of ``docid`` and Lucene document number r. :mod:`dupmae_ir.index.builder` writes it.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index import manifest
from dupmae_ir.index.faiss import read_flat, vectors_of
from dupmae_ir.index.forward import Forward
from dupmae_ir.index.lucene import ImpactSearcher
from dupmae_ir.index.manifest import AGAIN, Meta
from dupmae_ir.index.postings import PostingsSearcher

if TYPE_CHECKING:
    import faiss


class IndexFolder:
    """A finished index. Parts are loaded on first use; vectors and the forward index are memory-mapped."""

    def __init__(self, path: Path, meta: Meta) -> None:
        self.path = path
        self.meta = meta

    @classmethod
    def open(cls, path: str | Path) -> IndexFolder:
        """Check that ``path`` is a whole index and open it.

        Raises :class:`InputError` for a path that is not a (finished) index, :class:`IndexMismatch` for parts that are
        missing, truncated or at odds with ``meta.json``.
        """
        path = Path(path)
        folder = cls(path, manifest.read_meta(path))
        manifest.check_docids(path, folder.meta)
        if folder.dim is not None:
            manifest.check_vectors(path, folder.meta)
        if folder.has_ot:
            manifest.check_lucene(path)
            manifest.check_impacts(path, folder.meta, folder.forward)
        return folder

    @property
    def documents(self) -> int:
        """How many documents (rows) the index has, empty ones included."""
        return int(self.meta["documents"])

    @property
    def dim(self) -> int | None:
        """Width of the [CLS] vectors; None where the index has none."""
        return self.meta["dim"] if "cls" in self.meta["parts"] else None

    @property
    def has_ot(self) -> bool:
        """Whether the index has impacts."""
        return "ot" in self.meta["parts"]

    @property
    def scale(self) -> float | None:
        """What OT weights were multiplied by before rounding (see :mod:`dupmae_ir.index.quantisation`)."""
        return self.meta["scale"]

    @cached_property
    def docids(self) -> list[str]:
        """The document id of each row."""
        return manifest.read_lines(self.path / "docid")

    @cached_property
    def docid_rank(self) -> np.ndarray:
        """(n,) int64: the rank of each row's id among all ids in ascending order; breaks ties of scores."""
        rank = np.empty(self.documents, np.int64)
        rank[sorted(range(self.documents), key=self.docids.__getitem__)] = np.arange(self.documents)
        return rank

    @cached_property
    def terms(self) -> list[str]:
        """The index term of each vocabulary id; empty where the index has no impacts."""
        return manifest.read_lines(self.path / "terms.txt") if self.has_ot else []

    @cached_property
    def term_ids(self) -> dict[str, int]:
        """Index term -> vocabulary id."""
        return {term: i for i, term in enumerate(self.terms)}

    @cached_property
    def faiss_index(self) -> faiss.IndexFlatIP:
        """The faiss ``IndexFlatIP`` of the [CLS] vectors."""
        self._need("cls", "[CLS] vectors", "--dense")
        return read_flat(self.path / "cls" / "index")

    @cached_property
    def vectors(self) -> np.ndarray:
        """(n, dim) float32, the vectors in :attr:`faiss_index` without a copy."""
        return vectors_of(self.faiss_index)

    @cached_property
    def forward(self) -> Forward:
        """The impacts by document."""
        self._need("ot", "impacts", "--impact")
        return Forward.open(self.path / "forward", len(self.terms))

    @cached_property
    def searcher(self) -> ImpactSearcher:
        """The postings, opened in Lucene (starts the JVM)."""
        self._need("ot", "impacts", "--impact")
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
        """Read every byte and compare with the digest in ``meta.json``. Raises :class:`IndexMismatch`."""
        manifest.verify(self.path, self.meta)

    def _need(self, part: str, what: str, flag: str) -> None:
        if part not in self.meta["parts"]:
            has = ", ".join(self.meta["parts"])
            raise IndexMismatch(f"{self.path} has no {what}, which {flag} needs; it has only {has}")
