"""The embedded model's script: the recipe it runs, the folder it stores, the card."""

from __future__ import annotations

import json

import embedded as module
import pytest
from experiment_samples import a_record, write_base
from test_publish import SOURCES

from dupmae_ir.finetune.stages import find_recipe, plan
from dupmae_ir.models.checkpoints.loading import load_model


@pytest.fixture
def trained(tmp_path):
    """What the recipe leaves: two finished steps."""
    model = write_base(tmp_path / "runs" / "stage1")
    for name, limit in (("held", 14_400), ("stage1", 9_600)):
        training = {"settings": {"batch_size": 48, "limit": limit}, "steps": limit // 48, "seconds": 600, "log": []}
        (model.parent / name).mkdir(exist_ok=True)
        (model.parent / name / "training.json").write_text(json.dumps(training))
    (tmp_path / "SOURCES.md").write_text(SOURCES)
    return tmp_path


def flags(folder, *more):
    return [
        "--pairs",
        "train.jsonl.gz",
        "--sources",
        str(folder / "SOURCES.md"),
        "--output",
        str(folder / "runs"),
        "--records",
        str(folder / "records"),
        *more,
    ]


def test_the_recipe_has_the_steps_that_the_card_describes(tmp_path):
    steps, _ = plan(find_recipe(module.RECIPE), tmp_path, {"pairs": "train.jsonl.gz"})
    assert tuple(step.name for step in steps) == module.STEPS
    held, stage = (step.config for step in steps)
    assert (held.similarity, stage.similarity, stage.model) == ("cls", "sum", str(tmp_path / "held"))


def test_the_model_is_stored_in_float16_and_its_card_gets_new_scores(trained, monkeypatch, capsys):
    import torch
    from safetensors.torch import load_file

    calls = []
    monkeypatch.setattr(module, "run_stages", lambda *arguments: calls.append(arguments))
    assert module.main(flags(trained, "--quiet")) == 0
    assert calls == [("embedded", str(trained / "runs"), {"pairs": ["train.jsonl.gz"]}, True)]
    out = trained / "runs" / "model"
    assert json.loads(capsys.readouterr().out)["bytes"] == sum(p.stat().st_size for p in out.iterdir())
    assert {w.dtype for w in load_file(out / "model.safetensors").values()} == {torch.float16}
    load_model(out)
    assert set(json.loads((out / "training.json").read_text())) == {"held", "stage1"}
    card = (out / "README.md").read_text()
    for text in (
        "300 updates of 48 pairs",
        "200 updates of 48 pairs",
        "14,400 and 9,600",
        "`openstax/osbooks-astronomy` @ 0c021fb283a7",
        "Apache-2.0",
        "Not measured yet.",
    ):
        assert text in card, text
    (trained / "records").mkdir()
    (trained / "records" / "x.json").write_text(json.dumps(a_record("embedded", table="references", dev=0.625)))
    assert module.main(flags(trained, "--quiet")) == 0
    assert "0.6250" in (out / "README.md").read_text()


def test_a_model_that_is_too_large_is_not_stored(trained, monkeypatch, capsys):
    monkeypatch.setattr("publish.MOST_BYTES", 1000)
    monkeypatch.setattr(module, "run_stages", lambda *arguments: {})
    assert module.main(flags(trained)) == 1
    assert "above 0 MB" in capsys.readouterr().err
    assert not [p for p in (trained / "runs").iterdir() if "model" in p.name]
