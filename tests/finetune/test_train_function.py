"""``dupmae_ir.fine_tune`` and ``pre_train``: as the guide shows them, with rows and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dupmae_ir import DupmaeError, fine_tune, pre_train

ROOT = Path(__file__).resolve().parents[2]


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


def test_an_unusable_argument_is_an_error_of_ours(tmp_path):
    output = tmp_path / "out"
    with pytest.raises(DupmaeError, match=r"no setting named 'step'.*steps"):
        fine_tune([("a", "b")], output=output, options={"step": 3})
    with pytest.raises(DupmaeError, match="`options` repeats steps"):
        fine_tune([("a", "b")], output=output, options={"steps": 3})
    with pytest.raises(DupmaeError, match="`steps`: expected an integer, got '3'"):
        pre_train(["some text"], output=output, steps="3")
    with pytest.raises(DupmaeError, match=r"absent\.jsonl: no such file"):
        fine_tune(tmp_path / "absent.jsonl", "default", output, steps=1)
    with pytest.raises(DupmaeError, match="`pairs`, row 0: expected a dictionary or a tuple"):
        fine_tune(["alone"], "default", output, steps=1)
