"""Masked-LM pre-training only (BERT): the baseline of the auto-encoders."""

from __future__ import annotations

from torch import Tensor

from dupmae_ir.models.objectives.anchor import Masked
from dupmae_ir.models.objectives.bottleneck import Bottleneck, Terms


class PlainMLM(Bottleneck):
    """The encoder's masked-LM loss without a decoder: nothing trains [CLS] to represent the text."""

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Terms]:
        """The loss and its terms. ``batch``: ``encoder_ids, attention_mask, encoder_labels``, each (B, L)."""
        hidden = self.encode(batch["encoder_ids"], batch["attention_mask"])
        loss = self.predict(hidden, batch["encoder_labels"])
        texts = Masked(hidden, batch["encoder_ids"], batch["attention_mask"], batch["encoder_labels"])
        return self.anchored(loss, {"mlm": loss}, texts)
