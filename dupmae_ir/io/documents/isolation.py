"""Reading files in a separate process, which is ended when a file exceeds a limit.

A file of a few kilobytes can keep a library busy for hours or ask it for all memory. The process is started with the
first file, and again after one that ended it. It writes no file and opens no connection.

An answer is a line with a mark, a line of JSON, and then the bytes of the members. A file that takes over its reader
can answer what it wants, so nothing of an answer is used before it is checked: the offsets lie in the text, the sizes
are below the limits, and a mark that is new for each request says that it answers this one.
"""

from __future__ import annotations

import atexit
import itertools
import json
import math
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from dupmae_ir.io.documents.readers.extracted import (
    LARGEST,
    Block,
    Border,
    Extracted,
    Guess,
    Heading,
    Member,
    Unreadable,
)
from dupmae_ir.io.documents.readers.registry import FORMATS
from dupmae_ir.io.documents.readers.scans import MAX_PAGES
from dupmae_ir.types import is_metadata_value

SECONDS = 120
"""Time for a file, and the same again for each 4 MiB of it."""

PAGE_SECONDS = 60
"""More time for each page that is recognised; a dense one takes 15 seconds."""

MEMORY = 4 << 30
"""Bytes of address space of the process (on systems that limit it)."""

MAX_ANSWER = 1 << 30
"""Bytes of an answer without its members."""

MAX_MEMBER_BYTES = 2 * LARGEST
"""Bytes of all members of a file: of an archive, :data:`LARGEST`; a message inside a message of Outlook grows by a
third when it becomes one of the standard."""

MAX_PLACES = 2_000_000
"""Headings, blocks or borders of a text: each takes over 100 bytes of memory, and 4 of a file."""

_RESERVED_METADATA = frozenset(
    ["path", "member", "type", "title", "encoding", "heading", "start", "end", "modified"]
)
"""What the collection says of a passage; a reader must not say where its file is."""

_WRONG_ANSWER = "its reader gave an answer that cannot be right"
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
        """The text of a file; with ``recognised_pages``, by its recognising reader, and that much longer.

        Raises :class:`Unreadable`, also at a limit and for an answer that cannot be right.
        """
        allowed = seconds or SECONDS * (1 + len(data) / (4 << 20))
        allowed += PAGE_SECONDS * min(recognised_pages, MAX_PAGES)
        with self._lock:
            process = self._running()
            assert self._watch is not None
            began = time.monotonic()
            self._watch.set(began + allowed)
            answer = None
            extracted = None
            try:
                answer = _exchange(process, kind, data, recognised_pages > 0)
                if answer is not None:
                    extracted = _checked(answer)
            finally:  # also after Ctrl-C: the next answer would be that of this file
                self._watch.set(math.inf)
                if extracted is None:
                    self.close()
        if answer is None and time.monotonic() - began >= allowed:
            raise Unreadable(f"takes more than {allowed:,.0f} seconds")
        if answer is None:
            raise Unreadable(
                "ended the process that reads it, by a crash or at the limit of memory"
            )
        if extracted is None:
            raise Unreadable(_WRONG_ANSWER)
        if isinstance(extracted, Unreadable):
            raise extracted
        return extracted

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


class _Answer(NamedTuple):
    """What the process wrote: the fields of the text, and the bytes of the members."""

    fields: dict[str, Any]
    members: Sequence[bytes]


def _exchange(
    process: subprocess.Popen[bytes], kind: str, data: bytes, recognise: bool
) -> _Answer | None:
    """The answer; None if the process ended, or wrote something else."""
    assert process.stdin is not None
    assert process.stdout is not None
    # What a file made its reader write after an earlier answer is no answer to this request.
    mark = secrets.token_hex(8)
    try:
        request = f"{mark} {kind} {recognise:d} {len(data)}\n".encode("ascii")
        process.stdin.write(request)
        process.stdin.write(data)
        process.stdin.flush()
        if process.stdout.readline(len(mark) + 1) != f"{mark}\n".encode("ascii"):
            return None
        line = process.stdout.readline(MAX_ANSWER)
        if not line.endswith(b"\n"):
            return None
        fields = json.loads(line)
        sizes = fields.pop("sizes")
        if min(sizes, default=0) < 0 or sum(sizes) > MAX_MEMBER_BYTES:
            return None
        members = [process.stdout.read(size) for size in sizes]
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
    if [len(member) for member in members] != sizes:
        return None
    return _Answer(fields, members)


def _checked(answer: _Answer) -> Extracted | Unreadable | None:
    """The text of an answer, or why there is none; None for an answer that cannot be right."""
    try:
        if "problem" in answer.fields:
            problem = answer.fields["problem"]
            return Unreadable(_one_line(problem)) if isinstance(problem, str) else None
        extracted = _extracted(answer)
        is_right = _is_right(extracted)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return extracted if is_right else None


def _extracted(answer: _Answer) -> Extracted:
    """The text of an answer, with the named tuples for which JSON has lists."""
    fields = answer.fields
    fields["headings"] = [Heading(*heading) for heading in fields["headings"]]
    fields["blocks"] = [Block(*block) for block in fields["blocks"]]
    fields["borders"] = [Border(*border) for border in fields["borders"]]
    members = zip(fields["members"], answer.members, strict=True)
    # Also names of members and of sheets come from the file, and messages quote them.
    fields["members"] = [
        Member(name, data, _one_line(problem)) for (name, problem), data in members
    ]
    fields["problems"] = [_one_line(problem) for problem in fields["problems"]]
    if fields["guess"] is not None:
        fields["guess"] = Guess(*fields["guess"])
    return Extracted(**fields)


def _is_right(extracted: Extracted) -> bool:
    """Whether a text has the types of :class:`Extracted`, offsets in the text, and counts below the limits."""
    texts = [extracted.text, extracted.title, *extracted.problems]
    texts += [heading.text for heading in extracted.headings]
    for member in extracted.members:
        texts += [member.name, member.problem]
    numbers = [extracted.waiting_pages]
    numbers += [heading.level for heading in extracted.headings]
    numbers += [border.depth for border in extracted.borders]
    places = [block.place for block in extracted.blocks]
    guess = extracted.guess
    return (
        all(isinstance(text, str) for text in texts)
        and all(type(number) is int and number >= 0 for number in numbers)
        and all(map(_are_metadata, [extracted.metadata, *places]))
        and _are_offsets([heading.start for heading in extracted.headings], extracted.text, False)
        and _are_offsets([block.start for block in extracted.blocks], extracted.text)
        and _are_offsets([border.start for border in extracted.borders], extracted.text)
        and type(extracted.lines) is bool
        and (guess is None or (isinstance(guess.encoding, str) and 0 <= guess.certainty <= 1))
    )


def _are_offsets(offsets: Sequence[int], text: str, in_order: bool = True) -> bool:
    """Whether there are few enough offsets, all in a text or at its end, and in order if that is promised."""
    if len(offsets) > MAX_PLACES or not all(type(offset) is int for offset in offsets):
        return False
    ordered = offsets if in_order else sorted(offsets)
    bounds = [0, *ordered, len(text)]
    return all(before <= after for before, after in itertools.pairwise(bounds))


def _are_metadata(values: object) -> bool:
    """Whether a reader may say this of a file or of a place in it."""
    return (
        isinstance(values, dict)
        and _RESERVED_METADATA.isdisjoint(values)
        and all(map(is_metadata_value, values.values()))
    )


def described(error: Exception) -> str:
    """Why a library could not read a file, in one line; what they raise for damaged files is not documented."""
    if isinstance(error, MemoryError):
        return f"needs more than {MEMORY >> 30} GiB of memory"
    message = _one_line(str(error))
    if isinstance(error, Unreadable):
        return message
    return f"damaged: {message or type(error).__name__}"


def _one_line(message: str) -> str:
    """A message of a parser, which may quote much of the file."""
    return " ".join(message.split())[:_MAX_MESSAGE]


def _answer(kind: str, data: bytes, recognise: bool) -> tuple[bytes, Sequence[Member]]:
    """The line of JSON of an answer, and the members whose bytes come after it."""
    try:
        extracted = FORMATS[kind].read(data, recognise)
        _refuse_many(extracted)
        members = extracted.members
        fields = asdict(replace(extracted, members=()))
        fields["members"] = [(member.name, member.problem) for member in members]
        fields["sizes"] = [len(member.data) for member in members]
        return json.dumps(fields).encode("ascii"), members
    except Exception as e:
        return json.dumps({"problem": described(e), "sizes": []}).encode("ascii"), ()


def _refuse_many(extracted: Extracted) -> None:
    """Raise :class:`Unreadable` for what would take too much memory where it is used."""
    for name, values in (
        ("headings", extracted.headings),
        ("rows or pages", extracted.blocks),
        ("statements", extracted.borders),
    ):
        if len(values) > MAX_PLACES:
            raise Unreadable(f"more than {MAX_PLACES:,} {name}")
    if sum(len(member.data) for member in extracted.members) > MAX_MEMBER_BYTES:
        raise Unreadable(f"unpacks to more than {MAX_MEMBER_BYTES >> 20} MiB, the limit")


_REFUSED_EVENTS = frozenset(
    [
        "socket.connect",
        "socket.bind",
        "socket.sendto",
        "socket.getaddrinfo",
        "os.exec",
        "os.fork",
        "os.posix_spawn",
        "os.spawn",
        "os.system",
        "subprocess.Popen",
    ]
)
"""What no reader does: connections and programs (names of Python's audit events)."""


def _refuse_connections(event: str, _arguments: object) -> None:
    if event in _REFUSED_EVENTS:
        raise PermissionError(f"a reader may not use {event}")


def _limit_resources() -> None:
    """Limit memory, and let no file be written; on systems without such limits, only that of time remains."""
    try:
        import resource
    except ImportError:
        return
    limits = {resource.RLIMIT_AS: MEMORY, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    for limit, value in limits.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(limit, (value, value))


def answer_requests() -> None:
    """Answer the requests on standard input until it ends; what the process runs."""
    # Compiled modules cannot be written.
    sys.dont_write_bytecode = True
    _limit_resources()
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    sys.addaudithook(_refuse_connections)
    while line := requests.readline():
        mark, kind, recognise, size = line.split()
        data = requests.read(int(size))
        fields, members = _answer(kind.decode("ascii"), data, recognise == b"1")
        answers.write(mark + b"\n")
        answers.write(fields + b"\n")
        for member in members:
            answers.write(member.data)
        answers.flush()


ISOLATION = Isolation()
atexit.register(ISOLATION.close)
