"""The script of the trained model in the package: the stage that it stores, and what its card says."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import dupmae_small as module
import pytest
from mae_tables import CLS_ALONE, stages_table
from support.pretraining import tiny_base
from test_publish import SOURCES

from dupmae_ir.models.checkpoints.layout import COMPACT

COLLECTIONS = ["scifact", "vaswani", "cranfield", "cacm"]
SUMS = {"small.stage1": 0.25, "small.stage2": 0.75, "small.stage3": 0.5}


class Reader:
    """Writes records in place of the read-outs, and keeps the names of the sets."""

    def __init__(self):
        self.sets = []

    def __call__(self, words):
        name, settings = (words[words.index(flag) + 1] for flag in ("--sets", "--settings"))
        self.sets.append(name)
        scores = {part: {"nDCG@10": 0.5, "R@100": 0.5} for part in ("cls", "ot", "sum")}
        record = {"settings": json.loads(settings), "sets": {name: {"scores": scores}}}
        Path(words[words.index("--record") + 1]).write_text(json.dumps(record))
        return 0


@pytest.fixture
def output(tmp_path, monkeypatch):
    monkeypatch.setattr(module.mae_from_scratch, "main", lambda _: 0)
    monkeypatch.setattr(module.mae_readouts, "main", Reader())
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "SOURCES.md").write_text(SOURCES)
    (tmp_path / "records").mkdir()
    for step, value in SUMS.items():
        scores = {part: {"nDCG@10": value} for part in ("cls", "ot", "sum")}
        record = {"settings": {"step": step}, "sets": {"dev": {"scores": scores}}}
        (tmp_path / "records" / f"readout.{step}.dev.json").write_text(json.dumps(record))
        tiny_base(tmp_path / "runs" / step)
        (tmp_path / "runs" / step / "training.json").write_text('{"steps": 1}')
    return tmp_path


def test_the_best_stage_on_dev_is_stored_with_a_card(output, capsys):
    flags = ["--data", str(output / "data"), "--output", str(output)]
    assert module.main(flags) == 0
    assert json.loads(capsys.readouterr().out)["step"] == "small.stage2"
    made = output / "dupmae-small"
    assert (made / COMPACT).is_file()
    assert json.loads((made / "training.json").read_text()) == {"step": "small.stage2", "steps": 1}
    card = (made / "README.md").read_text()
    assert "Stored is stage2" in card
    assert "| stage3 | 0.5000 | 0.5000 | 0.5000 |" in card
    assert "| dupmae-small, sum | 0.5000 | 0.5000 | 0.5000 | 0.5000 |" in card


def test_a_step_that_failed_is_reported(output, monkeypatch, capsys):
    monkeypatch.setattr(module.mae_from_scratch, "main", lambda _: 1)
    assert module.main(["--data", str(output / "data"), "--output", str(output)]) == 1
    assert "run the same command to continue" in capsys.readouterr().err


def test_the_card_has_the_stored_model_beside_bm25_and_the_default(tmp_path):
    for name, value in (("cacm", 0.25), ("scifact", 0.5)):
        scores = {part: {"nDCG@10": value, "R@100": 1.0} for part in ("cls", "ot", "sum")}
        record = {"settings": {}, "sets": {name: {"scores": scores}}}
        (tmp_path / f"readout.dupmae-small.{name}.json").write_text(json.dumps(record))
    both = {"dense": {"nDCG@10": 0.1, "R@100": 0.1}, "hybrid": {"nDCG@10": 0.75, "R@100": 0.875}}
    references = [
        {"row": r, "sets": {n: {"scores": both} for n in ("cacm", "scifact")}}
        for r in ("bm25", "embedded")
    ]
    first, second = module.measured(tmp_path, references).split("\n\n")
    assert first.splitlines()[0] == "| nDCG@10 | cacm | scifact |"
    assert "| the embedded default | 0.7500 | 0.7500 |" in first
    assert "| dupmae-small, sum | 0.2500 | 0.5000 |" in first
    assert "| dupmae-small, OT | 1.0000 | 1.0000 |" in second


def test_records_of_other_weights_are_made_again(output, monkeypatch):
    monkeypatch.setattr(module.mae_readouts, "main", read := Reader())
    arguments = argparse.Namespace(data=output / "data", output=output)
    module.read_out(arguments, output / "runs" / "small.stage1")
    module.read_out(arguments, output / "runs" / "small.stage1")
    assert read.sets == COLLECTIONS
    (output / "runs" / "small.stage1" / "config.json").write_text("{}")
    module.read_out(arguments, output / "runs" / "small.stage1")
    assert read.sets == COLLECTIONS * 2


def test_a_stage_without_a_record_of_a_set_has_an_empty_cell(output):
    sets = {name: {"scores": {"cls": {"nDCG@10": 0.125}}} for name in ("dev", *COLLECTIONS)}
    (output / "records" / CLS_ALONE).write_text(json.dumps({"sets": sets}))
    lines = stages_table(output / "records").splitlines()
    assert lines[2] == "| [CLS] alone | [CLS] | 0.1250 | 0.1250 | 0.1250 | 0.1250 | 0.1250 |"
    assert "| stage 2 | sum | 0.7500 |  |  |  |  |" in lines
