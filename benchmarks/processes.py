"""Variants that run in a process of their own: other checkouts of this package, other versions of a peer.

A worker calls :func:`answer`; who measures has a :class:`Worker`. They exchange lines of JSON, and the worker times
itself (:func:`timed`), so that what they exchange is not in a figure. Imports nothing of dupmae_ir, whose modules
differ between checkouts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]

# Where it is set, each process compiles every module that it imports again; an installation keeps the compiled ones.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


class Taken(NamedTuple):
    """Seconds of the clock, and of the processor by all threads of the process."""

    wall: float
    used: float


def timed(work: Callable[[], Any]) -> tuple[Taken, Any]:
    """What ``work`` takes, and what it returns."""
    start = time.perf_counter()
    before = time.process_time()
    value = work()
    return Taken(time.perf_counter() - start, time.process_time() - before), value


def answer(work: Callable[..., Any], ready: Any = True) -> None:
    """Write ``ready``, then ``work`` of the arguments in every line read, until the input ends.

    Whatever else is printed goes to standard error.
    """
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        print(json.dumps(ready), file=out, flush=True)
        for line in sys.stdin:
            print(json.dumps(work(*json.loads(line))), file=out, flush=True)


class Worker:
    """A process that answers when it is called; ``ready`` is what it wrote first.

    ``words`` follow the interpreter ``python``; dupmae_ir is that of ``checkout``.
    """

    def __init__(
        self,
        words: Sequence[Any],
        checkout: Path = ROOT,
        python: str | Path = sys.executable,
        threads: int = 1,
    ) -> None:
        places = os.pathsep.join(map(str, (checkout, checkout / "benchmarks")))
        environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [str(python), *map(str, words)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=checkout,
        )  # fmt: skip
        self.ready = self._read()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return json.loads(line)
        raise SystemExit(f"a worker stopped: {self.process.args}")

    def __call__(self, *arguments: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(arguments) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self.process.communicate()
