"""``dupmae-ir encode --estimate``: measures a sample of the collection, and plans the whole."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dupmae_ir.console import megabytes, table
from dupmae_ir.device import processors
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.planning import Machine, Measured, as_record, index_bytes, plan, read_machines
from dupmae_ir.encode.shards import EncoderChoice, Shard, encode_shard
from dupmae_ir.encode.window_files import Part, build_index, load_part, write_part
from dupmae_ir.encode.windows import document_digest, documents_digest
from dupmae_ir.errors import InputError
from dupmae_ir.index.format.quantisation import Scale
from dupmae_ir.io.sources import Source
from dupmae_ir.types import Document, Encoder

try:
    import resource
except ImportError:  # of Unix only
    resource = None  # type: ignore[assignment]

READ = 20_000
"""Documents read from the beginning of the collection; those that are encoded are spread evenly over them."""
HERE = "this machine"
Clock = Callable[[], float]


@dataclass(frozen=True)
class Sample:
    """``documents``: those to encode. ``total``: documents of the collection; ``exact`` where all were read."""

    documents: list[Document]
    total: float
    exact: bool
    read: int
    read_rate: float


def estimate(config: EncodeConfig, clock: Clock = time.monotonic) -> dict[str, Any]:
    """The plan, as a JSON-able value. Nothing is written but temporary files.

    ``clock``: ``time.process_time`` measures the same with one thread on a machine that others use at the same time.
    """
    machines = read_machines(config.machines)
    sample = _sample(config.collection(), config.sample, clock)
    choice = EncoderChoice.of(config)
    encoder = choice.load(config.device)
    measured = _measure(sample, encoder, choice, config.postings, clock)
    on_cpu = encoder.settings.device == "cpu"
    threads = (config.threads or processors()) if on_cpu else 1
    one = dataclasses.replace(measured, rate=measured.rate / threads)
    # The list counts in cores; a GPU says nothing about them.
    kinds = [Machine(HERE, threads, 1.0, 0.0), *(machines if on_cpu else [])]
    sizes = index_bytes(one, sample.total)
    return {
        "status": "estimated",
        "corpus": config.corpus if isinstance(config.corpus, str) else " ".join(config.corpus),
        "documents": round(sample.total),
        "exact": sample.exact,
        "read": sample.read,
        "encoded": len(sample.documents),
        "model": encoder.name,
        "device": encoder.settings.device,
        "threads": threads,
        "measured": as_record(one),
        "bytes": {part: round(size) for part, size in sizes.items()},
        "work_bytes": round(_work_bytes(one) * sample.total),
        "encode_memory": _peak(),
        "machines": [dataclasses.asdict(plan(one, sample.total, machine)) for machine in kinds],
    }


def as_text(result: Mapping[str, Any]) -> str:
    """The plan for a person."""
    about = "" if result["exact"] else "about "
    measured, sizes, peak = result["measured"], result["bytes"], result["encode_memory"]
    named = sorted(((part, size) for part, size in sizes.items() if size >= 1), key=lambda row: -row[1])
    rows = [
        [
            row["machine"],
            f"{row['documents_per_second']:,.0f}" + (f" ({row['bound_by']})" if row["bound_by"] else ""),
            _hours(row["encode_hours"]),
            _hours(row["index_hours"]),
            "-" if row["machine"] == HERE else f"{row['dollars']:,.2f}",
        ]
        for row in result["machines"]
    ]
    return "\n".join(
        [
            f"{result['corpus']}: {about}{result['documents']:,} documents of {measured['words']:.0f} words "
            f"({result['read']:,} read, {result['encoded']:,} of them encoded by {result['model']} on "
            f"{result['device']}, {result['threads']} thread(s))",
            f"index: {megabytes(sum(sizes.values()))} ({', '.join(f'{p} {megabytes(round(s))}' for p, s in named)})",
            f"disk while encoding: {megabytes(result['work_bytes'])} more, in the work folder",
            f"memory: {megabytes(peak) if peak else 'unknown'} to encode, whatever the number of documents; "
            f"searching maps {megabytes(sum(s for p, s in sizes.items() if p in ('cls', 'forward')))}",
            "",
            table(rows, ["", "documents/s", "encode", "index", "US$"]),
            "(host), (reading): the devices wait for the CPU that prepares their texts, or for the process that reads",
        ]
    )


def _hours(hours: float) -> str:
    if hours < 1 / 60:
        return f"{hours * 3600:.1f} s"
    return f"{hours * 60:.1f} min" if hours < 1 else f"{hours:,.1f} h"


def _sample(collection: Source, count: int, clock: Clock) -> Sample:
    """``count`` documents, evenly spread over the first ones, and how many the collection has."""
    started = clock()
    head: list[Document] = []
    for document in islice(collection, READ):
        document_digest(document)  # the process that reads does as much in a run
        head.append(document)
    ended = len(head) < READ
    seconds = max(clock() - started, 1e-9)
    share = collection.bytes_read / collection.total_bytes if collection.total_bytes else 1.0
    total = len(head) if ended else len(head) / max(share, 1e-9)
    if not ended and not collection.total_bytes:
        raise InputError(f"{collection.source}: its size is not known, so its documents cannot be counted; name a file")
    if len(head) < 2:
        raise InputError(f"{collection.source}: has {len(head)} document; --estimate needs two")
    step = max(1, len(head) // count)
    return Sample(list(islice(head[::step], count)), total, ended, len(head), len(head) / seconds)


def _measure(sample: Sample, encoder: Encoder, choice: EncoderChoice, postings: bool, clock: Clock) -> Measured:
    """Encode the sample in two halves, and index one half and both: the difference is what documents add."""
    documents = sample.documents
    encode_shard(encoder, _shard(documents[:16], None), choice)  # the first call of an encoder is slow
    halves = [documents[: len(documents) // 2], documents[len(documents) // 2 :]]
    scale: Scale | None = None
    parts: list[Part] = []
    optional = choice.store_texts, postings
    seconds = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number, some in enumerate(halves):
            started = clock()
            encoded = encode_shard(encoder, _shard(some, scale), choice)
            scale, seconds = encoded.scale, seconds + clock() - started
            write_part(Path(folder) / f"part{number}", encoded.part or b"")
            parts.append(load_part(Path(folder) / f"part{number}"))
        _indexed(parts[:1], Path(folder) / "warm", encoder, scale, optional)  # starts the JVM
        times = [clock()]
        first = _indexed(parts[:1], Path(folder) / "first", encoder, scale, optional)
        times.append(clock())
        both = _indexed(parts, Path(folder) / "both", encoder, scale, optional)
        times.append(clock())
    short, long = times[1] - times[0], times[2] - times[1]
    added = long - short if long > short else long / 2
    count = sum(map(len, halves))
    kept = sum(part.impacts.nnz for part in parts if part.impacts is not None)
    return Measured(
        rate=count / max(seconds, 1e-9),
        read_rate=sample.read_rate,
        build_seconds=added / len(halves[1]),
        bytes={part: max(0.0, both[part] - first.get(part, 0)) / len(halves[1]) for part in both},
        postings=kept / count,
        dim=encoder.dim,
        words=sum(len(d.joined().split()) for d in documents) / len(documents),
    )


def _shard(documents: Sequence[Document], scale: Scale | None) -> Shard:
    return Shard(0, list(documents), documents_digest(documents), scale)


def _indexed(
    parts: Sequence[Part], folder: Path, encoder: Encoder, scale: Scale | None, optional: tuple[bool, bool]
) -> dict[str, int]:
    """Bytes by part of the index of ``parts``. ``optional``: whether it stores texts, and postings."""
    build_index(
        parts,
        folder,
        dim=encoder.dim,
        terms=encoder.terms,
        scale=scale.value if scale else None,
        describe=dict,
        on_documents=lambda _: None,
        texts=optional[0],
        postings=optional[1],
    )
    return {p.name: sum(f.stat().st_size for f in [p, *p.rglob("*")] if f.is_file()) for p in folder.iterdir()}


def _work_bytes(measured: Measured) -> float:
    """Bytes of a document in the work folder: float32 vectors, three bytes a posting, its texts."""
    return 4 * (measured.dim or 0) + 3 * measured.postings + 8 + 32 + measured.bytes.get("texts", 0.0)


def _peak() -> int | None:
    """The largest memory that this process had, in bytes. None = this platform does not say."""
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
