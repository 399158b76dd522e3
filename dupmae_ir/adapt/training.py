"""The training of an adaptation: its batches, its loss, and the trainer.

Draw n depends only on n and the seed, so a resumed run sees the same batches. The loss has three terms: pseudo-queries,
masked auto-encoding, and the distance of both parts from the start.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import TrainingArguments

from dupmae_ir.adapt.queries import draw, pseudo_queries
from dupmae_ir.finetune.config import Objective
from dupmae_ir.finetune.data import text_key
from dupmae_ir.finetune.examples import Example, ExampleCollator
from dupmae_ir.finetune.objective import BiEncoder, Parts, anchor, batch_loss
from dupmae_ir.models.objectives.dupmae import DupMAE
from dupmae_ir.pretrain.collate import Collator, Draw
from dupmae_ir.pretrain.trainer import DrawDataset
from dupmae_ir.training.trainer import CheckedTrainer
from dupmae_ir.types import Document

Batch = dict[str, Tensor]


class NumberedBatches:
    """``count`` batches of ``size`` consecutive numbers. A batch sampler for torch's ``DataLoader``."""

    def __init__(self, size: int, count: int) -> None:
        self.batch_size, self.count, self.drop_last = size, count, True

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self.count):
            yield list(range(number * self.batch_size, (number + 1) * self.batch_size))


class AdaptCollator:
    """Makes ``{"pairs": ..., "texts": ...}`` of numbers of draws.

    Args:
        documents: those to train on.
        kinds: of pseudo-queries.
        pairs: collates pseudo-queries with their passages.
        texts: DupMAE's collator over the same documents, row by row; None leaves masked texts out.
        seed: seed of the run.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        kinds: Sequence[str],
        pairs: ExampleCollator,
        texts: Collator | None,
        seed: int,
    ) -> None:
        self.documents, self.kinds, self.pairs, self.texts, self.seed = documents, kinds, pairs, texts, seed

    @cached_property
    def rows(self) -> np.ndarray:
        """Rows of the documents with a pseudo-query."""
        return np.array([row for row, d in enumerate(self.documents) if pseudo_queries(d, self.kinds)], np.int64)

    def __call__(self, numbers: Sequence[int]) -> dict[str, dict[str, Tensor] | None]:
        """The batch of these draws: every document once per pass, in a new order, with another pseudo-query."""
        examples = [self._example(number) for number in numbers]
        masked = [Draw(number, 0, self._row(number, len(self.documents), "masked")) for number in numbers]
        return {"pairs": self.pairs(examples), "texts": self.texts(masked) if self.texts is not None else None}

    def _example(self, number: int) -> Example:
        document = self.documents[self.rows[self._row(number, len(self.rows), "pairs")]]
        drawn = draw(document, self.kinds, random.Random(f"{self.seed} pair {number}"))
        assert drawn is not None  # rows
        return Example(drawn.query, drawn.passage, (), frozenset([text_key(drawn.passage)]))

    def _row(self, number: int, rows: int, use: str) -> int:
        """The row of a draw: pass after pass over ``rows`` rows, each in a random order."""
        seed = random.Random(f"{self.seed} {use} {number // rows}").getrandbits(63)
        if self._order.get(use, (-1,))[0] != seed:
            self._order[use] = (seed, np.random.default_rng(seed).permutation(rows))
        return int(self._order[use][1][number % rows])

    @cached_property
    def _order(self) -> dict[str, tuple[int, np.ndarray]]:
        return {}


@dataclass(frozen=True)
class LossWeights:
    """LossWeights of the terms; a term of weight 0 is not computed."""

    queries: float
    masked: float
    anchor: float


class Adapting(nn.Module):
    """The model in training.

    Args:
        encoder: both parts of the model.
        masked: DupMAE's objective on the same encoder, or None.
        start: the frozen model that both parts are held to; not a part of the module's state.
        weights: of the terms.
        top_k: OT weights kept per document.
    """

    def __init__(
        self, encoder: BiEncoder, masked: DupMAE | None, start: BiEncoder, weights: LossWeights, top_k: int
    ) -> None:
        super().__init__()
        self.encoder, self.masked, self.weights = encoder, masked, weights
        self._start = (start.eval().requires_grad_(False),)
        self.objective = Objective(top_k=top_k, part_weight=0.0, query_flops=0.0, document_flops=0.0)

    def forward(self, pairs: Batch, texts: Batch | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and its terms without their weights, for a batch of pairs and one of masked texts."""
        parts = list(self.encoder(pairs).values())
        terms = {}
        if self.weights.queries:
            terms["queries"], _ = batch_loss(parts[0], parts[1], pairs, self.objective)
        if self.weights.anchor:
            terms["anchor"] = self._distance(parts, pairs)
        if self.masked is not None and texts is not None:
            terms["masked"], inner = self.masked(texts)
            terms |= {f"masked_{name}": value for name, value in inner.items()}
        weighted = {name: getattr(self.weights, name) for name in ("queries", "masked", "anchor")}
        loss = sum((weight * terms[name] for name, weight in weighted.items() if name in terms), torch.zeros(()))
        return loss, terms

    def _distance(self, parts: Sequence[Parts], pairs: Batch) -> Tensor:
        """Mean distance of the [CLS] parts, and of OT parts that are learned, from the start's, in squared lengths."""
        start = self._start[0].to(pairs["query_ids"].device)
        with torch.no_grad():
            targets = list(start(pairs).values())
        distances = [
            anchor(vector, target)
            for both, start_both in zip(parts, targets, strict=True)
            for vector, target in zip(both, start_both, strict=True)
            if vector is not None and target is not None and target.any()
        ]
        return torch.stack(distances).mean()


class AdaptTrainer(CheckedTrainer):
    """Trains an :class:`Adapting` on ``batches`` of draws."""

    def __init__(
        self,
        model: Adapting,
        collator: AdaptCollator,
        batches: NumberedBatches,
        arguments: TrainingArguments,
        quiet: bool = False,
    ) -> None:
        draws = DrawDataset[int](len(batches) * batches.batch_size)
        super().__init__(quiet, batches, model=model, args=arguments, train_dataset=draws, data_collator=collator)

    def create_optimizer(self, *_: Any) -> torch.optim.Optimizer:
        """AdamW over all weights."""
        rate, decay = self.args.learning_rate, self.args.weight_decay
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, weight_decay=decay)
        return self.optimizer

    def compute_loss(self, model: nn.Module, inputs: dict[str, Batch | None], *_: Any, **__: Any) -> Tensor:
        """The loss of a batch; it and its terms are added to the sums that :meth:`log` reports."""
        loss, terms = model(inputs["pairs"], inputs["texts"])
        self.sums.add({"loss": loss, **{f"loss_{name}": value for name, value in terms.items()}})
        return loss
