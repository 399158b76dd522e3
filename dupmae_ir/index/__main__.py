"""``python -m dupmae_ir.index VERB``: see ``--help``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from dupmae_ir.command import Command, dispatch, load
from dupmae_ir.console import megabytes, table
from dupmae_ir.index.config import (
    AddConfig,
    Bm25Config,
    ChangeOptions,
    ChangeResult,
    CompactConfig,
    DeleteConfig,
    DenseConfig,
    DenseResult,
    IndexResult,
    PostingsConfig,
    PostingsResult,
    PullConfig,
    PullResult,
    PushConfig,
    PushResult,
    ShowIndexConfig,
    SyncConfig,
    UpdateConfig,
    VerifyConfig,
    VerifyResult,
    changes_in_words,
)
from dupmae_ir.index.format.integrity import EXCERPTS, TEXTS, part_of
from dupmae_ir.index.format.unread import is_unread
from dupmae_ir.io.jobs import COMPLETE
from dupmae_ir.io.sources import file_report


def summarize_bm25(config: Bm25Config, result: IndexResult) -> str:
    """How many documents the index has."""
    return f"{config.index}: {result['documents']:,} documents"


def summarize_dense(config: DenseConfig, result: DenseResult) -> str:
    """How many documents have codes, and their size."""
    return f"{config.index}: codes of {result['documents']:,} vectors, {megabytes(result['bytes'])}"


def summarize_postings(config: PostingsConfig, result: PostingsResult) -> str:
    """How many documents the postings cover, and their size."""
    return f"{config.index}: postings of {result['documents']:,} documents, {megabytes(result['bytes'])}"


def summarize_verified(config: VerifyConfig, result: VerifyResult) -> str:
    """What was compared."""
    text = f"{config.index}: undamaged: {result['documents']:,} documents"
    return f"{text}, {result['files']} files, {megabytes(result['bytes'])}"


def summarize_change(config: ChangeOptions, result: ChangeResult) -> str:
    """How many documents were added, updated, deleted and unchanged, and what the index is now."""
    counts = changes_in_words(result, "added", "updated", "deleted", "unchanged")
    return f"{config.index}: {counts}; {_state(result)}, {result['seconds']:.1f} s"


def summarize_deleted(config: DeleteConfig, result: ChangeResult) -> str:
    """How many documents were deleted, and what the index is now."""
    deleted = "would be deleted (dry run)" if config.dry_run else "deleted"
    return f"{config.index}: {result['deleted_now']:,} {deleted}; {_state(result)}"


def summarize_compacted(config: CompactConfig, result: ChangeResult) -> str:
    """How many deleted rows were removed, and what the index is now."""
    return f"{config.index}: {result['removed_now']:,} deleted rows removed; {_state(result)}"


def summarize_pushed(config: PushConfig, result: PushResult) -> str:
    """How many files were sent."""
    files = f"{result['sent_now']:,} of {result['files']:,} files sent"
    if config.record:
        files = "its record alone"
    return f"{config.index}: {result['to']} is complete, {megabytes(result['bytes'])}; {files}"


def summarize_pulled(config: PullConfig, result: PullResult) -> str:
    """How many documents the copy has."""
    done = ", already complete" if result["status"] == COMPLETE else ""
    return f"{config.index}: {result['documents']:,} documents{done}"


def _state(result: ChangeResult) -> str:
    return f"{result['size']} in {result['segments']} segment(s), generation {result['generation']}"


def show(config: ShowIndexConfig, meta: Mapping[str, Any]) -> str:
    """The text of ``index show``: the parts of the index, what made it, its digest, and the parts built on demand."""
    if config.quiet:
        return ""
    extras: dict[str, str] = load("dupmae_ir.index.run:show_extras")(config)
    rows = [*_meta_rows(meta), *extras.items()]
    lines = [config.index, *(f"  {name.ljust(18)}{value}" for name, value in rows)]
    if config.files:
        table_rows = []
        for path, file in meta["files"].items():
            kinds = ", ".join(file["kinds"])
            table_rows.append([path, f"{file['passages']:,}", kinds, file["guessed"]])
        lines += ["", table(table_rows, ["file", "passages", "type", "encoding (guessed)"])]
    return "\n".join(lines) + file_report(meta.get("sources"))


def _meta_rows(meta: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the record of an index says, as names and values."""
    encoder = meta.get("encoder") or {}
    versions = meta.get("versions") or {}
    yield "documents", f"{meta['documents']:,} ({meta['empty_documents']:,} without impacts)"
    segments = meta["segments"]
    deleted = (meta["deleted"] or {}).get("rows", 0)
    if len(segments) > 1 or deleted:
        rows = [f"{segment['documents']:,}" for segment in segments]
        yield "segments", f"{len(segments)} of {', '.join(rows)} rows"
        yield "deleted", f"{deleted:,} documents, until index compact"
        yield (
            "stock Pyserini",
            "reads the first segment only, deleted documents included, until index compact",
        )
    if meta["generation"]:
        yield "generation", f"{meta['generation']}, by {meta['changed_by']}"
    if is_unread(meta):
        yield "meaning", "unread: encode has made an index of words first, and adds the vectors"
    if meta["dim"] is not None:
        yield "vectors", f"{meta['dim']} wide, float32, inner product"
    if meta["truncated"]:
        yield "truncated", f"{meta['truncated']:,} documents: the model read their beginnings"
    if meta["scale"] is not None:
        yield (
            "impacts",
            f"{meta['postings']:,}, scale {meta['scale']:g}, {meta['clipped']:,} clipped at 255",
        )
    file_count = 0
    part_bytes: Counter[str] = Counter()
    for segment in segments:
        file_count += len(segment["files"])
        for name, file in segment["files"].items():
            part_bytes[part_of(name)] += file["bytes"]
    excerpts = encoder.get("excerpts")
    if excerpts:
        yield (
            "excerpts",
            f"of at most {excerpts['word_pieces']} word pieces, share {excerpts['share']:g}, "
            f"{megabytes(part_bytes[EXCERPTS])}",
        )
    if part_bytes[TEXTS]:
        yield "texts", f"stored, {megabytes(part_bytes[TEXTS])}"
    if encoder:
        yield "encoder", f"{encoder.get('name')} ({str(encoder.get('digest'))[:12]})"
        lengths = f"{encoder.get('document_length')} / {encoder.get('query_length')} word pieces"
        yield "document / query", f"{lengths}, top {encoder.get('top_k')}, {encoder.get('dtype')}"
    for source in meta.get("inputs") or []:
        yield "input", f"{source['path']} ({source['documents']:,} documents)"
    yield (
        "made",
        f"{meta.get('created')} by dupmae_ir {versions.get('dupmae_ir')}, Pyserini {versions.get('pyserini')}",
    )
    yield "digest", f"{meta['digest'][:12]} (index verify reads every byte)"
    yield "files", f"{file_count} recorded"


RUN = "dupmae_ir.index.run"
bm25 = Command("index bm25", Bm25Config, f"{RUN}:run_bm25", summarize=summarize_bm25)
dense = Command("index dense", DenseConfig, f"{RUN}:run_dense", summarize=summarize_dense)
postings = Command(
    "index postings", PostingsConfig, f"{RUN}:run_postings", summarize=summarize_postings
)
show_command = Command("index show", ShowIndexConfig, f"{RUN}:show", show=show)
verify = Command("index verify", VerifyConfig, f"{RUN}:verify", summarize=summarize_verified)
CHANGES = "dupmae_ir.encode.changes"
add = Command(
    "index add", AddConfig, f"{CHANGES}:run_add", summarize=summarize_change, resumes=True
)
update = Command(
    "index update", UpdateConfig, f"{CHANGES}:run_update", summarize=summarize_change, resumes=True
)
sync = Command(
    "index sync",
    SyncConfig,
    "dupmae_ir.encode.sync:run_sync",
    summarize=summarize_change,
    resumes=True,
)
delete = Command(
    "index delete",
    DeleteConfig,
    "dupmae_ir.index.changes.changes:run_delete",
    summarize=summarize_deleted,
)
compact = Command(
    "index compact",
    CompactConfig,
    "dupmae_ir.index.changes.changes:run_compact",
    summarize=summarize_compacted,
)

push = Command(
    "index push", PushConfig, f"{RUN}:run_push", summarize=summarize_pushed, resumes=True
)
pull = Command(
    "index pull", PullConfig, f"{RUN}:run_pull", summarize=summarize_pulled, resumes=True
)

VERBS = {
    "bm25": ("a collection to a Lucene BM25 index with Anserini's defaults: the baseline", bm25),
    "dense": ("codes of the vectors, for faster search of large collections", dense),
    "postings": ("impacts by term, for fast search of whole topic sets without Java", postings),
    "add": ("add documents to an index", add),
    "update": ("add documents, or replace those that changed", update),
    "sync": ("make an index that of a collection; only the difference is encoded", sync),
    "delete": ("delete documents from an index", delete),
    "compact": ("several segments to one, without deleted documents", compact),
    "push": ("copy an index folder to an object store", push),
    "pull": ("copy an index from an object store to a folder", pull),
    "verify": ("every byte of an index, and its parts against each other", verify),
    "show": ("what an index folder contains, and whether it is complete", show_command),
}


def main(argv: list[str] | None = None) -> int:
    """Run one of the verbs and return its exit status."""
    return dispatch("index", VERBS, argv)


if __name__ == "__main__":
    sys.exit(main())
