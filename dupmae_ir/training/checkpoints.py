"""Checkpoints of a training run: finding the newest complete one, and refusing to save weights that are not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch

from dupmae_ir.errors import TrainingFailed
from dupmae_ir.io.publishing import read_json

WEIGHTS = "weights.safetensors"
"""A checkpoint's weights; modules that are shared are written once."""
COUNTERS = "counters.json"
"""Counts of a checkpoint that go into the run's record."""


def last_checkpoint(work: str | Path) -> Path | None:
    """The newest complete checkpoint of a work folder, or None.

    The trainer's state is written after the weights and the optimizer, so an interrupted checkpoint is skipped.
    """
    checkpoints = [p for p in Path(work).glob("checkpoint-*") if _is_complete(p)]
    return max(checkpoints, key=lambda p: int(p.name.rpartition("-")[2])) if checkpoints else None


def _is_complete(checkpoint: Path) -> bool:
    state = read_json(checkpoint / "trainer_state.json")
    return state is not None and (checkpoint / "optimizer.pt").is_file() and any(checkpoint.glob("rng_state*.pth"))


def refuse_non_finite(values: Mapping[str, float], step: int, work: str | Path) -> None:
    """Raise :class:`TrainingFailed`, naming the last good checkpoint, where a loss is NaN or infinite."""
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    if bad:
        name = "the loss" if "loss" in bad else f"the loss {bad[0].removeprefix('loss_')}"
        raise TrainingFailed(_advice(f"step {step}: {name} is {values[bad[0]]}", work))


def refuse_broken_weights(model: torch.nn.Module, step: int, work: str | Path) -> None:
    """Raise :class:`TrainingFailed` for weights with NaN or infinite values, before they are saved."""
    for name, p in model.named_parameters():
        if not torch.isfinite(p).all():
            raise TrainingFailed(_advice(f"step {step}: {name} has values that are not finite", work))


def _advice(problem: str, work: str | Path) -> str:
    checkpoint = last_checkpoint(work)
    saved = f"the last good checkpoint is {checkpoint}" if checkpoint else "no checkpoint was saved"
    return f"{problem}; {saved}; lower `learning_rate` or train in float32 (remove {Path(work)} to start over)"
