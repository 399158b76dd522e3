"""Shards into one index, equal to the last bit to the one that an unsharded run makes.

``python -m dupmae_ir.encode.merge I.0 I.1 I.2 --index I``. The order is by the number that each shard carries, so
``I.10`` comes after ``I.2`` however the shell sorts them. Shards take turns by windows; merging lays the windows
down in the order of the collection. Nothing is encoded or quantised again.
"""

from __future__ import annotations

import glob
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dupmae_ir.config import differences, option, parse, to_dict
from dupmae_ir.console import Parser, guarded, progress, say
from dupmae_ir.encode.publish import check_target, publish_index
from dupmae_ir.encode.unfinished import recover
from dupmae_ir.encode.windows import Part, window_size
from dupmae_ir.errors import IndexMismatch, InputError, UsageError
from dupmae_ir.io.locks import exclusive
from dupmae_ir.io.publishing import disk_full

if TYPE_CHECKING:
    from dupmae_ir.index.folder import IndexFolder

PURPOSE = "Join the indexes of all shards of one collection into the index of the whole."
EXAMPLES = """
python -m dupmae_ir.encode.merge I.0 I.1 I.2 I.3 --index I
python -m dupmae_ir.encode.merge 'shards/I.*' --index I
"""


@dataclass(frozen=True)
class MergeConfig:
    """Everything that ``python -m dupmae_ir.encode.merge`` can be told."""

    shards: tuple[str, ...] = option(
        help="index folders made with --shard, in any order, or quoted patterns", positional=True, metavar="SHARD"
    )
    index: str = option(help="index folder to make", metavar="FOLDER")
    overwrite: bool = option(False, "replace an older index")
    quiet: bool = option(False, "no progress, only errors")
    json: bool = option(False, "print the summary as JSON on standard output")


def run(config: MergeConfig) -> dict[str, Any]:
    """Merge and return the summary. Raises :class:`IndexMismatch` for shards that do not belong together."""
    target = Path(config.index).absolute()
    check_target(target)
    shards = in_order([_opened(path) for path in _expanded(config.shards)])
    if target in [Path(s.path).absolute() for s in shards]:
        raise UsageError(f"--index {config.index}: is one of the shards; name another folder")
    with exclusive(target.with_name(f".{target.name}.lock"), f"writing {target}"):
        recover(target)
        if target.exists() and any(target.iterdir()) and not config.overwrite:
            raise UsageError(f"{target}: already there; add --overwrite to replace it, or name another --index")
        try:
            return _merge(config, shards, target)
        except Exception as e:
            if full := disk_full(e, target.parent):
                raise full from e
            raise


def in_order(shards: Sequence[IndexFolder]) -> list[IndexFolder]:
    """The shards by number, each exactly once and all from the same collection, model and settings."""
    by_number: dict[int, IndexFolder] = {}
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
        raise IndexMismatch(f"missing of {of} shards: {names} (numbers start at 0); encode what is missing, or name it")
    return [by_number[n] for n in range(of)]


def interleaved(shards: Sequence[IndexFolder], window: int) -> Iterator[Part]:
    """The windows of the collection in order, taken from the shards by turns; one window in memory at a time."""
    import scipy.sparse as sp

    at = [0] * len(shards)
    for number in range(shards[0].meta["shard"]["windows"]):
        turn = number % len(shards)
        shard, start = shards[turn], at[turn]
        end = min(start + window_size(number, window), len(shard.docids))
        at[turn] = end
        impacts = None
        if shard.has_ot:
            forward = shard.forward
            low, high = int(forward.indptr[start]), int(forward.indptr[end])
            indptr = forward.indptr[start : end + 1] - low
            impacts = sp.csr_matrix(
                (forward.impacts[low:high], forward.terms[low:high].astype("int32"), indptr),
                shape=(end - start, len(shard.terms)),
            )
        cls = shard.vectors[start:end] if shard.dim is not None else None
        counts = (0, 0) if start else (shard.meta["clipped"], shard.meta["dropped"])
        yield Part(shard.docids[start:end], cls, impacts, *counts)
    if at != [len(s.docids) for s in shards]:
        raise IndexMismatch(f"{shards[0].path} and its sisters hold other numbers of documents than they recorded")


def _merge(config: MergeConfig, shards: list[IndexFolder], target: Path) -> dict[str, Any]:
    first = shards[0].meta
    total = sum(len(s.docids) for s in shards)
    with progress("merge", "documents", total=total, quiet=config.quiet) as bar:
        meta = publish_index(
            interleaved(shards, first["settings"]["window"]),
            target.with_name(f".{target.name}.merging"),
            target,
            dim=shards[0].dim,
            terms=shards[0].terms if shards[0].has_ot else None,
            scale=shards[0].scale,
            describe=lambda: _describe(config, shards),
            on_documents=bar.update,
        )
    shown = ("documents", "empty_documents", "parts", "scale", "postings", "clipped", "digest")
    return {"index": config.index, "shards": [str(s.path) for s in shards], **{k: meta.get(k) for k in shown}}


def _describe(config: MergeConfig, shards: Sequence[IndexFolder]) -> dict[str, Any]:
    first = shards[0].meta
    return {
        **{k: first[k] for k in ("encoder", "scale_source", "inputs")},
        "settings": {**first["settings"], "shard": None, "jsonl": None},
        "work": None,
        "shard": None,
        "merged_from": [{"path": str(s.path), "digest": s.meta["digest"]} for s in shards],
        "config": to_dict(config),
    }


def _expanded(patterns: Sequence[str]) -> list[str]:
    paths: list[str] = []
    for pattern in patterns:
        found = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern))  # noqa: PTH207 (may be absolute)
        if not found:
            raise InputError(f"{pattern}: no such index folder")
        paths.extend(found)
    return paths


def _opened(path: str) -> IndexFolder:
    from dupmae_ir.index.folder import IndexFolder

    folder = IndexFolder.open(path)
    if not folder.meta.get("shard"):
        raise IndexMismatch(f"{path} is a whole index, not a shard; only folders made with --shard can be merged")
    return folder


def _check_alike(first: IndexFolder, shard: IndexFolder) -> None:
    """Everything but the shard's own number must agree."""
    ignored = {"shard", "jsonl"}
    a, b = ({k: v for k, v in s.meta["settings"].items() if k not in ignored} for s in (first, shard))
    pairs = f"{first.path} and {shard.path}"
    if changed := differences(a, b):
        raise IndexMismatch(f"{pairs} were made with other settings ({changed}); encode one of them again")
    if first.meta["shard"]["of"] != shard.meta["shard"]["of"]:
        of = first.meta["shard"]["of"], shard.meta["shard"]["of"]
        raise IndexMismatch(f"{pairs} are shards of {of[0]} and of {of[1]}; all must come from one division")
    if [i["sha256"] for i in first.meta["inputs"]] != [i["sha256"] for i in shard.meta["inputs"]]:
        raise IndexMismatch(f"{pairs} were made from different collections; encode one of them again")
    if first.meta["scale"] != shard.meta["scale"]:
        raise IndexMismatch(
            f"{pairs} have scales {first.meta['scale']} and {shard.meta['scale']}; "
            f"encode one of them again with --scale {first.meta['scale']}"
        )


def main(argv: list[str] | None = None) -> int:
    return guarded(lambda: _main(argv), "dupmae-ir encode.merge")


def _main(argv: list[str] | None) -> int:
    config = parse(Parser("encode.merge", PURPOSE, EXAMPLES), MergeConfig, argv)
    summary = run(config)
    if config.json:
        sys.stdout.write(json.dumps(summary) + "\n")
    say(f"{summary['index']}: {summary['documents']:,} documents from {len(summary['shards'])} shards", config.quiet)
    return 0


if __name__ == "__main__":
    sys.exit(main())
