"""The interactive search: through pipes, and through a terminal with line editing, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from multiprocessing.connection import wait  # select() refuses descriptors above 1,023
from pathlib import Path

import pytest

from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.format.texts import StoredDocument
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings.format import export_postings
from dupmae_ir.search.__main__ import main
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.search.view.shell import PROMPT
from dupmae_ir.testing import HashingEncoder

pytestmark = pytest.mark.jvm  # building an index starts one

TEXTS = {
    "lock": "a lock that a thread acquires",
    "join": "wait for the thread to end",
    "queue": "a queue of waiting threads\x1b[31m red",
    "fork": "fork a child process and wait",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shell") / "I"
    encoder = HashingEncoder()
    both = encoder.encode_documents(list(TEXTS.values()))
    s = encoder.settings
    stored = [
        StoredDocument(d, "", text, {"year": 2000 + i}) for i, (d, text) in enumerate(TEXTS.items())
    ]
    with IndexBuilder(
        path, dim=encoder.dim, terms=encoder.terms, scale=50.0, texts=True
    ) as builder:
        builder.add(list(TEXTS), both.cls, both.ot, stored)
        names = (
            "document_length",
            "query_length",
            "top_k",
            "activation",
            "dtype",
            "title_separator",
        )
        settings = {name: getattr(s, name) for name in names}
        builder.finish({"encoder": {"name": encoder.name, "digest": encoder.digest, **settings}})
    export_postings(Index.open(path).only_segment)
    return path


def piped(folder: Path, lines: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "dupmae_ir.search",
        "--index",
        str(folder),
        "--impact-search",
        "postings",
    ]
    return subprocess.run(
        [*command, "--interactive", *flags],
        input=lines,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


def test_answers_commands_and_errors_through_a_pipe(folder: Path, tmp_path: Path) -> None:
    ids = tmp_path / "ids"
    ids.write_text("fork\nnothing\n")
    lines = [
        "wait for a thread", ":hits 2", ":explain", ":dense", ":filter year >= 2002", ":impact", ":filter yaer = 1",
        ":filter", f":within {ids}", ":hybrid", ":within", ":explain 9", ":hits none", ":explain", ":explian", "",
        "  :dense", ":dense now", ":help", ":quit", "never asked",
    ]  # fmt: skip
    done = piped(folder, "\n".join(lines) + "\n", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    searcher = Searcher.open(folder, impact_search="postings")
    asked = [
        ("wait for a thread", {}, "hybrid", 10),
        None,
        ("wait for a thread", {}, "dense", 2),
        ("wait for a thread", {"filter": "year >= 2002"}, "impact", 2),
        ("wait for a thread", {"within": ["fork"]}, "hybrid", 2),
        None,
        (":dense", {}, "hybrid", 2),
    ]
    assert len(found) == len(asked)
    for answer, expected in zip(found, asked, strict=True):
        if expected is None:
            assert answer["mode"] == "explain"
            continue
        text, restriction, mode, hits = expected
        wanted = [
            [hit.docid, hit.score] for hit in searcher.search(text, hits, mode, **restriction)
        ]
        assert [[hit["docid"], hit["score"]] for hit in answer["hits"]] == wanted
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    for error, expected in zip(
        errors,
        (
            "--filter, column 1: the index has no metadata 'yaer'; known: year. Did you mean 'year'?",
            "the last answer has 1 hits, not 9",
            ":hits needs a number of documents, such as :hits 20; got 'none'",
            "no command named 'explian'",
            ":dense stands alone, got 'now' after it",
        ),
        strict=True,
    ):
        assert expected in error
    assert ":filter [COND]" in done.stdout
    assert "2 of 4 documents are searched" in done.stderr
    assert "1 of 4 documents are searched; 1 ids are not in the index" in done.stderr


def test_control_characters_of_a_document_do_not_reach_the_terminal(folder: Path) -> None:
    done = piped(folder, "a queue\n", "--hits", "4")
    assert "\\u001b[31m red" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_flags_that_do_not_apply_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in (["--query", "a"], ["--output", "run"], ["--explain", "lock"], ["--bm25"]):
        assert main(["--index", str(folder), "--interactive", *flags]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["--index", str(folder / "none"), "--interactive"]) != 0


class Terminal:
    """A session on a pseudo-terminal."""

    def __init__(self, folder: Path, state: Path) -> None:
        self.shown = ""
        self.pid, self.screen = pty.fork()
        if self.pid == 0:
            environment = {
                **os.environ,
                "XDG_STATE_HOME": str(state),
                "TERM": "dumb",
                "INPUTRC": "/dev/null",
            }
            command = [
                "-m",
                "dupmae_ir.search",
                "--index",
                str(folder),
                "--impact-search",
                "postings",
                "--interactive",
            ]
            os.execve(sys.executable, [sys.executable, *command], environment)

    def until(self, text: str, seconds: float = 120) -> str:
        """What was shown up to ``text``."""
        end = time.monotonic() + seconds
        while text not in self.shown:
            assert wait([self.screen], max(0, end - time.monotonic())), self.shown
            self.shown += os.read(self.screen, 4096).decode("utf-8", "replace")
        before, _, self.shown = self.shown.partition(text)
        return before

    def type(self, keys: str) -> None:
        os.write(self.screen, keys.encode())

    def cancel(self) -> None:
        """Press Ctrl-C until the next prompt is there.

        Python sees a signal that arrives between the prompt and its wait for keys only with the next one. The next one
        is sent late: two in a row end the session.
        """
        while PROMPT not in self.shown:
            self.type("\x03")
            while PROMPT not in self.shown and wait([self.screen], 30):
                self.shown += os.read(self.screen, 4096).decode("utf-8", "replace")
        self.until(PROMPT)

    def status(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_terminal_edits_lines_cancels_them_and_remembers_them(
    folder: Path, tmp_path: Path
) -> None:
    terminal = Terminal(folder, tmp_path)
    assert "4 documents, by meaning and words. :help lists the commands." in terminal.until(PROMPT)
    terminal.type("half a quer")
    terminal.until("half a quer")
    time.sleep(
        0.5
    )  # until the shell waits for the next key; cancel copes with a shell that does not yet
    terminal.cancel()
    terminal.type("wait for a threadx\x7f\n")
    assert "1  lock" in terminal.until("nothing missed")
    terminal.until(PROMPT)
    terminal.type(":filter year\n")
    assert "error: --filter, column 5: expected =" in terminal.until(PROMPT)
    terminal.type(":explain 2\n")
    assert "in the text" in terminal.until(PROMPT)
    terminal.type("\x04")
    assert terminal.status() == 0
    history = tmp_path / "dupmae-ir" / "search_history"
    assert [
        line for line in history.read_text().splitlines() if not line.startswith("_HiStOrY")
    ] == ["wait for a thread", ":filter year", ":explain 2"]
    assert history.stat().st_mode & 0o077 == 0
    again = Terminal(folder, tmp_path)
    again.until(PROMPT)
    again.type("\x10\x10\x10\n")  # Ctrl-P three times: the query of the first session
    assert "1  lock" in again.until("nothing missed")
    again.until(PROMPT)
    again.type(":quit\n")
    assert again.status() == 0
