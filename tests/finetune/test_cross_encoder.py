"""The teacher's loss restated, its draws, that it learns, and that a killed training comes out the same."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys

import pytest

pytest.importorskip("accelerate", reason="training needs the extra: pip install 'dupmae-ir[train]'")

import torch
from support.rerank_samples import ROOT, kill_when, pair_tokenizer, write_base, write_mined

from dupmae_ir.finetune.cross_encoder import main
from dupmae_ir.finetune.data import open_passages, read_mined
from dupmae_ir.finetune.examples import ExampleKey
from dupmae_ir.finetune.reranker_training import (
    GroupCollator,
    Groups,
    ShuffledBatches,
    group_scores,
    listwise,
)
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.names import model_folder
from dupmae_ir.models.reranker import load_reranker, relevance

# Tiny models are saved within a second of each other, which transformers takes for a clock that stands still.
pytestmark = pytest.mark.filterwarnings("ignore:mtime may not be reliable:UserWarning")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A mined file and a base encoder, which no test changes."""
    folder = tmp_path_factory.mktemp("inputs")
    write_mined(folder)
    write_base(folder / "base")
    return folder


def flags(inputs, output, *more):
    return [
        "--mined",
        str(inputs / "mined.jsonl"),
        "--model",
        str(inputs / "base"),
        "--output",
        str(output),
        "--length",
        "40",
        "--group-size",
        "4",
        "--device",
        "cpu",
        "--log-steps",
        "2",
        "--save-steps",
        "4",
        *map(str, more),
    ]


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_the_loss_restated():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    sizes = [4, 2, 3, 1, 4]
    mask = torch.arange(4) < torch.tensor(sizes).unsqueeze(1)
    wanted = 0.0
    for row, size in zip(scores.tolist(), sizes, strict=True):
        wanted -= math.log(math.exp(row[0]) / sum(math.exp(s) for s in row[:size]))
    assert listwise(scores, mask).item() == pytest.approx(wanted / 5, abs=1e-12)


def test_relevance_is_one_logit_or_the_log_odds():
    logits = torch.tensor([[0.5, 2.0], [1.0, -1.0]])
    assert relevance(logits).tolist() == [1.5, -2.0]
    assert relevance(logits[:, :1]).tolist() == [0.5, 1.0]
    odds = torch.log_softmax(logits, 1)
    assert relevance(logits) == pytest.approx(odds[:, 1] - odds[:, 0])


def test_groups_of_unequal_size_keep_their_scores_and_gradients_apart(inputs):
    model, tokenizer = load_reranker(inputs / "base", new_head=True)
    groups = [("cat the", ["the cat", "dog", "heap on mat"]), ("dog", ["the dog", "queue"])]
    collator = GroupCollator(tokenizer, 40)
    scores, mask = group_scores(model, collator(groups))
    assert mask.tolist() == [[True] * 3, [True, True, False]]
    alone = [group_scores(model, collator([g]))[0][0] for g in groups]
    assert scores[0].tolist() == pytest.approx(alone[0].tolist(), abs=1e-5)
    assert scores[1, :2].tolist() == pytest.approx(alone[1].tolist(), abs=1e-5)
    listwise(scores, mask).backward()
    together = model.classifier.weight.grad.clone()
    model.zero_grad()
    (sum(listwise(s[None], torch.ones(1, len(s), dtype=torch.bool)) for s in alone) / 2).backward()
    assert together == pytest.approx(model.classifier.weight.grad, abs=1e-6)


def test_every_query_once_a_pass_and_another_draw_each_time(inputs):
    batches = list(ShuffledBatches(10, 4, 5, seed=1))
    flat = [d for b in batches for d in b]
    assert sorted(d.row for d in flat if d.epoch == 0) == list(range(10))
    assert [d.row for d in flat[:10]] != [d.row for d in flat[10:]]
    assert (
        batches
        == list(ShuffledBatches(10, 4, 5, seed=1))
        != list(ShuffledBatches(10, 4, 5, seed=2))
    )
    mined = read_mined(inputs / "mined.jsonl")
    passages = open_passages(inputs / "mined.jsonl", mined)
    groups = Groups(mined, passages, 4, " ", seed=1)
    drawn = [groups[ExampleKey(0, epoch)] for epoch in range(6)]
    assert len({tuple(sorted(texts[1:])) for _, texts in drawn}) > 1
    assert drawn == [groups[ExampleKey(0, epoch)] for epoch in range(6)]
    own = mined[0].positives[0].joined()
    others = {passages[n].joined() for n in mined[0].negatives}
    for query, texts in drawn:
        assert (query, texts[0], len(texts)) == (mined[0].query, own, len(set(texts)))
        assert set(texts[1:]) <= others
    assert len(Groups(mined, passages, 99, " ", 1)[ExampleKey(0, 0)][1]) == 1 + len(
        mined[0].negatives
    )


def test_it_learns_and_writes_a_teacher(inputs, tmp_path, capsys):
    more = ("--epochs", 15, "--learning-rate", "5e-3", "--held-out", 8, "--json", "--quiet")
    assert main(flags(inputs, tmp_path / "teacher", *more)) == 0
    report = json.loads(capsys.readouterr().out)
    record = json.loads((tmp_path / "teacher" / "training.json").read_text())
    losses = [row["loss"] for row in record["log"]]
    assert sum(losses[-5:]) < 0.2 * sum(losses[:5])
    assert report["held_out"]["after"]["loss"] < report["held_out"]["before"]["loss"]
    after = f"| held out after loss | {report['held_out']['after']['loss']:.6g} |"
    assert after in (tmp_path / "teacher" / "README.md").read_text()
    assert report["held_out"]["after"]["positive_first"] > 0.8
    assert (report["queries"], report["updates"]) == (40, 75)
    model, _ = load_reranker(tmp_path / "teacher")
    assert model.config.num_labels == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["teacher"]


def test_accumulation_is_one_larger_batch(inputs, tmp_path):
    more = ("--epochs", 1, "--learning-rate", "1e-3", "--dropout", 0, "--quiet")
    assert main(flags(inputs, tmp_path / "a", "--batch-size", 8, *more)) == 0
    assert main(flags(inputs, tmp_path / "b", "--batch-size", 2, "--accumulate", 4, *more)) == 0
    a = weights(tmp_path / "a")
    b = weights(tmp_path / "b")
    # Both biases shift all scores of a softmax alike: their gradient is rounding noise, which Adam blows up.
    names = [k for k in a if not k.endswith(("key.bias", "classifier.bias"))]
    assert all(torch.allclose(a[k], b[k], atol=2e-5) for k in names)
    start = weights(inputs / "base")
    moved = "bert.encoder.layer.0.output.dense.weight"
    assert (a[moved] - start[moved.removeprefix("bert.")]).abs().max() > 1e-3


@pytest.mark.nightly
def test_two_processes_share_the_batches_of_one(inputs, tmp_path):
    """Three batches of an update are no number for two processes: each has half of every batch."""
    more = (
        "--epochs",
        2,
        "--learning-rate",
        "1e-3",
        "--held-out",
        8,
        "--dropout",
        0,
        "--quiet",
        "--batch-size",
        4,
        "--accumulate",
        3,
    )
    assert main(flags(inputs, tmp_path / "one", *more)) == 0
    two = [*flags(inputs, tmp_path / "two", *more), "--processes", "2"]
    command = [sys.executable, "-m", "dupmae_ir.finetune.cross_encoder", *two]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    a = weights(tmp_path / "one")
    b = weights(tmp_path / "two")
    names = [k for k in a if not k.endswith(("key.bias", "classifier.bias"))]  # as above
    assert all(torch.allclose(a[k], b[k], atol=2e-5) for k in names)


@pytest.mark.nightly
def test_a_killed_run_resumes_to_the_same_weights(inputs, tmp_path):
    more = ("--epochs", 4, "--learning-rate", "1e-3", "--held-out", 4, "--quiet")
    assert main(flags(inputs, tmp_path / "whole", *more)) == 0
    work = tmp_path / ".cut.work"
    ready = (work / "checkpoint-8" / "trainer_state.json").is_file
    kill_when(SLOW, flags(inputs, tmp_path / "cut", *more), ready)
    assert not (tmp_path / "cut").exists()
    # An incomplete checkpoint is skipped.
    (work / "checkpoint-999").mkdir()
    (work / "checkpoint-999" / "model.safetensors").write_bytes(b"")
    assert main(flags(inputs, tmp_path / "cut", *more)) == 0
    a = weights(tmp_path / "whole")
    b = weights(tmp_path / "cut")
    assert all(torch.equal(a[k], b[k]) for k in a)
    records = [json.loads((tmp_path / n / "training.json").read_text()) for n in ("whole", "cut")]
    assert [r["loss"] for r in records[0]["log"]] == [r["loss"] for r in records[1]["log"]]
    assert records[0]["result"]["held_out"] == records[1]["result"]["held_out"]
    assert not work.exists()


SLOW = """
import sys, time
from dupmae_ir.finetune.cross_encoder import main
from dupmae_ir.finetune import reranker_training as model
plain = model.RerankerTrainer.compute_loss
def slowly(self, *a, **k):
    time.sleep(0.2 if self.state.global_step >= 8 else 0)
    return plain(self, *a, **k)
model.RerankerTrainer.compute_loss = slowly
sys.exit(main(sys.argv[1:]))
"""


def test_a_classifier_keeps_its_head_and_others_get_one(inputs, tmp_path):
    write_base(tmp_path / "pair", labels=2)
    write_base(tmp_path / "nli", labels=3)
    head = load_reranker(tmp_path / "pair", new_head=True)[0].classifier.weight
    assert torch.equal(head, weights(tmp_path / "pair")["classifier.weight"])
    assert load_reranker(tmp_path / "nli", new_head=True)[0].classifier.weight.shape == (1, 24)
    assert load_reranker(inputs / "base", new_head=True)[0].config.num_labels == 1


def test_other_model_families_get_only_the_inputs_they_accept(tmp_path):
    """DistilBERT has no token types, whatever its tokenizer says."""
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(
        vocab_size=29, dim=24, n_layers=1, n_heads=3, hidden_dim=48, max_position_embeddings=64
    )
    DistilBertModel(config).save_pretrained(tmp_path / "m")
    pair_tokenizer().save_pretrained(tmp_path / "m")
    model, tokenizer = load_reranker(tmp_path / "m", new_head=True)
    scores, _ = group_scores(model, GroupCollator(tokenizer, 40)([("cat", ["the cat", "dog"])]))
    assert scores.shape == (1, 2)


def test_the_embedded_model_becomes_one():
    """Its weights are stored in 8 bits."""
    model, tokenizer = load_reranker(model_folder("default"), new_head=True)
    scores, _ = group_scores(model, GroupCollator(tokenizer, 40)([("cat", ["the cat", "dog"])]))
    assert scores.shape == (1, 2)
    weight = model.bert.encoder.layer[0].output.dense.weight
    encoder, _, _ = load_model(model_folder("default"), need_ot=False)
    assert torch.equal(weight, encoder.lm.encoder.layer[0].output.dense.weight)


def test_checkpointing_and_bfloat16_run(inputs, tmp_path):
    more = ("--epochs", 0.3, "--checkpointing", "--dtype", "bfloat16", "--quiet")
    assert main(flags(inputs, tmp_path / "t", *more)) == 0
    assert all(w.dtype == torch.float32 for w in weights(tmp_path / "t").values())


def test_finished_and_unfinished_work_is_only_continued_with_the_same_settings(
    inputs, tmp_path, capsys
):
    assert main(flags(inputs, tmp_path / "t", "--epochs", 0.2, "--quiet")) == 0
    assert main(flags(inputs, tmp_path / "t", "--epochs", 0.2, "--quiet", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "already complete"
    assert main(flags(inputs, tmp_path / "t", "--epochs", 0.4, "--quiet")) == 2
    assert "--epochs 0.2 (requested 0.4)" in capsys.readouterr().err
    begun = {"settings": {"epochs": 9.0}, "inputs": {}}
    (tmp_path / ".u.work").mkdir()
    (tmp_path / ".u.work" / "job.json").write_text(json.dumps(begun))
    (tmp_path / ".u.work" / "log.jsonl").touch()
    assert main(flags(inputs, tmp_path / "u", "--quiet")) == 2
    error = capsys.readouterr().err
    assert "unfinished work was begun with other settings" in error
    assert "--epochs 9.0 (requested 1.0)" in error


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--group-size", 1), "--group-size must be at least 2"),
        (("--epochs", 0), "--epochs must be greater than 0"),
        (("--held-out", 48), "48 usable queries"),
        (("--length", 200), "8 to 64"),
        (("--warmup", 2), "--warmup"),
        (("--save-steps", 0), "--save-steps must be greater than 0"),
        (("--model", "nowhere"), "no such model folder"),
        (("--mined", "nowhere"), "no such file"),
    ],
)
def test_misuse_is_one_line(inputs, tmp_path, capsys, more, says):
    assert main(flags(inputs, tmp_path / "t", *more)) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_queries_without_negatives_are_left_out_and_counted(inputs, tmp_path, capsys):
    rows = [json.loads(line) for line in (inputs / "mined.jsonl").read_text().splitlines()]
    for row in rows[:5]:
        row.update(negatives=[], scores=[], ranks=[])
    (tmp_path / "mined.jsonl.meta.json").write_bytes(
        (inputs / "mined.jsonl.meta.json").read_bytes()
    )
    (tmp_path / "mined.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    more = ("--mined", tmp_path / "mined.jsonl", "--epochs", 0.2, "--limit", 30)
    assert main(flags(inputs, tmp_path / "t", *more)) == 0
    assert "5 queries have no negative and are left out" in capsys.readouterr().err
    assert json.loads((tmp_path / "t" / "training.json").read_text())["result"]["queries"] == 30


def test_a_loss_that_is_not_finite_stops_with_advice(inputs, tmp_path, capsys):
    assert (
        main(
            flags(
                inputs,
                tmp_path / "t",
                "--learning-rate",
                1e30,
                "--clip",
                1e30,
                "--warmup",
                0,
                "--quiet",
            )
        )
        == 1
    )
    assert "lower --learning-rate" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()


def test_untrained_scores_have_the_loss_of_guessing():
    """Untrained scores give the loss of guessing, log n: the scale on which learning shows."""
    rng = random.Random(0)
    scores = torch.tensor([[rng.gauss(0, 1e-3) for _ in range(4)] for _ in range(50)])
    assert listwise(scores, torch.ones(50, 4, dtype=torch.bool)).item() == pytest.approx(
        math.log(4), abs=1e-3
    )
