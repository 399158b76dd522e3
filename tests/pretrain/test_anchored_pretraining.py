"""``pretrain --anchor``: every method, resumption, the record, what is refused, and that weight 0 is off."""

from __future__ import annotations

import json

import pytest
import torch
from support.pretraining import flags, tiny_base, tiny_corpus

from dupmae_ir.pretrain.__main__ import main
from dupmae_ir.pretrain.trainer import PretrainTrainer

SHORT = {"steps": 4, "save-steps": 2, "eval-steps": 2}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_base(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def anchor(tmp_path_factory):
    """A frozen model with other weights."""
    folder = tiny_base(tmp_path_factory.mktemp("anchor") / "frozen")
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    save_file(
        {name: value * 0.5 for name, value in load_file(path).items()}, path, {"format": "pt"}
    )
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_corpus(tmp_path_factory.mktemp("corpus") / "c.jsonl")


def log_of(output):
    rows = [
        json.loads(line) for line in (output / "pretraining" / "log.jsonl").read_text().splitlines()
    ]
    return [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in rows]


@pytest.mark.parametrize(
    "method",
    [
        "retromae",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("master", "cot-mae", "cot-mote")
        ),
    ],
)
def test_every_method_reports_the_distance(method, base, anchor, corpus, tmp_path):
    assert main(flags(method, base, corpus, tmp_path / "out", anchor=anchor, **SHORT)) == 0
    distances = [row["loss_anchor"] for row in log_of(tmp_path / "out") if "loss" in row]
    assert len(distances) == 2
    assert all(0 < d < 2 for d in distances)


@pytest.mark.nightly
def test_an_interrupted_run_resumes_to_identical_weights(
    base, anchor, corpus, tmp_path, monkeypatch
):
    words = {
        name: flags("dupmae", base, corpus, tmp_path / name, anchor=anchor, **SHORT)
        for name in ("a", "b")
    }
    assert main(words["a"]) == 0
    real = PretrainTrainer._save_checkpoint

    def interrupted(self, *args, **kwargs):
        real(self, *args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(PretrainTrainer, "_save_checkpoint", interrupted)
    assert main(words["b"]) == 130
    monkeypatch.setattr(PretrainTrainer, "_save_checkpoint", real)
    assert main(words["b"]) == 0
    a, b = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert a == b
    assert log_of(tmp_path / "a") == log_of(tmp_path / "b")
    record = json.loads((tmp_path / "a" / "training.json").read_text())
    assert (record["settings"]["anchor"], record["settings"]["anchor_weight"]) == ("frozen", 10.0)
    assert "anchor" in record["inputs"]


def test_the_anchor_holds_the_cls_vector(base, corpus, tmp_path):
    """Held to the base itself, [CLS] stays nearer to it than without."""
    from dupmae_ir.models.checkpoints.loading import load_model

    def distance(folder):
        start, _, _ = load_model(base)
        model, tokenizer, _ = load_model(folder)
        inputs = tokenizer(
            ["the cat sat on the mat", "the quick brown fox"], return_tensors="pt", padding=True
        )
        with torch.no_grad():
            a, b = (
                m(inputs["input_ids"], inputs["attention_mask"], ot=False)[0]
                for m in (start, model)
            )
        return float((1 - torch.cosine_similarity(a, b)).mean())

    steps = {"steps": 20, "save-steps": 20, "eval-steps": 20}
    assert main(flags("retromae", base, corpus, tmp_path / "free", **steps)) == 0
    assert main(flags("retromae", base, corpus, tmp_path / "held", anchor=base, **steps)) == 0
    assert distance(tmp_path / "held") < 0.7 * distance(tmp_path / "free")


def test_weight_0_is_off_to_the_bit(base, corpus, tmp_path):
    assert main(flags("mlm", base, corpus, tmp_path / "plain", **SHORT)) == 0
    off = {"anchor": tmp_path / "absent", "anchor-weight": 0}
    assert main(flags("mlm", base, corpus, tmp_path / "off", **off, **SHORT)) == 0
    a, b = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "off"))
    assert a == b
    records = [
        json.loads((tmp_path / name / "training.json").read_text()) for name in ("plain", "off")
    ]
    assert records[0]["settings"] == records[1]["settings"]
    assert "anchor_weight" not in records[0]["settings"]


def test_an_anchor_of_another_width_or_vocabulary_is_refused(base, corpus, tmp_path, capsys):
    wide = tiny_base(tmp_path / "wide", hidden_size=48)
    assert main(flags("mlm", base, corpus, tmp_path / "out", anchor=wide, **SHORT)) == 2
    assert "its vectors are 48 wide, [CLS] of the base is 24 wide" in capsys.readouterr().err
    other = tiny_base(tmp_path / "other")
    path = other / "tokenizer.json"
    path.write_text(path.read_text().replace('"cat"', '"cow"'))
    assert main(flags("mlm", base, corpus, tmp_path / "out", anchor=other, **SHORT)) == 2
    assert "its vocabulary is not that of the base" in capsys.readouterr().err
    assert (
        main(flags("mlm", base, corpus, tmp_path / "out", anchor=tmp_path / "absent", **SHORT)) == 2
    )
    assert "no such model folder" in capsys.readouterr().err
    assert main(flags("mlm", base, corpus, tmp_path / "out", **{"anchor-weight": 2}, **SHORT)) == 2
    assert "--anchor-weight applies only with --anchor" in capsys.readouterr().err
