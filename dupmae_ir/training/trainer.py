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
from dupmae_ir.training.cpu_functions import cpu_functions
from dupmae_ir.training.trained import LOG, TENSORBOARD, read_log

Logs = Mapping[str, float] | None


class Terminal(TrainerCallback):
    """Prints ``step 120/300  loss 9.21  mlm 4.10  8,100 tokens/s  31 min left``, with a bar on a terminal."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.first_step = 0
        self.bar: tqdm[Any] | None = None

    def on_train_begin(
        self, _: TrainingArguments, state: TrainerState, *__: Any, **___: Any
    ) -> None:
        """Start the clock. A resumed run begins at the step of its checkpoint."""
        self.started = time.monotonic()
        self.first_step = state.global_step

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
        held_out = {name: value for name, value in logs.items() if name.startswith("eval_")}
        if held_out:
            line += f"  held out:  {_format_values(held_out, 'eval_')}"
        elif "loss" in logs:
            losses = {}
            for name, value in logs.items():
                if name == "loss" or name.startswith("loss_"):
                    losses[name] = value
            line += f"  {_format_values(losses)}"
            if "tokens_per_second" in logs:
                line += f"  {logs['tokens_per_second']:,.0f} tokens/s"
            steps_done = max(1, state.global_step - self.first_step)
            # Steps before a resumption took no time of this clock.
            seconds_per_step = (time.monotonic() - self.started) / steps_done
            minutes_left = seconds_per_step * (state.max_steps - state.global_step) / 60
            line += f"  {minutes_left:.0f} min left"
        else:
            return
        if self.bar is not None and not self.bar.disable:
            self.bar.write(line, file=sys.stderr)
        else:
            say(line)


def _format_values(values: Mapping[str, float], prefix: str = "") -> str:
    """``mlm 4.100  bow 5.110`` for ``loss_mlm`` and ``loss_bow``, after ``prefix``."""
    words = []
    for name, value in values.items():
        term = name.removeprefix(prefix).removeprefix("loss_")
        words.append(f"{term} {float(value):.3f}")
    return "  ".join(words)


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
        """Keep the entries up to the checkpoint; none if training starts from the beginning."""
        if not state.is_world_process_zero:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = []
        if state.global_step:
            for row in read_log(self.path):
                if row["step"] <= state.global_step:
                    lines.append(json.dumps(row) + "\n")
        self.path.write_text("".join(lines), encoding="utf-8")

    def on_log(
        self, _: TrainingArguments, state: TrainerState, *__: Any, logs: Logs = None, **___: Any
    ) -> None:
        """Append an entry."""
        if not logs or not state.is_world_process_zero:
            return
        is_closing_summary = "train_runtime" in logs
        if not is_closing_summary:
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
        if self.writer is None or logs is None:
            return
        for name, value in logs.items():
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
    complete = []
    for checkpoint in Path(work).glob("checkpoint-*"):
        has_state = read_json(checkpoint / "trainer_state.json") is not None
        has_optimizer = (checkpoint / "optimizer.pt").is_file()
        # Each of several processes writes a file with the state of its random generators.
        has_random_states = any(checkpoint.glob("rng_state*.pth"))
        if has_state and has_optimizer and has_random_states:
            complete.append(checkpoint)
    return max(complete, key=step_of, default=None)


def step_of(checkpoint: Path) -> int:
    """The update after which a checkpoint was written: 40 for ``checkpoint-40``."""
    _, _, step = checkpoint.name.rpartition("-")
    return int(step)


def refuse_non_finite(values: Mapping[str, float], step: int, work: str | Path) -> None:
    """Raise :class:`TrainingFailed`, naming the last good checkpoint, if a loss is NaN or infinite."""
    not_finite = [name for name, value in values.items() if not math.isfinite(value)]
    if not_finite:
        first = not_finite[0]
        loss = "the loss"
        if "loss" not in not_finite:
            loss = f"the loss {first.removeprefix('loss_')}"
        raise TrainingFailed(_with_advice(f"step {step}: {loss} is {values[first]}", work))


def refuse_broken_weights(model: torch.nn.Module, step: int, work: str | Path) -> None:
    """Raise :class:`TrainingFailed` for weights with NaN or infinite values, before they are saved."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            problem = f"step {step}: {name} has values that are not finite"
            raise TrainingFailed(_with_advice(problem, work))


def _with_advice(problem: str, work: str | Path) -> str:
    checkpoint = last_checkpoint(work)
    saved = "no checkpoint was saved"
    if checkpoint is not None:
        saved = f"the last good checkpoint is {checkpoint}"
    return f"{problem}; {saved}; lower `learning_rate` or train in float32 (remove {Path(work)} to start over)"


class Sums:
    """Running means of named losses, kept on the device until they are read."""

    def __init__(self) -> None:
        self.values: dict[str, torch.Tensor] = {}
        self.count = 0

    def add(self, terms: Mapping[str, torch.Tensor]) -> None:
        """Add one batch's losses by name."""
        for name, term in terms.items():
            # A wrapper may return one value per device.
            value = term.detach().double().mean()
            if name in self.values:
                value = self.values[name] + value
            self.values[name] = value
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
        self.values = {}
        for name, value in values.items():
            self.values[name] = torch.tensor(value, dtype=torch.float64, device=device)
        self.count = count


class Batches(Protocol):
    """A batch sampler of torch's ``DataLoader``: the keys of each batch of an update, whatever process computes it."""

    batch_size: int

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[list[Any]]: ...


class SharedBatches:
    """``batches`` cut into pieces of ``batch_size`` keys: consecutive pieces go to consecutive processes."""

    # accelerate reads it: a sampler without it has its first batches repeated until all processes have as many.
    drop_last = True

    def __init__(self, batches: Batches, batch_size: int) -> None:
        self.batches = batches
        self.batch_size = batch_size

    def __len__(self) -> int:
        return len(self.batches) * (self.batches.batch_size // self.batch_size)

    def __iter__(self) -> Iterator[list[Any]]:
        for batch in self.batches:
            for start in range(0, len(batch), self.batch_size):
                yield batch[start : start + self.batch_size]


class CheckedTrainer(Trainer):
    """Hugging Face's Trainer with our log, checkpoints as safetensors, and a refusal to save non-finite weights.

    A subclass may add its losses by name to ``sums``; then their means are logged instead of transformers' mean loss.
    ``batches`` are the batches of the training, which the processes share; ``settings`` are those of
    ``transformers.Trainer``. Raises :class:`TrainingFailed` if the shares do not add up to the batches.
    """

    def __init__(
        self, quiet: bool = False, batches: Batches | None = None, **settings: Any
    ) -> None:
        self.quiet = quiet
        self.batches = batches
        self.sums = Sums()
        self._evaluated_at = -1  # the step of the last evaluation
        self._totals: dict[str, float] = {}
        super().__init__(**settings)
        # `Terminal` and the bar of `train_or_resume` print instead of them.
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)
        self.add_callback(JsonLines(self.work))
        if self.pop_callback(TensorBoardCallback) is not None:
            # Unlike transformers', ours hides what a killed run wrote after its last checkpoint.
            self.add_callback(TensorBoard(self.work))
        self.terminal = Terminal()
        if not quiet:
            self.add_callback(self.terminal)
        if batches is not None:
            self._check_shares(batches)

    def _check_shares(self, batches: Batches) -> None:
        """Print how many examples an update reads; refuse processes that together read others than ``batches``."""
        processes = self.args.world_size
        batch_size = self.args.per_device_train_batch_size
        accumulate = self.args.gradient_accumulation_steps
        per_update = processes * batch_size * accumulate
        line = (
            f"{per_update:,} examples per update = processes {processes} x {batch_size} x {accumulate} "
            "accumulated"
        )
        examples = len(batches) * batches.batch_size
        if per_update * self.args.max_steps != examples:
            raise TrainingFailed(f"{line}; expected {examples / self.args.max_steps:,}")
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

        ``callbacks`` are called after the trainer's standard ones.
        """
        for callback in callbacks:
            self.add_callback(callback)
        silent = self.quiet or not self.is_world_process_zero()
        checkpoint = last_checkpoint(self.work)
        first_step = 0
        resume_from = None
        if checkpoint is not None:
            say(f"resuming from {checkpoint}", silent)
            first_step = step_of(checkpoint)
            resume_from = str(checkpoint)
            self.args.eval_on_start = False  # was done before the first update
            self._evaluated_at = self._last_evaluation(first_step)
        with (
            cpu_functions(self.args.device),
            progress(
                "train", "steps", self.args.max_steps, silent, first_step
            ) as self.terminal.bar,
        ):
            self.train(resume_from_checkpoint=resume_from)

    def _last_evaluation(self, step: int) -> int:
        """The step of the last evaluation in the log up to ``step``, which is not repeated; -1 without one."""
        last = -1
        for row in read_log(Path(self.work) / LOG):
            is_evaluation = any(name.startswith("eval_") for name in row)
            if is_evaluation and row["step"] <= step:
                last = max(last, int(row["step"]))
        return last

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
        step = self.state.global_step
        repeated = self._evaluated_at == step
        self._evaluated_at = step
        return repeated

    def means(self, sums: Sums) -> dict[str, float]:
        """Means of losses by name, equal in all processes."""
        return {name: float(value) for name, value in sums.means().items()}

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log ``logs`` with the means of ``sums``; raises :class:`TrainingFailed` if a loss is not finite."""
        if "loss" in logs:
            logs.update(self.means(self.sums))
            losses = {}
            for name, value in logs.items():
                if name.startswith("loss"):
                    losses[name] = float(value)
            refuse_non_finite(losses, self.state.global_step, self.work)
            self.sums.clear()
        super().log(logs, *args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        refuse_non_finite(self.means(self.sums), self.state.global_step, self.work)
        # The weights, too: the loss was computed before the last update, which may have broken them.
        refuse_broken_weights(self.bare, self.state.global_step, self.work)
        # With a count of 1, means() gives the sums since the last log entry, averaged over all processes.
        totals = Sums()
        totals.values = self.sums.values
        totals.count = 1
        self._totals = self.means(totals)
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
