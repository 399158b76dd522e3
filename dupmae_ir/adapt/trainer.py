"""The trainer of an adaptation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainingArguments

from dupmae_ir.adapt.data import AdaptCollator, Draws, NumberedBatches
from dupmae_ir.adapt.objective import Adapting
from dupmae_ir.training.trainer import CheckedTrainer


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
        draws = Draws(len(batches) * batches.batch_size)
        settings: dict[str, Any] = {"args": arguments, "train_dataset": draws, "data_collator": collator}
        super().__init__(quiet, batches, model=model, **settings)

    def create_optimizer(self, *_: Any) -> torch.optim.Optimizer:
        """AdamW over all weights."""
        rate, decay = self.args.learning_rate, self.args.weight_decay
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, weight_decay=decay)
        return self.optimizer

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **_: Any
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch, with its terms if ``return_outputs``."""
        loss, terms = model(inputs["pairs"], inputs["texts"])
        self.sums.add({"loss": loss, **{f"loss_{name}": value for name, value in terms.items()}})
        return (loss, terms) if return_outputs else loss
