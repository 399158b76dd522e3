"""What every training run shows, keeps and refuses, around Hugging Face's Trainer.

Imported by the trainers only: transformers comes with it.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from dupmae_ir.config import differences
from dupmae_ir.console import say
from dupmae_ir.errors import TrainingFailed, UsageError
from dupmae_ir.io.publishing import write_json

LOG = "log.jsonl"
TENSORBOARD = "tensorboard"
WEIGHTS = "weights.safetensors"
"""A checkpoint's weights; modules that are shared are written once."""


def last_checkpoint(work: str | Path) -> Path | None:
    """The newest whole checkpoint of a work folder. The trainer's state is written after the weights and optimizer,
    so one cut off on the way is passed over."""
    found = [p for p in Path(work).glob("checkpoint-*") if _whole(p)]
    return max(found, key=lambda p: int(p.name.rpartition("-")[2])) if found else None


def same_job(path: str | Path, told: Mapping[str, Any]) -> None:
    """Note what a run is in ``path``, or refuse to go on from the checkpoints of another one."""
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


def _whole(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (checkpoint / "optimizer.pt").is_file() and any(checkpoint.glob("rng_state*.pth"))


def refuse_non_finite(values: Mapping[str, float], step: int, work: str | Path) -> None:
    """Raise :class:`TrainingFailed` where a loss is no longer a number; the last good checkpoint is named."""
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    if bad:
        name = "the loss" if "loss" in bad else f"the loss {bad[0].removeprefix('loss_')}"
        raise TrainingFailed(_advice(f"step {step}: {name} is {values[bad[0]]}", work))


def refuse_broken_weights(model: torch.nn.Module, step: int, work: str | Path) -> None:
    """Raise :class:`TrainingFailed` before weights that hold NaN or infinity could be saved."""
    for name, p in model.named_parameters():
        if not torch.isfinite(p).all():
            raise TrainingFailed(_advice(f"step {step}: {name} holds values that are not finite", work))


def _advice(what: str, work: str | Path) -> str:
    kept = last_checkpoint(work)
    where = f"the last good checkpoint is {kept}" if kept else "nothing was saved yet"
    return f"{what}; {where}; lower --learning-rate or train in float32 (remove {Path(work)} to start over)"


class Terminal(TrainerCallback):
    """``step 120/300  loss 9.21  mlm 4.10  decoder 5.11  8,100 tokens/s  31 min left``, and a bar on a terminal."""

    def __init__(self) -> None:
        self.started, self.first = time.monotonic(), 0
        self.bar: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self.started, self.first = time.monotonic(), state.global_step
        if state.is_world_process_zero and sys.stderr.isatty():
            from tqdm import tqdm

            self.bar = tqdm(total=state.max_steps, initial=state.global_step, unit=" steps", dynamic_ncols=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        if not logs or not state.is_world_process_zero:
            return
        line = self._line(state, logs)
        if line and self.bar is not None:
            self.bar.write(line, file=sys.stderr)
        elif line:
            say(line)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self.bar is not None:
            self.bar.close()

    def _line(self, state: Any, logs: Mapping[str, float]) -> str:
        where = f"step {state.global_step}/{state.max_steps}"
        if held_out := {k: v for k, v in logs.items() if k.startswith("eval_")}:
            return f"{where}  held out:  {_terms(held_out, 'eval_')}"
        if "loss" not in logs:
            return ""
        pace = (time.monotonic() - self.started) / max(1, state.global_step - self.first)
        left = pace * (state.max_steps - state.global_step) / 60
        speed = f"  {logs['tokens_per_second']:,.0f} tokens/s" if "tokens_per_second" in logs else ""
        return f"{where}  {_terms(logs, '')}{speed}  {left:.0f} min left"


def _terms(logs: Mapping[str, float], prefix: str) -> str:
    names = [k for k in logs if prefix or k == "loss" or k.startswith("loss_")]
    return "  ".join(f"{k.removeprefix(prefix).removeprefix('loss_')} {float(logs[k]):.3f}" for k in names)


class JsonLines(TrainerCallback):
    """Every log entry, unrounded, as a line of ``log.jsonl``; on resumption what came after the checkpoint goes.

    But for the Trainer's closing summary, which is of the last start alone: killed or not, a run has the same log.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / LOG

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if state.is_world_process_zero:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            kept = [row for row in read_log(self.path) if row["step"] <= state.global_step] if state.global_step else []
            self.path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        if logs and "train_runtime" not in logs and state.is_world_process_zero:
            with open(self.path, "a", encoding="utf-8") as f:
                f.write(json.dumps({"step": state.global_step, **logs}) + "\n")


def read_log(path: str | Path) -> list[dict[str, float]]:
    """The rows of a ``log.jsonl``; a torn last line, left by a kill, is passed over."""
    rows = []
    if Path(path).is_file():
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    return rows


class TensorBoard(TrainerCallback):
    """The same entries as TensorBoard scalars, in ``FOLDER/tensorboard``."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder) / TENSORBOARD
        self.writer: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if state.is_world_process_zero:
            from torch.utils.tensorboard import SummaryWriter

            # purge_step: what a killed run wrote after its last checkpoint is not shown twice.
            self.writer = SummaryWriter(str(self.folder), purge_step=state.global_step + 1)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        if self.writer is not None:
            for name, value in (logs or {}).items():
                if isinstance(value, int | float):
                    self.writer.add_scalar(name, value, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self.writer is not None:
            self.writer.close()


class Sums:
    """Running means of named losses, kept on the device until somebody looks."""

    def __init__(self) -> None:
        self.values: dict[str, torch.Tensor] = {}
        self.count = 0

    def add(self, terms: Mapping[str, torch.Tensor]) -> None:
        for name, value in terms.items():
            value = value.detach().double()
            self.values[name] = self.values[name] + value if name in self.values else value
        self.count += 1

    def means(self) -> dict[str, torch.Tensor]:
        return {name: value / max(1, self.count) for name, value in self.values.items()}

    def clear(self) -> None:
        self.values.clear()
        self.count = 0


class CheckedTrainer(Trainer):
    """Hugging Face's Trainer with our log, checkpoints as safetensors, and nothing saved that is not finite.

    A subclass may add its losses by name to ``sums``; then their means are logged instead of transformers' own.
    """

    def __init__(self, quiet: bool = False, tensorboard: bool = True, **settings: Any) -> None:
        self.sums = Sums()
        self._looked_at = -1
        super().__init__(**settings)
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)
        self.add_callback(JsonLines(self.work))
        if tensorboard:
            self.add_callback(TensorBoard(self.work))
        if not quiet:
            self.add_callback(Terminal())

    @property
    def work(self) -> str:
        """The folder of checkpoints and log."""
        return str(self.args.output_dir)

    @property
    def bare(self) -> Any:
        """The model without what several processes wrap it in."""
        return self.accelerator.unwrap_model(self.model)

    def looked(self) -> bool:
        """True where :meth:`evaluate` was called at this step before; transformers may ask twice."""
        seen, self._looked_at = self._looked_at, self.state.global_step
        return seen == self._looked_at

    def means(self, sums: Sums) -> dict[str, float]:
        """Means of losses by name; every process has the same."""
        return {name: float(value) for name, value in sums.means().items()}

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            logs.update(self.means(self.sums))
            losses = {k: float(v) for k, v in logs.items() if k.startswith("loss")}
            refuse_non_finite(losses, self.state.global_step, self.work)
            self.sums.clear()
        super().log(logs, *args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        refuse_non_finite(self.means(self.sums), self.state.global_step, self.work)
        refuse_broken_weights(self.bare, self.state.global_step, self.work)
        super()._save_checkpoint(*args, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:  # noqa: ARG002
        folder = Path(output_dir or self.work)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self.bare, str(folder / WEIGHTS))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:  # noqa: ARG002
        load_model(self.bare, str(Path(resume_from_checkpoint) / WEIGHTS))


def plot_log(rows: Iterable[Mapping[str, float]], path: str | Path, title: str) -> None:
    """One small picture per loss: training in grey, held-out text in colour, over the steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = list(rows)
    names = list(dict.fromkeys(k for row in rows for k in row if k == "loss" or k.startswith("loss_")))
    if not names:
        return
    wide = min(3, len(names))
    tall = math.ceil(len(names) / wide)
    figure, axes = pyplot.subplots(tall, wide, figsize=(4 * wide, 2.6 * tall), squeeze=False, layout="constrained")
    for axis, name in zip(axes.flat, names, strict=False):
        for key, colour, label in ((name, "0.6", "training"), (f"eval_{name}", "tab:blue", "held out")):
            seen = [(row["step"], row[key]) for row in rows if key in row]
            if seen:
                axis.plot(*zip(*seen, strict=True), color=colour, label=label, marker="." if key[0] == "e" else "")
        axis.set_title("sum" if name == "loss" else name.removeprefix("loss_"), fontsize=10)
        axis.grid(alpha=0.3)
    for axis in list(axes.flat)[len(names) :]:
        axis.axis("off")
    axes[0][0].legend(fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("updates")
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
