"""An index that follows its folder: each change is taken in soon, together with others, and after a kill."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.small_disks import enlarge, small_disk
from support.waiting import until

from dupmae_ir.encode import sync
from dupmae_ir.encode.__main__ import main as encode
from dupmae_ir.encode.sync import run_sync
from dupmae_ir.errors import UsageError
from dupmae_ir.index.changes.changes import ChangeJob
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


def test_changes_wait_while_another_process_changes_the_index(
    folder: Path, index: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sync, "RETRY_SECONDS", 0.0)

    def edits() -> Iterator[list[str]]:
        yield []
        with ChangeJob(index, "index add"):
            (folder / "a.txt").write_text("The boiler is gone.")
            yield [str(folder / "a.txt")]
            (folder / "c.txt").write_text("A third file.")
            yield [str(folder / "c.txt")]
            yield []
        assert "c.txt" not in texts(index)
        yield []
        raise KeyboardInterrupt

    monkeypatch.setattr(sync, "_changes", lambda roots, own: edits())
    run_sync(SyncConfig(index=index, corpus=str(folder), watch=True))
    assert texts(index)["a.txt"] == "The boiler is gone."
    assert texts(index)["c.txt"] == "A third file."
    # The reason is said once, not at each try.
    assert capsys.readouterr().err.count("wait until it is done") == 1


def verified_files(index: str) -> set[str]:
    """The files of an index, of which every byte was compared, in another process: this one opens none of it."""
    command = [sys.executable, "-m", "dupmae_ir.index"]
    subprocess.run([*command, "verify", "--index", index, "--quiet"], check=True)
    shown = [*command, "show", "--index", index, "--files", "--json"]
    output = subprocess.run(shown, check=True, capture_output=True, text=True).stdout
    return set(json.loads(output)["files"])


def test_changes_wait_while_the_disk_is_full(
    folder: Path,
    index: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sync, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(sync, "MAX_SEGMENTS", 2)
    words = " ".join(f"word{number}" for number in range(40_000))
    disk = tmp_path / "disk"
    with small_disk(disk, 700):
        small = str(disk / "index")
        shutil.copytree(index, small)

        def edits() -> Iterator[list[str]]:
            yield []
            (folder / "c.txt").write_text("A third file.")
            yield [str(folder / "c.txt")]
            (folder / "long.txt").write_text(words)
            yield [str(folder / "long.txt")]
            (folder / "a.txt").unlink()
            yield [str(folder / "a.txt")]
            # The index is that of an earlier moment, complete.
            assert verified_files(small) == {"a.txt", "c.txt", "sub/b.txt"}
            enlarge(disk)
            yield []
            assert verified_files(small) == {"long.txt", "c.txt", "sub/b.txt"}
            raise KeyboardInterrupt

        monkeypatch.setattr(sync, "_changes", lambda roots, own: edits())
        run_sync(SyncConfig(index=small, corpus=str(folder), watch=True))
        gc.collect()  # the files of the last index are mapped until then
    assert capsys.readouterr().err.count("the disk is full") == 1


def test_failed_tries_become_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    waiting = sync._Waiting()
    assert not waiting.is_due
    waiting.add(["a"])
    for seconds in (2, 4, 8, 16, 32, 60, 60):
        assert waiting.is_due
        waiting.failed("no", quiet=True)
        waiting.add([])
        now[0] += seconds - 0.1
        assert not waiting.is_due
        now[0] += 0.1
    waiting.failed("no", quiet=True)
    waiting.add(["b"])  # at once
    assert waiting.is_due
    assert waiting.paths == ["a", "b"]


def test_a_compaction_that_another_process_prevents_ends_no_watcher(
    folder: Path, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "MAX_SEGMENTS", 1)

    def refuse(config: object) -> None:
        raise UsageError("another process")

    monkeypatch.setattr(sync, "run_compact", refuse)

    def edits() -> Iterator[list[str]]:
        yield []
        (folder / "a.txt").write_text("The boiler is gone.")
        yield [str(folder / "a.txt")]
        raise KeyboardInterrupt

    monkeypatch.setattr(sync, "_changes", lambda roots, own: edits())
    result = run_sync(SyncConfig(index=index, corpus=str(folder), watch=True, quiet=True))
    assert result["segments"] == 2


def test_after_a_burst_the_complete_folder_is_compared(
    folder: Path, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system drops events without a word when too many wait."""
    monkeypatch.setattr(sync, "BURST", 3)

    def edits() -> Iterator[list[str]]:
        yield []
        (folder / "sub/b.txt").write_text("Changed, but its event was lost.")
        paths = [folder / f"{number}.txt" for number in range(4)]
        for path in paths:
            path.write_text(f"A file called {path.name}.")
        yield [str(path) for path in paths]
        raise KeyboardInterrupt

    monkeypatch.setattr(sync, "_changes", lambda roots, own: edits())
    run_sync(SyncConfig(index=index, corpus=str(folder), watch=True, quiet=True))
    assert len(texts(index)) == 6
    assert texts(index)["sub/b.txt"] == "Changed, but its event was lost."


def test_a_folder_that_is_replaced_is_watched_and_compared_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "RETRY_SECONDS", 0.2)
    batches = sync._batches([str(folder)], str(tmp_path / "elsewhere"))
    assert next(batches) == []
    folder.rename(tmp_path / "old")
    folder.mkdir()
    seen = next(batches)
    while seen is not None:
        seen = next(batches)
    (folder / "c.txt").write_text("In the new folder.")
    seen = next(batches)
    while not seen:
        seen = next(batches)
    assert seen == [str(folder / "c.txt")]
    batches.close()


def test_a_folder_that_is_gone_again_is_waited_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "RETRY_SECONDS", 0.0)
    begun = []

    def changes(roots: object, own: object) -> Iterator[list[str]]:
        begun.append(roots)
        if len(begun) == 2:
            raise FileNotFoundError(str(folder))
        yield []
        folder.rename(tmp_path / "old")
        folder.mkdir()
        yield ["a.txt"]

    monkeypatch.setattr(sync, "_changes", changes)
    batches = sync._batches([str(folder)], "index")
    assert [next(batches), next(batches)] == [[], None]
    assert len(begun) == 3
    monkeypatch.setattr(sync, "_changes", lambda roots, own: iter(Path("nowhere").iterdir()))
    with pytest.raises(FileNotFoundError):
        next(sync._batches(["nowhere"], "index"))


def test_a_change_of_the_same_size_is_seen_although_the_clock_was_set_back(
    folder: Path, index: str
) -> None:
    path = folder / "a.txt"
    before = path.stat()
    path.write_text("The boiler is in the garage.".ljust(before.st_size)[: before.st_size])
    os.utime(path, (before.st_mtime - 86_400, before.st_mtime - 86_400))
    run_sync(SyncConfig(index=index, corpus=str(folder), quiet=True))
    assert "garage" in texts(index)["a.txt"]
    path.write_text("The boiler is in the meadow.".ljust(before.st_size)[: before.st_size])
    # The time and the size of the version before.
    os.utime(path, (before.st_mtime - 86_400, before.st_mtime - 86_400))
    run_sync(SyncConfig(index=index, corpus=str(folder), quiet=True))
    assert "meadow" in texts(index)["a.txt"]


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


@pytest.mark.nightly
def test_two_watchers_kills_and_a_burst_of_ten_thousand_changes(
    folder: Path, index: str, tmp_path: Path
) -> None:
    """When the changes end, the index becomes the one that is built of the folder."""
    rng = random.Random(3)
    with watcher(folder, index), watcher(folder, index):
        for number in range(300):
            _edit(folder, rng, number)
            time.sleep(0.02)
        assert _becomes_rebuilt(folder, index, tmp_path / "first")
    with watcher(folder, index) as first:
        for number in range(10_000):
            _edit(folder, rng, number)
            if number == 4_000:
                first.kill()  # in the middle of a change, or nearly
                first.wait()
        with watcher(folder, index):
            for number in range(10_000):
                _edit(folder, rng, number)
            assert _becomes_rebuilt(folder, index, tmp_path / "second")


def _becomes_rebuilt(folder: Path, index: str, built: Path) -> bool:
    """Whether an index has what one that is built now has, within the time that a burst takes."""
    words = ["--corpus", str(folder), "--index", str(built), "--model", "testing:hashing"]
    assert encode([*words, "--quiet"]) == 0
    expected = texts(str(built))
    return until(lambda: texts(index) == expected, 120)


def _edit(folder: Path, rng: random.Random, number: int) -> None:
    """Write, replace, delete or move a file, with a time before or after now."""
    path = folder / f"folder {rng.randrange(20)}" / f"{rng.randrange(300)}.txt"
    path.parent.mkdir(exist_ok=True)
    deed = rng.random()
    if deed < 0.2:
        path.unlink(missing_ok=True)
    elif deed < 0.3 and path.exists():
        path.rename(folder / f"moved {rng.randrange(300)}.txt")
    elif deed < 0.31:
        shutil.rmtree(path.parent)
    else:
        path.write_text(f"Version {number} of {path.name}.")
        moment = time.time() + rng.choice((-1e6, 0, 1e6))
        os.utime(path, (moment, moment))
