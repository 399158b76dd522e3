"""A teacher's scores against plain transformers, one pair at a time; kills, refusals."""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import partialmethod
from math import log

import pytest
import torch
from support.rerank_samples import kill_when, write_base, write_mined

from dupmae_ir.finetune import scoring as score
from dupmae_ir.finetune.data import open_passages, read_mined, read_scores, require_scores
from dupmae_ir.finetune.mine import main as mine
from dupmae_ir.finetune.score import main
from dupmae_ir.testing import HashingEncoder


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
                logits = net(
                    **tokenizer(m.query, text, truncation=True, max_length=40, return_tensors="pt")
                ).logits[0]
            value = logits[0] if len(logits) == 1 else logits[1] - logits[0]
            found.setdefault(m.qid, {})[d.docid] = float(value)
    return found


@pytest.mark.parametrize("labels", [1, 2])
def test_scores_are_those_of_plain_transformers_one_by_one(folder, labels):
    write_base(folder / "other", labels=labels)
    assert command(folder, "--batch-tokens", 300, model="other") == 0
    scores = read_scores(folder / "scores.jsonl")
    wanted = one_by_one(folder, "other")
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
    assert all(
        row == pytest.approx(wanted[q], abs=1e-5)
        for q, row in read_scores(folder / "scores.jsonl").items()
    )


def test_bfloat16_is_near(folder):
    assert command(folder, "--dtype", "bfloat16") == 0
    wanted = one_by_one(folder, "teacher")
    for qid, row in read_scores(folder / "scores.jsonl").items():
        assert row == pytest.approx(wanted[qid], abs=0.02)  # eight bits of mantissa over two layers
    assert (
        json.loads((folder / "scores.jsonl.meta.json").read_text())["settings"]["dtype"]
        == "bfloat16"
    )


SLOW = """
import sys, time
from dupmae_ir.io import lines
from dupmae_ir.finetune.mine import main as mine
from dupmae_ir.finetune import scoring as score
score.WINDOW = 8
plain = lines.ResumableJsonl.append
def slowly(self, rows):
    plain(self, rows)
    time.sleep(0.3)
lines.ResumableJsonl.append = slowly
from dupmae_ir.finetune.score import main
from dupmae_ir.testing import HashingEncoder
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.nightly
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
    for model, says in (
        ("encoder", "not a sequence classifier"),
        ("nli", "a classifier with 3 labels"),
    ):
        assert command(folder, model=model) == 2
        assert says in capsys.readouterr().err
    config = json.loads((folder / "encoder" / "config.json").read_text())
    config |= {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "x"},
        "label2id": {"x": 0},
    }
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


@pytest.fixture
def mined(tmp_path):
    """40 passages of random words and 6 pairs whose positives are among them, mined by BM25 and by vectors."""
    rng = random.Random(1)
    words = [f"word{i}" for i in range(40)]
    passages = [
        {"_id": f"d{i}", "title": "", "text": " ".join(rng.choices(words, k=10))} for i in range(40)
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(p) + "\n" for p in passages))
    pairs = [
        {
            "query": " ".join(p["text"].split()[:3]),
            "positive": {"id": p["_id"], "title": "", "text": p["text"]},
        }
        for p in passages[:6]
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(p) + "\n" for p in pairs))
    flags = [
        "--pairs",
        tmp_path / "pairs.jsonl",
        "--collection",
        tmp_path / "corpus.jsonl",
        "--by",
        "both",
    ]
    flags += [
        "--model",
        "testing:hashing",
        "--parts",
        "dense",
        "--depth",
        12,
        "--output",
        tmp_path / "mined.jsonl",
    ]
    assert mine([*map(str, flags), "--quiet"]) == 0
    return tmp_path


def fused(folder, *more, output="fused.jsonl"):
    flags = ["--mined", folder / "mined.jsonl", "--teacher", "fused", "--model", "testing:hashing"]
    return main([*map(str, [*flags, "--output", folder / output, "--quiet", *more])])


def lists(folder):
    """qid -> (BM25 scores, dense scores) of all passages of the collection, without the toolkit's own searches."""
    encoder = HashingEncoder()
    passages = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    vectors = encoder.encode_documents([p["text"] for p in passages]).cls
    lengths = [len(p["text"].split()) for p in passages]
    found = {}
    for m in read_mined(folder / "mined.jsonl"):
        dense = vectors @ encoder.encode_queries([m.query]).cls[0]
        bm25 = {}
        for p, n in zip(passages, lengths, strict=True):
            counts = Counter(p["text"].split())
            score = 0.0
            for word in m.query.split():
                df = sum(word in q["text"].split() for q in passages)
                norm = 0.9 * (0.6 + 0.4 * n / (sum(lengths) / len(lengths)))
                score += (
                    log(1 + (40 - df + 0.5) / (df + 0.5)) * counts[word] / (counts[word] + norm)
                )
            if score:
                bm25[p["_id"]] = score
        found[m.qid] = (bm25, {p["_id"]: float(d) for p, d in zip(passages, dense, strict=True)})
    return found


def best(scores, depth):
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:depth])


def min_max(scores, docid):
    low = min(scores.values())
    high = max(scores.values())
    return (scores[docid] - low) / (high - low) if docid in scores else 0.0


def reciprocal(scores, docid):
    return 1 / (60 + 1 + list(scores).index(docid)) if docid in scores else 0.0


@pytest.mark.jvm
def test_fused_scores_are_those_of_the_lists_by_hand(mined):
    assert fused(mined, "--depth", 9) == 0
    assert fused(mined, "--fusion", "rrf", "--depth", 9, output="rrf.jsonl") == 0
    assert fused(mined, "--fusion", "sum", "--dense-weight", 7, output="sum.jsonl") == 0
    by_hand = lists(mined)
    rows = [read_scores(mined / f"{name}.jsonl") for name in ("fused", "rrf", "sum")]
    seen = 0
    for m in read_mined(mined / "mined.jsonl"):
        bm25, dense = by_hand[m.qid]
        short = (best(bm25, 9), best(dense, 9))
        for docid in (*(p.docid for p in m.positives), *m.negatives):
            wanted = [
                sum(min_max(s, docid) for s in short) / 2,
                sum(reciprocal(s, docid) for s in short),
                bm25.get(docid, 0.0) + 7 * dense[docid],
            ]
            assert [row[m.qid][docid] for row in rows] == pytest.approx(wanted, rel=1e-5, abs=1e-5)
            seen += wanted[0] == 0.0
    assert seen  # some candidate is in neither short list
    require_scores(read_mined(mined / "mined.jsonl"), rows[0], "fused.jsonl")


@pytest.mark.jvm
@pytest.mark.parametrize("parts", ["hybrid", "dense"])
def test_the_retrievers_score_has_its_own_weights_of_the_parts(mined, monkeypatch, parts):
    monkeypatch.setattr(
        HashingEncoder, "__init__", partialmethod(HashingEncoder.__init__, part_weights=(6.0, 0.5))
    )
    flags = ["--fusion", "sum", "--parts", parts, "--dense-weight", 7]
    assert fused(mined, *flags, output="sum.jsonl") == 0
    found = read_scores(mined / "sum.jsonl")
    by_hand = lists(mined)
    encoder = HashingEncoder()
    texts = {
        p["_id"]: p["text"]
        for p in map(json.loads, (mined / "corpus.jsonl").read_text().splitlines())
    }
    for m in read_mined(mined / "mined.jsonl"):
        bm25, dense = by_hand[m.qid]
        for docid in (*(p.docid for p in m.positives), *m.negatives):
            weights = (
                encoder.encode_queries([m.query]).ot @ encoder.encode_documents([texts[docid]]).ot.T
            )[0, 0]
            own = 6 * dense[docid] + 0.5 * weights if parts == "hybrid" else dense[docid]
            # the impact part is in whole impacts
            assert found[m.qid][docid] == pytest.approx(
                bm25.get(docid, 0.0) + 7 * own, rel=2e-2, abs=2e-2
            )


@pytest.mark.jvm
def test_a_fused_teacher_is_recorded_and_resumes(mined):
    assert fused(mined, "--k1", 1.2) == 0
    made = json.loads((mined / "fused.jsonl.meta.json").read_text())["settings"]
    assert made == {
        "teacher": "fused", "fusion": "min-max", "depth": 1000, "parts": "dense", "document_length": None,
        "query_length": None, "k1": 1.2, "b": 0.4, "dtype": "float32",
    }  # fmt: skip
    assert fused(mined, "--k1", 1.2) == 0
    assert fused(mined) == 2


@pytest.mark.jvm
def test_a_positive_outside_the_collection_has_no_fused_score(folder, capsys):
    # The positives of these samples are in no collection.
    assert fused(folder) == 2
    said = capsys.readouterr().err
    assert "72 positives are not in" in said
    assert "use a cross-encoder" in said


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ["--teacher", "fused", "--length", 30],
            "--length applies only with --teacher cross-encoder",
        ),
        (["--fusion", "rrf"], "--fusion applies only with --teacher fused"),
        (["--teacher", "fused", "--rrf-k", 5], "--rrf-k applies only with --fusion rrf"),
        (["--teacher", "fused", "--fusion", "sum", "--depth", 5], "--depth applies only"),
    ],
)
def test_settings_of_another_teacher_are_refused(folder, capsys, flags, says):
    flags = ["--mined", folder / "mined.jsonl", "--model", "m", "--output", folder / "o", *flags]
    assert main([*map(str, flags)]) == 2
    assert says in capsys.readouterr().err
