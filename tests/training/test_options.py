"""Shared options of training: how they become TrainingArguments and the settings of a record."""

from __future__ import annotations

import pytest

pytest.importorskip("accelerate", reason="training needs the extra: pip install 'dupmae-ir[train]'")

from dupmae_ir.errors import CheckpointError, InputError, UsageError
from dupmae_ir.training.config import TrainingOptions
from dupmae_ir.training.job import (
    deciding_settings,
    input_digests,
    process_state,
    training_arguments,
)


def test_options_become_arguments(tmp_path):
    options = TrainingOptions(
        output="o",
        device="cpu",
        dtype="bfloat16",
        warmup=0.25,
        clip=0.5,
        log_steps=5,
        save_steps=20,
        keep=3,
    )
    made = training_arguments(
        options, tmp_path, batch_size=4, accumulate=2, learning_rate=1e-3, steps=40
    )
    assert (made.max_steps, made.warmup_steps, made.max_grad_norm) == (40, 10, 0.5)
    assert (made.per_device_train_batch_size, made.gradient_accumulation_steps) == (4, 2)
    assert (made.logging_steps, made.save_steps, made.save_total_limit) == (5, 20, 3)
    assert (made.bf16, made.use_cpu, made.eval_strategy) == (True, True, "no")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"save_steps": 0}, "`save_steps` must be greater than 0"),
        ({"warmup": 1.5}, "`warmup` must be at most 1"),
        ({"epochs": 0.0}, "`epochs` must be greater than 0"),
        ({"dtype": "float16"}, "`dtype` float16"),
    ],
)
def test_bad_options_are_refused(flags, message):
    with pytest.raises(UsageError, match=message):
        TrainingOptions(output="o", **flags)


def test_a_record_has_what_decides_the_weights():
    one, two = (
        deciding_settings(TrainingOptions(output="o", device="cpu", **o), 1)
        for o in ({}, {"threads": 3, "quiet": True})
    )
    assert one == two
    assert (one["dtype"], one["processes"], one["seed"]) == ("float32", 1, 42)
    assert not {"log_steps", "save_steps", "keep", "workers", "device", "json"} & one.keys()


def test_digests_follow_the_contents(tmp_path):
    (tmp_path / "a").write_text("x")
    first = input_digests({"pairs": (str(tmp_path / "a"),), "dev": ()}, {"teacher": None})
    assert first.keys() == {"pairs"}
    (tmp_path / "a").write_text("y")
    assert input_digests({"pairs": (str(tmp_path / "a"),)}, {}) != first
    with pytest.raises(InputError, match="no such file"):
        input_digests({"pairs": "nowhere"}, {})
    with pytest.raises(CheckpointError, match="no such model folder"):
        input_digests({}, {"model": "nowhere"})


@pytest.mark.parametrize("variable", ["ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"])
def test_sharded_weights_are_refused(variable, monkeypatch):
    """Checkpoints hold whole weights; a launcher that would shard them is refused before anything is made."""
    monkeypatch.setenv(variable, "true")
    with pytest.raises(UsageError, match=f"{variable} is set: weights are not sharded"):
        process_state(TrainingOptions(output="o", device="cpu"))


def test_one_process_uses_one_of_eight_gpus(tmp_path, monkeypatch, capsys):
    """torch.nn.DataParallel is never entered."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("torch.cuda.set_device", lambda device: None)
    options = TrainingOptions(output="o", dtype="float32")
    made = training_arguments(
        options, tmp_path, batch_size=4, accumulate=1, learning_rate=1e-3, steps=4
    )
    assert (made.n_gpu, made.train_batch_size, made.parallel_mode.value) == (1, 4, "not_parallel")
    assert "8 GPUs are visible" in capsys.readouterr().err
