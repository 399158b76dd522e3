"""A recipe of several steps: the whole of it on a tiny sample, what is done again and what is not, and refusals."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.rerank_samples import write_base
from support.stage_samples import RECIPE

from dupmae_ir.errors import InputError, TrainingFailed, UsageError
from dupmae_ir.finetune import stages
from dupmae_ir.finetune.__main__ import main
from dupmae_ir.finetune.stages import find_recipe, plan

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """Pairs, a base with a masked-LM head, and one to make a teacher of."""
    import torch
    from support.tiny_models import tiny_config, tiny_tokenizer
    from transformers import BertForMaskedLM

    folder = tmp_path_factory.mktemp("sample")
    torch.manual_seed(0)
    BertForMaskedLM(tiny_config(initializer_range=0.1)).save_pretrained(folder / "base")
    tiny_tokenizer().save_pretrained(folder / "base")
    write_base(folder / "teacher")
    rng = random.Random(0)
    with open(folder / "pairs.jsonl", "w") as f:
        for i in range(36):
            noise = " ".join(rng.choices(["the", "on", "over", "sat", "runs"], k=5))
            row = {
                "query": f"{WORDS[i % 12]} {WORDS[i // 12]} on",
                "positive": f"{noise} {WORDS[i % 12]} {i % 7}",
            }
            f.write(json.dumps(row) + "\n")
    return folder


def recipe(folder, init="pretrained", text=RECIPE):
    path = folder / "recipe.toml"
    path.write_text(text.format(init=init))
    return path


def command(recipe_path, sample, output, *more):
    return [
        "--recipe",
        str(recipe_path),
        "--output",
        str(output),
        "--set",
        f"model={sample / 'base'}",
        "--set",
        f"teacher_base={sample / 'teacher'}",
        "--set",
        f"pairs={sample / 'pairs.jsonl'}",
        *more,
    ]


@pytest.mark.nightly
def test_a_recipe_resumes_after_a_kill_and_runs_once(sample, tmp_path, capfd):
    """Three stages, mining, teacher and scores: resumed after a kill; a second call does nothing."""
    words = command(recipe(tmp_path), sample, tmp_path / "out")
    process = subprocess.Popen(
        [sys.executable, "-m", "dupmae_ir.finetune", *words],
        cwd=ROOT,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("out/.stage1.work/checkpoint-*/trainer_state.json")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert main([*words, "--json"]) == 0
    out, err = capfd.readouterr()
    summary = json.loads(out.splitlines()[-1])
    assert list(summary) == ["stage1", "negatives", "stage2", "teacher", "opinions", "stage3"]
    assert "loss_distill" in summary["stage3"]["summary"]["last"]
    assert "loss_contrastive" not in summary["stage3"]["summary"]["last"]
    assert "[1/6] stage1: python -m dupmae_ir.finetune" in err
    for name in ("stage1", "stage2", "stage3"):
        assert (tmp_path / "out" / name / "model.safetensors").is_file()
    assert main(words) == 0
    assert capfd.readouterr().err.count("already complete") == 6
    assert main([*words, "--dry-run"]) == 0
    assert capfd.readouterr().err.count("python -m dupmae_ir.finetune") == 6


def test_processes_are_for_the_steps_that_train(sample, tmp_path, capfd):
    words = command(recipe(tmp_path), sample, tmp_path / "out")
    assert main([*words, "--dry-run", "--processes", "4"]) == 0
    trained = [
        line.split()[2] for line in capfd.readouterr().err.splitlines() if "--processes 4" in line
    ]
    assert trained == [
        *["dupmae_ir.finetune"] * 2,
        "dupmae_ir.finetune.cross_encoder",
        "dupmae_ir.finetune",
    ]


def test_a_failed_step_is_named(sample, tmp_path, capfd):
    absent = tmp_path / "absent.jsonl"
    path = recipe(tmp_path, text=RECIPE.replace("pairs = []", f'pairs = ["{absent}"]'))
    words = [
        "--recipe",
        str(path),
        "--output",
        str(tmp_path / "out"),
        "--set",
        f"model={sample / 'base'}",
        "--set",
        f"teacher_base={sample / 'teacher'}",
    ]
    assert main(words) == 1
    said = capfd.readouterr().err.strip().splitlines()
    assert "no such file" in said[-2]
    assert "step stage1 ended with status 2" in said[-1]


def test_stages_start_from_the_base_or_the_previous_stage(sample, tmp_path):
    given = {"model": "M", "teacher_base": "T", "pairs": "a.jsonl b.jsonl"}
    for init, expected in (
        ("pretrained", ["M", "M", "M"]),
        ("previous", ["M", "out/stage1", "out/stage2"]),
    ):
        steps, _ = plan(recipe(tmp_path, init), "out", given)
        assert [s.config.model for s in steps if s.command == "finetune"] == expected
    assert steps[0].config.pairs == ("a.jsonl", "b.jsonl")
    assert steps[1].config.output == "out/negatives.jsonl"
    assert steps[2].config.mined == "out/negatives.jsonl"


def test_a_changed_setting_or_input_runs_the_step_again(sample, tmp_path, monkeypatch):
    """The digest of a step covers its settings, the inputs' bytes, and all before it."""
    ran = []

    def noted(step, quiet):
        ran.append(step.name)
        Path(step.config.output).parent.mkdir(exist_ok=True)
        Path(step.config.output).touch()
        return {}

    monkeypatch.setattr(stages, "_call", noted)
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("x")
    given = {"model": "M", "teacher_base": "T", "pairs": str(pairs)}
    path = recipe(tmp_path)
    for change in (
        lambda: None,
        lambda: path.write_text(path.read_text().replace("depth = 8", "depth = 9")),
        lambda: pairs.write_text("y"),
    ):
        change()
        stages.run_stages(str(path), str(tmp_path / "out"), given, quiet=True)
    every = ["stage1", "negatives", "stage2", "teacher", "opinions", "stage3"]
    assert ran == [*every, *every[1:], *every]


def test_other_weights_in_the_model_folder_run_every_step_again(tmp_path, monkeypatch):
    ran = []

    def noted(step, quiet):
        ran.append(step.name)
        Path(step.config.output).parent.mkdir(exist_ok=True)
        Path(step.config.output).touch()
        return {}

    monkeypatch.setattr(stages, "_call", noted)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    path = recipe(tmp_path)
    for weights in ("one", "one", "another"):
        (model / "model.safetensors").write_text(weights)
        given = {"model": str(model), "teacher_base": "T", "pairs": "p"}
        stages.run_stages(str(path), str(tmp_path / "out"), given, quiet=True)
    every = ["stage1", "negatives", "stage2", "teacher", "opinions", "stage3"]
    assert ran == [*every, *every]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('name = "stage2"', 'name = "stage1"'), "two steps or inputs are named 'stage1'"),
        (('name = "stage2"', 'name = "Stage 2"'), "a step's name is 'Stage 2'"),
        (('command = "finetune.mine"', 'command = "mine"'), "no command 'mine'"),
        (("depth = 8", "dept = 8"), "no setting named 'dept'. Did you mean 'depth'?"),
        (("depth = 8", 'depth = "8"'), "depth: expected int"),
        (
            ("{{negatives}}", "{{negative}}"),
            "neither an input nor an earlier step. Did you mean 'negatives'?",
        ),
        (('by = "model"\n', ""), "missing by"),
    ],
)
def test_a_bad_recipe_is_one_line(tmp_path, change, message):
    path = recipe(tmp_path, text=RECIPE.replace(*change, 1))
    with pytest.raises(UsageError) as e:
        plan(path, "out", {"model": "M", "teacher_base": "T", "pairs": "p"})
    assert message in str(e.value)
    assert str(path) in str(e.value)


def test_missing_and_unknown_inputs(tmp_path):
    with pytest.raises(
        UsageError, match=r"requires `values` teacher_base=\.\.\. and `values` pairs=\.\.\."
    ):
        plan(recipe(tmp_path), "out", {"model": "M"})
    with pytest.raises(UsageError, match="Did you mean 'pairs'"):
        plan(recipe(tmp_path), "out", {"pair": "x"})


def test_the_packages_own_recipes_can_be_planned():
    for path in stages.RECIPES.glob("*.toml"):
        steps, _ = plan(find_recipe(path.stem), "out", {"pairs": "p.jsonl"})
        assert steps
    with pytest.raises(UsageError, match="Did you mean 'three-stages'"):
        find_recipe("three-stage")
    with pytest.raises(InputError, match="no such recipe"):
        find_recipe("x.toml")


def test_failure_is_not_misuse():
    assert TrainingFailed("x").exit_status == 1
