"""What ``dupmae-ir index bm25``, ``index dense``, ``index postings`` and ``index show`` do, for Python."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dupmae_ir.config import option
from dupmae_ir.console import progress
from dupmae_ir.errors import UsageError
from dupmae_ir.types import Document


@dataclass(frozen=True)
class Bm25Config:
    """Everything that ``python -m dupmae_ir.index bm25`` can be told."""

    corpus: str = option(
        help="collection: BEIR corpus.jsonl, Pyserini JSONL, MS MARCO tsv, .gz of these, a folder of them, or - for "
        "standard input",
        metavar="PATH",
    )
    index: str = option(help="index folder to make", metavar="FOLDER")
    fields: tuple[str, ...] = option(
        (),
        "parts of a document, in order: JSON keys, else pieces of 'contents', else tsv columns after the id; "
        "'_' is ignored",
        metavar="NAME",
    )
    docid_field: str | None = option(None, "JSON key of the id, if not id, _id or docid", metavar="NAME")
    delimiter: str = option("\\n", "what splits 'contents' into --fields (\\n and \\t are understood)", metavar="TEXT")
    heap: str | None = option(None, "memory for Java, as 4g; a quarter of the machine's if not given", metavar="SIZE")
    overwrite: bool = option(False, "replace an older BM25 index, once the new one is complete")
    quiet: bool = option(False, "no progress, only errors")
    json: bool = option(False, "print the summary as JSON on standard output")


@dataclass(frozen=True)
class PostingsConfig:
    """Everything that ``python -m dupmae_ir.index postings`` can be told."""

    index: str = option(help="index folder that encode made, with impacts", metavar="FOLDER")
    quiet: bool = option(False, "no progress, only errors")
    json: bool = option(False, "print the summary as JSON on standard output")


@dataclass(frozen=True)
class ShowConfig:
    """Everything that ``python -m dupmae_ir.index show`` can be told."""

    index: str = option(help="index folder to look at", metavar="FOLDER", positional=True)
    verify: bool = option(False, "also read every byte and compare with the digest of when it was made")
    quiet: bool = option(False, "print nothing; the exit status says whether the index is whole")
    json: bool = option(False, "print meta.json's content as JSON")


@dataclass(frozen=True)
class DenseConfig:
    """Everything that ``python -m dupmae_ir.index dense`` can be told."""

    index: str = option(help="index folder with vectors, which stay as they are", metavar="FOLDER")
    kind: str = option(help="sq8, ivf-sq8 or hnsw-sq8", metavar="KIND")
    nlist: int = option(0, "ivf-sq8: lists (0: 4 x the square root of the documents)")
    m: int = option(0, "hnsw-sq8: neighbours of a document (0: 32)")
    ef_construction: int = option(0, "hnsw-sq8: candidates looked at to find them (0: 100)")
    threads: int = option(
        1, "for faiss; 0 is one per processor. With more than one, hnsw-sq8 need not be the same twice"
    )
    quiet: bool = option(False, "no messages")
    json: bool = option(False, "print what was built as JSON on standard output")


def build_dense(config: DenseConfig) -> dict[str, Any]:
    """Build the kind into the index folder and return its meta (see :mod:`dupmae_ir.index.dense_kinds`)."""
    from dupmae_ir.index.dense_kinds import Parameters, build_kind, choose
    from dupmae_ir.index.folder import IndexFolder

    index = IndexFolder.open(config.index)
    parameters = Parameters(config.nlist, config.m, config.ef_construction, config.threads)
    choose(config.kind, index.documents, parameters)  # misuse first, then a missing part
    return build_kind(index, config.kind, parameters)


def build(config: Bm25Config) -> dict[str, Any]:
    """Make the BM25 index and return a summary; an older one stays until the new one is complete."""
    from dupmae_ir import pyserini
    from dupmae_ir.index.bm25 import build_bm25
    from dupmae_ir.io.collections import Collection
    from dupmae_ir.io.locks import exclusive
    from dupmae_ir.io.publishing import move_into_place

    target = Path(config.index).absolute()
    collection = Collection(config.corpus, config.fields, config.docid_field, _unescaped(config.delimiter))
    _check_target(target, config.overwrite)
    aside = target.with_name(f".{target.name}.building")
    with exclusive(target.with_name(f".{target.name}.lock"), f"writing {target}"):
        pyserini.start_jvm(config.heap)
        shutil.rmtree(aside, ignore_errors=True)
        try:
            with progress("bm25", "documents", quiet=config.quiet) as bar:
                documents = build_bm25(_counted(collection, bar), aside)
            move_into_place(aside, target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return {"index": config.index, "documents": documents}


def postings(config: PostingsConfig) -> dict[str, Any]:
    """Write the postings of an index beside its other parts and return a summary; older ones stay until then."""
    from dupmae_ir.index.folder import IndexFolder
    from dupmae_ir.index.postings import export_postings

    index = IndexFolder.open(config.index)
    with progress("postings", "documents", index.documents, config.quiet) as bar:
        folder = export_postings(index, tick=bar.update)
    size = sum(file.stat().st_size for file in folder.iterdir())
    return {"index": config.index, "documents": index.documents, "postings": index.meta["postings"], "bytes": size}


def show(config: ShowConfig) -> dict[str, Any]:
    """Open the index, which checks it, and return its meta. Raises what :meth:`IndexFolder.open` raises."""
    from dupmae_ir.index.folder import IndexFolder

    index = IndexFolder.open(config.index)
    if config.verify:
        index.verify()
    return index.meta


def show_extras(config: ShowConfig) -> dict[str, str]:
    """The smaller dense indexes and the postings beside the parts that encode made: size, or why one is of no use."""
    from dupmae_ir.index import dense_kinds, postings
    from dupmae_ir.index.folder import IndexFolder

    index = IndexFolder.open(config.index)
    return dense_kinds.built(index) | postings.built(index)


def _counted(documents: Any, bar: Any) -> Iterator[Document]:
    for document in documents:
        yield document
        bar.update(1)


def _unescaped(delimiter: str) -> str:
    return delimiter.replace("\\n", "\n").replace("\\t", "\t")


def _check_target(target: Path, overwrite: bool) -> None:
    """Take the place of nothing, an empty folder, or (asked for) a Lucene index."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not target.is_dir() or not any(target.glob("segments_*")):
        raise UsageError(f"{target}: already there and no BM25 index; name another --index")
    if not overwrite:
        raise UsageError(f"{target}: already there; add --overwrite to replace it, or name another --index")
