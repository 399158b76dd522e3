"""Reading HTML, Word, PDF and other formats in a separate process, which is ended when a file exceeds a limit.

A file of a few kilobytes can keep a library busy for hours or ask it for all memory. The process is started with the
first such file, and again after one that ended it.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import subprocess
import sys
import threading
import time
from base64 import b64decode, b64encode
from dataclasses import asdict, replace
from pathlib import Path

from dupmae_ir.io.documents.readers.extracted import (
    Block,
    Border,
    Extracted,
    Guess,
    Heading,
    Member,
    Unreadable,
)
from dupmae_ir.io.documents.readers.registry import FORMATS

SECONDS = 120
"""Time for a file, and the same again for each 4 MiB of it."""

PAGE_SECONDS = 60
"""More time for each page that is recognised; a dense one takes 15 seconds."""

MEMORY = 4 << 30
"""Bytes of address space of the process (on systems that limit it)."""

_MAX_MESSAGE = 150
"""Characters of a reason."""


class _Watch:
    """Kills a process that is not ready in time.

    It is one thread: a timer for each file takes longer than reading a short mail.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._deadline = math.inf
        self._wakes = 0.0
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def set(self, deadline: float) -> None:
        """Kill the process at a time of :func:`time.monotonic`; never with ``math.inf``."""
        with self._changed:
            self._deadline = deadline
            # Later deadlines are seen when the thread wakes up for an earlier one.
            if deadline < self._wakes:
                self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while self._process.returncode is None:
                now = time.monotonic()
                if self._deadline <= now:
                    self._process.kill()
                    return
                self._wakes = min(self._deadline, now + SECONDS)
                self._changed.wait(self._wakes - now)


class Isolation:
    """The process, for one file at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: _Watch | None = None
        self._owner = 0

    def read(
        self, kind: str, data: bytes, seconds: float | None = None, recognised_pages: int = 0
    ) -> Extracted:
        """The text of a file of an isolated format; with ``recognised_pages``, by its recognising reader, and that much
        longer. Raises :class:`Unreadable`, also at a limit."""
        allowed = seconds or SECONDS * (1 + len(data) / (4 << 20))
        allowed += PAGE_SECONDS * recognised_pages
        with self._lock:
            process = self._running()
            assert self._watch is not None
            began = time.monotonic()
            self._watch.set(began + allowed)
            answer = b""
            try:
                answer = _exchange(process, kind, data, recognised_pages > 0)
            finally:  # also after Ctrl-C: the next answer would be that of this file
                self._watch.set(math.inf)
                if not answer:
                    self.close()
        if not answer and time.monotonic() - began >= allowed:
            raise Unreadable(f"takes more than {allowed:,.0f} seconds")
        if not answer:
            raise Unreadable("ended the process that reads it")
        fields = json.loads(answer)
        if "problem" in fields:
            raise Unreadable(fields["problem"])
        # JSON has lists for named tuples, and no bytes.
        fields["headings"] = [Heading(*heading) for heading in fields["headings"]]
        fields["blocks"] = [Block(*block) for block in fields["blocks"]]
        fields["borders"] = [Border(*border) for border in fields["borders"]]
        fields["members"] = [Member(name, b64decode(member)) for name, member in fields["members"]]
        if fields["guess"] is not None:
            fields["guess"] = Guess(*fields["guess"])
        return Extracted(**fields)

    def close(self) -> None:
        """End the process."""
        # A fork has a copy of this object, but the process belongs to its parent.
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        """The process; a new one without one, after it ended, and in a fork of the process that started it."""
        if self._process is not None:
            forked = self._owner != os.getpid()
            if forked or self._process.poll() is not None:
                self.close()
        if self._process is None:
            # The process finds the package where this one did, also if it is not installed.
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
            self._watch = _Watch(self._process)
        return self._process


def _exchange(process: subprocess.Popen[bytes], kind: str, data: bytes, recognise: bool) -> bytes:
    """The answer, a line of JSON; empty if the process ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        request = b"%s %d %d\n" % (kind.encode("ascii"), recognise, len(data))
        process.stdin.write(request + data)
        process.stdin.flush()
        answer = process.stdout.readline()
    except OSError:
        return b""
    return answer if answer.endswith(b"\n") else b""


def described(error: Exception) -> str:
    """Why a library could not read a file, in one line; what they raise for damaged files is not documented."""
    if isinstance(error, MemoryError):
        return f"needs more than {MEMORY >> 30} GiB of memory"
    # Messages of parsers quote the file.
    message = " ".join(str(error).split())[:_MAX_MESSAGE]
    if isinstance(error, Unreadable):
        return message
    return f"damaged: {message or type(error).__name__}"


def _answer(kind: str, data: bytes, recognise: bool) -> bytes:
    try:
        extracted = FORMATS[kind].read(data, recognise)
        members = [
            (member.name, b64encode(member.data).decode("ascii")) for member in extracted.members
        ]
        fields = asdict(replace(extracted, members=()))
        return json.dumps(fields | {"members": members}).encode("ascii")
    except Exception as e:
        return json.dumps({"problem": described(e)}).encode("ascii")


def answer_requests() -> None:
    """Answer the requests on standard input until it ends; what the process runs."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    except (ImportError, ValueError, OSError):
        pass  # not on this system; the limit of time remains
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    while line := requests.readline():
        kind, recognise, size = line.split()
        data = requests.read(int(size))
        answers.write(_answer(kind.decode("ascii"), data, recognise == b"1") + b"\n")
        answers.flush()


ISOLATION = Isolation()
atexit.register(ISOLATION.close)
