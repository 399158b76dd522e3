"""Encoding while other programs keep every core busy: how much longer than alone.

    python benchmarks/encode_busy.py [--shape minilm] [--passages 256] [--threads 2] [--repeats 5]

Row 6 of the second table of benchmarks/archive.md.
One process that only counts runs for each core; with fair shares each
of our threads gets half a core, so twice as long is what cannot be avoided. More comes from threads that wait for each
other after every product while one of them is not running. Turns alone and turns with the counting processes alternate;
the figure is the median of the ratios within a turn, by the clock.

Gate: both parts of all texts are bit-identical, alone and beside the others.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import harness
import numpy as np
import passages
import torch

from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.types import Representation


def _count() -> None:
    number = 0
    while True:
        number += 1


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Processes that each keep a core busy."""
    others = [
        multiprocessing.get_context("spawn").Process(target=_count, daemon=True)
        for _ in range(processes)
    ]
    for other in others:
        other.start()
    time.sleep(0.5 + 0.3 * processes)  # until Python has started in each
    try:
        yield
    finally:
        for other in others:
            other.kill()
        for other in others:
            other.join()


def same(one: Representation, two: Representation) -> bool:
    """Whether both parts are equal in every bit."""
    assert one.cls is not None
    assert one.ot is not None
    assert two.cls is not None
    assert two.ot is not None
    parts = (
        (one.cls, two.cls),
        *((getattr(one.ot, n), getattr(two.ot, n)) for n in ("indptr", "indices", "data")),
    )
    return all(np.array_equal(a, b) for a, b in parts)


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--shape", choices=tuple(passages.SHAPES), default="minilm")
    parser.add_argument("--passages", type=int, default=256)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    texts = passages.passages(args.passages)
    cores = os.cpu_count() or 1
    seconds: dict[str, list[float]] = {"alone": [], f"beside {cores} busy processes": []}
    with passages.model_folder(args.shape) as folder:
        encoder = TextEncoder.load(folder, dtype=args.dtype)
        alone = encoder.encode_documents(texts)
        for _ in range(args.repeats):
            for name, others in zip(seconds, (0, cores), strict=True):
                with busy(others):
                    start = time.perf_counter()
                    found = encoder.encode_documents(texts)
                    seconds[name].append(time.perf_counter() - start)
                assert same(found, alone), name
    name = f"beside {cores} busy processes"
    what = passages.NAMES[args.shape]
    claims = [
        harness.Claim(
            6,
            f"encode beside one busy process on each core, {args.threads} threads, {what}",
            name,
            "alone",
            harness.speedup(seconds, name, "alone"),
            2.5,
            "<=",
            gate=f"both parts of {args.passages} texts are bit-identical, alone and beside the others",
            note="with fair shares of the cores twice as long cannot be avoided",
            round=2,
        )
    ]
    speeds = {n: args.passages / s for n, s in harness.middle(seconds).items()}
    harness.report(
        "encode_busy",
        claims,
        seconds,
        args,
        {
            "documents_per_second": speeds,
            "threads": args.threads,
            "shape": args.shape,
            "dtype": args.dtype,
        },
        harness.bars(
            f"Encoding with {args.threads} threads, {what}", "documents/s", speeds, ("alone",)
        ),
    )


if __name__ == "__main__":
    main()
