"""The loss of an adaptation: pseudo-queries, masked auto-encoding, and the distance of both parts from the start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dupmae_ir.finetune.config import Objective
from dupmae_ir.finetune.losses import anchor
from dupmae_ir.finetune.objective import BiEncoder, Parts, batch_loss
from dupmae_ir.models.objectives.dupmae import DupMAE

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Weights:
    """Weights of the terms; a term of weight 0 is not computed."""

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
        self, encoder: BiEncoder, masked: DupMAE | None, start: BiEncoder, weights: Weights, top_k: int
    ) -> None:
        super().__init__()
        self.encoder, self.masked, self.weights = encoder, masked, weights
        self._start = (start.eval().requires_grad_(False),)
        self.objective = Objective(top_k=top_k, part_weight=0.0, query_flops=0.0, document_flops=0.0)

    def forward(self, pairs: Batch, texts: Batch | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and its terms without their weights, for a batch of pairs and one of masked texts."""
        parts = [self.encoder(pairs[f"{side}_ids"], pairs[f"{side}_mask"], side) for side in ("query", "document")]
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
            targets = [start(pairs[f"{side}_ids"], pairs[f"{side}_mask"], side) for side in ("query", "document")]
        distances = [
            anchor(vector, target)
            for found, wanted in zip(parts, targets, strict=True)
            for vector, target in zip(found, wanted, strict=True)
            if vector is not None and target is not None and target.any()
        ]
        return torch.stack(distances).mean()
