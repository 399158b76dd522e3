"""Several processes: the same bytes as one, whoever is killed; what goes wrong in a worker is one line here."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.encode_runs import ROOT, content, meta, write_corpus

from dupmae_ir.encode import windows as window_files
from dupmae_ir.encode.__main__ import main
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.executors import ATTEMPTS, DevicePool
from dupmae_ir.encode.run import run
from dupmae_ir.encode.window_encoding import EncoderChoice
from dupmae_ir.encode.windows import Window, read_header
from dupmae_ir.errors import EnvironmentProblem
from dupmae_ir.types import Document

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.skipif(
        not Path("/proc/self/stat").exists(), reason="the tests find workers in /proc"
    ),
]
TWO = ("--devices", "cpu,cpu")


def start(
    corpus: Path, index: Path, *more: object, model: str = "testing:slow"
) -> subprocess.Popen[str]:
    """The command in a process of its own, with an encoder that takes its time."""
    flags = ["--model", model, "--corpus", corpus, "--index", index, "--window", 60, *more]
    return subprocess.Popen(
        [sys.executable, "-m", "dupmae_ir.encode", *map(str, flags)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )


def children(pid: int) -> list[int]:
    """The processes that ``pid`` started and that run, workers only."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z" and b"encode.executors" in words:
            found.append(int(entry.name))
    return found


def until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 400
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def running(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def finished(index: Path) -> int:
    return len(list(index.with_name(f".{index.name}.work").glob("window-*")))


def whole(corpus: Path, index: Path) -> Path:
    run(
        EncodeConfig(
            corpus=str(corpus), index=str(index), model="testing:hashing", window=60, quiet=True
        )
    )
    return index


@pytest.mark.nightly
def test_two_workers_killed_with_their_driver_lose_and_double_nothing(tmp_path):
    """A worker is killed, then the driver, then both kinds again; the index is that of one undisturbed process."""
    corpus = write_corpus(tmp_path / "corpus.jsonl", 4000)
    index = tmp_path / "trial" / "I"
    with running(start(corpus, index, *TWO)) as process:
        until(lambda: finished(index) >= 3 and len(children(process.pid)) == 2, process)
        victims = children(process.pid)
        os.kill(victims[0], signal.SIGKILL)
        until(lambda: len(set(children(process.pid)) - set(victims)) == 1, process)
        orphans = children(process.pid)
        before = finished(index)
        until(lambda: finished(index) > before, process)
        process.kill()
        said = process.communicate()[1]
    assert not index.exists()
    assert re.search(
        r"note: worker cpu#[01] was killed by signal 9 \(SIGKILL\) with window \d+ \(documents d\d+ to",
        said,
    )
    deadline = time.monotonic() + 60
    while any(
        Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()
        for pid in orphans
    ):
        assert time.monotonic() < deadline, "a worker outlived its driver"
        time.sleep(0.05)
    kept = finished(index)
    with running(start(corpus, index, *TWO, model="testing:hashing")) as process:
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert f"resuming: checking {kept} finished window(s)" in said
    assert content(index) == content(whole(corpus, tmp_path / "whole"))
    assert meta(index)["digest"] == meta(tmp_path / "whole")["digest"]
    assert [p.name for p in index.parent.iterdir()] == ["I"]


def windows(count: int) -> Iterator[Window]:
    for number in range(count):
        yield Window(number, [Document(f"d{number}", "some words")], f"{number}", None, True)


def test_a_window_that_kills_every_worker_is_named(monkeypatch):
    """The failure is not repeated for ever."""
    choice = EncoderChoice.of(
        EncodeConfig(corpus="c", index="i", model="testing:slow", parts="cls")
    )
    workers = DevicePool(choice, ["cpu"], quiet=True)
    encode = DevicePool._hand_out
    seen = set()

    def killing(self, waiting):
        encode(self, waiting)
        worker = self.workers[0]
        if worker.ready and worker.windows and worker.windows[0].number == 1:
            worker.process.kill()

    monkeypatch.setattr(DevicePool, "_hand_out", killing)
    with closing(workers):
        assert workers.facts.dim == 16
        message = rf"window 1 \(documents d1 to d1\): {ATTEMPTS} workers in turn"
        with pytest.raises(EnvironmentProblem, match=message):
            seen.update(encoded.number for encoded in workers.encode(windows(3)))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--devices", "cpu,,cpu"), "--devices cpu,,cpu: expected names separated by commas"),
        (("--devices", "cpu", "--device", "cpu"), "--devices and --device exclude each other"),
        (("--devices", "cpu", "--executor", "ray"), "--devices applies only with --executor local"),
        (("--workers", 2), "--workers applies only with --executor ray"),
        (("--devices", "cpu,cpu", "--top-k", 0), "--top-k must be greater than 0"),
    ],
)
def test_flags_that_exclude_each_other(tmp_path, encode, corpus, flags, message):
    status, said = encode(corpus, tmp_path / "I", *flags)
    assert status == 2
    assert message in said


def test_an_error_in_a_worker_is_one_line(tmp_path, corpus, capsys):
    """A model that is not there: reported as in one process, with nothing left behind."""
    status = main(
        [
            "--model",
            str(tmp_path / "none"),
            "--corpus",
            str(corpus),
            "--index",
            str(tmp_path / "I"),
            *TWO,
        ]
    )
    assert status == 2
    said = capsys.readouterr().err
    assert "none: no such model folder" in said
    assert said.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["corpus.jsonl"]


def test_without_ray_the_message_says_how_to_install_it(tmp_path, corpus, encode, monkeypatch):
    monkeypatch.setattr("dupmae_ir.device.importlib.util.find_spec", lambda name: None)
    status, said = encode(corpus, tmp_path / "I", "--executor", "ray")
    assert (status, "--executor ray needs ray: pip install 'dupmae-ir[ray]'" in said) == (1, True)


def test_a_full_disk_names_the_window_and_keeps_the_others(tmp_path, corpus, encode, monkeypatch):
    index = tmp_path / "I"
    wrote = window_files.write_window

    def full(path, contents):
        if path.name == "window-000003.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        wrote(path, contents)

    monkeypatch.setattr(window_files, "write_window", full)
    status, said = encode(corpus, index, "--window", 100)
    assert status == 1
    assert "the disk is full, at window 3 (documents d300 to d399)" in said
    assert said.count("\n") == 1
    assert finished(index) == 3
    monkeypatch.undo()
    assert encode(corpus, index, "--window", 100)[0] == 0
    assert encode(corpus, tmp_path / "whole", "--window", 100)[0] == 0
    assert content(index) == content(tmp_path / "whole")


def test_a_window_of_another_model_is_refused_by_name(tmp_path, corpus, encode, monkeypatch):
    index = tmp_path / "I"
    wrote = window_files.write_window

    def until_three(path, contents):
        if path.name == "window-000003.safetensors":
            raise KeyboardInterrupt
        wrote(path, contents)

    monkeypatch.setattr(window_files, "write_window", until_three)
    assert encode(corpus, index, "--window", 100)[0] == 130
    monkeypatch.undo()
    part = tmp_path / ".I.work" / "window-000001.safetensors"
    own = read_header(part)["encoder"]
    part.write_bytes(part.read_bytes().replace(own.encode(), b"f" * len(own)))
    status, said = encode(corpus, index, "--window", 100)
    assert status == 2
    assert (
        f"{part.name}: encoded by another model (ffffffffffff instead of {own[:12]}); remove this file"
        in said
    )
    part.unlink()
    assert encode(corpus, index, "--window", 100)[0] == 0
