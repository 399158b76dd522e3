"""What a training run reports: lines on the terminal, ``log.jsonl`` and TensorBoard."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm
from transformers import TrainerCallback, TrainerState, TrainingArguments

from dupmae_ir.console import say
from dupmae_ir.training.trained import LOG, TENSORBOARD, read_log

Logs = Mapping[str, float] | None


class Terminal(TrainerCallback):
    """Prints ``step 120/300  loss 9.21  mlm 4.10  8,100 tokens/s  31 min left``, with a bar on a terminal."""

    def __init__(self) -> None:
        self.started, self.first = time.monotonic(), 0
        self.bar: tqdm[Any] | None = None

    def on_train_begin(self, _: TrainingArguments, state: TrainerState, *__: Any, **___: Any) -> None:
        """Start the clock and the bar."""
        self.started, self.first = time.monotonic(), state.global_step
        if state.is_world_process_zero and sys.stderr.isatty():
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, unit=" steps", dynamic_ncols=True)

    def on_step_end(self, _: TrainingArguments, state: TrainerState, *__: Any, **___: Any) -> None:
        """Advance the bar."""
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_log(self, _: TrainingArguments, state: TrainerState, *__: Any, logs: Logs = None, **___: Any) -> None:
        """Print a line for a log entry."""
        if not logs or not state.is_world_process_zero:
            return
        line = self._line(state, logs)
        if line and self.bar is not None:
            self.bar.write(line, file=sys.stderr)
        elif line:
            say(line)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Close the bar."""
        if self.bar is not None:
            self.bar.close()

    def _line(self, state: TrainerState, logs: Mapping[str, float]) -> str:
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
    """Writes every log entry, unrounded, as a line of ``log.jsonl``; a resumed job has the log of an uninterrupted one.

    On resumption, entries after the checkpoint are removed. The Trainer's closing summary, which covers the last start
    only, is not written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / LOG

    def on_train_begin(self, _: TrainingArguments, state: TrainerState, *__: Any, **___: Any) -> None:
        """Keep the entries up to the checkpoint."""
        if state.is_world_process_zero:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            rows = [row for row in read_log(self.path) if row["step"] <= state.global_step] if state.global_step else []
            self.path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def on_log(self, _: TrainingArguments, state: TrainerState, *__: Any, logs: Logs = None, **___: Any) -> None:
        """Append an entry."""
        if logs and "train_runtime" not in logs and state.is_world_process_zero:
            with open(self.path, "a", encoding="utf-8") as f:
                f.write(json.dumps({"step": state.global_step, **logs}) + "\n")


class TensorBoard(TrainerCallback):
    """Writes the log entries as TensorBoard scalars to ``FOLDER/tensorboard``."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder) / TENSORBOARD
        self.writer: SummaryWriter | None = None

    def on_train_begin(self, _: TrainingArguments, state: TrainerState, *__: Any, **___: Any) -> None:
        """Open the event file."""
        if state.is_world_process_zero:
            # purge_step hides what a killed run wrote after its last checkpoint.
            self.writer = SummaryWriter(str(self.folder), purge_step=state.global_step + 1)

    def on_log(self, _: TrainingArguments, state: TrainerState, *__: Any, logs: Logs = None, **___: Any) -> None:
        """Write an entry."""
        if self.writer is not None:
            for name, value in (logs or {}).items():
                if isinstance(value, int | float):
                    self.writer.add_scalar(name, value, state.global_step)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Close the event file."""
        if self.writer is not None:
            self.writer.close()
