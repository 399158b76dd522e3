"""Hugging Face's Trainer with our log and checkpoints, which never contain weights that are not finite."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_model, save_model
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.integrations import TensorBoardCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from dupmae_ir.console import progress, say
from dupmae_ir.errors import TrainingFailed
from dupmae_ir.io.publishing import read_json
from dupmae_ir.training.layers import training_attention
from dupmae_ir.training.trained import LOG, TENSORBOARD, read_log

Logs = Mapping[str, float] | None


class Terminal(TrainerCallback):
    """Prints ``step 120/300  loss 9.21  mlm 4.10  8,100 tokens/s  31 min left``, with a bar on a terminal."""

    def __init__(self) -> None:
        self.started, self.first = time.monotonic(), 0
        self.bar: tqdm[Any] | None = None

    def on_train_begin(
        self, _: TrainingArguments, state: TrainerState, *__: Any, **___: Any
    ) -> None:
        """Start the clock."""
        self.started, self.first = time.monotonic(), state.global_step

    def on_step_end(self, _: TrainingArguments, state: TrainerState, *__: Any, **___: Any) -> None:
        """Advance the bar."""
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_log(
        self, _: TrainingArguments, state: TrainerState, *__: Any, logs: Logs = None, **___: Any
    ) -> None:
        """Print a line for a log entry."""
        if not logs or not state.is_world_process_zero:
            return
        line = f"step {state.global_step}/{state.max_steps}"
        if held_out := {k: v for k, v in logs.items() if k.startswith("eval_")}:
            line += f"  held out:  {_terms(held_out, 'eval_')}"
        elif "loss" in logs:
            pace = (time.monotonic() - self.started) / max(1, state.global_step - self.first)
            left = pace * (state.max_steps - state.global_step) / 60
            speed = (
                f"  {logs['tokens_per_second']:,.0f} tokens/s"
                if "tokens_per_second" in logs
                else ""
            )
            line += f"  {_terms(logs, '')}{speed}  {left:.0f} min left"
        else:
            return
        if self.bar is not None and not self.bar.disable:
            self.bar.write(line, file=sys.stderr)
        else:
            say(line)


def _terms(logs: Mapping[str, float], prefix: str) -> str:
    names = [k for k in logs if prefix or k == "loss" or k.startswith("loss_")]
    return "  ".join(
        f"{k.removeprefix(prefix).removeprefix('loss_')} {float(logs[k]):.3f}" for k in names
    )


class JsonLines(TrainerCallback):
    """Writes every log entry, unrounded, as a line of ``log.jsonl``; a resumed job has the log of an uninterrupted one.

    On resumption, entries after the checkpoint are removed. The Trainer's closing summary, which covers the last start
    only, is not written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / LOG

    def on_train_begin(
        self, _: TrainingArguments, state: TrainerState, *__: Any, **___: Any
    ) -> None:
        """Keep the entries up to the checkpoint."""
        if state.is_world_process_zero:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            rows = (
                [row for row in read_log(self.path) if row["step"] <= state.global_step]
                if state.global_step
                else []
            )
            self.path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def on_log(
        self, _: TrainingArguments, state: TrainerState, *__: Any, logs: Logs = None, **___: Any
    ) -> None:
        """Append an entry."""
        if logs and "train_runtime" not in logs and state.is_world_process_zero:
            with open(self.path, "a", encoding="utf-8") as f:
                f.write(json.dumps({"step": state.global_step, **logs}) + "\n")


class TensorBoard(TrainerCallback):
    """Writes the log entries as TensorBoard scalars to ``FOLDER/tensorboard``."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder) / TENSORBOARD
        self.writer: SummaryWriter | None = None

    def on_train_begin(
        self, _: TrainingArguments, state: TrainerState, *__: Any, **___: Any
    ) -> None:
        """Open the event file."""
        if state.is_world_process_zero:
            # purge_step hides what a killed run wrote after its last checkpoint.
            self.writer = SummaryWriter(str(self.folder), purge_step=state.global_step + 1)

    def on_log(
        self, _: TrainingArguments, state: TrainerState, *__: Any, logs: Logs = None, **___: Any
    ) -> None:
        """Write an entry."""
        if self.writer is not None:
            for name, value in (logs or {}).items():
                if isinstance(value, int | float):
                    self.writer.add_scalar(name, value, state.global_step)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Close the event file."""
        if self.writer is not None:
            self.writer.close()


WEIGHTS = "weights.safetensors"
"""A checkpoint's weights; modules that are shared are written once."""
COUNTERS = "counters.json"
"""Counts of a checkpoint that go into the run's record, and the losses since the last log entry."""


def last_checkpoint(work: str | Path) -> Path | None:
    """The newest complete checkpoint of a work folder, or None.

    The trainer's state is written after the weights and the optimizer, so an interrupted checkpoint is skipped.
    """
    checkpoints = [
        p
        for p in Path(work).glob("checkpoint-*")
        if read_json(p / "trainer_state.json") is not None
        and (p / "optimizer.pt").is_file()
        and any(p.glob("rng_state*.pth"))
    ]
    return max(checkpoints, key=lambda p: int(p.name.rpartition("-")[2])) if checkpoints else None


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
            raise TrainingFailed(
                _advice(f"step {step}: {name} has values that are not finite", work)
            )


def _advice(problem: str, work: str | Path) -> str:
    checkpoint = last_checkpoint(work)
    saved = f"the last good checkpoint is {checkpoint}" if checkpoint else "no checkpoint was saved"
    return f"{problem}; {saved}; lower `learning_rate` or train in float32 (remove {Path(work)} to start over)"


class Sums:
    """Running means of named losses, kept on the device until they are read."""

    def __init__(self) -> None:
        self.values: dict[str, torch.Tensor] = {}
        self.count = 0

    def add(self, terms: Mapping[str, torch.Tensor]) -> None:
        """Add one batch's losses by name."""
        for name, value in terms.items():
            value = value.detach().double().mean()  # a wrapper may return one value per device
            self.values[name] = self.values[name] + value if name in self.values else value
        self.count += 1

    def means(self) -> dict[str, torch.Tensor]:
        """Mean of each loss since the last :meth:`clear`, in float64."""
        return {name: value / max(1, self.count) for name, value in self.values.items()}

    def clear(self) -> None:
        """Start over."""
        self.values.clear()
        self.count = 0

    def restore(self, values: Mapping[str, float], count: int, device: torch.device) -> None:
        """Continue from the sums of ``count`` batches."""
        self.values = {
            name: torch.tensor(v, dtype=torch.float64, device=device) for name, v in values.items()
        }
        self.count = count


class Batches(Protocol):
    """A batch sampler of torch's ``DataLoader``: the keys of each batch of an update, whatever process computes it."""

    batch_size: int

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[list[Any]]: ...


class SharedBatches:
    """``batches`` cut into pieces of ``batch_size`` keys: consecutive pieces go to consecutive processes."""

    drop_last = True

    def __init__(self, batches: Batches, batch_size: int) -> None:
        self.batches, self.batch_size = batches, batch_size

    def __len__(self) -> int:
        return len(self.batches) * (self.batches.batch_size // self.batch_size)

    def __iter__(self) -> Iterator[list[Any]]:
        return (
            b[i : i + self.batch_size]
            for b in self.batches
            for i in range(0, len(b), self.batch_size)
        )


class CheckedTrainer(Trainer):
    """Hugging Face's Trainer with our log, checkpoints as safetensors, and a refusal to save non-finite weights.

    A subclass may add its losses by name to ``sums``; then their means are logged instead of transformers' own.
    ``batches`` are the batches of the training, which the processes share; ``settings`` are those of
    ``transformers.Trainer``. Raises :class:`TrainingFailed` where the shares are not the batches.
    """

    def __init__(
        self, quiet: bool = False, batches: Batches | None = None, **settings: Any
    ) -> None:
        self.quiet, self.batches, self.sums = quiet, batches, Sums()
        self._evaluated_at, self._totals = -1, dict[str, float]()
        super().__init__(**settings)
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)
        self.add_callback(JsonLines(self.work))
        if self.pop_callback(TensorBoardCallback) is not None:
            self.add_callback(
                TensorBoard(self.work)
            )  # ours hides what a killed run wrote after its last checkpoint
        self.terminal = Terminal()
        if not quiet:
            self.add_callback(self.terminal)
        if batches is not None:
            self._check_shares(batches)

    def _check_shares(self, batches: Batches) -> None:
        """Print how many examples an update reads; refuse processes that together read others than ``batches``."""
        sizes = (
            self.args.world_size,
            self.args.per_device_train_batch_size,
            self.args.gradient_accumulation_steps,
        )
        line = f"{math.prod(sizes):,} examples per update = processes {sizes[0]} x {sizes[1]} x {sizes[2]} accumulated"
        if math.prod(sizes) * self.args.max_steps != len(batches) * batches.batch_size:
            raise TrainingFailed(
                f"{line}; expected {len(batches) * batches.batch_size / self.args.max_steps:,}"
            )
        say(line, self.quiet)

    def get_train_dataloader(self) -> DataLoader:
        """The batches as ``batches`` lists them, divided among the processes."""
        if self.batches is None:
            return super().get_train_dataloader()
        loader: Any = DataLoader(
            self.train_dataset,
            batch_sampler=SharedBatches(self.batches, self.args.per_device_train_batch_size),
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=torch.cuda.is_available(),
        )
        return self.accelerator.prepare(loader)

    def train_or_resume(self, callbacks: Sequence[TrainerCallback] = ()) -> None:
        """Train from the last complete checkpoint of the work folder, or from the beginning.

        ``callbacks`` are called after the trainer's own.
        """
        for callback in callbacks:
            self.add_callback(callback)
        checkpoint, step, silent = (
            last_checkpoint(self.work),
            0,
            self.quiet or not self.is_world_process_zero(),
        )
        if checkpoint is not None:
            say(f"resuming from {checkpoint}", silent)
            self.args.eval_on_start = False  # was done before the first update
            # The last evaluation in the log up to the checkpoint is not repeated.
            step = int(checkpoint.name.rpartition("-")[2])
            rows = [row for row in read_log(Path(self.work) / LOG) if row["step"] <= step]
            evaluated = [
                int(row["step"]) for row in rows if any(name.startswith("eval_") for name in row)
            ]
            self._evaluated_at = max(evaluated, default=-1)
        with (
            training_attention(self.args.device, self.args.bf16),
            progress("train", "steps", self.args.max_steps, silent, step) as self.terminal.bar,
        ):
            self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    @property
    def work(self) -> str:
        """The folder of the checkpoints and the log."""
        return str(self.args.output_dir)

    @property
    def bare(self) -> torch.nn.Module:
        """The model without the wrapper of a distributed run."""
        return self.accelerator.unwrap_model(self.model)

    def counters(self) -> dict[str, int]:
        """Counts that a resumed run continues; kept in the checkpoint."""
        return {}

    def restore_counters(self, values: Mapping[str, int]) -> None:
        """Continue from the counts of a checkpoint."""

    def evaluated(self) -> bool:
        """Whether :meth:`evaluate` was already called at this step; transformers may call it twice."""
        last, self._evaluated_at = self._evaluated_at, self.state.global_step
        return last == self._evaluated_at

    def means(self, sums: Sums) -> dict[str, float]:
        """Means of losses by name, equal in all processes."""
        return {name: float(value) for name, value in sums.means().items()}

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log ``logs`` with the means of ``sums``; :class:`TrainingFailed` where a loss is not finite."""
        if "loss" in logs:
            logs.update(self.means(self.sums))
            losses = {k: float(v) for k, v in logs.items() if k.startswith("loss")}
            refuse_non_finite(losses, self.state.global_step, self.work)
            self.sums.clear()
        super().log(logs, *args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        refuse_non_finite(self.means(self.sums), self.state.global_step, self.work)
        refuse_broken_weights(self.bare, self.state.global_step, self.work)
        totals = Sums()
        totals.values, totals.count = self.sums.values, 1
        self._totals = self.means(
            totals
        )  # over the batches since the last log entry, the mean of all processes
        super()._save_checkpoint(*args, **kwargs)

    def _save(
        self,
        output_dir: str | None = None,
        state_dict: dict[str, torch.Tensor] | None = None,  # noqa: ARG002
    ) -> None:
        folder = Path(output_dir or self.work)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self.bare, str(folder / WEIGHTS))
        saved = {"counters": self.counters(), "sums": self._totals, "batches": self.sums.count}
        (folder / COUNTERS).write_text(json.dumps(saved), encoding="utf-8")

    def _load_from_checkpoint(
        self,
        resume_from_checkpoint: str,
        model: torch.nn.Module | None = None,  # noqa: ARG002
    ) -> None:
        folder = Path(resume_from_checkpoint)
        load_model(self.bare, str(folder / WEIGHTS))
        saved = json.loads((folder / COUNTERS).read_text(encoding="utf-8"))
        self.restore_counters(saved["counters"])
        self.sums.restore(saved["sums"], saved["batches"], self.args.device)
