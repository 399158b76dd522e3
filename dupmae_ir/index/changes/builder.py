"""Writes an index of one segment: streamed, every part row by row, ``meta.json`` last."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np
import scipy.sparse as sp

from dupmae_ir import pyserini
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.format import rotated
from dupmae_ir.index.format.excerpts import Excerpts, ExcerptWriter
from dupmae_ir.index.format.faiss import FlatWriter
from dupmae_ir.index.format.forward import Forward, ForwardWriter
from dupmae_ir.index.format.integrity import (
    DIGEST_BYTES,
    DIGESTS,
    EXCERPTS,
    TEXTS,
    describe,
    describe_parts,
    mark_parts,
    names_of,
)
from dupmae_ir.index.format.manifest import (
    NO_LOSSES,
    SEGMENTS,
    SUMS,
    Losses,
    Meta,
    SegmentRecord,
    content_digest,
    link_parts,
    make_empty,
    versions,
    with_segments,
    write_meta,
)
from dupmae_ir.index.format.quantisation import dropped, is_scale, quantise
from dupmae_ir.index.format.texts import StoredDocument, TextWriter
from dupmae_ir.index.lucene.impacts import ImpactWriter
from dupmae_ir.index.postings.format import folder_of, write_postings
from dupmae_ir.io.collections import checked_docid


class IndexBuilder:
    """Write an index into ``folder``, which is new or empty. The caller moves the finished folder into place.

    ``dim`` is the width of the [CLS] vectors and ``terms`` the index term of each vocabulary id; None leaves that part
    out. ``scale`` turns OT weights into impacts. With ``texts``, the documents themselves are stored too (see
    :mod:`dupmae_ir.index.format.texts`). Everything is streamed: memory does not grow with the collection, except for
    the distinct values of metadata. With ``excerpts``, documents have vectors of excerpts as well
    (:mod:`dupmae_ir.index.format.excerpts`). With ``postings``, the impacts are stored by term too
    (:mod:`dupmae_ir.index.postings.format`); without Pyserini they always are, and the folder of the Lucene part has
    only an index id. The vectors of many documents get codes (:mod:`dupmae_ir.index.format.rotated`). Leaving the
    context manager closes all files; only :meth:`finish` makes the folder an index.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        dim: int | None,
        terms: Sequence[str] | None,
        scale: float | None,
        texts: bool = False,
        postings: bool = False,
        excerpts: bool = False,
    ) -> None:
        if dim is None and terms is None:
            raise UsageError("an index needs vectors, terms, or both")
        if terms is not None and not is_scale(scale):
            raise UsageError(f"impacts need a positive scale, got {scale!r}")
        self.index = Path(folder)
        self.folder = self.index / SEGMENTS / "unfinished"
        self.dim = dim
        self.terms = None if terms is None else list(terms)
        self.scale = scale
        self.texts = texts
        self.postings = postings
        self.excerpts = excerpts
        self.lucene = pyserini.installed()
        self.documents = 0
        self._counts: Counter[str] = Counter()
        self._open_files = contextlib.ExitStack()
        make_empty(self.index)
        self.folder.mkdir(parents=True)
        try:
            self._open()
        except BaseException as e:
            self._open_files.__exit__(type(e), e, e.__traceback__)
            raise

    def _open(self) -> None:
        enter = self._open_files.enter_context
        docids = open(self.folder / "docid", "w", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed by the stack)
        self._docids: IO[str] = enter(docids)
        self._digests: IO[bytes] = enter(open(self.folder / DIGESTS, "wb"))  # noqa: SIM115
        self._cls: FlatWriter | None = None
        if self.dim is not None:
            (self.folder / "cls").mkdir()
            self._cls = enter(FlatWriter(self.folder / "cls" / "index", self.dim))
        self._excerpts: ExcerptWriter | None = None
        if self.excerpts:
            (self.folder / EXCERPTS).mkdir()
            self._excerpts = enter(ExcerptWriter(self.folder / EXCERPTS))
        self._texts: TextWriter | None = None
        if self.texts:
            self._texts = enter(TextWriter(self.folder / TEXTS))
        if self.terms is not None:
            (self.folder / "ot").mkdir()
            (self.folder / "forward").mkdir()
            self._ot: ImpactWriter | None = None
            if self.lucene:
                self._ot = enter(ImpactWriter(self.folder / "ot", self.terms))
            self._forward = enter(ForwardWriter(self.folder / "forward", len(self.terms)))

    def add(
        self,
        docids: Sequence[str],
        cls: np.ndarray | None,
        ot: sp.csr_matrix | None,
        documents: Sequence[StoredDocument] | None = None,
    ) -> None:
        """Append documents: ``cls`` (n, dim) float, ``ot`` (n, V) float CSR, the documents themselves; each if the
        index has that part, otherwise None.

        Raises :class:`UsageError` for an id that run files cannot represent, :class:`IndexMismatch` for parts of
        another shape.
        """
        if ot is None or self.scale is None:
            self.add_impacts(docids, cls, ot, documents=documents)
            return
        impacts, clipped = quantise(ot, self.scale)
        losses = Losses(clipped, dropped(ot, impacts))
        self.add_impacts(docids, cls, impacts, losses, documents)

    def add_impacts(
        self,
        docids: Sequence[str],
        cls: np.ndarray | None,
        impacts: sp.csr_matrix | None,
        losses: Losses = NO_LOSSES,
        documents: Sequence[StoredDocument] | None = None,
        digests: Sequence[bytes] | None = None,
        excerpts: Excerpts | None = None,
    ) -> None:
        """As :meth:`add`, for weights already quantised: (n, V) uint8 CSR, ascending columns.

        ``losses``: what is not in the parts of these documents. ``digests``: 16 bytes for each document, by which
        ``index update`` and ``index sync`` see that it changed.
        """
        for row, docid in enumerate(docids, self.documents):
            checked_docid(docid, f"document {row}")
        # Everything is checked before the first part is written: all parts must have the same rows.
        _check_part("[CLS] vectors", cls, self.dim, len(docids))
        vocabulary = None if self.terms is None else len(self.terms)
        _check_part("OT weights", impacts, vocabulary, len(docids))
        if (self._excerpts is None) != (excerpts is None):
            raise IndexMismatch(
                f"the index {'takes no' if self._excerpts is None else 'needs'} excerpts"
            )
        if self._excerpts is not None and excerpts is not None:
            if len(excerpts) != len(docids):
                raise IndexMismatch(
                    f"excerpts of {len(excerpts)} documents for {len(docids)} documents"
                )
            self._excerpts.add(excerpts)
        if (self._texts is None) != (documents is None):
            raise IndexMismatch(f"the index {'takes no' if self._texts is None else 'needs'} texts")
        if self._texts is not None and documents is not None:
            if [document.docid for document in documents] != list(docids):
                raise IndexMismatch("the texts are not those of the documents: their ids differ")
            self._texts.add(documents)
        self._docids.writelines(f"{docid}\n" for docid in docids)
        self._digests.writelines(digests or ())
        if self._cls is not None and cls is not None:
            self._cls.add(cls)
        if impacts is not None:
            if self._ot is not None:
                self._ot.add_batch(docids, impacts)
            self._forward.add(impacts.indptr, impacts.indices, impacts.data)
            self._counts.update(
                postings=impacts.nnz,
                sum_of_impacts=int(impacts.data.sum(dtype=np.int64)),
                empty_documents=int(np.count_nonzero(np.diff(impacts.indptr) == 0)),
            )
        self._counts.update(losses._asdict())
        self.documents += len(docids)

    def finish(self, meta: Mapping[str, object]) -> Meta:
        """Close every part, write ``meta.json`` (``meta``, and what follows from the segment) and return its contents.

        Raises :class:`UsageError` naming an id that two documents share; the folder then stays unfinished.
        """
        # The last ids may still be in the file's buffer.
        self._docids.flush()
        _check_unique(self.folder / "docid")
        self._open_files.close()
        if (self.folder / DIGESTS).stat().st_size != DIGEST_BYTES * self.documents:
            (self.folder / DIGESTS).unlink()  # not known of every document
        if self.dim is not None:
            shutil.copyfile(self.folder / "docid", self.folder / "cls" / "docid")
        if self.terms is not None:
            with open(self.folder / "terms.txt", "w", encoding="utf-8", newline="\n") as f:
                f.writelines(f"{term}\n" for term in self.terms)
        # The digest is of the contents, the marks carry it, and the records describe the marks: in this order.
        digest = content_digest(self.folder, self.dim)
        parts = []
        if self.dim is not None:
            parts.append("cls")
        if self.terms is not None:
            parts.append("ot")
        mark_parts(self.folder, parts, digest)
        files = describe_parts(self.folder, parts)
        if self.terms is not None and (self.postings or not self.lucene):
            folder_of(self.folder).mkdir()
            forward = Forward.open(self.folder / "forward", len(self.terms))
            write_postings(forward, folder_of(self.folder), digest)
            files |= describe(self.folder, names_of(self.folder, "postings"))
        # With excerpts the dense part is searched in full.
        if self.dim is not None and self.documents >= rotated.PAYS and not self.excerpts:
            rotated.add_rotated(self.folder, self.documents, self.dim)
            files |= describe(self.folder, names_of(self.folder, rotated.PART))
        record = SegmentRecord(
            path=f"{SEGMENTS}/{segment_name(1, digest)}",
            digest=digest,
            documents=self.documents,
            **{name: self._counts[name] for name in SUMS},
            lucene=self.lucene and self.terms is not None,
            made_by=str(meta.get("made_by", "")),
            files=files,
        )
        # The name contains the digest, so the folder could not have it from the beginning.
        self.folder.rename(self.index / record.path)
        link_parts(self.index, record, parts)

        facts: Meta = {
            "parts": parts,
            "dim": self.dim,
            "scale": self.scale if self.terms is not None else None,
        }
        provenance: Meta = {
            "versions": versions(java=self.terms is not None and self.lucene),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        # The caller's keys come after ours and cannot change them.
        first_keys = ["documents", "empty_documents", *facts, *SUMS, "digest", "generation", *meta]
        values: Meta = dict.fromkeys(first_keys)
        values |= provenance
        values |= meta
        values |= facts
        values |= {"generation": 0, "origin": digest}
        complete = with_segments(values, [record])
        write_meta(self.index, complete)
        return complete

    def __enter__(self) -> IndexBuilder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open_files.__exit__(kind, value, trace)


def segment_name(number: int, digest: str) -> str:
    """The folder of a segment: ascending numbers, and part of its id, so that equal names mean equal contents."""
    return f"{number:04d}-{digest[:8]}"


def _check_part(
    what: str, values: np.ndarray | sp.csr_matrix | None, width: int | None, rows: int
) -> None:
    """Raise :class:`IndexMismatch` unless ``values`` are (rows, width), or both are None."""
    if (width is None) != (values is None):
        raise IndexMismatch(f"the index {'takes no' if width is None else 'needs'} {what}")
    if values is not None and values.shape != (rows, width):
        raise IndexMismatch(f"{what} of shape {values.shape} for {rows} documents of width {width}")


def _check_unique(path: Path) -> None:
    """Raise :class:`UsageError` for two equal lines. Keeps 8 bytes a line; lines of equal hash are compared as text."""
    with open(path, encoding="utf-8", newline="\n") as f:
        hashes = np.fromiter((hash(line) for line in f), np.int64)
    hashes.sort()
    repeated = hashes[1:] == hashes[:-1]
    suspects = set(hashes[1:][repeated].tolist())
    if not suspects:
        return
    first_rows: dict[str, int] = {}
    with open(path, encoding="utf-8", newline="\n") as f:
        for row, line in enumerate(f):
            if hash(line) not in suspects:
                continue
            first_row = first_rows.setdefault(line, row)
            if first_row != row:
                raise UsageError(
                    f"the document id {line[:-1]!r} belongs to documents {first_row + 1} and {row + 1} of the "
                    "collection; every document needs its own id"
                )
