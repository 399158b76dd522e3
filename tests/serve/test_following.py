"""A service that keeps its index in step with a folder."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import until

from dupmae_ir.encode.__main__ import main as encode
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.index.index import Index
from dupmae_ir.serve import following
from dupmae_ir.serve.config import ServeConfig
from dupmae_ir.serve.followed import NICENESS
from dupmae_ir.serve.following import Follower

pytest.importorskip("watchfiles")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.txt").write_text("The boiler is in the cellar.")
    return docs


@pytest.fixture
def index(folder: Path, tmp_path: Path) -> Path:
    target = tmp_path / "index"
    words = [
        "--corpus",
        str(folder),
        "--index",
        str(target),
        "--model",
        "testing:hashing",
        "--quiet",
    ]
    assert encode(words) == 0
    return target


@pytest.fixture
def follower(folder: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Follower]:
    monkeypatch.setattr(following, "_RESTART_SECONDS", 0.1)
    follower = Follower(index, [str(folder)])
    follower.start()
    yield follower
    follower.stop(20)


def test_the_index_follows_also_after_its_process_was_killed(
    follower: Follower, folder: Path, index: Path
) -> None:
    assert until(lambda: follower.in_step is not None)
    first = follower.in_step
    (folder / "b.txt").write_text("The key is under the stairs.")
    assert until(lambda: "b.txt" in Index.open(index).files)
    assert until(lambda: follower.in_step != first)
    process = follower._process
    assert process is not None
    process.send_signal(signal.SIGKILL)
    (folder / "c.txt").write_text("Saved while none follows.")
    assert until(lambda: "c.txt" in Index.open(index).files)
    follower.stop(20)
    assert not follower._thread.is_alive()
    assert follower._process is not None
    assert follower._process.poll() is not None


def test_the_process_ends_with_a_service_that_is_killed(folder: Path, index: Path) -> None:
    follower = Follower(index, [str(folder)])
    with subprocess.Popen(
        follower._command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            assert any(line.startswith("watching") for line in process.stderr)
            process.stdin.close()  # as the kernel does for a process that was killed
            process.wait(20)
        finally:
            process.kill()


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="Unix only")
def test_searches_come_before_changes(follower: Follower) -> None:
    assert until(lambda: follower.in_step is not None)
    process = follower._process
    assert process is not None
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(19, own + NICENESS)


def test_what_cannot_be_followed_is_refused(folder: Path, index: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        ServeConfig(index=(str(index),), watch=(str(tmp_path / "nowhere"),))
    with pytest.raises(UsageError, match="exactly one"):
        ServeConfig(index=(str(index), f"b={index}"), watch=(str(folder),))
    with pytest.raises(UsageError, match="exactly one"):
        ServeConfig(indexes=str(tmp_path), watch=(str(folder),))
