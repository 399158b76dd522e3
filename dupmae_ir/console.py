"""Terminal output of commands: help pages, progress, tables, one-line errors.

Commands are ``main(argv) -> int`` around an importable ``run(config)``; :func:`guarded` turns a user's error into one
line and an exit status.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

from dupmae_ir.errors import DupmaeError, OutputError
from dupmae_ir.types import Progress

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 and the number of SIGINT, as shells report it."""
_LINE_SAFE = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROLS = re.compile(f"[{_LINE_SAFE}]")
_CONTROLS_AND_BREAKS = re.compile(f"[\t\n{_LINE_SAFE}]")
MEGABYTE = 1_000_000


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the description and appends the default of each flag."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=min(100, _width()))

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if isinstance(action, argparse._HelpAction | argparse._VersionAction):
            return text
        has_default = action.default not in (None, False, argparse.SUPPRESS, (), "")
        # A help text that explains its default, such as "(default: the embedded model)", is complete.
        if not has_default or "default" in text:
            return text
        if isinstance(action.default, tuple):
            return f"{text} (default: {' '.join(map(str, action.default))})"
        return f"{text} (default: %(default)s)"


class Parser(argparse.ArgumentParser):
    """argparse with our help page and one-line errors."""

    def __init__(self, verb: str, purpose: str, examples: str = "") -> None:
        description = purpose.strip()
        if examples:
            description += "\n\nexample:\n" + textwrap.indent(examples.strip(), "  ")
        super().__init__(
            prog=f"dupmae-ir {verb}",
            description=description,
            formatter_class=_Formatter,
            # An abbreviation in a script would become ambiguous when another flag is added.
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Print the error in one line and exit with status 2."""
        self.exit(2, f"{self.prog}: {visible(message, breaks=True)} (see {self.prog} --help)\n")


def visible(text: object, breaks: bool = False) -> str:
    """``text`` with control characters written as ``\\u001b``, so that they act on no terminal and no page.

    These are C0 and C1 controls (escape sequences), bidirectional overrides and isolates, U+2028 and U+2029, and
    surrogates, which have no UTF-8. Tabs and line breaks are kept, unless ``breaks``: then they are written out too.
    Inside a string of a JSON document the result has the same value.
    """
    pattern = _CONTROLS_AND_BREAKS if breaks else _CONTROLS
    # JSON's escape, without the quotation marks.
    return pattern.sub(lambda control: json.dumps(control[0])[1:-1], str(text))


_EMPHASIS = ("\ufdd0", "\ufdd1")
"""Begin and end of emphasis in a text for :func:`show`: characters that Unicode reserves for such internal use."""


def emphasised(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """``text`` with (start, end) of some words, in order, to be printed in bold by :func:`show` on a terminal."""
    begin, end = _EMPHASIS
    # From the last to the first, so that the offsets before stay right.
    for start, stop in reversed(spans):
        text = f"{text[:start]}{begin}{text[start:stop]}{end}{text[stop:]}"
    return text


def unmarked(text: str, by: str = "") -> str:
    """``text`` without the characters that :func:`emphasised` uses, which a hostile text could contain."""
    for mark in _EMPHASIS:
        text = text.replace(mark, by)
    return text


def show(text: str, emphasis: bool = True) -> None:
    """Print an answer on standard output, with its control characters made visible.

    On a terminal that permits it (``NO_COLOR`` is not set), :func:`emphasised` words are bold; elsewhere they look
    like the rest. Without ``emphasis`` the marks of emphasis are printed as they are, because JSON may contain them.

    Raises :class:`OutputError` if standard output is closed.
    """
    if sys.stdout is None:
        raise OutputError("standard output is closed, so there is nowhere to print the result")
    text = visible(text)
    if emphasis:
        bold = (
            sys.stdout.isatty()
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
        )
        for mark, code in zip(_EMPHASIS, ("\x1b[1m", "\x1b[0m"), strict=True):
            text = text.replace(mark, code if bold else "")
    print(text)


def occupy_standard_files() -> None:
    """Open the null device for each of file descriptors 0 to 2 that is closed, so that no file gets its number: a
    library that prints would write into that file."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one


_PACKAGES = {"pytrec_eval": "pytrec_eval-terrier", "faiss": "faiss-cpu"}
"""Packages that are not named like what they are imported as."""


def guarded(
    job: Callable[[], int | None],
    prog: str = "dupmae-ir",
    resume_hint: str = "",
    translate: Callable[[str], str] = str,
) -> int:
    """Run ``job`` and return an exit status; a :class:`DupmaeError` becomes one line on standard error, and
    so does a package that is not installed.

    ``resume_hint`` is added to the line for Ctrl-C. ``translate`` turns the message of an error, which names the
    parameters of a function, into one that names flags.
    """
    occupy_standard_files()
    try:
        # None is the result of a job without a status.
        return job() or 0
    except DupmaeError as e:
        _complain(f"{prog}: {visible(translate(str(e)))}")
        return e.exit_status
    except KeyboardInterrupt:
        _complain(f"\n{prog}: interrupted{resume_hint}")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) closed the pipe. Python flushes standard output at exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError as e:
        missing = str(e.name).partition(".")[0]
        # A missing module of this package is a bug, whose traceback is needed.
        if missing == "dupmae_ir":
            raise
        package = _PACKAGES.get(missing, missing)
        _complain(f"{prog}: needs {missing}, which is not installed; run: pip install {package}")
        return 1
    except OSError as e:
        # Errors of the system have a number; others are raised by libraries and are bugs.
        if e.errno is None:
            raise
        hint = ""
        if e.errno == errno.ENOSPC:
            hint = "; free some space and run the same command again"
        where = f"{e.filename}: " if e.filename else ""
        _complain(f"{prog}: {visible(where)}{e.strerror or e}{hint}")
        return 1


def _complain(line: str) -> None:
    if sys.stderr is not None:
        print(line, file=sys.stderr)


SILENCE = 3.0
"""Seconds without output after which a job says that it goes on."""
_last_shown = [0.0]
"""When anything was last shown, by the monotonic clock. Threads may write it at the same time: any of their times will
do."""


def say(message: str, quiet: bool = False) -> None:
    """Print a progress note on standard error, separate from results, unless ``quiet``."""
    _last_shown[0] = time.monotonic()
    if not quiet and sys.stderr is not None:
        print(visible(message), file=sys.stderr, flush=True)


@contextmanager
def never_silent(what: str, quiet: bool = False) -> Iterator[None]:
    """Say on a terminal that ``what`` goes on whenever nothing was shown for :data:`SILENCE` seconds: while libraries
    and models are loaded, and between two bars."""
    ended = threading.Event()
    started = time.monotonic()
    _last_shown[0] = started

    def watch() -> None:
        # Several looks within the limit, so that the note is not late by as much again.
        while not ended.wait(SILENCE / 8):
            now = time.monotonic()
            if now - _last_shown[0] >= SILENCE:
                say(f"{what}: working, {now - started:.0f} s")

    if not quiet and _on_terminal():
        threading.Thread(target=watch, name="never silent", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


_listener: ContextVar[Callable[[Progress], object] | None] = ContextVar("listener", default=None)
"""Called instead of drawing bars, in the thread that sets it."""


@contextmanager
def reporting(listener: Callable[[Progress], object] | None) -> Iterator[None]:
    """Within the block, ``listener`` is called with every advance of a step, instead of bars being drawn.

    What it raises ends the job, which can be continued like one that was killed.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class _Reported:
    """Stands for a bar where a program wants to know of each advance."""

    disable = True

    def __init__(self, listener: Callable[[Progress], object], start: Progress) -> None:
        self._listener = listener
        self._progress = start
        self.total = start.total
        self.initial = start.done
        self.n = start.done
        listener(start)

    def update(self, count: int = 1) -> None:
        """Count what was done."""
        self.n += count
        self._listener(self._progress._replace(done=self.n, total=self.total))

    def refresh(self) -> None:
        """Nothing is drawn."""

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """Nothing is drawn."""


@contextmanager
def progress(
    description: str,
    unit: str,
    total: int | None = None,
    quiet: bool = False,
    initial: int = 0,
    layout: str | None = None,
) -> Iterator[Any]:
    """A tqdm bar with rate and time left, only on a terminal and unless ``quiet``; drawn again every second.

    ``initial`` is work done by an earlier, interrupted run: it counts towards the bar but not towards the rate. A
    ``unit`` of B counts bytes. ``layout``: tqdm's ``bar_format``. Within :func:`reporting`, its listener is called
    instead.
    """
    listener = _listener.get()
    if listener is not None:
        yield _Reported(listener, Progress(description, initial, total, unit))
        return
    from tqdm import tqdm

    bar = tqdm(
        total=total,
        desc=description,
        unit=unit if unit == "B" else f" {unit}",
        unit_scale=unit == "B",
        initial=initial,
        disable=quiet or not _on_terminal(),
        dynamic_ncols=True,
        # A slowly moving average: batches of one run differ a lot in length.
        smoothing=0.05,
        mininterval=0.2,
        bar_format=layout,
    )
    ended = threading.Event()

    # tqdm draws only when it is updated, so the time of a bar whose batches take long would stand still.
    def redraw() -> None:
        while not ended.wait(1.0):
            _last_shown[0] = time.monotonic()
            bar.refresh()

    with bar:
        thread = threading.Thread(target=redraw, name="progress", daemon=True)
        if not bar.disable:
            thread.start()
        try:
            yield bar
        finally:
            ended.set()
            if thread.ident is not None:
                thread.join()


@contextmanager
def waiting(what: str, quiet: bool = False) -> Iterator[None]:
    """Say ``what`` is being done, for work without anything to count; on a terminal with the seconds so far."""
    if not _on_terminal():
        say(what, quiet)
    with progress(visible(what), "", quiet=quiet, layout="{desc} ({elapsed})"):
        yield


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def byte_bar(
    description: str, total: int | None, quiet: bool, done: int = 0
) -> Iterator[Callable[[int], None]]:
    """A progress bar in MB; call the yielded function with the number of bytes whenever some have moved."""
    with progress(description, "MB", total and total // MEGABYTE, quiet, done // MEGABYTE) as bar:

        def advance(count: int) -> None:
            nonlocal done
            # The difference of two whole numbers of MB, so that small counts add up.
            bar.update((done + count) // MEGABYTE - done // MEGABYTE)
            done += count

        yield advance


def megabytes(size: int) -> str:
    """A number of bytes in MB, as in ``1,234.5 MB``."""
    return f"{size / MEGABYTE:,.1f} MB"


def one_line(text: object, limit: int | None = None) -> str:
    """``text`` (or an error's message) without line breaks and repeated spaces, cut to ``limit`` characters."""
    return " ".join(str(text).split())[:limit]


def table(rows: list[list[str]], header: list[str]) -> str:
    """Text in aligned columns: the first column left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = "  ".join("-" * width for width in widths)
    lines = [_table_line(row, widths) for row in rows]
    return "\n".join([_table_line(header, widths), rule, *lines])


def _table_line(row: list[str], widths: list[int]) -> str:
    cells = [row[0].ljust(widths[0])]
    for cell, width in zip(row[1:], widths[1:], strict=True):
        cells.append(cell.rjust(width))
    return "  ".join(cells).rstrip()


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (AttributeError, OSError, ValueError):  # sys.stdout is None where it is closed
        return 100
