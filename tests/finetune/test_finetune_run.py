"""The whole command on a tiny model: it learns, it resumes, it refuses."""

from __future__ import annotations

import json
import random

import pytest

pytest.importorskip("accelerate", reason="training needs the extra: pip install 'dupmae-ir[train]'")

from dupmae_ir.finetune.__main__ import main
from dupmae_ir.finetune.config import FinetuneConfig
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.training.trainer import last_checkpoint

WORDS = [
    "cat",
    "dog",
    "fox",
    "heap",
    "queue",
    "list",
    "tree",
    "graph",
    "mat",
    "quick",
    "brown",
    "lazy",
]


@pytest.fixture
def folder(tmp_path):
    """A tiny BERT masked LM and 96 pairs in which a query shares its one distinctive word with its passage."""
    import torch
    from support.tiny_models import tiny_config, tiny_tokenizer
    from transformers import BertForMaskedLM

    torch.manual_seed(0)
    BertForMaskedLM(tiny_config(initializer_range=0.1)).save_pretrained(tmp_path / "base")
    tiny_tokenizer().save_pretrained(tmp_path / "base")
    rng = random.Random(0)
    with open(tmp_path / "pairs.jsonl", "w") as f:
        for i in range(96):
            word = WORDS[i % len(WORDS)]
            noise = " ".join(rng.choices(["the", "on", "over", "sat", "runs"], k=5))
            f.write(
                json.dumps({"query": f"{word} on", "positive": f"{noise} {word}", "kind": "x"})
                + "\n"
            )
    return tmp_path


def command(folder, *more, output="out"):
    return main(
        [
            "--pairs",
            str(folder / "pairs.jsonl"),
            "--model",
            str(folder / "base"),
            "--output",
            str(folder / output),
            "--batch-size",
            "12",
            "--group-size",
            "1",
            "--cls-dim",
            "8",
            "--quiet",
            "--query-flops",
            "0",
            "--document-flops",
            "0",
            *more,
        ]
    )


def test_it_learns_and_writes_a_checkpoint_that_encodes(folder, capsys):
    assert (
        command(
            folder, "--epochs", "15", "--learning-rate", "3e-3", "--document-length", "16", "--json"
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["queries"] == 96
    record = json.loads((folder / "out" / "training.json").read_text())
    losses = [row["loss_contrastive"] for row in record["log"] if "loss" in row]
    assert losses[-1] < 0.7 * losses[0]
    assert record["settings"]["batch_size"] == 12
    encoder = TextEncoder.load(folder / "out", document_length=32, query_length=16)
    d = encoder.encode_documents([f"the sat over on runs {w}" for w in WORDS])
    q = encoder.encode_queries([f"{w} on" for w in WORDS])
    scores = q.cls @ d.cls.T + (q.ot @ d.ot.T).toarray()
    assert (scores.argmax(1) == range(len(WORDS))).mean() > 0.7


@pytest.mark.parametrize(
    ("stop", "last"),
    [
        ("on_step_end", "checkpoint-5"),
        pytest.param("on_train_end", "checkpoint-16", marks=pytest.mark.nightly),
    ],
)
def test_an_interrupted_run_resumes_to_the_same_files(folder, monkeypatch, stop, last):
    """The weights, the tokenizer, the log and the share of padding, stopped in the middle and after the last update."""
    dev = ("--dev", str(folder / "pairs.jsonl"), "--eval-steps", "4")
    # The checkpoint is between two entries of the log, whose means go on from it.
    settings = (
        "--epochs",
        "2",
        "--learning-rate",
        "1e-3",
        "--save-steps",
        "5",
        "--log-steps",
        "4",
        *dev,
    )
    assert command(folder, *settings, output="whole") == 0

    import transformers

    def cut(self, args, state, control, **_):
        if state.global_step in (7, 16):
            raise KeyboardInterrupt

    from dupmae_ir.finetune import trainer

    original = trainer.PairTrainer.__init__

    def with_cut(self, *a, **k):
        original(self, *a, **k)
        self.add_callback(type("Cut", (transformers.TrainerCallback,), {stop: cut})())

    with monkeypatch.context() as m:
        m.setattr(trainer.PairTrainer, "__init__", with_cut)
        assert command(folder, *settings, output="cut") == 130
    assert not (folder / "cut").exists()
    assert last_checkpoint(folder / ".cut.work").name == last
    assert command(folder, *settings, output="cut") == 0
    assert contents(folder / "cut") == contents(folder / "whole")


def contents(folder):
    """The files of a model folder, without pictures, TensorBoard's times and the seconds of the run."""
    made = {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    kept = {
        name: data
        for name, data in made.items()
        if name.suffix != ".png" and "tensorboard" not in name.parts
    }
    record = json.loads((folder / "training.json").read_text())
    kept[(folder / "training.json").relative_to(folder)] = {
        k: v for k, v in record.items() if k not in ("seconds", "created", "time")
    }
    return kept


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (("--epochs", "2"), "--epochs 1.0 (requested 2.0)"),
        (("--dropout", "0.1"), "--dropout 0.0 (requested 0.1)"),
    ],
)
def test_other_settings_are_refused_and_named(folder, capsys, other, expected):
    assert command(folder) == 0
    assert command(folder, *other) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_run_again_after_success_gives_the_same_result_and_the_log_is_kept(folder, capsys):
    assert command(folder, "--json", "--log-steps", "2") == 0
    first = json.loads(capsys.readouterr().out)
    assert command(folder, "--json", "--log-steps", "2") == 0
    again = json.loads(capsys.readouterr().out)
    assert (first.pop("status"), again.pop("status")) == ("complete", "already complete")
    del first["seconds"]
    assert again == first
    assert not list(folder.glob(".out*"))
    log = folder / "out" / "training"
    assert {p.name for p in log.iterdir()} == {"log.jsonl", "losses.png", "tensorboard"}
    card = (folder / "out" / "README.md").read_text()
    assert "(training/losses.png)" in card
    assert f"| queries | {first['queries']} |" in card
    assert [json.loads(row) for row in (log / "log.jsonl").read_text().splitlines()] == json.loads(
        (folder / "out" / "training.json").read_text()
    )["log"]


def test_changed_pairs_are_refused(folder, capsys):
    assert command(folder) == 0
    with open(folder / "pairs.jsonl", "a") as f:
        f.write('{"query": "cat", "positive": "the cat"}\n')
    assert command(folder) == 2
    assert "the contents of --pairs" in capsys.readouterr().err


def test_an_output_of_unknown_origin_is_not_overwritten(folder, capsys):
    (folder / "out").mkdir()
    (folder / "out" / "training.json").write_text("{}")
    assert command(folder) == 2
    assert "not a record of this toolkit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--cap", "x"), "expected KIND=N"),
        (("--cap", "nope=3"), "kinds here: x"),
        (("--batch-size", "500"), "96 pairs do not fill a batch; give --batch-size 96 or less"),
        (("--model", "/nowhere"), "no such model folder"),
        (("--epochs", "0"), "--epochs"),
        (("--learning-rate", "-1"), "--learning-rate"),
        (("--temperature", "0"), "--temperature"),
    ],
)
def test_bad_settings_are_one_line(folder, capsys, flags, says):
    assert command(folder, *flags) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_base_without_a_head_needs_enough_passages(folder, capsys):
    from support.tiny_models import tiny_config
    from transformers import BertModel

    BertModel(tiny_config()).save_pretrained(folder / "base")
    (folder / "base" / "model.safetensors").stat()
    assert command(folder) == 2
    assert "too few to calibrate" in capsys.readouterr().err


def test_a_teacher_holds_the_cls_part_near_its_vectors(folder):
    flags = (
        "--epochs",
        "4",
        "--learning-rate",
        "3e-3",
        "--document-length",
        "16",
        "--cls-dim",
        "24",
    )
    teacher = ("--teacher", str(folder / "base"), "--anchor-weight", "20")
    assert command(folder, *flags, *teacher) == 0
    log = [
        row
        for row in json.loads((folder / "out" / "training.json").read_text())["log"]
        if "loss" in row
    ]
    assert log[-1]["loss_anchor"] < 0.6 * log[0]["loss_anchor"]


def test_a_new_projection_is_the_least_squares_to_the_teachers_vectors(folder):
    """Nothing beats it on the passages it was fitted to: neither an orthogonal one nor itself, a little off."""
    import torch

    from dupmae_ir.finetune.base import load_base
    from dupmae_ir.finetune.setup import starting_model

    base = str(folder / "base")
    config = FinetuneConfig(
        pairs=("-",), output="-", model=base, teacher=base, cls_dim=24, document_length=16
    )
    start = starting_model(config)
    passages = [" ".join(random.Random(i).choices(WORDS, k=4)) for i in range(300)]
    model, tokenizer = load_base(start, passages, True)
    read = tokenizer(passages, padding=True, return_tensors="pt")
    with torch.no_grad():
        target = start.teacher.for_student(model)(read["input_ids"], read["attention_mask"])
        first = model.hidden(read["input_ids"], read["attention_mask"])[:, 0]

    def distance(weight):
        return (first @ weight.t() - target).square().sum(1).mean().item()

    fitted = model.projection.weight.detach()
    others = [
        torch.nn.init.orthogonal_(torch.empty(24, 24)),
        1.1 * fitted,
        fitted + 0.05 * torch.randn(24, 24),
    ]
    assert distance(fitted) < 0.9 * min(map(distance, others))


def test_two_encoders_start_with_one_projection(folder):
    """Of their own each: equal, so that a query's vector is comparable to a passage's, and free to differ."""
    import torch
    from support.tiny_models import tiny_config, tiny_tokenizer
    from transformers import BertForMaskedLM

    from dupmae_ir.finetune.base import load_base
    from dupmae_ir.finetune.setup import starting_model
    from dupmae_ir.models.checkpoints.model_config import ModelConfig
    from dupmae_ir.models.checkpoints.saving import save_model
    from dupmae_ir.models.heads.masked_lm import excluded_ids
    from dupmae_ir.models.retriever import Retriever, UntiedRetriever

    tokenizer = tiny_tokenizer()
    sides = [
        Retriever(BertForMaskedLM(tiny_config()), None, *excluded_ids(tokenizer)) for _ in range(2)
    ]
    save_model(folder / "two", UntiedRetriever(*sides), tokenizer, ModelConfig())
    config = FinetuneConfig(
        pairs=("-",), output="-", model=str(folder / "two"), encoder="untied", cls_dim=8
    )
    model, _ = load_base(starting_model(config), [], True)
    query = model.query.projection
    document = model.document.projection
    assert torch.equal(query.weight, document.weight)
    assert query is not document


def test_adding_a_head_keeps_the_projection(folder):
    import torch
    from support.tiny_models import tiny_config, tiny_tokenizer
    from transformers import BertModel

    from dupmae_ir.models.checkpoints.model_config import ModelConfig
    from dupmae_ir.models.checkpoints.saving import save_model
    from dupmae_ir.models.heads.calibration import load_with_calibrated_head
    from dupmae_ir.models.heads.masked_lm import excluded_ids
    from dupmae_ir.models.retriever import Retriever

    tokenizer = tiny_tokenizer()
    bare = Retriever(
        BertModel(tiny_config()), torch.nn.Linear(24, 5, bias=False), *excluded_ids(tokenizer)
    )
    save_model(folder / "bare", bare, tokenizer, ModelConfig())
    model, _ = load_with_calibrated_head(
        folder / "bare", [f"{a} {b}" for a in WORDS for b in WORDS] * 2, cls_dim=24
    )
    assert torch.equal(model.projection.weight, bare.projection.weight)


def test_a_calibrated_start_has_few_ot_weights_and_a_small_loss(folder):
    import torch

    from dupmae_ir.finetune.base import load_base
    from dupmae_ir.finetune.setup import starting_model

    passages = [
        json.loads(line)["positive"] for line in (folder / "pairs.jsonl").read_text().splitlines()
    ]
    logits = []
    for calibrate in (False, True):
        config = FinetuneConfig(
            pairs=("-",),
            output="-",
            model=str(folder / "base"),
            calibrate=calibrate,
            activation="none",
        )
        model, tokenizer = load_base(starting_model(config), passages, quiet=True)
        batch = tokenizer(passages, padding=True, return_tensors="pt")
        side = model.side("document")
        with torch.no_grad():
            logits.append(
                side(batch["input_ids"], batch["attention_mask"], cls=False)[1][:, side.term_mask]
            )
    before, after = logits
    assert (before > 0).float().mean() > 0.3
    assert (after > 0).float().mean() < 0.1  # a word must be 2.5 deviations above its mean
    assert torch.allclose(after.std(0), before.std(0), atol=1e-5)  # only the bias is another
    assert torch.allclose(after.mean(0), -2.5 * after.std(0, correction=0), rtol=0.2)


def test_a_head_without_a_bias_cannot_be_calibrated(folder):
    import torch

    from dupmae_ir.errors import CheckpointError
    from dupmae_ir.models.checkpoints.loading import load_model
    from dupmae_ir.models.heads.calibration import calibrate_bias

    model, tokenizer, _ = load_model(folder / "base")
    model.ot_projection = torch.nn.Linear(4, 4, bias=False)
    with pytest.raises(CheckpointError, match="no bias"):
        calibrate_bias(model, tokenizer, ["cat"] * 300)


def test_a_head_that_is_not_used_is_not_calibrated(folder):
    from dupmae_ir.errors import UsageError
    from dupmae_ir.finetune.setup import starting_model

    config = FinetuneConfig(
        pairs=("-",), output="-", model=str(folder / "base"), calibrate=True, ot="token_weight"
    )
    with pytest.raises(UsageError, match="`calibrate` is for the bias of a masked-LM head"):
        starting_model(config)


def test_a_teacher_of_another_width_is_refused(folder, capsys):
    assert command(folder, "--teacher", str(folder / "base")) == 2
    assert "24 wide" in capsys.readouterr().err


def test_every_setting_has_help():
    import dataclasses

    assert all(f.metadata["help"] for f in dataclasses.fields(FinetuneConfig))
