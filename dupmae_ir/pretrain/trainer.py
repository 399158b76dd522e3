"""The trainer of pre-training: which texts a batch has, the losses by task, and the held-out losses."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from dupmae_ir.models.objectives.bottleneck import Bottleneck, Terms
from dupmae_ir.pretrain.collate import Batch, Collator, Draw
from dupmae_ir.training.trained import LOG, read_log
from dupmae_ir.training.trainer import CheckedTrainer, Sums, last_checkpoint, step_of

T = TypeVar("T")
ENCODER_TERMS = ("mlm", "anchor")
"""Prefixes of the losses that do not read a text's vector."""
PLATEAU = 3
"""Evaluations over which gaps are compared."""
_BLOCK = 1 << 14
"""Draws whose corpora are chosen at a time."""
_POOL_STREAM = 1 << 20
"""Part of the seed of a pool's order; above the numbers 1 + corpus of the corpora's streams."""


class MixedBatches:
    """The batches of a run, in order: ``count`` of ``size`` draws each. A batch sampler for torch's ``DataLoader``.

    Texts come from several corpora, each in a new random order every pass. The n-th draw depends only on the seed.

    Args:
        rows: rows of each corpus that may be drawn.
        weights: relative sampling weight of each corpus.
        seed: seed of the run.
        size: draws of a batch.
        count: number of batches.
        lengths: length of each text of each corpus, in tokens; needed for ``pool`` above 1 only.
        pool: batches that are drawn together and divided by length, so that the texts of a batch need little padding.
        together: consecutive batches that several processes train on at the same time; of about the same length too.
    """

    drop_last = True

    def __init__(
        self,
        rows: Sequence[np.ndarray],
        weights: Sequence[float],
        seed: int,
        size: int,
        count: int,
        lengths: Sequence[np.ndarray] = (),
        pool: int = 1,
        together: int = 1,
    ) -> None:
        self.rows = rows
        self.seed = seed
        self.batch_size = size
        self.count = count
        self.lengths = lengths
        self.pool = pool
        self.together = together
        self.shares = np.array(weights, np.float64) / sum(weights)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[list[Draw]]:
        draws = self.draws()
        if self.pool == 1:
            for _ in range(self.count):
                yield list(islice(draws, self.batch_size))
        else:
            yield from islice(self._pooled(draws), self.count)

    def _pooled(self, draws: Iterator[Draw]) -> Iterator[list[Draw]]:
        """Batches of texts of similar length, without an end.

        Each pool has ``pool`` groups of ``together`` batches: its texts are sorted by length, and its groups are in
        random order.
        """
        group_size = self.batch_size * self.together
        for number in itertools.count():
            texts = sorted(
                islice(draws, self.pool * group_size),
                key=lambda draw: self.lengths[draw.corpus][draw.row],
            )
            order = np.random.default_rng([self.seed, _POOL_STREAM, number]).permutation(self.pool)
            for group in order.tolist():
                first = group * group_size
                for start in range(first, first + group_size, self.batch_size):
                    yield texts[start : start + self.batch_size]

    def draws(self) -> Iterator[Draw]:
        """The texts in the order of training, without an end."""
        streams = [self._stream(corpus) for corpus in range(len(self.rows))]
        rng = np.random.default_rng([self.seed, 0])
        number = 0
        while True:
            corpora = np.zeros(_BLOCK, int)
            if len(streams) > 1:
                corpora = rng.choice(len(streams), _BLOCK, p=self.shares)
            for corpus in corpora.tolist():
                yield Draw(number, corpus, next(streams[corpus]))
                number += 1

    def _stream(self, corpus: int) -> Iterator[int]:
        """The rows of a corpus in random order, one pass after the other, without an end."""
        rng = np.random.default_rng([self.seed, 1 + corpus])
        while True:
            yield from rng.permutation(self.rows[corpus]).tolist()


class DrawDataset(Dataset[T]):
    """Maps each draw to itself: the collator reads the texts."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, draw: T) -> T:
        return draw


def has_plateau(log: Sequence[Mapping[str, float]], growth: float) -> bool:
    """Whether the mean gap of the decoders has grown by less than ``growth`` nats over the last PLATEAU evaluations.

    ``log`` has a row for each entry of the log; rows without ``eval_gap_*`` are left out.
    """
    gaps = []
    for row in log:
        values = [value for name, value in row.items() if name.startswith("eval_gap_")]
        if values:
            gaps.append(sum(values) / len(values))
    return len(gaps) > PLATEAU and max(gaps[-PLATEAU:]) - gaps[-PLATEAU - 1] < growth


class StopAtPlateau(TrainerCallback):
    """Ends training after an evaluation with a plateau (:func:`has_plateau`)."""

    def __init__(self, growth: float) -> None:
        self.growth = growth

    def on_log(
        self, _: TrainingArguments, state: TrainerState, control: TrainerControl, **__: Any
    ) -> None:
        """Every process has the same log, so all of them stop."""
        if has_plateau(state.log_history, self.growth):
            control.should_training_stop = True


class PretrainTrainer(CheckedTrainer):
    """Trains a :class:`~dupmae_ir.models.objectives.bottleneck.Bottleneck`.

    Args:
        objective: the objective, trained in place.
        collator: makes the batches.
        batches: the draws of each batch.
        arguments: arguments of Hugging Face's Trainer.
        held_out: draws whose losses :meth:`evaluate` reports, always with the same masks.
        stop_when: growth of the gaps below which training ends (:func:`has_plateau`); None = never.
        quiet: print nothing.
    """

    def __init__(
        self,
        objective: Bottleneck,
        collator: Collator,
        batches: MixedBatches,
        arguments: TrainingArguments,
        held_out: Sequence[Draw] = (),
        stop_when: float | None = None,
        quiet: bool = False,
    ) -> None:
        self.stop_when = stop_when
        self.held_out = list(held_out)
        self.size = batches.batch_size
        self.tokens = torch.zeros((), dtype=torch.float64)
        self.clock = time.monotonic()
        super().__init__(
            quiet,
            batches,
            model=objective,
            args=arguments,
            train_dataset=DrawDataset[Draw](batches.count * batches.batch_size),
            eval_dataset=DrawDataset[Draw](len(self.held_out)),
            data_collator=collator,
        )
        if stop_when is not None:
            self.add_callback(StopAtPlateau(stop_when))

    def train_or_resume(self, callbacks: Sequence[TrainerCallback] = ()) -> None:
        """As :meth:`CheckedTrainer.train_or_resume`; a checkpoint at which training had stopped is loaded only."""
        checkpoint = last_checkpoint(self.work)
        if checkpoint is not None and self.stop_when is not None:
            step = step_of(checkpoint)
            log = [row for row in read_log(Path(self.work) / LOG) if row["step"] <= step]
            if has_plateau(log, self.stop_when):
                self._load_from_checkpoint(str(checkpoint))
                self.state.global_step = step
                # The evaluation that stopped the training is not repeated.
                self.evaluated()
                return
        super().train_or_resume(callbacks)

    def compute_loss(self, model: Bottleneck, inputs: Batch, *_: Any, **__: Any) -> Tensor:
        """The loss of a batch; each term and the number of tokens are added to the sums that :meth:`log` reports."""
        loss, terms = model(inputs)
        self.sums.add(_losses_by_name("loss", loss, terms))
        # Summed on the device, because reading a number would wait for the GPU in every step.
        self.tokens = self.tokens.to(loss.device) + inputs["attention_mask"].sum()
        return loss

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Mean loss of each task on the held-out draws, logged as ``eval_*``; {} if called again at a step.

        For each decoder and the bag of words also ``eval_shuffled_*``, the loss with the vectors of other texts, and
        ``eval_gap_*``, the difference in nats: how much the decoder learns from the vector. With a gap of 0 it ignores
        the vector, and pre-training does not improve it.
        """
        if self.evaluated():
            return {}
        # Every process evaluates all of them: divided, their means would depend on the number of processes.
        sums = Sums()
        gaps = Sums()
        self.model.eval()
        with torch.inference_mode():
            for draws in self._held_out_batches():
                batch = self._prepare_inputs(self.data_collator(draws))
                with self.compute_loss_context_manager():
                    loss, terms = self.model(batch)
                    gaps.add(self._gaps(batch, terms))
                sums.add(_losses_by_name("eval_loss", loss, terms))
        self.model.train()
        means = self.means(sums) | self.means(gaps)
        self.log(means)
        return means

    def _held_out_batches(self) -> list[list[Draw]]:
        batches = []
        for start in range(0, len(self.held_out), self.size):
            batches.append(self.held_out[start : start + self.size])
        # A text alone has no other to exchange its vector with, so it joins the batch before.
        if len(batches) > 1 and len(batches[-1]) == 1:
            single = batches.pop()
            batches[-1] = batches[-1] + single
        return batches

    def _gaps(self, batch: Batch, terms: Terms) -> Terms:
        """Losses of the decoders with the vectors shuffled among the texts, and their differences from ``terms``."""
        decoder_terms = [name for name in terms if not name.startswith(ENCODER_TERMS)]
        if not decoder_terms:
            return {}
        with cast(Bottleneck, self.bare).shuffled():
            _, shuffled = self.model(batch)
        losses = {f"eval_shuffled_{name}": shuffled[name] for name in decoder_terms}
        gaps = {f"eval_gap_{name}": shuffled[name] - terms[name] for name in decoder_terms}
        return losses | gaps

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log ``logs`` with the tokens since the last entry and their rate."""
        if "loss" in logs:
            now = time.monotonic()
            mean_tokens = float(self._mean_over_processes(self.tokens.reshape(1))[0])
            tokens = mean_tokens * self.args.world_size
            logs["tokens"] = round(tokens)
            logs["tokens_per_second"] = round(tokens / (now - self.clock), 1)
            self.tokens = torch.zeros((), dtype=torch.float64)
            self.clock = now
        super().log(logs, *args, **kwargs)

    def means(self, sums: Sums) -> dict[str, float]:
        """Means of losses by name over the batches of all processes."""
        means = sums.means()
        if not means:
            return {}
        # One transfer for all of them.
        values = self._mean_over_processes(torch.stack(list(means.values())))
        return dict(zip(means, values.tolist(), strict=True))

    def _mean_over_processes(self, values: Tensor) -> Tensor:
        return self.accelerator.reduce(values.to(self.args.device), "mean")


def _losses_by_name(prefix: str, loss: Tensor, terms: Terms) -> dict[str, Tensor]:
    """The loss as ``PREFIX``, and its terms as ``PREFIX_TERM``."""
    losses = {prefix: loss}
    for name, value in terms.items():
        losses[f"{prefix}_{name}"] = value
    return losses
