"""``from dupmae_ir.finetune import train``: as the guide shows it, with rows and files, and light to import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dupmae_ir.errors import DupmaeError
from dupmae_ir.finetune import train
from dupmae_ir.pretrain import train as pretrain

ROOT = Path(__file__).resolve().parents[2]


def test_importing_it_is_light():
    code = "import sys, dupmae_ir.finetune, dupmae_ir.pretrain; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_the_example_of_the_guide_runs(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "finetuning.md").read_text()
    code = text.split("## From Python")[1].split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(code, "docs/finetuning.md", "exec"), names)
    trained = names["trained"]
    assert trained.path == Path("models/mine")
    assert [row["step"] for row in trained.log if "loss" in row] == [1, 2]
    assert trained.result["queries"] == 4
    assert names["vectors"].shape == (1, 384)
    rows = [json.loads(line) for line in Path("models/mine.pairs.jsonl").read_text().splitlines()]
    assert rows[0].keys() == {"query", "positive"}
    assert "models/mine" in capsys.readouterr().out
    # The same call returns the finished model.
    exec(compile(code, "docs/finetuning.md", "exec"), names)
    assert names["trained"].result["status"] == "already complete"


def test_an_unknown_setting_is_an_error_of_ours(tmp_path):
    with pytest.raises(DupmaeError, match=r"no setting named 'step'.*steps"):
        train([("a", "b")], output=tmp_path / "out", step=3)
    with pytest.raises(DupmaeError, match="train: steps: expected int"):
        pretrain(["some text"], output=tmp_path / "out", steps="3")
    with pytest.raises(DupmaeError, match=r"absent\.jsonl: no such file"):
        train(tmp_path / "absent.jsonl", model="default", output=tmp_path / "out", steps=1)
    with pytest.raises(DupmaeError, match="train: alone is not a pair"):
        train(["alone"], model="default", output=tmp_path / "out", steps=1)
