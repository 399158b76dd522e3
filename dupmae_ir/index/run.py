"""The work of the subcommands of ``dupmae-ir index``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

from tqdm import tqdm

from dupmae_ir import pyserini
from dupmae_ir.console import progress, say
from dupmae_ir.errors import DamagedIndex, UsageError
from dupmae_ir.index.changes.object_store import is_copy, local_index, need_folder, pull, push
from dupmae_ir.index.config import (
    Bm25Config,
    DenseConfig,
    DenseResult,
    IndexedFile,
    IndexResult,
    PostingsConfig,
    PostingsResult,
    PullConfig,
    PullResult,
    PushConfig,
    PushResult,
    ShowIndexConfig,
    VerifyConfig,
    VerifyResult,
)
from dupmae_ir.index.format import manifest, rotated, verification
from dupmae_ir.index.format.manifest import Meta
from dupmae_ir.index.format.quantisation import CALIBRATION
from dupmae_ir.index.index import Index
from dupmae_ir.index.lucene.bm25 import build_bm25
from dupmae_ir.index.postings.format import PostingsJob, describe_postings
from dupmae_ir.io.collections import natural_key
from dupmae_ir.io.jobs import COMPLETE, Job
from dupmae_ir.io.transfer import Remote, is_url
from dupmae_ir.models.language_detection import collection_language
from dupmae_ir.models.languages import ENGLISH
from dupmae_ir.types import Document


def run_bm25(config: Bm25Config) -> IndexResult:
    """Make the BM25 index and return a summary; an older one stays until the new one is complete."""
    need_folder(config.index, "dupmae-ir index bm25")
    collection = config.collection()
    collection.check()
    documents = iter(collection)
    first = list(islice(documents, CALIBRATION))
    language, note = collection_language(config.language, (document.joined() for document in first))
    say(note, config.quiet or not note)
    settings: dict[str, Any] = {
        "fields": config.fields,
        "docid_field": config.docid_field,
        "delimiter": config.unescaped_delimiter(),
    }
    settings |= collection.settings
    # Recorded only if they differ from the defaults, so that older records, which lack them, still agree.
    if config.title_field:
        settings["title_field"] = True
    if language != ENGLISH:
        settings["language"] = language
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
        result = job.finished()
        if not result:
            pyserini.start_jvm(config.heap)
            new_folder = job.begin() / "index"
            with progress("bm25", "documents", quiet=config.quiet) as bar:
                all_documents = _counted(chain(first, documents), bar)
                count = build_bm25(all_documents, new_folder, config.title_field, language)
            result = job.publish(new_folder, {"documents": count}, inputs=collection.digests())
        return cast("IndexResult", {"index": config.index, **result})


class _Bm25Job(Job):
    ADVICE = "Name another `index`, or pass `overwrite`"


def run_dense(config: DenseConfig) -> DenseResult:
    """Make the codes of the vectors (:mod:`dupmae_ir.index.format.rotated`) and return a summary."""
    need_folder(config.index, "dupmae-ir index dense")
    results: list[Mapping[str, Any]] = []
    index = Index.open(config.index)
    if index.has_excerpts:
        raise UsageError(
            f"{config.index}: vectors of excerpts have no codes; the dense part is searched in full"
        )
    for segment in index.segments:
        with rotated.RotatedJob(segment, quiet=config.quiet) as job:
            results.append(job.finished() or job.build())
    return cast("DenseResult", _together(config.index, results))


def run_postings(config: PostingsConfig) -> PostingsResult:
    """Write the postings of an index next to its other parts and return a summary; older ones stay until then."""
    need_folder(config.index, "dupmae-ir index postings")
    results: list[Mapping[str, Any]] = []
    for segment in Index.open(config.index).segments:
        with PostingsJob(segment, quiet=config.quiet) as job:
            result: Mapping[str, Any] | None = job.finished()
            if not result:
                with progress("postings", "documents", segment.documents, config.quiet) as bar:
                    result = job.build(bar.update)
            results.append(result)
    return cast("PostingsResult", _together(config.index, results))


def show(config: ShowIndexConfig) -> Meta:
    """Open the index, which checks it, and return its meta; with ``files`` also the documents' files, by path, as
    dictionaries of :class:`IndexedFile`. Raises what :meth:`Index.open` and :func:`show_files` raise."""
    meta = Index.open(config.index).meta
    if config.files:
        files = {path: file._asdict() for path, file in show_files(config).items()}
        return {**meta, "files": files}
    return meta


def verify(config: VerifyConfig) -> VerifyResult:
    """Read every byte and compare the parts. Raises :class:`DamagedIndex` with every problem found."""
    problems = verification.problems(local_index(config.index))
    if problems:
        raise DamagedIndex(problems)
    index = Index.open(config.index)
    files = [file for _, file in index.manifest.files()]
    return {
        "index": config.index,
        "documents": index.documents,
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
        "digest": index.digest,
    }


def run_push(config: PushConfig) -> PushResult:
    """Copy an index folder to a URL and return the counts of :func:`~dupmae_ir.index.changes.object_store.push`."""
    url = config.to
    if config.record and not is_url(
        url
    ):  # a record may also be written to a folder of this machine
        url = f"file://{Path(url).absolute()}"
    to = _remote(url, "to")
    need_folder(config.index, "dupmae-ir index push")
    index = Index.open(config.index)
    record = index.record() if config.record else None
    pushed = push(index.path, to, record=record, overwrite=config.overwrite, quiet=config.quiet)
    return {**pushed, "index": config.index}


def run_pull(config: PullConfig) -> PullResult:
    """Copy the index of a URL to a folder and return a summary; an index that it has replaced is removed."""
    source = _remote(config.url, "url")
    need_folder(config.index, "dupmae-ir index pull")
    target = Path(config.index).absolute()
    manifest.check_target(target)
    changed = False
    if config.overwrite or not target.exists() or not any(target.iterdir()):
        changed = pull(source, target, quiet=config.quiet)
    elif not is_copy(source, target):
        raise UsageError(
            f"{config.index} already has another index; pass `overwrite` to replace it"
        )
    index = Index.open(target, record=True)
    status = "complete" if changed else COMPLETE
    return {
        "index": config.index,
        "documents": index.documents,
        "digest": index.digest,
        "status": status,
    }


def _remote(url: str, name: str) -> Remote:
    if not is_url(url):
        raise UsageError(f"`{name}` {url}: expected a URL, for example s3://bucket/index")
    return Remote(url)


def show_extras(config: ShowIndexConfig) -> dict[str, str]:
    """The codes of the vectors and the postings of an index: their sizes, or why one is unusable."""
    segments = Index.open(config.index).segments
    built = [rotated.describe_rotated(segment) | describe_postings(segment) for segment in segments]
    extras = dict(built[0])
    for parts in built[1:]:
        for name in {**extras, **parts}:
            if name not in parts or name not in extras:
                extras[name] = "unusable: not all segments have it; build it again"
            elif parts[name].startswith("unusable"):
                extras[name] = parts[name]
    return extras


def show_files(config: ShowIndexConfig) -> dict[str, IndexedFile]:
    """The files of an index in natural order. Raises :class:`UsageError` for an index of none."""
    index = Index.open(config.index)
    files = index.files
    if not files or index.texts is None:
        raise UsageError(f"{config.index} was not made of files, so `files` has nothing to list")
    sources = index.meta.get("sources") or {}
    guessed = sources.get("guessed", {})
    kinds = index.texts.column("type")
    shown = {}
    for path in sorted(files, key=natural_key):
        rows = files[path]
        codes = sorted(set(kinds.codes[rows].tolist()))
        names = tuple(str(kinds.values[code]) for code in codes)
        shown[path] = IndexedFile(len(rows), names, guessed.get(path, ""))
    return shown


def _together(index: str, results: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The result of building the same part of all segments: counts of all, the rest from the first."""
    sums = {}
    for name in ("documents", "postings", "bytes"):
        if name in results[0]:
            sums[name] = sum(result[name] for result in results)
    # "already complete" only if nothing was built now.
    built_nothing = all(result["status"] == COMPLETE for result in results)
    status = COMPLETE if built_nothing else "complete"
    return {"index": index, **results[0], **sums, "status": status}


def _counted(documents: Iterable[Document], bar: tqdm[Any]) -> Iterator[Document]:
    for document in documents:
        yield document
        bar.update(1)
