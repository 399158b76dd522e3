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
from dupmae_ir.index.format.manifest import check_target
from dupmae_ir.index.index import Index
from dupmae_ir.io.jobs import JobRecord
from dupmae_ir.io.publishing import combined_digest


def run(config: MergeConfig) -> MergeResult:
    """Merge and return the summary. Raises :class:`IndexMismatch` for shards that do not belong together."""
    output = Output(config.index, overwrite=config.overwrite, quiet=config.quiet)
    target = output.folder
    check_target(target)
    output.prepare()
    shards = in_order([_opened(path) for path in config.shards])
    if target in [Path(s.path).absolute() for s in shards]:
        raise UsageError(f"`index` {config.index}: is one of the shards; name another folder")
    inputs = {"shards": shards_digest([s.meta["digest"] for s in shards])}
    names = {"index": config.index, "shards": [str(s.path) for s in shards]}
    with MergeJob(
        target,
        "encode.merge",
        {},
        inputs,
        overwrite=config.overwrite,
        resumable=False,
        quiet=config.quiet,
    ) as job:
        if not (result := job.finished()):
            folder = job.begin() / "index"
            for shard in shards:
                shard.verify()  # every byte is about to be copied, and recorded as part of the new index
            total = sum(len(s.docids) for s in shards)
            with progress("merge", "documents", total=total, quiet=config.quiet) as bar:
                meta = build_index(
                    interleaved(shards, shards[0].meta["settings"]["window"]),
                    folder,
                    dim=shards[0].dim,
                    terms=shards[0].terms if shards[0].has_ot else None,
                    scale=shards[0].scale,
                    describe=lambda: _describe(config, shards),
                    on_documents=bar.update,
                    texts=shards[0].has_texts,
                    postings=all(shard.only_segment.has_part("postings") for shard in shards),
                )
            result = job.publish(folder, index_summary(meta))
    return cast("MergeResult", output.publish({**result, **names}))


class MergeJob(IndexJob):
    """``dupmae-ir encode.merge``."""

    def recorded(self) -> JobRecord:
        """The record in ``meta.json``; an index that was not merged has no shards."""
        meta = self.meta()
        return {
            "made_by": f"dupmae-ir {self.command}",
            "settings": {},
            "inputs": {
                "shards": shards_digest([s["digest"] for s in meta.get("merged_from") or []])
            },
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
        number, of = shard.meta["shard"]["number"], shard.meta["shard"]["of"]
        if number in by_number:
            twins = f"{shard.path} and {by_number[number].path}"
            raise IndexMismatch(f"{twins} are both shard {number} of {of}; leave one out")
        by_number[number] = shard
        _check_alike(first, shard)
    of = first.meta["shard"]["of"]
    if missing := sorted(set(range(of)) - set(by_number)):
        names = ", ".join(map(str, missing[:10]))
        raise IndexMismatch(
            f"missing of {of} shards: {names} (numbers start at 0); encode them, or name them"
        )
    return [by_number[n] for n in range(of)]


def interleaved(shards: Sequence[Index], window: int) -> Iterator[EncodedWindow]:
    """The windows of the collection in order, taken from the shards in turn; one window in memory at a time."""
    at = [0] * len(shards)
    for number in range(shards[0].meta["shard"]["windows"]):
        turn = number % len(shards)
        shard, start = shards[turn], at[turn]
        end = min(start + window_size(number, window), len(shard.docids))
        at[turn] = end
        impacts = shard.only_segment.forward.matrix(np.arange(start, end)) if shard.has_ot else None
        cls = shard.only_segment.vectors[start:end] if shard.dim is not None else None
        clipped, dropped = (0, 0) if start else (shard.meta["clipped"], shard.meta["dropped"])
        documents = shard.texts.get_all(range(start, end)) if shard.texts else None
        digests = split_digests(shard.digests[start:end]) if shard.digests is not None else None
        yield EncodedWindow(
            list(shard.docids[start:end]), cls, impacts, clipped, dropped, documents, digests
        )
    if at != [len(s.docids) for s in shards]:
        raise IndexMismatch(
            f"{shards[0].path} and the other shards have other numbers of documents than they recorded"
        )


def _describe(config: MergeConfig, shards: Sequence[Index]) -> dict[str, object]:
    first = shards[0].meta
    return {
        "made_by": "dupmae-ir encode.merge",
        "version": __version__,
        **{k: first[k] for k in ("encoder", "scale_source", "inputs")},
        "settings": {**first["settings"], "shard": None},
        "shard": None,
        "merged_from": [{"path": str(s.path), "digest": s.meta["digest"]} for s in shards],
        "config": to_dict(config),
    }


def _opened(path: str) -> Index:
    shard = Index.open(path)
    if not shard.meta.get("shard"):
        raise IndexMismatch(
            f"{path} is a whole index, not a shard; only folders made with `shard` can be merged"
        )
    shard.only_segment  # noqa: B018 (raises for an index that is not in one piece)
    return shard


def _check_alike(first: Index, shard: Index) -> None:
    """Everything but the shard's own number must agree."""
    a, b = ({k: v for k, v in s.meta["settings"].items() if k != "shard"} for s in (first, shard))
    pairs = f"{first.path} and {shard.path}"
    if changed := differences(a, b):
        raise IndexMismatch(
            f"{pairs} were made with other settings ({changed}); encode one of them again"
        )
    if first.meta["shard"]["of"] != shard.meta["shard"]["of"]:
        of = first.meta["shard"]["of"], shard.meta["shard"]["of"]
        raise IndexMismatch(
            f"{pairs} are shards of {of[0]} and of {of[1]}; all must come from one division"
        )
    if [i["sha256"] for i in first.meta["inputs"]] != [i["sha256"] for i in shard.meta["inputs"]]:
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
