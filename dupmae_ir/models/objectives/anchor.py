"""Holding [CLS] to the vectors of a frozen model while the decoders train.

Masked auto-encoding changes [CLS] freely, and a sentence encoder that it starts from loses what it knew about
similarity. The anchor is the cosine distance between [CLS] of the masked text, which the decoders read, and the frozen
model's dense vector of the same text without masks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dupmae_ir.models.objectives.token_loss import IGNORED

if TYPE_CHECKING:
    from dupmae_ir.models.retriever import Retriever


class Masked(NamedTuple):
    """A batch of masked texts as the encoder read it."""

    hidden: Tensor  #: (B, L, d) last hidden states
    ids: Tensor  #: (B, L), masked
    mask: Tensor  #: (B, L) attention mask
    labels: Tensor  #: (B, L), the original ids at masked tokens and -100 elsewhere


class Anchor:
    """The frozen model and the weight of the distance from it.

    Not a module: its weights belong neither to the objective's parameters nor to its checkpoints.

    Args:
        model: the model whose dense vectors are the targets; frozen here.
        weight: factor of the distance in the loss.
    """

    def __init__(self, model: Retriever, weight: float) -> None:
        self.model, self.weight = model.eval().requires_grad_(False), weight

    def distance(self, texts: Masked) -> Tensor:
        """Mean over the texts of 1 - cos([CLS] of the masked text, vector of the whole text), in float32 at least."""
        cls = texts.hidden[:, 0]
        target = self.targets(texts)
        exact = torch.float64 if cls.dtype == torch.float64 else torch.float32
        return (1 - F.cosine_similarity(cls.to(exact), target.to(exact), dim=1)).mean()

    @torch.no_grad()
    def targets(self, texts: Masked) -> Tensor:
        """(B, d) dense vectors of the unmasked texts."""
        ids = torch.where(texts.labels == IGNORED, texts.ids, texts.labels)
        model = self.model.to(ids.device)
        vectors, _ = model(ids, texts.mask, ot=False)
        return vectors
