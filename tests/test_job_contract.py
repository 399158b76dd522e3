"""One contract for every command that makes something: done again, other settings, two at once, killed, swept.

Each command runs once on a few made-up texts; what a kill leaves on the disk is put there by hand, since the random
kills are those of ``tests/campaign``. A command that makes something and is not in the table, or does not enter the
shell of :mod:`dupmae_ir.io.jobs`, fails the first tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate", reason="training needs the extra: pip install 'dupmae-ir[train]'")

import torch
from support.making_commands import MAKING, Making, write_inputs

from dupmae_ir.__main__ import VERBS, main
from dupmae_ir.io.jobs import COMPLETE, Job, record_path, work_folder
from dupmae_ir.io.locks import lock_path

ANSWERING = {"search", "serve", "doctor", "eval", "eval.answers"}
"""Commands that answer. Files that they write besides are replaced whole and swept by ``atomic_write``."""
COMPOSED = {"demo", "eval.regressions", "collections", "servers"}
"""Commands made of several jobs; ``test_composed_commands`` holds them to the contract, or says where that is done."""
LIBRARY = {"models"}
"""Commands whose output a library writes: models are downloaded into the Hugging Face cache by its own library."""
FLEETING = ("seconds", "status", "resumed", "output", "per_second", "now")
"""Ends of the keys of a result that describe the run and not what it made."""
HOLDER = """
import sys
from dupmae_ir.io.locks import exclusive
with exclusive(sys.argv[1], "a test"):
    print("held", flush=True)
    sys.stdin.read()
"""
ROOT = Path(__file__).parents[1]
DEAD = 2**22 - 3  #: no process: above the largest id that Linux assigns by default

pytestmark = pytest.mark.jvm


@dataclass
class Result:
    """How a command ended."""

    status: int
    errors: str
    value: dict[str, Any] = field(default_factory=dict)

    def lasting(self) -> dict[str, Any]:
        """The part of the result that describes what was made."""
        return {name: value for name, value in self.value.items() if not name.endswith(FLEETING)}


@dataclass
class Work:
    """A command, the folder in which it has run once, and what that run returned."""

    making: Making
    inputs: Path
    out: Path
    first: Result
    call: Callable[..., Result]
    entered: list[Path]

    @property
    def target(self) -> Path:
        return self.making.made(self.out)

    def again(self, *more: Any) -> Result:
        return self.call(*self.making.words(self.inputs, self.out), *more)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"), lambda words: main([*map(str, words)]))


@pytest.fixture(scope="module")
def done() -> dict[str, tuple[Path, Result, list[Path]]]:
    """What each command made the first time it was needed."""
    return {}


@pytest.fixture(params=MAKING, ids=lambda making: making.name)
def work(
    request: pytest.FixtureRequest,
    inputs: Path,
    done: dict[str, tuple[Path, Result, list[Path]]],
    tmp_path_factory: pytest.TempPathFactory,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Work:
    making: Making = request.param
    entered: list[Path] = []
    enter = Job.__enter__
    monkeypatch.setattr(Job, "__enter__", lambda job: entered.append(job.target) or enter(job))

    def call(*words: Any) -> Result:
        capfd.readouterr()
        status = main([*map(str, words), "--quiet", "--json"])
        printed, errors = capfd.readouterr()
        return Result(status, errors, json.loads(printed) if not status else {})

    if making.name not in done:
        out = tmp_path_factory.mktemp("out") / "o"
        making.prepare(inputs, out)
        first = call(*making.words(inputs, out))
        assert first.status == 0, first.errors
        done[making.name] = out, first, list(entered)
    out, first, jobs = done[making.name]
    return Work(making, inputs, out, first, call, jobs)


def contents(target: Path) -> dict[str, tuple[bytes, int]]:
    """The bytes and the time of every file of a target and of its record."""
    files = (
        [p for p in target.rglob("*") if p.is_file()]
        if target.is_dir()
        else [target, record_path(target)]
    )
    return {
        str(p.relative_to(target.parent)): (p.read_bytes(), p.stat().st_mtime_ns)
        for p in files
        if p.exists()
    }


def hidden(target: Path) -> set[str]:
    return {p.name for p in target.parent.iterdir() if p.name.startswith(f".{target.name}")}


def test_every_command_is_in_one_of_the_tables() -> None:
    making = {m.words(Path("i"), Path("o"))[0] for m in MAKING}
    tables = (making, ANSWERING, COMPOSED, LIBRARY)
    assert set().union(*tables) == set(VERBS)
    assert sum(map(len, tables)) == len(VERBS), "a command is in two tables"


def test_every_verb_of_index_that_makes_something_is_in_the_table() -> None:
    from dupmae_ir.index.__main__ import VERBS as INDEX_VERBS

    # show and verify answer. push and pull copy one
    # to or from a store, again and killed: encode/test_object_store.
    others = {"index show", "index verify", "index push", "index pull"}
    assert {m.name for m in MAKING if m.name.startswith("index ")} == {
        f"index {v}" for v in INDEX_VERBS
    } - others


def test_it_enters_a_job_and_leaves_only_its_target(work: Work) -> None:
    assert work.target in work.entered, "the command does not use dupmae_ir.io.jobs.Job"
    assert work.first.value.get("status", "complete") == "complete"
    assert hidden(work.target) == set()


def test_done_again_it_returns_the_same_and_changes_nothing(work: Work) -> None:
    before = contents(work.target)
    again = work.again()
    assert (again.status, again.value["status"], again.lasting()) == (
        0,
        COMPLETE,
        work.first.lasting(),
    )
    assert contents(work.target) == before
    assert hidden(work.target) == set()


def test_other_settings_are_refused_with_both_values(work: Work) -> None:
    if not work.making.other:
        pytest.skip("it has no settings")
    before = contents(work.target)
    other = work.again(*work.making.other)
    assert other.status == 2, other.errors
    assert other.errors.count("\n") == 1
    assert work.making.named in other.errors
    assert contents(work.target) == before


def test_a_second_process_is_refused_and_the_first_is_named(work: Work) -> None:
    lock = lock_path(work.target)
    with held_by_another_process(lock) as pid:
        second = work.again()
    assert second.status == 2
    assert second.errors.count("\n") == 1
    assert f"process {pid} is running" in second.errors
    lock.unlink(missing_ok=True)


def test_a_kill_between_the_renames_is_recovered(work: Work, tmp_path: Path) -> None:
    """The old output was moved away, the new one is not in place yet: the old one comes back."""
    if not work.target.is_dir():
        pytest.skip("a file is replaced in one rename")
    before = contents(work.target)
    work.target.rename(work.target.with_name(f".{work.target.name}.{DEAD}.old"))
    again = work.again()
    assert (again.status, again.value["status"], again.lasting()) == (
        0,
        COMPLETE,
        work.first.lasting(),
    )
    assert contents(work.target) == before
    assert hidden(work.target) == set()


def test_a_kill_after_the_renames_leaves_nothing_behind(work: Work) -> None:
    """The new output is in place, the old one and the work folder are still there."""
    before = contents(work.target)
    (work_folder(work.target) / "half").mkdir(parents=True)
    if work.target.is_dir():
        shutil.copytree(work.target, work.target.with_name(f".{work.target.name}.{DEAD}.old"))
    assert work.again().status == 0
    assert contents(work.target) == before
    assert hidden(work.target) == set()


def test_a_kill_between_a_file_and_its_record_is_recovered(work: Work) -> None:
    """The file is in place, its record still in the work folder, and an older file's record lies where it belongs."""
    if work.target.is_dir() or work.making.adds_to_index:
        pytest.skip("the record is part of the target, or removed before it is replaced")
    before = {name: made for name, (made, _) in contents(work.target).items()}
    record = record_path(work.target)
    folder = work_folder(work.target)
    folder.mkdir()
    shutil.copy(record, folder / "lines.record")
    record.write_text(
        json.dumps({"made_by": "an older run", "settings": {}, "inputs": {}, "result": {}})
    )
    again = work.again()
    assert (again.status, again.value["status"], again.lasting()) == (
        0,
        COMPLETE,
        work.first.lasting(),
    )
    assert {name: made for name, (made, _) in contents(work.target).items()} == before
    assert hidden(work.target) == set()


def test_a_kill_while_an_index_is_recorded_leaves_no_lock_in_it(work: Work) -> None:
    if not work.making.adds_to_index:
        pytest.skip("it does not add to an index")
    lock = lock_path(work.out / "index" / "meta.json")
    lock.write_text(f"{DEAD}\n")
    assert work.again().status == 0
    assert not lock.exists()


def test_a_record_without_its_file_is_not_a_finished_job(work: Work) -> None:
    if work.target.is_dir():
        pytest.skip("a folder's record is inside it")
    made = work.target.read_bytes()
    work.target.unlink()
    again = work.again()
    assert (again.status, again.value.get("status", "complete")) == (0, "complete")
    assert again.lasting() == work.first.lasting()
    assert work.target.read_bytes() == made


def test_temporary_files_of_dead_processes_are_swept(work: Work) -> None:
    dead, alive = (
        work.target.with_name(f".{work.target.name}.{pid}.tmp") for pid in (DEAD, os.getppid())
    )
    for path in (dead, alive):
        path.write_text("half")
    assert work.again().status == 0
    assert hidden(work.target) == {alive.name}
    alive.unlink()


@contextmanager
def held_by_another_process(lock: Path) -> Iterator[int]:
    """Hold ``lock`` in another process, whose id is yielded."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, lock],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        yield process.pid
    finally:
        process.communicate()
