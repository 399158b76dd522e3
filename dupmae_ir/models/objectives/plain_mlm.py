"""Masked-LM pre-training and nothing else (BERT): what the auto-encoders are compared with."""

from __future__ import annotations

from torch import Tensor

from dupmae_ir.models.objectives.bottleneck import Bottleneck, Terms


class PlainMLM(Bottleneck):
    """The encoder's loss of every objective here, without a decoder: nothing asks [CLS] to carry the text."""

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Terms]:
        """``encoder_ids, attention_mask, encoder_labels``, each (B, L)."""
        hidden = self.encode(batch["encoder_ids"], batch["attention_mask"])
        loss = self.predict(hidden, batch["encoder_labels"])
        return loss, {"mlm": loss}
