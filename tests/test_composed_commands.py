"""The contract of jobs for the commands that are no single job: demo, collections, regressions.

    command           locked                        run again                              killed
    demo              here                          tests/demo (slow: it encodes 5,268)    tests/campaign
    collections get   waits: tests/collections      here                                   tests/collections
    eval.regressions  here                          tests/eval/test_regressions            its jobs are in the table
    servers load      tests/servers                 tests/servers                          tests/servers

What they are made of are jobs of ``tests/support/making_commands.py``; settings are recorded with those.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.making_commands import write_inputs
from test_job_contract import held_by_another_process

from dupmae_ir.__main__ import main
from dupmae_ir.io.locks import lock_path

pytestmark = pytest.mark.jvm


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"), lambda words: main([*map(str, words)]))


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in files}


@pytest.mark.parametrize(
    ("words", "locked"),
    [
        (["demo", "--model", "testing:hashing", "--output"], "out"),
        (["eval.regressions", "run", "tiny/bm25", "--output"], "out"),
    ],
    ids=["demo", "eval.regressions"],
)
def test_a_second_process_is_refused_and_the_first_is_named(
    words: list[Any], locked: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with held_by_another_process(lock_path(tmp_path / locked)) as pid:
        capfd.readouterr()
        assert main([*words, str(tmp_path / "out")]) == 2
    errors = capfd.readouterr().err.splitlines()
    assert f"process {pid} is " in errors[-1]


def test_collections_done_again_change_nothing(tmp_path: Path) -> None:
    words = ["collections", "get", "demo", "--cache", str(tmp_path / "cache")]
    assert main(words) == 0
    before = contents(tmp_path / "cache")
    assert before
    assert main(words) == 0
    assert contents(tmp_path / "cache") == before
