"""CoT-MAE: [CLS] of a text leads the decoding of its context, by masks or left to right (CoT-MoTE section 3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dupmae_ir.models.masked_lm import shape_of
from dupmae_ir.models.objectives.bottleneck import Bottleneck, Terms, decoder_layers
from dupmae_ir.models.objectives.decoders import CausalBlock, causal


class LeftToRight(Bottleneck):
    """A bottleneck with the auto-regressive decoder of CoT-MAE and CoT-MoTE; names as released."""

    d_head: nn.ModuleList
    window: int

    def add_blocks(self, layers: int, window: int) -> None:
        """``layers`` GPT-2 blocks that see position 0 and the last ``window`` tokens (0: all before)."""
        shape = shape_of(self.lm.config)
        self.window, self.dropout = window, shape.dropout
        self.d_head = nn.ModuleList(CausalBlock(self.lm.config) for _ in range(layers))
        if layers:
            self.d_head_ln_f = nn.LayerNorm(shape.width, eps=shape.epsilon)

    def left_to_right(self, cls: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Each token of the context from those before it, [SEP] included, the first from ``cls`` (B, 1, d) alone."""
        hidden = F.dropout(self.led_by(cls, ids), self.dropout, self.training)
        visible = causal(mask, self.window)
        for block in self.d_head:
            hidden = block(hidden, visible)
        labels = ids.masked_fill(~mask.bool(), -100)
        return self.predict(self.d_head_ln_f(hidden)[:, :-1], labels[:, 1:])


class CoTMAE(LeftToRight):
    """Encoder loss, and the loss of each decoder that has layers: ``mask_layers`` BERT layers on the masked context,
    ``causal_layers`` GPT-2 blocks that predict the context left to right within ``window`` tokens (0: no limit)."""

    def __init__(self, lm: nn.Module, mask_layers: int = 2, causal_layers: int = 0, window: int = 0) -> None:
        super().__init__(lm)
        if mask_layers + causal_layers < 1:
            raise ValueError("CoT-MAE needs a decoder: mask layers, causal layers or both")
        self.c_head = decoder_layers(self.lm.config, mask_layers)
        self.add_blocks(causal_layers, window)

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Terms]:
        """``input_ids, attention_mask, labels`` of the masked text; ``enc_head_*`` the masked context and its labels,
        ``dec_head_input_ids, dec_head_attention_mask`` the plain context, for the decoders that are there."""
        hidden = self.encode(batch["input_ids"], batch["attention_mask"])
        terms: Terms = {"mlm": self.predict(hidden, batch["labels"])}
        cls = hidden[:, :1]
        if len(self.c_head):
            terms["mask_decoder"] = self.decode(
                self.c_head,
                cls,
                batch["enc_head_input_ids"],
                batch["enc_head_attention_mask"],
                batch["enc_head_labels"],
            )
        if len(self.d_head):
            context = batch["dec_head_input_ids"], batch["dec_head_attention_mask"]
            terms["causal_decoder"] = self.left_to_right(cls, *context)
        return torch.stack(list(terms.values())).sum(), terms
