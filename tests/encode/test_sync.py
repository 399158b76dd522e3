"""An index that follows its folder: each change is taken in soon, together with others, and after a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.waiting import until

from dupmae_ir.encode import sync
from dupmae_ir.encode.__main__ import main as encode
from dupmae_ir.encode.sync import run_sync
from dupmae_ir.errors import UsageError
from dupmae_ir.index.config import SyncConfig
from dupmae_ir.index.index import Index

pytest.importorskip("watchfiles")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    docs = tmp_path / "docs"
    (docs / "sub").mkdir(parents=True)
    (docs / "a.txt").write_text("The boiler is in the cellar.")
    (docs / "sub/b.txt").write_text("The key is under the stairs.")
    return docs


@pytest.fixture
def index(folder: Path, tmp_path: Path) -> str:
    target = str(tmp_path / "index")
    words = ["--corpus", str(folder), "--index", target, "--model", "testing:hashing", "--quiet"]
    assert encode(words) == 0
    return target


def texts(index: str) -> dict[str, str]:
    """Path -> the text of the files of an index of short files."""
    opened = Index.open(index)
    assert opened.texts is not None
    found = {}
    for path, rows in opened.files.items():
        found[path] = opened.texts.get(int(rows[0])).text
    return found


def test_only_the_changed_files_are_read(
    folder: Path, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edits() -> Iterator[list[str]]:
        yield []
        (folder / "a.txt").write_text("The boiler is in the attic.")
        # Not named as changed, so not read.
        (folder / "sub/b.txt").write_text("The key is lost.")
        (folder / "new.txt").write_text("A new file.")
        yield [str(folder / "a.txt"), str(folder / "new.txt")]
        assert texts(index) == {
            "a.txt": "The boiler is in the attic.",
            "new.txt": "A new file.",
            "sub/b.txt": "The key is under the stairs.",
        }
        (folder / "new.txt").unlink()
        (folder / "sub").rename(folder / "moved")
        yield [str(folder / "new.txt"), str(folder / "sub"), str(folder / "moved")]
        assert texts(index) == {
            "a.txt": "The boiler is in the attic.",
            "moved/b.txt": "The key is lost.",
        }
        yield [str(folder / "a.txt")]  # touched, or changed back
        raise KeyboardInterrupt

    monkeypatch.setattr(sync, "_changes", lambda roots, own: edits())
    result = run_sync(SyncConfig(index=index, corpus=str(folder), watch=True, quiet=True))
    assert result["documents"] == 2
    assert result["generation"] == 2


def test_a_folder_that_vanishes_for_a_while_deletes_nothing(
    folder: Path, index: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = texts(index)

    def edits() -> Iterator[list[str]]:
        yield []
        folder.rename(folder.with_name("away"))
        yield [str(folder)]
        assert texts(index) == before
        folder.with_name("away").rename(folder)
        (folder / "c.txt").write_text("Back again.")
        yield [str(folder / "c.txt")]
        raise KeyboardInterrupt

    monkeypatch.setattr(sync, "_changes", lambda roots, own: edits())
    run_sync(SyncConfig(index=index, corpus=str(folder), watch=True))
    assert "note: " in capsys.readouterr().err
    assert texts(index) == {**before, "c.txt": "Back again."}


def test_many_changes_are_compacted(
    folder: Path, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "MAX_SEGMENTS", 3)

    def edits() -> Iterator[list[str]]:
        yield []
        for number in range(6):
            path = folder / f"{number}.txt"
            path.write_text(f"Number {number}.")
            yield [str(path)]
        raise KeyboardInterrupt

    monkeypatch.setattr(sync, "_changes", lambda roots, own: edits())
    result = run_sync(SyncConfig(index=index, corpus=str(folder), watch=True, quiet=True))
    assert result["segments"] <= 4
    assert len(texts(index)) == 8


def test_collections_of_lines_are_not_watched(tmp_path: Path, index: str) -> None:
    lines = tmp_path / "corpus.jsonl"
    lines.write_text('{"id": "1", "contents": "x"}\n')
    with pytest.raises(UsageError, match="read as lines"):
        run_sync(
            SyncConfig(index=index, corpus=str(lines), watch=True, quiet=True, replace_all=True)
        )


def test_a_file_that_grows_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "growing.txt"
    path.write_text("1")
    naps = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) < 5:
            path.write_text("1" * (len(naps) + 1))

    monkeypatch.setattr(time, "sleep", nap)
    sync._wait_until_complete([str(path), str(tmp_path / "gone")])
    assert len(naps) == 5


@pytest.mark.parametrize("own", ["docs/index", "doc", "elsewhere/index"])
def test_changes_of_the_folder_are_told_from_those_of_the_index(
    folder: Path, tmp_path: Path, own: str
) -> None:
    index = tmp_path / own
    index.mkdir(parents=True)
    work = index.with_name(f".{index.name}.work")
    work.mkdir()
    changes = sync._changes([str(folder)], str(index))
    assert next(changes) == []
    (index / "meta.json").write_text("{}")
    (work / "window").write_text("x")
    (folder / "~$c.docx").write_text("x")
    (folder / "c.txt").write_text("A document.")
    assert next(changes) == [str(folder / "c.txt")]
    changes.close()


@contextmanager
def watcher(folder: Path, index: str) -> Iterator[subprocess.Popen[str]]:
    """A process that watches the folder from the moment the context begins."""
    words = ("-m", "dupmae_ir.index", "sync", "--corpus", str(folder), "--index", index, "--watch")
    with subprocess.Popen(
        [sys.executable, *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("watching"):
                break
        try:
            yield process
        finally:
            process.kill()


def test_a_watcher_follows_the_folder_and_a_killed_one_continues(folder: Path, index: str) -> None:
    with watcher(folder, index):
        (folder / "c.txt").write_text("Saved while it watches.")
        (folder / ".hidden.txt").write_text("No document.")
        assert until(lambda: "c.txt" in texts(index))
    (folder / "d.txt").write_text("Saved while none watches.")
    (folder / "a.txt").unlink()
    with watcher(folder, index) as process:
        assert until(lambda: set(texts(index)) == {"c.txt", "d.txt", "sub/b.txt"})
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
