"""The lock of a target: one holder, released with the process, no litter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dupmae_ir.errors import UsageError
from dupmae_ir.io.locks import exclusive, remove_stale

_HOLDER = """
import sys, time
from dupmae_ir.io.locks import exclusive
with exclusive(sys.argv[1], "busy"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path / "lock")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_the_second_is_refused_and_told_by_whom(tmp_path, holder):
    with (
        pytest.raises(
            UsageError, match=f"process {holder.pid} is writing I; wait until it is done"
        ),
        exclusive(tmp_path / "lock", "writing I"),
    ):
        pass
    assert (tmp_path / "lock").exists()


def test_a_kill_releases_it(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "lock").exists()
    with exclusive(tmp_path / "lock", "writing"):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    assert not (tmp_path / "lock").exists()


def test_what_a_killed_process_left_is_removed_and_a_held_lock_is_not(tmp_path, holder):
    remove_stale(tmp_path / "lock")
    assert (tmp_path / "lock").exists()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    remove_stale(tmp_path / "lock")
    assert not (tmp_path / "lock").exists()
    remove_stale(tmp_path / "lock")


def test_an_error_releases_it_too(tmp_path):
    for _ in range(2):
        with (
            pytest.raises(ValueError, match="inside"),
            exclusive(tmp_path / "a" / "lock", "writing"),
        ):
            raise ValueError("inside")
    assert list((tmp_path / "a").iterdir()) == []
