"""Merges shards into one index, bit-identical to that of an unsharded run.

The order is that of the shards' own numbers, so ``I.10`` comes after ``I.2`` however the shell sorts them. Shards hold
alternate windows of the collection; merging puts the windows back in order. Nothing is encoded or quantised again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from dupmae_ir import __version__
from dupmae_ir.config import differences, to_dict
from dupmae_ir.console import progress
from dupmae_ir.encode.merge import MergeConfig, MergeResult
from dupmae_ir.encode.run import IndexJob, index_summary
from dupmae_ir.encode.windows import EncodedWindow, build_index, split_digests, window_size
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.changes.object_store import Output
from dupmae_ir.index.format.manifest import NO_LOSSES, check_target
from dupmae_ir.index.index import Index
from dupmae_ir.io.jobs import JobRecord
from dupmae_ir.io.publishing import combined_digest


def run(config: MergeConfig) -> MergeResult:
    """Merge and return the summary. Raises :class:`IndexMismatch` for shards that do not belong together."""
    output = Output(config.index, overwrite=config.overwrite, quiet=config.quiet)
    target = output.folder
    check_target(target)
    output.prepare()
    shards = in_order([_open_shard(path) for path in config.shards])
    if target in [Path(shard.path).absolute() for shard in shards]:
        raise UsageError(f"`index` {config.index}: is one of the shards; name another folder")
    inputs = {"shards": shards_digest([shard.meta["digest"] for shard in shards])}
    names = {"index": config.index, "shards": [str(shard.path) for shard in shards]}
    with MergeJob(
        target,
        "encode.merge",
        {},
        inputs,
        overwrite=config.overwrite,
        resumable=False,
        quiet=config.quiet,
    ) as job:
        result = job.finished()
        if not result:
            folder = job.begin() / "index"
            for shard in shards:
                # Damage would be copied, and the new index would record digests of it.
                shard.verify()
            terms = None
            if shards[0].has_ot:
                # A shard without documents in additional languages lacks the terms of these.
                terms = max((shard.terms for shard in shards), key=len)
            total = sum(len(shard.docids) for shard in shards)
            with progress("merge", "documents", total=total, quiet=config.quiet) as bar:
                meta = build_index(
                    interleaved(shards, shards[0].meta["settings"]["window"]),
                    folder,
                    dim=shards[0].dim,
                    terms=terms,
                    scale=shards[0].scale,
                    describe=lambda: _describe(config, shards),
                    on_documents=bar.update,
                    texts=shards[0].has_texts,
                    postings=all(shard.only_segment.has_part("postings") for shard in shards),
                    excerpts=shards[0].has_excerpts,
                )
            result = job.publish(folder, index_summary(meta))
    return cast("MergeResult", output.publish({**result, **names}))


class MergeJob(IndexJob):
    """``dupmae-ir encode.merge``."""

    def recorded(self) -> JobRecord:
        """The record in ``meta.json``; an index that was not merged has no shards."""
        meta = self.meta()
        digests = [shard["digest"] for shard in meta.get("merged_from") or []]
        return {
            "made_by": f"dupmae-ir {self.command}",
            "settings": {},
            "inputs": {"shards": shards_digest(digests)},
            "result": index_summary(meta),
        }


def shards_digest(digests: list[str]) -> str:
    """One digest for the shards of an index, in their order."""
    return combined_digest(["shards", *digests])


def in_order(shards: Sequence[Index]) -> list[Index]:
    """The shards by number, each exactly once and all from the same collection, model and settings."""
    by_number: dict[int, Index] = {}
    first = shards[0]
    for shard in shards:
        number = shard.meta["shard"]["number"]
        of = shard.meta["shard"]["of"]
        if number in by_number:
            twins = f"{shard.path} and {by_number[number].path}"
            raise IndexMismatch(f"{twins} are both shard {number} of {of}; leave one out")
        by_number[number] = shard
        _check_alike(first, shard)
    of = first.meta["shard"]["of"]
    missing = sorted(set(range(of)) - set(by_number))
    if missing:
        names = ", ".join(map(str, missing[:10]))
        raise IndexMismatch(
            f"missing of {of} shards: {names} (numbers start at 0); encode them, or name them"
        )
    return [by_number[number] for number in range(of)]


def interleaved(shards: Sequence[Index], window: int) -> Iterator[EncodedWindow]:
    """The windows of the collection in order, taken from the shards in turn; one window in memory at a time."""
    next_rows = [0] * len(shards)
    # Window number i is in shard i modulo the number of shards, see encode.run.
    for number in range(shards[0].meta["shard"]["windows"]):
        turn = number % len(shards)
        start = next_rows[turn]
        end = min(start + window_size(number, window), len(shards[turn].docids))
        next_rows[turn] = end
        yield _window_of(shards[turn], start, end)
    if next_rows != [len(shard.docids) for shard in shards]:
        raise IndexMismatch(
            f"{shards[0].path} and the other shards have other numbers of documents than they recorded"
        )


def _window_of(shard: Index, start: int, end: int) -> EncodedWindow:
    """Rows ``start`` to ``end`` of a shard."""
    segment = shard.only_segment
    impacts = None
    if shard.has_ot:
        impacts = segment.forward.matrix(np.arange(start, end))
    vectors = None
    if shard.dim is not None:
        vectors = segment.vectors[start:end]
    # A shard has one count for all of its rows: added with its first window.
    losses = segment.record.losses if start == 0 else NO_LOSSES
    documents = None
    if shard.texts:
        documents = shard.texts.get_all(range(start, end))
    digests = None
    if shard.digests is not None:
        digests = split_digests(shard.digests[start:end])
    excerpts = None
    if segment.excerpts is not None:
        excerpts = segment.excerpts.of_rows(np.arange(start, end))
    docids = list(shard.docids[start:end])
    return EncodedWindow(docids, vectors, impacts, losses, documents, digests, excerpts)


def _describe(config: MergeConfig, shards: Sequence[Index]) -> dict[str, object]:
    first = shards[0].meta
    merged_from = []
    for shard in shards:
        merged_from.append({"path": str(shard.path), "digest": shard.meta["digest"]})
    return {
        "made_by": "dupmae-ir encode.merge",
        "version": __version__,
        "encoder": first["encoder"],
        "scale_source": first["scale_source"],
        "inputs": first["inputs"],
        "settings": {**first["settings"], "shard": None},
        "shard": None,
        "merged_from": merged_from,
        "config": to_dict(config),
    }


def _open_shard(path: str) -> Index:
    shard = Index.open(path)
    if not shard.meta.get("shard"):
        raise IndexMismatch(
            f"{path} is a whole index, not a shard; only folders made with `shard` can be merged"
        )
    shard.only_segment  # noqa: B018 (raises for an index that is not in one piece)
    return shard


def _check_alike(first: Index, shard: Index) -> None:
    """Raise :class:`IndexMismatch` unless two shards agree in everything but the shard's number."""
    pairs = f"{first.path} and {shard.path}"
    changed = differences(
        {**first.meta["settings"], "shard": None}, {**shard.meta["settings"], "shard": None}
    )
    if changed:
        raise IndexMismatch(
            f"{pairs} were made with other settings ({changed}); encode one of them again"
        )
    first_of = first.meta["shard"]["of"]
    shard_of = shard.meta["shard"]["of"]
    if first_of != shard_of:
        raise IndexMismatch(
            f"{pairs} are shards of {first_of} and of {shard_of}; all must come from one division"
        )
    first_inputs = [file["sha256"] for file in first.meta["inputs"]]
    shard_inputs = [file["sha256"] for file in shard.meta["inputs"]]
    if first_inputs != shard_inputs:
        raise IndexMismatch(
            f"{pairs} were made from different collections; encode one of them again"
        )
    if first.has_texts != shard.has_texts:
        raise IndexMismatch(
            f"one of {pairs} stores texts, the other does not; encode one of them again"
        )
    if first.meta["scale"] != shard.meta["scale"]:
        raise IndexMismatch(
            f"{pairs} have scales {first.meta['scale']} and {shard.meta['scale']}; "
            f"encode one of them again with `scale` {first.meta['scale']}"
        )
