"""What every masked-auto-encoder objective does: encode a masked text, and make [CLS] carry it to a decoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dupmae_ir.models.masked_lm import embed, encoder_of, head_of, shape_of
from dupmae_ir.models.objectives.decoders import DecoderLayer
from dupmae_ir.models.objectives.token_loss import IGNORED, token_cross_entropy

Terms = dict[str, Tensor]
"""The loss of each task by name; their weighted sum is what is minimised."""


class Bottleneck(nn.Module):
    """A masked LM and the steps its objectives share. Only decoders that a subclass adds are new parameters; the
    embeddings and the prediction head are the encoder's own."""

    def __init__(self, lm: nn.Module) -> None:
        super().__init__()
        self.lm: Any = lm

    def encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(B, L) -> (B, L, d) last hidden states."""
        return encoder_of(self.lm)(input_ids=ids, attention_mask=mask).last_hidden_state

    def embed(self, ids: Tensor | None = None, vectors: Tensor | None = None) -> Tensor:
        """Word (or given vectors) + position + type, LayerNorm and dropout: (B, L, d)."""
        return embed(self.lm, ids, vectors)

    def predict(self, hidden: Tensor, labels: Tensor, lm: nn.Module | None = None) -> Tensor:
        """Mean cross-entropy of the head (``lm``'s, where it is another) at the labels (-100: nothing asked)."""
        head = head_of(self.lm if lm is None else lm)
        asked = labels != IGNORED
        # Only labelled tokens go through the head at all.
        return token_cross_entropy(head.transform(hidden[asked]), labels[asked], head.weight, head.bias)

    def led_by(self, cls: Tensor, ids: Tensor) -> Tensor:
        """[h_cls, embeddings of the other tokens]: the decoder's input, (B, L, d). Position 0 gets no position."""
        return torch.cat([cls, self.embed(ids)[:, 1:]], 1)

    def decode(self, layers: Any, cls: Tensor, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        """Ordinary self-attention over :meth:`led_by` and the loss at the masked tokens (RetroMAE Eq. 2-3)."""
        hidden = self.led_by(cls, ids)
        visible = mask.bool().unsqueeze(1)
        for layer in layers:
            hidden = layer(hidden, hidden, visible)
        return self.predict(hidden, labels)


def decoder_layers(config: Any, count: int) -> nn.ModuleList:
    """``count`` new BERT layers with BERT's initialisation."""
    layers = nn.ModuleList(DecoderLayer(config) for _ in range(count))
    for module in layers.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=shape_of(config).initial_std)
            nn.init.zeros_(module.bias)
    return layers
