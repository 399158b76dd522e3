"""The campaign as a test: a sample of every part, of which nothing may be wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import PARTS
from .records import Records, markdown

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly
@pytest.mark.parametrize("part", PARTS)
def test_a_sample_of_every_part(part, tmp_path):
    kept = tmp_path / "records.jsonl"
    words = ["--only", part, "--seconds", "60", "--add", str(kept)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaign", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert Records(part, kept).all


def test_commands_end_right_whatever_call_fails():
    done = subprocess.run([sys.executable, "-m", "tests.campaign.faults"], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_records_of_several_runs_are_added(tmp_path):
    first = Records("kills", tmp_path / "r")
    first.add(kills=2)
    Records("soak", tmp_path / "r").add(queries=1)
    second = Records("kills", tmp_path / "r")
    second.add(kills=1)
    assert [row["kills"] for row in second.all] == [2, 1]
    assert markdown(["what", "n"], [["a", 1200]]) == "| what | n |\n| -- | --: |\n| a | 1,200 |"
