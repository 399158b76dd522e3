"""A teacher's scores against plain transformers, one pair at a time; kills, refusals."""

from __future__ import annotations

import json

import pytest
import torch
from rerank_samples import kill_when, write_base, write_mined

from dupmae_ir.finetune.data.mined import open_passages, read_mined, read_scores, require_scores
from dupmae_ir.finetune.score import run as score
from dupmae_ir.finetune.score.__main__ import main


@pytest.fixture
def folder(tmp_path):
    write_mined(tmp_path)
    write_base(tmp_path / "teacher", labels=1)
    return tmp_path


def command(folder, *more, model="teacher", output="scores.jsonl"):
    return main(
        [
            "--mined",
            str(folder / "mined.jsonl"),
            "--model",
            str(folder / model),
            "--output",
            str(folder / output),
            "--length",
            "40",
            "--device",
            "cpu",
            "--quiet",
            *map(str, more),
        ]
    )


def one_by_one(folder, model, separator=" "):
    """qid -> docid -> score, with nothing but transformers."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    net = AutoModelForSequenceClassification.from_pretrained(folder / model).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / model)
    mined = read_mined(folder / "mined.jsonl")
    passages = open_passages(folder / "mined.jsonl", mined)
    found = {}
    for m in mined:
        for d in (*m.positives, *(passages[n] for n in m.negatives)):
            text = f"{d.title}{separator}{d.text}" if d.title else d.text
            with torch.no_grad():
                logits = net(**tokenizer(m.query, text, truncation=True, max_length=40, return_tensors="pt")).logits[0]
            value = logits[0] if len(logits) == 1 else logits[1] - logits[0]
            found.setdefault(m.qid, {})[d.docid] = float(value)
    return found


@pytest.mark.parametrize("labels", [1, 2])
def test_scores_are_those_of_plain_transformers_one_by_one(folder, labels):
    write_base(folder / "other", labels=labels)
    assert command(folder, "--batch-tokens", 300, model="other") == 0
    scores, wanted = read_scores(folder / "scores.jsonl"), one_by_one(folder, "other")
    assert scores.keys() == wanted.keys()
    for qid, row in wanted.items():
        assert scores[qid] == pytest.approx(row, abs=1e-5)
    assert len({round(s, 4) for row in scores.values() for s in row.values()}) > 20
    mined = read_mined(folder / "mined.jsonl")
    require_scores(mined, scores, "scores.jsonl")
    assert all(len(scores[m.qid]) == len(m.positives) + len(m.negatives) for m in mined)


def test_the_title_separator_is_the_models_own(folder):
    assert command(folder, "--title-separator", "sep") == 0
    wanted = one_by_one(folder, "teacher", " [SEP] ")
    assert all(row == pytest.approx(wanted[q], abs=1e-5) for q, row in read_scores(folder / "scores.jsonl").items())


def test_bfloat16_is_near(folder):
    assert command(folder, "--dtype", "bfloat16") == 0
    wanted = one_by_one(folder, "teacher")
    for qid, row in read_scores(folder / "scores.jsonl").items():
        assert row == pytest.approx(wanted[qid], abs=0.02)  # eight bits of mantissa over two layers
    assert json.loads((folder / "scores.jsonl.meta.json").read_text())["settings"]["dtype"] == "bfloat16"


SLOW = """
import sys, time
from dupmae_ir.io import resumable_jsonl
from dupmae_ir.finetune.score import run as score
score.WINDOW = 8
plain = resumable_jsonl.ResumableJsonl.append
def slowly(self, rows):
    plain(self, rows)
    time.sleep(0.3)
resumable_jsonl.ResumableJsonl.append = slowly
from dupmae_ir.finetune.score.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_killed_and_run_again_it_is_the_same_file(folder, monkeypatch):
    monkeypatch.setattr(score, "WINDOW", 8)
    assert command(folder, output="whole.jsonl") == 0
    flags = [
        "--mined",
        folder / "mined.jsonl",
        "--model",
        folder / "teacher",
        "--output",
        folder / "scores.jsonl",
        "--length",
        40,
        "--device",
        "cpu",
        "--quiet",
    ]
    grown = folder / ".scores.jsonl.work" / "lines.jsonl"
    kill_when(SLOW, flags, lambda: grown.exists() and grown.read_bytes().count(b"\n") >= 16)
    assert not (folder / "scores.jsonl").exists()
    whole = (folder / "whole.jsonl").read_bytes()
    assert whole.startswith(grown.read_bytes())
    with open(grown, "ab") as f:
        f.write(whole[len(grown.read_bytes()) :][:70])
    assert command(folder) == 0
    assert (folder / "scores.jsonl").read_bytes() == whole
    assert not list(folder.glob(".scores*"))


def test_a_finished_file_is_reused_and_other_settings_are_refused(folder, capsys):
    assert command(folder) == 0
    assert command(folder, "--json") == 0
    assert json.loads(capsys.readouterr().out)["status"] == "already complete"
    assert command(folder, "--length", 30) == 2
    assert "--length 40 (requested 30)" in capsys.readouterr().err
    write_base(folder / "teacher", labels=1, hidden_size=12)
    assert command(folder) == 2
    assert "the contents of --model" in capsys.readouterr().err


def test_what_is_no_reranker_is_refused(folder, capsys):
    write_base(folder / "encoder")
    write_base(folder / "nli", labels=3)
    for model, says in (("encoder", "not a sequence classifier"), ("nli", "a classifier with 3 labels")):
        assert command(folder, model=model) == 2
        assert says in capsys.readouterr().err
    config = json.loads((folder / "encoder" / "config.json").read_text())
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "x"}, "label2id": {"x": 0}}
    (folder / "encoder" / "config.json").write_text(json.dumps(config))
    assert command(folder, model="encoder") == 2
    assert "weights are missing (first: classifier" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--length", "65"), "8 to 64"),
        (("--batch-tokens", "0"), "--batch-tokens"),
        (("--mined", "x"), "no such file"),
        (("--model", "x"), "no such model folder"),
        (("--output", "."), "is a folder"),
    ],
)
def test_misuse_is_one_line(folder, capsys, flags, says):
    assert command(folder, *flags) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_a_moved_collection_is_named(folder, capsys):
    (folder / "corpus.jsonl").rename(folder / "elsewhere.jsonl")
    assert command(folder) == 2
    assert "does not exist" in capsys.readouterr().err
    assert command(folder, "--collection", folder / "elsewhere.jsonl") == 0
