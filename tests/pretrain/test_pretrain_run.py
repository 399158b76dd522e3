"""The command as a user runs it: every method, bit-identical resumption, several processes, and every refusal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.pretraining import flags, tiny_base, tiny_corpus

from dupmae_ir.pretrain import run
from dupmae_ir.pretrain.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
METHODS = ("retromae", "dupmae", "master", "cot-mae", "cot-mote", "mlm")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_base(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_corpus(tmp_path_factory.mktemp("corpus") / "c.jsonl")


def log_of(output):
    rows = [
        json.loads(line) for line in (output / "pretraining" / "log.jsonl").read_text().splitlines()
    ]
    return [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in rows]


def encoder_files(output):
    return sorted(p for p in output.rglob("*.safetensors"))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_and_is_saved(method, base, corpus, tmp_path, capsys):
    from dupmae_ir.models.checkpoints.loading import load_model

    output = tmp_path / "out"
    assert (
        main(
            [
                *flags(
                    method, base, corpus, output, steps=40, **{"save-steps": 20, "eval-steps": 20}
                ),
                "--json",
            ]
        )
        == 0
    )
    summary = json.loads(capsys.readouterr().out)
    first = summary["held_out"]["first"]
    last = summary["held_out"]["last"]
    assert set(first) == set(last)
    # The loss of every task decreases on text that was not trained on.
    losses = [k for k in first if k.startswith("loss")]
    assert {k: last[k] < first[k] for k in losses} == dict.fromkeys(losses, True)
    record = json.loads((output / "training.json").read_text())
    assert record["made_by"] == "dupmae-ir pretrain"
    assert (record["settings"]["method"], record["settings"]["length"]) == (method, 24)
    assert set(record["inputs"]) == {"corpus", "model"}
    folder = output / "passage_model" if method == "cot-mote" else output
    model, _, config = load_model(folder)
    assert (config.method, config.include_sep) == (method, method == "dupmae")
    assert model.lm.config.hidden_size == 24
    for name in ("log.jsonl", "losses.png", "decoders.safetensors", "tensorboard"):
        assert (output / "pretraining" / name).exists()
    assert list(output.parent.glob(".out*")) == []


@pytest.mark.nightly
def test_a_killed_run_resumes_to_identical_weights(base, corpus, tmp_path):
    """kill -9 after a checkpoint; the same command resumes, and all losses and weights are bit-identical."""
    outputs = [tmp_path / "whole", tmp_path / "killed"]
    commands = [
        [
            sys.executable,
            "-m",
            "dupmae_ir.pretrain",
            *flags("dupmae", base, corpus, o, steps=40, accumulate=2),
        ]
        for o in outputs
    ]
    quiet = {
        "cwd": ROOT,
        "stdout": subprocess.DEVNULL,
        "env": {**os.environ, "OMP_NUM_THREADS": "1"},
    }
    subprocess.run(commands[0], check=True, stderr=subprocess.DEVNULL, **quiet)
    for after in (4, 20):
        victim = subprocess.Popen(commands[1], stderr=subprocess.DEVNULL, **quiet)
        wait_for(tmp_path / ".killed.work", after, victim)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    assert not outputs[1].exists()
    resumed = subprocess.run(commands[1], check=True, stderr=subprocess.PIPE, text=True, **quiet)
    assert "resuming from" in resumed.stderr
    for a, b in zip(encoder_files(outputs[0]), encoder_files(outputs[1]), strict=True):
        assert a.read_bytes() == b.read_bytes(), a.name
    assert log_of(outputs[0]) == log_of(outputs[1])


def wait_for(work, step, process):
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and process.poll() is None:
        done = [
            int(p.parent.name.rpartition("-")[2])
            for p in work.glob("checkpoint-*/trainer_state.json")
        ]
        if max(done, default=0) >= step:
            return
        time.sleep(0.01)
    pytest.fail(f"no checkpoint at step {step}: the process ended with {process.poll()}")


@pytest.mark.nightly
def test_workers_change_nothing(base, corpus, tmp_path):
    for name, workers in (("none", 0), ("two", 2)):
        command = [
            sys.executable,
            "-m",
            "dupmae_ir.pretrain",
            *flags("dupmae", base, corpus, tmp_path / name, steps=8, workers=workers),
        ]
        subprocess.run(command, check=True, cwd=ROOT, stderr=subprocess.DEVNULL)
    assert log_of(tmp_path / "none") == log_of(tmp_path / "two")


def weights_of(output):
    from dupmae_ir.models.checkpoints.loading import load_model

    return load_model(output)[0].state_dict()


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["mlm", "retromae", "dupmae", "cot-mote"])
def test_two_processes_train_as_one_with_twice_the_batches(method, corpus, tmp_path):
    """On gloo. The second process has the second of every two batches, which --accumulate 2 gives to one.

    Without dropout, whose masks depend on the process.
    """
    base = tiny_base(tmp_path / "base", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    one = tmp_path / "one"
    two = tmp_path / "two"
    alike = {"steps": 12, "device": "cpu", "held-out": 12, "accumulate": 2}
    assert main([*flags(method, base, corpus, one, **alike), "--quiet"]) == 0
    command = [
        sys.executable,
        "-m",
        "dupmae_ir.pretrain",
        *flags(method, base, corpus, two, **alike, processes=2),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (
        done.stderr.count("plots in") == done.stderr.count("processes 2 x") == 1
    )  # one process reports and publishes
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base", "cache", "one", "two"]
    for ours, theirs in zip(log_of(one), log_of(two), strict=True):
        named = [k for k in ours if "loss" in k]
        # Sums of float32 in another order; Adam divides each gradient by its own size.
        assert {k: theirs[k] for k in named} == pytest.approx({k: ours[k] for k in named}, rel=1e-4)
    folder = "passage_model" if method == "cot-mote" else "."
    first, second, start = (weights_of(f) for f in (one / folder, two / folder, base))
    moved = max(float((first[k] - start[k]).abs().max()) for k in first if k in start)
    assert max(float((first[k] - second[k]).abs().mean()) for k in first) < 0.02 * moved
    assert moved > 0


@pytest.mark.nightly
def test_losses_are_logged_through_every_wrapper(corpus, tmp_path):
    """A model compiled by accelerate inside of DistributedDataParallel: the same losses by name, the same weights."""
    base = tiny_base(tmp_path / "base", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    one = tmp_path / "one"
    two = tmp_path / "two"
    alike = {"steps": 4, "device": "cpu", "held-out": 0, "accumulate": 2}
    assert main([*flags("dupmae", base, corpus, one, **alike), "--quiet"]) == 0
    command = [
        sys.executable,
        "-m",
        "dupmae_ir.pretrain",
        *flags("dupmae", base, corpus, two, **alike, processes=2),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_DYNAMO_BACKEND": "EAGER"}
    subprocess.run(command, cwd=ROOT, check=True, env=environment)
    for ours, theirs in zip(log_of(one), log_of(two), strict=True):
        named = [k for k in ours if "loss" in k]
        assert {k: theirs[k] for k in named} == pytest.approx({k: ours[k] for k in named}, rel=1e-4)
    assert weights_of(one).keys() == weights_of(two).keys()


def test_a_continued_run_starts_from_the_decoders_too(base, corpus, tmp_path, capsys):
    """DupMAE-dagger: the same command from --init-from on another corpus."""
    assert main(flags("dupmae", base, corpus, tmp_path / "first", steps=4)) == 0
    other = tiny_corpus(tmp_path / "other.jsonl", seed=9)
    words = flags(
        "dupmae", None, other, tmp_path / "second", steps=4, **{"init-from": tmp_path / "first"}
    )
    assert main(words) == 0
    assert "decoder weights loaded from" in capsys.readouterr().err
    rows = log_of(tmp_path / "second")
    fresh = flags("dupmae", tmp_path / "first", other, tmp_path / "third", steps=4)
    assert main(fresh) == 0
    # The decoder continues from its weights instead of new ones.
    assert rows[0]["eval_loss_decoder"] < log_of(tmp_path / "third")[0]["eval_loss_decoder"]


def test_training_from_scratch(corpus, base, tmp_path):
    words = flags(
        "retromae",
        None,
        corpus,
        tmp_path / "out",
        steps=2,
        **{"from-config": base / "config.json", "tokenizer": base},
    )
    assert main(words) == 0
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_two_corpora_with_weights(base, corpus, tmp_path, capsys):
    text = tmp_path / "plain.txt"
    text.write_text("the cat sat on the mat\n" * 30)
    assert (
        main(flags("retromae", base, [corpus, text], tmp_path / "out", steps=2, weights=[1, 3]))
        == 0
    )
    err = capsys.readouterr().err
    assert "c.jsonl: 120 texts" in err
    assert "plain.txt: 30 texts" in err


def test_a_nan_never_replaces_a_good_checkpoint(base, corpus, tmp_path, capsys, monkeypatch):
    from dupmae_ir.models.objectives.retromae import RetroMAE

    real = RetroMAE.forward
    calls = []

    def poisoned(self, batch):
        loss, terms = real(self, batch)
        calls.append(1)
        return (loss * float("nan"), terms) if self.training and len(calls) > 12 else (loss, terms)

    monkeypatch.setattr(RetroMAE, "forward", poisoned)
    output = tmp_path / "out"
    assert main(flags("retromae", base, corpus, output, steps=40)) == 1
    err = capsys.readouterr().err.splitlines()[-1]
    assert "the loss is nan; the last good checkpoint is" in err
    assert "--learning-rate" in err
    assert not output.exists()
    monkeypatch.setattr(RetroMAE, "forward", real)
    assert main(flags("retromae", base, corpus, output, steps=40)) == 0


def test_weights_that_overflow_are_not_saved(base, corpus, tmp_path, capsys, monkeypatch):
    """A loss may still be finite where the update was not."""
    from dupmae_ir.pretrain.trainer import PretrainTrainer

    real = PretrainTrainer._save_checkpoint

    def poisoned(self, *args, **kwargs):
        if self.state.global_step == 8:
            self.model.lm.bert.embeddings.LayerNorm.bias.data[0] = float("inf")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(PretrainTrainer, "_save_checkpoint", poisoned)
    assert main(flags("retromae", base, corpus, tmp_path / "out")) == 1
    err = capsys.readouterr().err.splitlines()[-1]
    assert "has values that are not finite" in err
    assert "checkpoint-4" in err
    assert not (tmp_path / ".out.work" / "checkpoint-8").exists()


def test_checkpoints_of_other_settings_are_not_resumed(base, corpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run, "_save", lambda *_: exec("raise KeyboardInterrupt"))
    assert main(flags("retromae", base, corpus, tmp_path / "out")) == 130
    assert main(flags("retromae", base, corpus, tmp_path / "out", seed=7)) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert "unfinished work was begun with other settings: --seed 42 (requested 7)" in err


def test_a_finished_run_returns_its_result(base, corpus, tmp_path, capsys):
    words = [*flags("retromae", base, corpus, tmp_path / "out"), "--json"]
    assert main(words) == 0
    first = json.loads(capsys.readouterr().out)
    before = {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert main([*words, "--device", "cpu", "--keep", "1"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (first.pop("status"), again.pop("status")) == ("complete", "already complete")
    assert {k: v for k, v in first.items() if k not in ("seconds", "tokens_per_second")} == again
    assert {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()} == before
    assert not list(tmp_path.glob(".out*"))


def test_a_model_with_other_settings_is_not_overwritten(base, corpus, tmp_path, capsys):
    assert main(flags("retromae", base, corpus, tmp_path / "out", steps=2)) == 0
    assert (
        main(flags("retromae", base, corpus, tmp_path / "out", steps=2, **{"decoder-ratio": 0.7}))
        == 2
    )
    assert (
        "already exists with other settings: --decoder-ratio 0.5 (requested 0.7)"
        in capsys.readouterr().err
    )
    other = tiny_corpus(tmp_path / corpus.name, seed=5)
    assert main(flags("retromae", base, other, tmp_path / "out", steps=2)) == 2
    assert "the contents of --corpus" in capsys.readouterr().err


def test_a_folder_of_unknown_origin_is_not_overwritten(base, corpus, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "training.json").write_text("{}")
    assert main(flags("retromae", base, corpus, tmp_path / "out")) == 2
    assert "not a record of this toolkit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 65}, "positions for 64 tokens"),
        ({"encoder-ratio": 1}, "--encoder-ratio must be less than 1"),
        ({"bow-weight": 1}, "--bow-weight applies only with --method dupmae"),
        ({"model": None}, "give one of --model, --init-from, --from-config"),
        ({"model": "absent"}, "no such model folder"),
        ({"corpus": "absent.txt"}, "no such file"),
        ({"held-out": 500}, "there are only 120 texts"),
        ({"weights": [1, 2]}, "2 weights for 1 corpora"),
        ({"eval-steps": 3}, "--eval-steps must be a multiple of --log-steps"),
        ({"init-from": "x"}, "give only one of --model, --init-from, --from-config"),
        ({"from-config": "x", "model": None}, "--tokenizer"),
        ({"warmup": 2}, "--warmup must be at most 1"),
    ],
)
def test_misuse_is_one_line(base, corpus, tmp_path, capsys, changes, message):
    assert main(flags("retromae", base, corpus, tmp_path / "out", **changes)) == 2
    err = capsys.readouterr().err.strip().splitlines()
    assert message in err[-1]
    assert "Traceback" not in "".join(err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("method", "changes", "row", "message"),
    [
        ("master", {}, {"text": "the cat"}, "none of its texts has generated queries"),
        ("master", {"tasks": ["gpt2"]}, {"text": "the cat"}, "generated continuation"),
        ("cot-mote", {}, {"text": "the cat"}, "none of its texts has generated queries"),
        ("cot-mae", {}, {"text": "the cat"}, "no document of it has two texts"),
    ],
)
def test_a_corpus_that_lacks_what_the_method_needs(
    base, tmp_path, capsys, method, changes, row, message
):
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps({**row, "n": n}) + "\n" for n in range(20)))
    assert main(flags(method, base, path, tmp_path / "out", **changes)) == 2
    assert message in capsys.readouterr().err


def test_a_base_without_mask_token_or_head(corpus, tmp_path, capsys):
    from support.tiny_models import tiny_config, tiny_tokenizer
    from transformers import BertModel

    base = tiny_base(tmp_path / "maskless")
    tokenizer = tiny_tokenizer()
    tokenizer.mask_token = None
    shutil.rmtree(base, ignore_errors=True)
    tiny_base(base)
    tokenizer.save_pretrained(base)
    assert main(flags("retromae", base, corpus, tmp_path / "out")) == 2
    assert "no mask token" in capsys.readouterr().err
    bare = tmp_path / "bare"
    BertModel(tiny_config()).save_pretrained(bare)
    tiny_tokenizer().save_pretrained(bare)
    assert main(flags("retromae", bare, corpus, tmp_path / "out")) == 2
    assert "--add-head" in capsys.readouterr().err
