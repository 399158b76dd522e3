"""The index folder: what is in it, how it is written, how it is opened.

    I/cls/index, I/cls/docid          the [CLS] vectors, as stock FaissSearcher reads them
    I/cls/KIND.{faiss,json}           smaller dense indexes, when asked for (see :mod:`dupmae_ir.index.dense_kinds`)
    I/ot/                             impact postings, as stock LuceneImpactSearcher reads them
    I/forward/{indptr,terms,impacts}.npy   the same impacts by document (see :mod:`dupmae_ir.index.forward`)
    I/postings/                       on demand: the same impacts by term (see :mod:`dupmae_ir.index.postings`)
    I/docid, I/terms.txt              document ids by row, index terms by vocabulary id, one a line
    I/meta.json                       what made it; written last, so a folder without it is unfinished

Row r of every part is line r of ``docid`` and Lucene document number r.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import platform
import shutil
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy as np

import dupmae_ir
from dupmae_ir.errors import IndexMismatch, InputError, UsageError
from dupmae_ir.index.faiss import FlatWriter, flat_problem, read_flat, vectors_of, vectors_offset
from dupmae_ir.index.forward import FILES, Forward, ForwardWriter
from dupmae_ir.io.publishing import write_json

if TYPE_CHECKING:
    import scipy.sparse as sp

    from dupmae_ir.index.lucene import ImpactSearcher
    from dupmae_ir.index.postings import PostingsSearcher

FORMAT = 1
HIGHEST_IMPACT = 255
_BLOCK = 1 << 22
_AGAIN = "encode the collection again"


class IndexBuilder:
    """Write an index into ``folder``, which is new or empty. The caller puts the finished folder in its place.

    ``dim`` is the width of the [CLS] vectors and ``terms`` the index term of each vocabulary id; None leaves that
    part out. ``scale`` turns OT weights into impacts. Everything is streamed: memory does not grow with the
    collection. As a context manager it lets go of all files; only :meth:`finish` makes the folder an index.
    """

    def __init__(
        self, folder: str | Path, *, dim: int | None, terms: Sequence[str] | None, scale: float | None
    ) -> None:
        if dim is None and terms is None:
            raise UsageError("an index needs vectors, terms, or both")
        if terms is not None and not (scale and np.isfinite(scale) and scale > 0):
            raise UsageError(f"impacts need a positive scale, got {scale!r}")
        self.folder = Path(folder)
        self.dim = dim
        self.terms = None if terms is None else list(terms)
        self.scale = scale
        self.documents = 0
        self._counts: Counter[str] = Counter()
        self._open_files = contextlib.ExitStack()
        _make_empty(self.folder)
        try:
            self._open()
        except BaseException as e:
            self._open_files.__exit__(type(e), e, e.__traceback__)
            raise

    def _open(self) -> None:
        enter = self._open_files.enter_context
        docids = open(self.folder / "docid", "w", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed by the stack)
        self._docids: IO[str] = enter(docids)
        self._cls: FlatWriter | None = None
        if self.dim is not None:
            (self.folder / "cls").mkdir()
            self._cls = enter(FlatWriter(self.folder / "cls" / "index", self.dim))
        if self.terms is not None:
            from dupmae_ir.index.lucene import ImpactWriter

            (self.folder / "ot").mkdir()
            (self.folder / "forward").mkdir()
            self._ot = enter(ImpactWriter(self.folder / "ot", self.terms))
            self._forward = enter(ForwardWriter(self.folder / "forward", len(self.terms)))

    def add(self, docids: Sequence[str], cls: np.ndarray | None, ot: sp.csr_matrix | None) -> None:
        """Append documents: ``cls`` (n, dim) float, ``ot`` (n, V) float CSR; each where the index has that part.

        Raises :class:`UsageError` for an id that no run file could carry, :class:`IndexMismatch` for parts that do
        not fit.
        """
        if ot is None or self.scale is None:
            self.add_impacts(docids, cls, ot)
            return
        impacts, clipped = quantise(ot, self.scale)
        self.add_impacts(docids, cls, impacts, clipped, int(np.count_nonzero(ot.data)) - impacts.nnz)

    def add_impacts(
        self,
        docids: Sequence[str],
        cls: np.ndarray | None,
        impacts: sp.csr_matrix | None,
        clipped: int = 0,
        dropped: int = 0,
    ) -> None:
        """As :meth:`add` for weights that :func:`quantise` has been over: (n, V) uint8 CSR, ascending columns.

        ``clipped`` and ``dropped`` are how many of them were above 255 and how many rounded to 0.
        """
        for docid in docids:
            if docid.split() != [docid]:
                raise UsageError(f"the document id {docid!r} is empty or holds white space; a run file cannot carry it")
        _check_part("[CLS] vectors", self.dim, cls, len(docids))
        _check_part("OT weights", None if self.terms is None else len(self.terms), impacts, len(docids))
        self._docids.writelines(f"{docid}\n" for docid in docids)
        if self._cls is not None and cls is not None:
            self._cls.add(cls)
        if impacts is not None:
            self._ot.add_batch(docids, impacts)
            self._forward.add(impacts.indptr, impacts.indices, impacts.data)
            lengths = np.diff(impacts.indptr)
            total = int(impacts.data.sum(dtype=np.int64))
            self._count(clipped=clipped, dropped=dropped, postings=impacts.nnz, sum_of_impacts=total)
            self._count(empty_documents=int(np.count_nonzero(lengths == 0)))
        self.documents += len(docids)

    def _count(self, **more: int) -> None:
        self._counts.update(more)

    def finish(self, meta: dict[str, Any]) -> dict[str, Any]:
        """Close every part and write ``meta.json``: what was counted here, then ``meta``. Returns it.

        Raises :class:`UsageError` that names an id which two documents share; the folder then stays unfinished.
        """
        self._docids.flush()
        _check_unique(self.folder / "docid")
        self._open_files.close()
        if self.dim is not None:
            shutil.copyfile(self.folder / "docid", self.folder / "cls" / "docid")
        if self.terms is not None:
            _write_lines(self.folder / "terms.txt", self.terms)
        parts = [name for name, there in (("cls", self.dim is not None), ("ot", self.terms is not None)) if there]
        record: dict[str, Any] = {
            "format": FORMAT,
            "documents": self.documents,
            "empty_documents": self._counts["empty_documents"],
            "parts": parts,
            "dim": self.dim,
            "scale": self.scale if self.terms is not None else None,
            **{name: self._counts[name] for name in ("postings", "sum_of_impacts", "clipped", "dropped")},
            "digest": content_digest(self.folder, self.dim),
        }
        now = datetime.now(UTC).isoformat(timespec="seconds")
        made = {"versions": versions(java=self.terms is not None), "created": now}
        record = {**record, **meta, **record}  # the caller's keys come after ours and cannot change them
        record = {**record, **{key: value for key, value in made.items() if key not in record}}
        write_json(self.folder / "meta.json", record)
        return record

    def __enter__(self) -> IndexBuilder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open_files.__exit__(kind, value, trace)


class IndexFolder:
    """A finished index. Parts are loaded when first asked for; vectors and the forward index stay on disk, mapped."""

    def __init__(self, path: Path, meta: dict[str, Any]) -> None:
        self.path = path
        self.meta = meta

    @classmethod
    def open(cls, path: str | Path) -> IndexFolder:
        """Check that ``path`` is a whole index and open it.

        Raises :class:`InputError` for what is not a (finished) index, :class:`IndexMismatch` for parts that are
        missing, cut short or at odds with ``meta.json``.
        """
        folder = cls(Path(path), _read_meta(Path(path)))
        folder._check_counts()
        return folder

    def _check_counts(self) -> None:
        if (lines := _count_lines(self.path / "docid")) != self.documents:
            raise IndexMismatch(
                f"{self.path / 'docid'} holds {lines} ids, meta.json says {self.documents} documents; {_AGAIN}"
            )
        if self.dim is not None:
            problem = flat_problem(self.path / "cls" / "index", self.documents, self.dim)
            if problem is None and not (self.path / "cls" / "docid").is_file():
                problem = f"{self.path / 'cls' / 'docid'} is missing"
            if problem:
                raise IndexMismatch(f"{problem}; {_AGAIN}")
        if self.has_ot:
            if not any((self.path / "ot").glob("segments_*")):
                raise IndexMismatch(f"{self.path / 'ot'} is missing or not a Lucene index; {_AGAIN}")
            found, wanted = (len(self.forward), len(self.forward.terms)), (self.documents, self.meta["postings"])
            if found != wanted:
                raise IndexMismatch(
                    f"{self.path / 'forward'} holds {found[1]} impacts of {found[0]} documents, "
                    f"meta.json says {wanted[1]} of {wanted[0]}; {_AGAIN}"
                )

    @property
    def documents(self) -> int:
        """How many documents (rows) the index holds, empty ones included."""
        return int(self.meta["documents"])

    @property
    def dim(self) -> int | None:
        """Width of the [CLS] vectors; None where the index has none."""
        return self.meta["dim"] if "cls" in self.meta["parts"] else None

    @property
    def has_ot(self) -> bool:
        """Whether the index holds impacts."""
        return "ot" in self.meta["parts"]

    @property
    def scale(self) -> float | None:
        """What OT weights were multiplied by before rounding."""
        return self.meta["scale"]

    @cached_property
    def docids(self) -> list[str]:
        """The document id of each row."""
        return _read_lines(self.path / "docid")

    @cached_property
    def docid_rank(self) -> np.ndarray:
        """(n,) int64: where each row's id stands among all ids in ascending order; breaks ties of scores."""
        rank = np.empty(self.documents, np.int64)
        rank[sorted(range(self.documents), key=self.docids.__getitem__)] = np.arange(self.documents)
        return rank

    @cached_property
    def terms(self) -> list[str]:
        """The index term of each vocabulary id; empty where the index has no impacts."""
        return _read_lines(self.path / "terms.txt") if self.has_ot else []

    @cached_property
    def term_ids(self) -> dict[str, int]:
        """Index term -> vocabulary id."""
        return {term: i for i, term in enumerate(self.terms)}

    @cached_property
    def faiss_index(self) -> Any:
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
        from dupmae_ir.index.lucene import ImpactSearcher

        self._need("ot", "impacts", "--impact")
        searcher = ImpactSearcher(self.path / "ot")
        if searcher.documents != self.documents:
            raise IndexMismatch(
                f"{self.path / 'ot'} holds {searcher.documents} documents, meta.json says {self.documents}; {_AGAIN}"
            )
        return searcher

    @cached_property
    def postings(self) -> PostingsSearcher:
        """The postings of ``dupmae-ir index postings``, for whole topic sets (needs numba, no JVM)."""
        from dupmae_ir.index.postings import PostingsSearcher

        self._need("ot", "impacts", "--impact")
        return PostingsSearcher(self, lambda: self.docid_rank)

    def verify(self) -> None:
        """Read everything and compare with the digest in ``meta.json``. Raises :class:`IndexMismatch`."""
        if content_digest(self.path, self.dim) != self.meta["digest"]:
            raise IndexMismatch(f"{self.path}: the files are not the ones that meta.json describes; {_AGAIN}")

    def _need(self, part: str, what: str, flag: str) -> None:
        if part not in self.meta["parts"]:
            has = ", ".join(self.meta["parts"])
            raise IndexMismatch(f"{self.path} holds no {what}, which {flag} needs; it has only {has}")


def quantise(ot: sp.csr_matrix, scale: float) -> tuple[sp.csr_matrix, int]:
    """OT weights (n, V) -> impacts (n, V) uint8 CSR with ascending columns, and how many were clipped to 255.

    impact = weight * scale in float64, rounded half to even; what is not above 0 then is dropped.
    """
    import scipy.sparse as sparse

    exact = sparse.csr_matrix(ot, dtype=np.float64, copy=True)
    exact.sum_duplicates()  # also sorts the columns
    if not np.isfinite(exact.data).all():
        raise IndexMismatch("an OT weight is not finite; check the model's weights and --dtype")
    rounded = np.rint(exact.data * scale)
    clipped = int(np.count_nonzero(rounded > HIGHEST_IMPACT))
    impacts = sparse.csr_matrix(
        (np.clip(rounded, 0, HIGHEST_IMPACT).astype(np.uint8), exact.indices, exact.indptr), shape=exact.shape
    )
    impacts.eliminate_zeros()
    return impacts, clipped


def content_digest(folder: str | Path, dim: int | None) -> str:
    """sha256 over ids, vectors and impacts: equal exactly for equal content, whatever Lucene named its segments."""
    folder = Path(folder)
    digest = hashlib.sha256()
    _digest_file(digest, folder / "docid")
    if dim is not None:
        _digest_file(digest, folder / "cls" / "index", vectors_offset(dim))
    if (folder / "forward").is_dir():
        for name in FILES:
            _digest_file(digest, folder / "forward" / name)
        _digest_file(digest, folder / "terms.txt")
    return digest.hexdigest()


def versions(java: bool = False) -> dict[str, str | None]:
    """What could change an index: this package, Python and the libraries; with ``java`` also the JVM that runs."""
    from dupmae_ir import pyserini

    found: dict[str, str | None] = {"dupmae_ir": dupmae_ir.__version__, "python": platform.python_version()}
    for name in ("torch", "transformers", "faiss", "pyserini"):
        try:
            found[name] = importlib.metadata.version("faiss-cpu" if name == "faiss" else name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    found["java"] = pyserini.start_jvm().version if java else None
    return found


def _check_part(what: str, width: int | None, part: Any, rows: int) -> None:
    if (width is None) != (part is None):
        raise IndexMismatch(f"the index {'takes no' if width is None else 'needs'} {what}")
    if part is not None and part.shape != (rows, width):
        raise IndexMismatch(f"{what} of shape {part.shape} for {rows} documents of width {width}")


def _make_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder; an index is written into a fresh one")
    folder.mkdir(parents=True, exist_ok=True)


def _check_unique(path: Path) -> None:
    """Refuse two equal lines. Holds 8 bytes a line; equal hashes are looked at again as text."""
    with open(path, encoding="utf-8", newline="\n") as f:
        hashes = np.fromiter((hash(line) for line in f), np.int64)
    hashes.sort()
    suspects = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    if not suspects:
        return
    first: dict[str, int] = {}
    with open(path, encoding="utf-8", newline="\n") as f:
        for row, line in enumerate(f):
            if hash(line) in suspects and first.setdefault(line, row) != row:
                raise UsageError(
                    f"the document id {line[:-1]!r} belongs to documents {first[line] + 1} and {row + 1} of the "
                    "collection; every document needs its own id"
                )


def _read_meta(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise InputError(f"{path}: no such index; make one with: dupmae-ir encode --corpus C --index {path}")
    try:
        meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        if any(path.glob("segments_*")):
            raise InputError(f"{path} is a Lucene index, as for BM25, not an index of encoded documents") from None
        raise InputError(f"{path} is not a finished index (no meta.json); run its encode command again") from None
    except ValueError as e:
        raise InputError(f"{path / 'meta.json'} cannot be read: {e}; {_AGAIN}") from None
    if not isinstance(meta, dict) or "format" not in meta:
        raise InputError(f"{path / 'meta.json'} does not describe an index of this package")
    if meta["format"] != FORMAT:
        raise InputError(
            f"{path} has index format {meta['format']!r}, this dupmae_ir {dupmae_ir.__version__} reads {FORMAT}; "
            f"use the version that wrote it ({(meta.get('versions') or {}).get('dupmae_ir', 'unknown')}) or {_AGAIN}"
        )
    missing = [key for key in ("documents", "parts", "dim", "scale", "postings", "digest") if key not in meta]
    if missing:
        raise InputError(f"{path / 'meta.json'} lacks {', '.join(missing)}; {_AGAIN}")
    return meta


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        f.writelines(f"{line}\n" for line in lines)


def _read_lines(path: Path) -> list[str]:
    # Not splitlines(): vocabularies hold characters that it takes for line ends.
    try:
        return path.read_bytes().decode("utf-8").split("\n")[:-1]
    except FileNotFoundError:
        raise IndexMismatch(f"{path} is missing; {_AGAIN}") from None


def _count_lines(path: Path) -> int:
    count = 0
    try:
        with open(path, "rb") as f:
            while block := f.read(_BLOCK):
                count += block.count(b"\n")
    except FileNotFoundError:
        raise IndexMismatch(f"{path} is missing; {_AGAIN}") from None
    return count


def _digest_file(digest: Any, path: Path, start: int = 0) -> None:
    """Add the length and the bytes from ``start`` on."""
    digest.update((path.stat().st_size - start).to_bytes(8, "big"))
    with open(path, "rb") as f:
        f.seek(start)
        while block := f.read(_BLOCK):
            digest.update(block)
