"""Options of the verbs of ``dupmae-ir index``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, NotRequired, TypedDict

from dupmae_ir.config import OneOf, OutputOptions, Requires, ThreadOptions, option
from dupmae_ir.io.sources import CorpusOptions
from dupmae_ir.models.languages import AUTO, LANGUAGES, check_language


class IndexResult(TypedDict):
    """An index after a command."""

    index: str
    documents: int


class PostingsResult(IndexResult):
    """Postings of all segments."""

    postings: int
    bytes: int
    status: str


class DenseResult(IndexResult):
    """The codes of all segments."""

    bytes: int
    status: str


class VerifyResult(IndexResult):
    """What was read."""

    files: int
    bytes: int
    digest: str


class ChangeResult(IndexResult):
    """An index after a change, and the documents that it concerned, as far as the command changes such."""

    size: str  #: in words
    generation: int
    segments: int
    status: str
    added_now: NotRequired[int]
    updated_now: NotRequired[int]
    deleted_now: NotRequired[int]
    unchanged_now: NotRequired[int]
    removed_now: NotRequired[int]
    clipped_now: NotRequired[int]
    resumed: NotRequired[int]
    seconds: NotRequired[float]


def changes_in_words(result: ChangeResult, *words: str) -> str:
    """How many documents a change concerned: ``3 added, 1 deleted``, for those of some words that have any."""
    counts = {
        "added": result.get("added_now", 0),
        "updated": result.get("updated_now", 0),
        "deleted": result.get("deleted_now", 0),
        "unchanged": result.get("unchanged_now", 0),
    }
    return ", ".join(f"{counts[word]:,} {word}" for word in words if counts[word])


class PushResult(TypedDict):
    """What an object store has of an index folder."""

    index: str
    to: str
    files: int
    sent_now: int
    bytes: int
    digest: str


class PullResult(IndexResult):
    """The copy."""

    digest: str
    status: str


@dataclass(frozen=True, kw_only=True)
class Bm25Config(CorpusOptions, OutputOptions):
    """Index a collection for BM25 with Anserini's defaults (k1 0.9, b 0.4, title and text in one field, the analyzer of
    the language, for English with Porter stemming), the baseline of every comparison. Stock pyserini.search.lucene
    --bm25 reads the result, with --language for another one than English.

    Examples:
        dupmae-ir index bm25 --corpus corpus.jsonl --index indexes/mine-bm25
        dupmae-ir index bm25 --corpus korpus.jsonl --index indexes/de-bm25 --language de
    """

    title_field: bool = option(
        False,
        "index titles as a field of their own; BM25 scores of title and text are added, as with Anserini's multifield "
        "indexes",
        group="input",
    )
    language: str = option(
        AUTO,
        f"language of the collection: {AUTO}, which looks at the first documents, or a code ({', '.join(LANGUAGES)}); "
        "other: words without stems",
        group="input",
        metavar="CODE",
    )
    index: str = option(help="index folder to make", group="output", metavar="FOLDER")
    heap: str | None = option(
        None,
        "memory for Java, as 4g; a quarter of the machine's if not given",
        group="compute",
        metavar="SIZE",
    )
    overwrite: bool = option(
        False, "replace an older BM25 index, once the new one is complete", group="output"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.language != AUTO:
            check_language(self.language)


@dataclass(frozen=True)
class PostingsConfig(OutputOptions):
    """Store the impacts of an index by term once more, for 'search --impact-search postings': the same hits, scores and
    order as Lucene, many times faster for whole topic sets and deep lists, without Java. Postings of an index that has
    been rebuilt since are refused; run this again then.

    Examples:
        dupmae-ir index postings --index indexes/mine
    """

    index: str = option(
        help="index folder that encode made, with impacts", metavar="FOLDER", positional=True
    )


class IndexedFile(NamedTuple):
    """A file of an index: its passages, its kinds (that of an attachment, too), and its encoding if it was guessed."""

    passages: int
    kinds: tuple[str, ...]
    guessed: str


@dataclass(frozen=True)
class ShowIndexConfig(OutputOptions):
    """Print what an index folder contains and check its parts against each other.

    Examples:
        dupmae-ir index show indexes/mine
    """

    index: str = option(help="index folder to look at", metavar="FOLDER", positional=True)
    files: bool = option(
        False, "list the files that the passages are of, with their number of passages"
    )


@dataclass(frozen=True)
class VerifyConfig(OutputOptions):
    """Read every byte of an index and compare it with the recorded digests; decode the postings and compare them with
    the forward index; run Lucene's CheckIndex. Names each damaged file, with exit status 1. Takes as long as reading
    the index a few times.

    Examples:
        dupmae-ir index verify indexes/mine
    """

    index: str = option(help="index folder to verify", metavar="FOLDER", positional=True)


@dataclass(frozen=True)
class DenseConfig(OutputOptions):
    """Store codes of the rotated vectors beside them, which exclude most documents before their vectors are read: the
    same hits, scores and order, several times faster. encode makes them for large collections.

    Examples:
        dupmae-ir index dense --index indexes/mine
    """

    index: str = option(
        help="index folder with vectors, which are not changed", metavar="FOLDER", positional=True
    )


@dataclass(frozen=True, kw_only=True)
class ChangeOptions(CorpusOptions, ThreadOptions, OutputOptions):
    """Options of ``dupmae-ir index add``, ``index update`` and ``index sync``.

    The encoder's settings are those of the index. Without ``fields``, ``docid_field`` and ``delimiter``, so are these.
    """

    index: str = option(
        help="index folder to change", group="output", metavar="FOLDER", positional=True
    )
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
    """Add documents to an index. Their ids must be new; documents that the index has already, unchanged, are skipped.
    Documents are compared by a digest of id, title, text and metadata; what is new or changed becomes a new segment.
    Searches give exactly what an index of the same documents made at once would give. Interrupted or killed, the index
    is what it was, and the same command continues.

    Examples:
        dupmae-ir index add --index indexes/mine --corpus more.jsonl
    """


@dataclass(frozen=True, kw_only=True)
class UpdateConfig(ChangeOptions):
    """Add documents to an index, or replace those with the same ids. Only what is new or changed is encoded; the other
    documents of the index stay. Documents are compared by a digest of id, title, text and metadata; what is new or
    changed becomes a new segment. Searches give exactly what an index of the same documents made at once would give.
    Interrupted or killed, the index is what it was, and the same command continues.

    Examples:
        dupmae-ir index update --index indexes/mine --corpus changed.jsonl
    """


@dataclass(frozen=True, kw_only=True)
class SyncConfig(ChangeOptions):
    """Make an index that of a collection: add what is new, encode again what changed, delete what is gone. Takes the
    time of reading the collection and of encoding the difference. Documents are compared by a digest of id, title, text
    and metadata; what is new or changed becomes a new segment, or several that can be searched one after the other.
    Searches give exactly what an index of the same documents made at once would give. Interrupted or killed, the index
    has the segments that were finished, and the same command continues.

    Examples:
        dupmae-ir index sync --index indexes/mine --corpus corpus.jsonl
        dupmae-ir index sync --index my-index --corpus my-docs/ --watch
    """

    watch: bool = option(
        False,
        "keep running: take in each file that is saved, moved or deleted, until Ctrl-C (extra documents)",
        group="input",
    )

    replace_all: bool = option(
        False,
        "accept a collection that shares no document with the index, so that all of those are deleted",
        group="input",
    )


@dataclass(frozen=True, kw_only=True)
class DeleteConfig(OutputOptions):
    """Delete documents from an index. Nothing is rewritten: their rows are marked, and index compact frees the space.

    Examples:
        dupmae-ir index delete --index indexes/mine --ids doc17 doc23
        dupmae-ir index delete --index indexes/mine --ids-file gone.txt
        dupmae-ir index delete --index indexes/mine --paths notes/coffee.md old-notes '*.log'
        dupmae-ir index delete --index indexes/mine --filter 'modified < "2020"' --dry-run
    """

    RULES: ClassVar[tuple[OneOf | Requires, ...]] = (
        OneOf(("ids", "ids_file", "paths", "filter"), "which documents to delete"),
    )

    index: str = option(
        help="index folder to change", group="output", metavar="FOLDER", positional=True
    )
    ids: tuple[str, ...] = option((), "ids of documents", group="input", metavar="ID")
    ids_file: str | None = option(
        None, "file with one id on each line; - for standard input", group="input", metavar="FILE"
    )
    paths: tuple[str, ...] = option(
        (),
        "files, folders or patterns: all passages of these files (see index show --files)",
        group="input",
    )
    filter: str | None = option(
        None, "metadata condition, as of search --filter", group="input", metavar="CONDITION"
    )
    ignore_unknown: bool = option(
        False, "ignore ids and paths that the index does not contain", group="input"
    )
    dry_run: bool = option(
        False, "say how many documents would be deleted, and delete none", group="output"
    )


@dataclass(frozen=True, kw_only=True)
class CompactConfig(OutputOptions):
    """Rewrite an index of several segments as one, without the deleted documents and without encoding anything. Its
    postings and smaller dense indexes are built again. Searches in progress keep the old files until they are done.
    Stock Pyserini commands read the result; before, they read the first segment only.

    Examples:
        dupmae-ir index compact indexes/mine
    """

    index: str = option(
        help="index folder to rewrite in one piece",
        group="output",
        metavar="FOLDER",
        positional=True,
    )


@dataclass(frozen=True, kw_only=True)
class PushConfig(OutputOptions):
    """Copy an index folder to an object store (extra s3 for s3://). The manifest goes last, so an unfinished copy is
    never opened; what is there already, with the same size and sha256, is not sent again. Credentials are those of the
    store's own tools: the environment or their files.

    Examples:
        dupmae-ir index push indexes/mine --to s3://bucket/mine
        dupmae-ir index push indexes/mine --to mine-record --record
    """

    index: str = option(
        help="index folder to copy", group="input", metavar="FOLDER", positional=True
    )
    to: str = option(
        help="where: s3://bucket/index, or another URL that fsspec opens",
        group="output",
        metavar="URL",
    )
    record: bool = option(
        False, "write only a record, which is all that search --server needs; --to may be a folder"
    )
    overwrite: bool = option(False, "replace another index that is there", group="output")


@dataclass(frozen=True, kw_only=True)
class PullConfig(OutputOptions):
    """Copy an index from an object store to a folder, compared with its digests; interrupted, the same command
    continues. Commands that only read an index take the URL itself and keep such a copy in the cache.

    Examples:
        dupmae-ir index pull s3://bucket/mine --index indexes/mine
    """

    url: str = option(
        help="URL of the index: s3://bucket/index", group="input", metavar="URL", positional=True
    )
    index: str = option(help="index folder to make", group="output", metavar="FOLDER")
    overwrite: bool = option(
        False, "replace another index, once the new one is complete", group="output"
    )
