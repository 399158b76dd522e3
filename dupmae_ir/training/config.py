"""Options shared by all commands that train."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from dupmae_ir.config import ComputeOptions, OutputOptions, option
from dupmae_ir.errors import UsageError

SERVICES = ("wandb", "trackio")
"""Trackers that Hugging Face's Trainer reports to, each through a separate package."""


@dataclass(frozen=True, kw_only=True)
class TrainerOptions(ComputeOptions, OutputOptions):
    """Optimisation, checkpoints and log of a training job. A command redeclares a field to change its default."""

    output: str = option(
        help="folder of the trained model; checkpoints are kept next to it until it is complete",
        group="output",
    )
    steps: int = option(
        0, "number of updates; 0 = determined by --epochs", group="training", at_least=0
    )
    warmup: float = option(
        0.1,
        "fraction of the updates with a rising learning rate",
        group="training",
        at_least=0,
        at_most=1,
    )
    weight_decay: float = option(0.01, "weight decay of AdamW", group="training", at_least=0)
    clip: float = option(1.0, "maximum gradient norm", group="training", above=0)
    seed: int = option(
        42, "random seed of sampling, initialisation and dropout", group="training", at_least=0
    )
    dtype: str = option(
        "float32",
        "precision of the matrix products, under autocast: float32, bfloat16, or auto (bfloat16 where the hardware has "
        "it); weights and optimizer stay float32",
        group="compute",
        choices=("float32", "bfloat16", "auto"),
    )
    processes: int = option(
        1,
        "processes that share the examples of every update, one on each GPU",
        group="compute",
        above=0,
    )
    workers: int = option(
        0, "processes that prepare batches; 0 = the training process", group="compute", at_least=0
    )
    log_steps: int = option(10, "updates between log entries", group="output", above=0)
    save_steps: int = option(
        500,
        "updates between checkpoints, from which the same command resumes",
        group="output",
        above=0,
    )
    eval_steps: int = option(
        500, "updates between evaluations on held-out data", group="output", above=0
    )
    keep: int = option(2, "number of checkpoints kept", group="output", above=0)
    report_to: tuple[str, ...] = option(
        ("tensorboard",),
        "where the log goes besides log.jsonl: tensorboard = files in the model folder; wandb or trackio = that "
        "service, through its own package; none. Nothing leaves the machine unless a service is named",
        group="output",
        choices=("tensorboard", *SERVICES, "none"),
    )
    push_to_hub: str | None = option(
        None,
        "upload the finished model to this repository of the Hugging Face hub, created as a private one if need be",
        group="output",
        metavar="NAME",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if "none" in self.report_to and len(self.report_to) > 1:
            raise UsageError("`report_to` none cannot be combined with others")
        # Raises if the examples of an update cannot be shared among the processes.
        self.share  # noqa: B018

    @property
    def share(self) -> Share:
        """What each process does of an update."""
        raise NotImplementedError


class Share(NamedTuple):
    """What each of several processes does of an update."""

    batch_size: int  #: examples per step
    accumulate: int  #: steps per update


def share_of(batch_size: int, accumulate: int, processes: int, joint: bool = False) -> Share:
    """The share of each of ``processes`` in an update of ``batch_size`` x ``accumulate`` examples.

    As many of the accumulated batches as possible are computed at the same time; each of them is divided among
    ``processes`` / number of these batches. With ``joint``, the loss compares the examples of a batch with each other
    (in-batch negatives), so all processes share every batch. Raises :class:`UsageError` if the numbers do not divide.
    """
    if joint:
        parallel_batches = 1
        divisible = batch_size
        examples = f"`batch_size` {batch_size}"
    else:
        parallel_batches = math.gcd(accumulate, processes)
        divisible = batch_size * accumulate
        examples = f"`batch_size` {batch_size} x `accumulate` {accumulate}"
    if batch_size % (processes // parallel_batches):
        possible = ", ".join(str(n) for n in range(1, divisible + 1) if divisible % n == 0)
        raise UsageError(
            f"`processes` {processes} does not divide {examples}; use one of {possible}"
        )
    return Share(batch_size * parallel_batches // processes, accumulate // parallel_batches)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(TrainerOptions):
    """:class:`TrainerOptions`, and the ones that pretrain takes from a preset."""

    batch_size: int = option(32, "examples per step, of all processes", group="training", above=0)
    accumulate: int = option(1, "batches accumulated before an update", group="training", above=0)
    epochs: float = option(
        1.0, "passes over the data, unless --steps is given", group="training", above=0
    )
    learning_rate: float = option(
        2e-5, "peak learning rate; linear warm-up and decay", group="training", above=0
    )
    checkpointing: bool = option(
        False,
        "activation checkpointing: less memory, activations are computed twice",
        group="compute",
    )

    @property
    def share(self) -> Share:
        """What each process does of an update: the loss is a mean over the examples."""
        return share_of(self.batch_size, self.accumulate, self.processes)
