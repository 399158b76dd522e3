"""Readers of HTML, Word, EPUB and PDF in a process of their own, which is ended when a file exceeds a limit.

A file of a few kilobytes can keep a library busy for hours or ask it for all memory. The process is started with the
first such file, and again after one that ended it.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

from dupmae_ir.io.documents import formats
from dupmae_ir.io.documents.extracted import Extracted, Heading, Unreadable

ISOLATED = {"html": formats.html, "pdf": formats.pdf, "docx": formats.docx, "epub": formats.epub}
"""Kind of a file -> its reader."""

SECONDS = 120
"""Time for a file, and the same again for each 4 MiB of it."""

MEMORY = 4 << 30
"""Bytes of address space of the process (on systems that limit it)."""


class Isolation:
    """The process, for one file at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def read(self, kind: str, data: bytes, seconds: float | None = None) -> Extracted:
        """The text of a file of a kind of :data:`ISOLATED`. Raises :class:`Unreadable`, also at a limit."""
        allowed = seconds or SECONDS * (1 + len(data) / (4 << 20))
        with self._lock:
            process = self._running()
            timer = threading.Timer(allowed, process.kill)
            timer.daemon = True
            timer.start()
            began, answer = time.monotonic(), b""
            try:
                answer = _exchange(process, kind, data)
            finally:  # also after Ctrl-C: the next answer would be that of this file
                timer.cancel()
                if not answer:
                    self.close()
        if not answer and time.monotonic() - began >= allowed:
            raise Unreadable(f"takes more than {allowed:,.0f} seconds")
        if not answer:
            raise Unreadable("ended the process that reads it")
        found = json.loads(answer)
        if "problem" in found:
            raise Unreadable(found["problem"])
        return Extracted(
            **{**found, "headings": [Heading(*heading) for heading in found["headings"]]}
        )

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        """The process; a new one without one, after it ended, and in a fork of the process that started it."""
        if self._process is not None and (
            self._owner != os.getpid() or self._process.poll() is not None
        ):
            self.close()
        if self._process is None:
            root = str(Path(__file__).resolve().parents[3])
            paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
            self._owner = os.getpid()
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    f"from {__name__} import answer_requests; answer_requests()",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths},
            )
        return self._process


def _exchange(process: subprocess.Popen[bytes], kind: str, data: bytes) -> bytes:
    """The answer, a line of JSON; empty if the process ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(b"%s %d\n" % (kind.encode("ascii"), len(data)) + data)
        process.stdin.flush()
        answer = process.stdout.readline()
    except OSError:
        return b""
    return answer if answer.endswith(b"\n") else b""


def described(error: Exception) -> str:
    """Why a library could not read a file, in one line; what they raise for damaged files is not documented."""
    if isinstance(error, Unreadable):
        return str(error)
    if isinstance(error, MemoryError):
        return f"needs more than {MEMORY >> 30} GiB of memory"
    return f"damaged: {' '.join(str(error).split())[:150] or type(error).__name__}"


def _answer(kind: str, data: bytes) -> bytes:
    try:
        return json.dumps(asdict(ISOLATED[kind](data))).encode("ascii")
    except Exception as e:
        return json.dumps({"problem": described(e)}).encode("ascii")


def answer_requests() -> None:
    """Answer the requests on standard input until it ends; what the process runs."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    except (ImportError, ValueError, OSError):
        pass  # not on this system; the limit of time remains
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    while line := requests.readline():
        kind, size = line.split()
        answers.write(_answer(kind.decode("ascii"), requests.read(int(size))) + b"\n")
        answers.flush()


ISOLATION = Isolation()
atexit.register(ISOLATION.close)
