"""Every example runs and stays short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


NEED_ARGUMENTS = {"encode_with_onnxruntime"}  # run by tests/models/checkpoints/test_onnx_graph.py


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.stem not in NEED_ARGUMENTS], ids=lambda p: p.stem)
def test_it_runs_and_prints(example):
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not done.stderr.strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_it_is_short(example):
    assert len(example.read_text().splitlines()) <= 40
