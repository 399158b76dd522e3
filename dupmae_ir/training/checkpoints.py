"""Checkpoints of a training run: finding the newest complete one, and refusing to save weights that are not finite."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dupmae_ir.config import differences
from dupmae_ir.errors import TrainingFailed, UsageError
from dupmae_ir.io.publishing import write_json

WEIGHTS = "weights.safetensors"
"""A checkpoint's weights; modules that are shared are written once."""


def last_checkpoint(work: str | Path) -> Path | None:
    """The newest complete checkpoint of a work folder, or None.

    The trainer's state is written after the weights and the optimizer, so an interrupted checkpoint is skipped.
    """
    found = [p for p in Path(work).glob("checkpoint-*") if _is_complete(p)]
    return max(found, key=lambda p: int(p.name.rpartition("-")[2])) if found else None


def same_job(path: str | Path, told: Mapping[str, Any]) -> None:
    """Write a run's settings to ``path``, or refuse to continue from checkpoints with other settings.

    To be removed when pretrain runs in a :class:`~dupmae_ir.io.jobs.Job`, which does this for every command.
    """
    path, told = Path(path), json.loads(json.dumps(told))
    if not path.is_file():
        write_json(path, told)
        return
    kept = json.loads(path.read_text(encoding="utf-8"))
    if kept != told:
        raise UsageError(
            f"{path.parent}: training was begun with other settings ({_changed(kept, told)}); give the same flags to "
            "go on, or remove that folder to start over"
        )


def _changed(kept: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    """What differs between two jobs: flags with their values or, where they agree, the names of files and the rest."""
    if flags := differences(kept.get("config", kept), told.get("config", told)):
        return flags
    before, now = ({**job, **job.get("inputs", {}), "inputs": None} for job in (kept, told))
    return "another " + ", ".join(k for k in {**before, **now} if before.get(k) != now.get(k))


def _is_complete(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (checkpoint / "optimizer.pt").is_file() and any(checkpoint.glob("rng_state*.pth"))


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
    return f"{problem}; {saved}; lower --learning-rate or train in float32 (remove {Path(work)} to start over)"
