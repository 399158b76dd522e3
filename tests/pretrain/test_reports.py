"""What a training run reports: trackers, callbacks, the card, and the upload to the hub."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from typing import ClassVar

import huggingface_hub
import pytest
import transformers
from support.pretraining import flags, tiny_base, tiny_corpus

from dupmae_ir.config import parse
from dupmae_ir.console import Parser
from dupmae_ir.errors import UsageError
from dupmae_ir.pretrain import run
from dupmae_ir.pretrain.__main__ import main
from dupmae_ir.pretrain.config import PretrainConfig
from dupmae_ir.training import job
from dupmae_ir.training.report import push

SHORT = {"steps": 4, "save-steps": 2, "eval-steps": 2}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_base(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_corpus(tmp_path_factory.mktemp("corpus") / "c.jsonl")


@pytest.fixture(scope="module")
def made(base, corpus, tmp_path_factory):
    """A finished model."""
    output = tmp_path_factory.mktemp("made") / "out"
    assert main(flags("mlm", base, corpus, output, **SHORT)) == 0
    return output


class Recorder(transformers.TrainerCallback):
    """Keeps what a tracker would send."""

    seen: ClassVar[list] = []

    def on_train_begin(self, args, state, control, **_):
        self.seen.append(args.run_name)

    def on_log(self, args, state, control, logs=None, **_):
        self.seen.append((state.global_step, dict(logs)))


@pytest.fixture(autouse=True)
def nothing_seen():
    Recorder.seen = []


def with_service(monkeypatch, installed):
    real = importlib.util.find_spec
    found = object() if installed else None
    monkeypatch.setattr(
        job.importlib.util,
        "find_spec",
        lambda name, *a: found if name == "wandb" else real(name, *a),
    )


def test_a_tracker_gets_every_entry_from_its_own_integration(base, corpus, tmp_path, monkeypatch):
    from transformers.integrations import integration_utils

    with_service(monkeypatch, True)
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "wandb", Recorder)
    assert (
        main(flags("mlm", base, corpus, tmp_path / "out", **{"report-to": "wandb"}, **SHORT)) == 0
    )
    assert Recorder.seen[0] == "out"
    losses = [step for step, logs in Recorder.seen[1:] if "loss" in logs]
    assert losses == [2, 4]
    kept = {p.name for p in (tmp_path / "out" / "pretraining").iterdir()}
    assert "tensorboard" not in kept
    assert {"log.jsonl", "losses.png"} <= kept


def test_a_tracker_that_is_not_installed_is_one_line(base, corpus, tmp_path, monkeypatch, capsys):
    with_service(monkeypatch, False)
    assert (
        main(flags("mlm", base, corpus, tmp_path / "out", **{"report-to": "wandb"}, **SHORT)) == 1
    )
    assert "--report-to wandb needs the package wandb: pip install wandb" in capsys.readouterr().err
    assert not list(tmp_path.glob("*out*"))


def test_nothing_is_reported_unless_it_is_chosen(base, corpus, tmp_path, monkeypatch):
    from transformers.integrations import integration_utils

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "wandb", Recorder)
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "trackio", Recorder)
    assert main(flags("mlm", base, corpus, tmp_path / "out", **{"report-to": "none"}, **SHORT)) == 0
    assert Recorder.seen == []
    assert not (tmp_path / "out" / "pretraining" / "tensorboard").exists()
    with pytest.raises(UsageError, match="cannot be combined"):
        PretrainConfig(
            method="mlm", model="m", corpus=("c",), output="o", report_to=("none", "wandb")
        )


def test_callbacks_are_called_after_our_own(base, corpus, tmp_path):
    words = flags("mlm", base, corpus, tmp_path / "out", **SHORT)
    config = parse(Parser("pretrain", "", ""), PretrainConfig, [str(w) for w in words])
    run.run(config, [Recorder()])
    assert [step for step, logs in Recorder.seen[1:] if "loss" in logs] == [2, 4]
    assert "loss_mlm" in Recorder.seen[-2][1] or "eval_loss_mlm" in Recorder.seen[-2][1]


def test_the_card_says_how_the_model_was_made(made):
    card = (made / "README.md").read_text()
    record = json.loads((made / "training.json").read_text())
    assert card.startswith("---\nbase_model: ")
    assert "\npipeline_tag: feature-extraction\ntags:\n- information-retrieval\n" in card
    for name, value in record["settings"].items():
        assert f"| `{name}` |" in card, (name, value)
    for name, digest in record["inputs"].items():
        assert re.search(rf"\| {name} \| .* \| `{digest[:16]}` \|", card)
    assert f"| held out last loss | {record['result']['held_out']['last']['loss']:.6g} |" in card
    for picture in re.findall(r"!\[.*\]\((.*)\)", card):
        assert (made / picture).read_bytes().startswith(b"\x89PNG")


def test_equal_runs_have_equal_cards(made, base, corpus, tmp_path):
    assert main(flags("mlm", base, corpus, tmp_path / "other", **SHORT)) == 0
    assert (tmp_path / "other" / "README.md").read_bytes() == (made / "README.md").read_bytes()


def test_activation_checkpointing_changes_no_bit(made, base, corpus, tmp_path):
    assert main(flags("mlm", base, corpus, tmp_path / "other", checkpointing=True, **SHORT)) == 0
    a, b = ((folder / "model.safetensors").read_bytes() for folder in (made, tmp_path / "other"))
    assert a == b


def test_dropout_is_recorded_where_it_is_given_and_the_model_keeps_its_own(
    made, base, corpus, tmp_path
):
    assert main(flags("mlm", base, corpus, tmp_path / "other", dropout=0.0, **SHORT)) == 0
    settings = [
        json.loads((f / "training.json").read_text())["settings"]
        for f in (made, tmp_path / "other")
    ]
    assert [s.get("dropout") for s in settings] == [None, 0.0]
    assert set(settings[1]) - set(settings[0]) == {"dropout"}
    rates = [
        json.loads((f / "config.json").read_text())["hidden_dropout_prob"]
        for f in (base, tmp_path / "other")
    ]
    assert rates[0] == rates[1] > 0
    a, b = ((folder / "model.safetensors").read_bytes() for folder in (made, tmp_path / "other"))
    assert a != b


class Hub:
    """Stands in for huggingface_hub.HfApi."""

    calls: ClassVar[list] = []
    error: Exception | None = None

    def create_repo(self, name, private, exist_ok):
        if self.error is not None:
            raise self.error
        self.calls.append(("create", name, private, exist_ok))
        return f"https://hub.invalid/{name}"

    def upload_folder(self, repo_id, folder_path, commit_message):
        names = sorted(p.name for p in folder_path.iterdir())
        self.calls.append(
            ("upload", repo_id, "model.safetensors" in names and "README.md" in names)
        )


def test_a_finished_model_is_pushed_and_can_be_pushed_again(
    base, corpus, tmp_path, monkeypatch, capsys
):
    Hub.calls = []
    Hub.error = None
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    words = flags("mlm", base, corpus, tmp_path / "out", **{"push-to-hub": "me/mine"}, **SHORT)
    assert main(words) == 0
    once = [("create", "me/mine", True, True), ("upload", "me/mine", True)]
    assert Hub.calls == once
    assert "pushed to https://hub.invalid/me/mine" in capsys.readouterr().err
    assert main(words) == 0
    assert Hub.calls == once * 2


def test_a_push_without_a_network_is_one_line_and_the_model_is_kept(made, monkeypatch):
    from dupmae_ir.errors import EnvironmentProblem

    # Port 1 of this machine: nothing listens.
    closed = functools.partial(huggingface_hub.HfApi, endpoint="http://127.0.0.1:1", token="t")
    monkeypatch.setattr(huggingface_hub, "HfApi", closed)
    with pytest.raises(
        EnvironmentProblem, match=r"no connection to the hub .* is complete; run the same command"
    ) as e:
        push(made, "me/mine", quiet=True)
    assert "\n" not in str(e.value)


def test_a_refused_or_impossible_push_says_what_to_do(made, monkeypatch):
    from dupmae_ir.errors import EnvironmentProblem

    with pytest.raises(UsageError, match="not a name of a repository"):
        push(made, "a/b/c", quiet=True)
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    for error, kind, message in (
        (
            huggingface_hub.errors.LocalTokenNotFoundError("x"),
            UsageError,
            "no token; log in with hf auth login",
        ),
        (
            huggingface_hub.errors.OfflineModeIsEnabled("x"),
            EnvironmentProblem,
            "no connection to the hub",
        ),
    ):
        monkeypatch.setattr(Hub, "error", error)
        with pytest.raises(kind, match=message):
            push(made, "me/mine", quiet=True)
