"""``dupmae-ir search --interactive``: queries one after the other, with the model and the index kept in memory.

Lines that begin with a colon are commands; every other line is a query. Answers go to standard output, notes and errors
to standard error. Lines are read with readline where standard input is a terminal, and kept in
``$XDG_STATE_HOME/dupmae-ir/search_history`` (``~/.local/state`` without the variable). Ctrl-C cancels a line or a
search, Ctrl-D leaves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dupmae_ir.config import with_flags
from dupmae_ir.console import say, show, visible
from dupmae_ir.errors import DupmaeError, UsageError
from dupmae_ir.registry import lookup
from dupmae_ir.search.answers import IndexSearch, answer_query, open_search
from dupmae_ir.search.config import MODES, SearchConfig
from dupmae_ir.search.view.display import explanation_lines, hit_lines, query_summary
from dupmae_ir.search.view.naming import MODE_NAMES
from dupmae_ir.search.view.results import QueryAnswer

PROMPT = "search> "
REMEMBERED = 1000
"""Lines kept in the history file."""
HELP = """\
  TEXT              search (a text that begins with a colon: put a space before it)
  :dense :impact :hybrid   rank by meaning, by words, or by the sum of both; asks the last query again
  :explain [N]      the score of hit N of the last answer (1), term by term
  :filter [COND]    search only documents whose metadata satisfy a condition, such as year >= 2020; alone: all again
  :within [FILE]    search only the documents with the ids in a file; alone: all again
  :hits N           documents per answer
  :help             this list
  :quit             leave, as Ctrl-D"""


def converse(config: SearchConfig) -> None:
    """Answer lines from standard input until its end.

    Raises :class:`DupmaeError` subclasses for an unusable index.
    """
    shell = Shell(config)
    say(shell.greeting, config.quiet)
    with _history() if sys.stdin.isatty() else contextlib.nullcontext():
        while not shell.ended:
            try:
                line = input(PROMPT) if sys.stdin.isatty() else _read()
                shell.take(line)
            except EOFError:
                if sys.stdin.isatty():
                    show("")
                break
            except KeyboardInterrupt:
                say("")
            except (DupmaeError, OSError) as e:
                # Nobody reads the answers any more, so the session ends.
                if isinstance(e, BrokenPipeError):
                    raise
                say(f"error: {visible(with_flags(str(e), SearchConfig), breaks=True)}")


class Shell:
    """One session: the settings, the opened index, and the last answer."""

    def __init__(self, config: SearchConfig) -> None:
        self.config = config
        search = open_search(config)
        assert isinstance(search, IndexSearch)  # --interactive excludes --bm25
        self.search = search
        self.ended = False
        self._chosen: str | None = None  #: the mode of a command
        self._query: str | None = None
        self._docids: list[str] = []
        self._commands: dict[str, Callable[[str], None]] = {
            **dict.fromkeys(MODES, self._mode),
            "explain": self._explain,
            "filter": self._filter,
            "within": self._within,
            "hits": self._hits,
            "help": lambda _: show(HELP),
            "quit": self._quit,
        }

    @property
    def greeting(self) -> str:
        """What is searched, and how to get help."""
        size = self.search.searcher.index.size_in_words()
        by = MODE_NAMES.get(self.search.name, self.search.name)
        return f"{self.config.where}: {size}, by {by}. :help lists the commands."

    def take(self, line: str) -> None:
        """Answer one line. Raises :class:`DupmaeError` subclasses; the session stays as it was."""
        if line.startswith(":"):
            name, _, argument = line[1:].strip().partition(" ")
            command = lookup("command", name, self._commands)
            self._name = name
            command(argument.strip())
            return
        text = line.strip()
        if text:
            self._answer(text)

    def _answer(self, text: str) -> None:
        answer = answer_query(self.config, self.search, text)
        self._query = text
        self._docids = [hit.docid for hit in answer.hits]
        self._print(answer, hit_lines(answer))

    def _print(self, answer: QueryAnswer, lines: list[str]) -> None:
        if self.config.json:
            show(json.dumps(answer.to_dict(), ensure_ascii=False))
        else:
            show("\n".join(lines))
        # A program that reads the answers through a pipe waits for each of them.
        sys.stdout.flush()
        if not self.config.json:
            say(query_summary(answer), self.config.quiet)

    def _change(self, **changes: Any) -> None:
        """Other settings for the opened index; on an error the present ones stay."""
        config = dataclasses.replace(self.config, **changes)
        self.search = IndexSearch(config, self.search.searcher, self._chosen)
        self.config = config

    def _mode(self, argument: str) -> None:
        _no_argument(self._name, argument)
        available = self.search.searcher.index.meta["parts"]
        for part in MODES[self._name]:
            if part not in available:
                raise UsageError(f"the index has no {part} part, which :{self._name} needs")
        self._chosen = self._name
        self._change()
        if self._query is not None:
            self._answer(self._query)

    def _filter(self, argument: str) -> None:
        self._change(filter=argument or None)
        self._note_selection()

    def _within(self, argument: str) -> None:
        self._change(within=argument or None)
        self._note_selection()

    def _note_selection(self) -> None:
        selection = self.search.selection
        index_size = self.search.searcher.index.size_in_words()
        unknown = ""
        if selection.unknown:
            unknown = f"; {len(selection.unknown):,} ids are not in the index"
        say(f"{selection.documents:,} of {index_size} are searched{unknown}", self.config.quiet)

    def _hits(self, argument: str) -> None:
        self._change(hits=_number(argument, ":hits needs a number of documents, such as :hits 20"))

    def _explain(self, argument: str) -> None:
        rank = _number(argument or "1", ":explain needs the rank of a hit, such as :explain 3")
        if self._query is None:
            raise UsageError("there is no answer to explain yet; search first")
        if rank > len(self._docids):
            raise UsageError(f"the last answer has {len(self._docids)} hits, not {rank}")
        answer = answer_query(self.config, self.search, self._query, self._docids[rank - 1])
        self._print(answer, explanation_lines(answer))

    def _quit(self, argument: str) -> None:
        _no_argument("quit", argument)
        self.ended = True


def _no_argument(name: str, argument: str) -> None:
    if argument:
        raise UsageError(f":{name} stands alone, got {argument!r} after it")


def _number(text: str, expected: str) -> int:
    # Ten digits: more than any index has, and int() refuses numbers of several thousand.
    if not text.isascii() or not text.isdecimal() or not int(text[:10]) > 0:
        raise UsageError(f"{expected}; got {text!r}")
    return int(text[:10])


def _read() -> str:
    """A line of standard input that is no terminal. Raises :class:`EOFError` at its end."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\r\n")


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Line editing with the lines of earlier sessions; new ones are kept, where the user's folder can be written."""
    try:
        import readline
    except ImportError:  # a Python without it still reads lines
        yield
        return
    path = history_file()
    readline.set_history_length(REMEMBERED)
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    before = readline.get_current_history_length()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            # Other sessions may have added lines meanwhile.
            readline.append_history_file(readline.get_current_history_length() - before, path)


def history_file() -> Path:
    """Where lines are remembered."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "dupmae-ir" / "search_history"
