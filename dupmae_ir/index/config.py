"""Options of the verbs of ``dupmae-ir index``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dupmae_ir.config import OneOf, OutputOptions, Requires, ThreadOptions, option
from dupmae_ir.io.sources import CorpusOptions

FLAT = "flat"
"""The dense index that every index folder with vectors has."""
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sq8": ((), ()),
    "ivf-sq8": (("nlist",), ("nprobe",)),
    "hnsw-sq8": (("m", "ef_construction"), ("ef_search",)),
}
"""Kind of a smaller dense index -> the settings that shape it when it is built, and when it is searched."""


@dataclass(frozen=True, kw_only=True)
class Bm25Config(CorpusOptions, OutputOptions):
    """Options of ``dupmae-ir index bm25``."""

    title_field: bool = option(
        False,
        "index titles as a field of their own; BM25 scores of title and text are added, as with Anserini's multifield "
        "indexes",
        group="input",
    )
    index: str = option(help="index folder to make", group="output", metavar="FOLDER")
    heap: str | None = option(
        None, "memory for Java, as 4g; a quarter of the machine's if not given", group="compute", metavar="SIZE"
    )
    overwrite: bool = option(False, "replace an older BM25 index, once the new one is complete", group="output")


@dataclass(frozen=True)
class PostingsConfig(OutputOptions):
    """Options of ``dupmae-ir index postings``."""

    index: str = option(help="index folder that encode made, with impacts", metavar="FOLDER")


@dataclass(frozen=True)
class ShowConfig(OutputOptions):
    """Options of ``dupmae-ir index show``; with ``quiet`` the exit status is the only answer."""

    index: str = option(help="index folder to look at", metavar="FOLDER", positional=True)
    verify: bool = option(False, "also verify it, as index verify does; exit status 1 for a damaged one")


@dataclass(frozen=True)
class VerifyConfig(OutputOptions):
    """Options of ``dupmae-ir index verify``; with ``quiet`` the exit status is the only answer."""

    index: str = option(help="index folder to verify", metavar="FOLDER", positional=True)


@dataclass(frozen=True)
class SealConfig(OutputOptions):
    """Options of ``dupmae-ir index seal``."""

    index: str = option(help="index folder of an earlier version", metavar="FOLDER", positional=True)


@dataclass(frozen=True)
class Parameters(ThreadOptions):
    """What shapes a dense index when it is built; 0 is automatic (:func:`dupmae_ir.index.dense_kinds.choose`)."""

    nlist: int = option(0, "ivf-sq8: lists (0: 4 x the square root of the documents)", group="dense index", at_least=0)
    m: int = option(0, "hnsw-sq8: neighbours of a document (0: 32)", group="dense index", at_least=0)
    ef_construction: int = option(
        0, "hnsw-sq8: candidates examined to find them (0: 100)", group="dense index", at_least=0
    )
    threads: int = option(
        1,
        "faiss threads; 0 = one per available processor. With more than one, two builds of hnsw-sq8 can differ",
        group="compute",
        at_least=0,
    )


@dataclass(frozen=True, kw_only=True)
class DenseConfig(Parameters, OutputOptions):
    """Options of ``dupmae-ir index dense``."""

    index: str = option(help="index folder with vectors, which are not changed", group="dense index", metavar="FOLDER")
    kind: str = option(help="sq8, ivf-sq8 or hnsw-sq8", group="dense index", metavar="KIND")
    overwrite: bool = option(
        False, "replace an index of this kind with other settings, once the new one is complete", group="output"
    )


@dataclass(frozen=True, kw_only=True)
class ChangeOptions(CorpusOptions, ThreadOptions, OutputOptions):
    """Options of ``dupmae-ir index add``, ``index update`` and ``index sync``.

    The encoder's settings are those of the index. Without ``fields``, ``docid_field`` and ``delimiter``, so are these.
    """

    index: str = option(help="index folder to change", group="output", metavar="FOLDER")
    model: str | None = option(
        None,
        "model folder, if it is no longer where the index was made; another model is refused",
        group="encoding",
        metavar="FOLDER",
    )
    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps", group="compute", metavar="NAME")
    restart: bool = option(False, "discard the unfinished work of an earlier run", group="output")


@dataclass(frozen=True, kw_only=True)
class AddConfig(ChangeOptions):
    """Options of ``dupmae-ir index add``."""


@dataclass(frozen=True, kw_only=True)
class UpdateConfig(ChangeOptions):
    """Options of ``dupmae-ir index update``."""


@dataclass(frozen=True, kw_only=True)
class SyncConfig(ChangeOptions):
    """Options of ``dupmae-ir index sync``."""

    replace_all: bool = option(
        False,
        "accept a collection that shares no document with the index, so that all of those are deleted",
        group="input",
    )


@dataclass(frozen=True, kw_only=True)
class DeleteConfig(OutputOptions):
    """Options of ``dupmae-ir index delete``."""

    RULES: ClassVar[tuple[OneOf | Requires, ...]] = (OneOf(("ids", "ids_file"), "which documents to delete"),)

    index: str = option(help="index folder to change", group="output", metavar="FOLDER")
    ids: tuple[str, ...] = option((), "ids of documents", group="input", metavar="ID")
    ids_file: str | None = option(
        None, "file with one id on each line; - for standard input", group="input", metavar="FILE"
    )
    ignore_unknown: bool = option(False, "ignore ids that the index does not contain", group="input")


@dataclass(frozen=True, kw_only=True)
class CompactConfig(OutputOptions):
    """Options of ``dupmae-ir index compact``."""

    index: str = option(help="index folder to rewrite in one piece", group="output", metavar="FOLDER", positional=True)


@dataclass(frozen=True, kw_only=True)
class PushConfig(OutputOptions):
    """Options of ``dupmae-ir index push``."""

    index: str = option(help="index folder to copy", group="input", metavar="FOLDER", positional=True)
    to: str = option(help="where: s3://bucket/index, or another URL that fsspec opens", group="output", metavar="URL")
    overwrite: bool = option(False, "replace another index that is there", group="output")


@dataclass(frozen=True, kw_only=True)
class PullConfig(OutputOptions):
    """Options of ``dupmae-ir index pull``."""

    url: str = option(help="URL of the index: s3://bucket/index", group="input", metavar="URL", positional=True)
    index: str = option(help="index folder to make", group="output", metavar="FOLDER")
    overwrite: bool = option(False, "replace another index, once the new one is complete", group="output")
