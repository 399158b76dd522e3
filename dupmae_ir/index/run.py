"""The work of the subcommands of ``dupmae-ir index``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tqdm import tqdm

from dupmae_ir import pyserini
from dupmae_ir.console import progress
from dupmae_ir.errors import DamagedIndex
from dupmae_ir.index import dense_kinds, postings, verification
from dupmae_ir.index.bm25 import build_bm25
from dupmae_ir.index.config import Bm25Config, DenseConfig, PostingsConfig, SealConfig, ShowConfig, VerifyConfig
from dupmae_ir.index.folder import IndexFolder
from dupmae_ir.index.manifest import Meta, is_sealed
from dupmae_ir.io.jobs import Job
from dupmae_ir.types import Document


def run_bm25(config: Bm25Config) -> dict[str, Any]:
    """Make the BM25 index and return a summary; an older one stays until the new one is complete."""
    collection = config.collection()
    settings = {"fields": config.fields, "docid_field": config.docid_field, "delimiter": config.unescaped_delimiter()}
    with _Bm25Job(
        config.index,
        "index bm25",
        settings,
        config.digests,
        streamed=True,
        overwrite=config.overwrite,
        resumable=False,
        quiet=config.quiet,
    ) as job:
        if result := job.finished():
            return {"index": config.index, **result}
        pyserini.start_jvm(config.heap)
        made = job.begin() / "index"
        with progress("bm25", "documents", quiet=config.quiet) as bar:
            documents = build_bm25(_counted(collection, bar), made)
        result = job.publish(made, {"documents": documents}, inputs=collection.digests())
        return {"index": config.index, **result}


class _Bm25Job(Job):
    ADVICE = "Name another --index, or pass --overwrite"

    def check_replaceable(self) -> None:
        """Any Lucene index may be replaced: earlier versions wrote them without a record."""
        if not any(self.target.glob("segments_*")):
            super().check_replaceable()


def run_dense(config: DenseConfig) -> dict[str, Any]:
    """Build the kind into the index folder and return its description (see :mod:`dupmae_ir.index.dense_kinds`)."""
    index = IndexFolder.open(config.index)
    dense_kinds.choose(config.kind, index.documents, config)  # misuse first, then a missing part
    with dense_kinds.KindJob(index, config.kind, config, overwrite=config.overwrite, quiet=config.quiet) as job:
        if not (result := job.finished()):
            result = job.build()
        return {"index": config.index, **result}


def run_postings(config: PostingsConfig) -> dict[str, Any]:
    """Write the postings of an index beside its other parts and return a summary; older ones stay until then."""
    index = IndexFolder.open(config.index)
    with postings.PostingsJob(index, quiet=config.quiet) as job:
        if not (result := job.finished()):
            with progress("postings", "documents", index.documents, config.quiet) as bar:
                result = job.build(bar.update)
        return {"index": config.index, **result}


def show(config: ShowConfig) -> Meta:
    """Open the index, which checks it, and return its meta; with ``verify``, read and compare everything.

    Raises what :meth:`IndexFolder.open` raises, and :class:`DamagedIndex` with every problem found.
    """
    if config.verify:
        verify(VerifyConfig(index=config.index))
    return IndexFolder.open(config.index).meta


def verify(config: VerifyConfig) -> dict[str, Any]:
    """Read every byte and compare the parts. Raises :class:`DamagedIndex` with every problem found."""
    if found := verification.problems(config.index):
        raise DamagedIndex(found)
    meta = IndexFolder.open(config.index).meta
    names = meta["files"] if is_sealed(meta) else {}
    return {
        "index": config.index,
        "sealed": is_sealed(meta),
        "documents": meta["documents"],
        "files": len(names),
        "bytes": sum(file["bytes"] for file in names.values()),
        "digest": meta["digest"],
    }


def seal(config: SealConfig) -> dict[str, Any]:
    """Add the records of files to an older index and return a summary."""
    meta = verification.seal(config.index)
    return {"index": config.index, "files": len(meta["files"]), "digest": meta["digest"]}


def show_extras(config: ShowConfig) -> dict[str, str]:
    """The smaller dense indexes and the postings of an index: their sizes, or why one is unusable."""
    index = IndexFolder.open(config.index)
    return dense_kinds.built(index) | postings.built(index)


def _counted(documents: Iterable[Document], bar: tqdm[Any]) -> Iterator[Document]:
    for document in documents:
        yield document
        bar.update(1)
