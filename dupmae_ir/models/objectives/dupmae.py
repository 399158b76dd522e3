"""DupMAE (RetroMAE-2): RetroMAE's decoding from [CLS], and a bag of words decoded from the ordinary tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dupmae_ir.models.masked_lm import head_of, shape_of
from dupmae_ir.models.objectives.bottleneck import Terms
from dupmae_ir.models.objectives.retromae import RetroMAE
from dupmae_ir.models.pooling import ot_max


class DupMAE(RetroMAE):
    """``L_mlm + L_dec + bow_weight * L_bow`` (DupMAE Eq. 9); the weight is 0.1 in the released code, 1 in the paper.

    ``decoder_weight`` is that of L_dec: 0 leaves OT decoding alone, as ``bow_weight`` 0 does CLS decoding (Table 4).
    ``head``: what makes vocabulary logits of the tokens: the ``mlm`` head as released, ``tied`` word embeddings
    alone, or a ``linear`` map of its own (W^O of Eq. 6).
    """

    def __init__(
        self,
        lm: nn.Module,
        bow_weight: float = 0.1,
        head: str = "mlm",
        query_stream: str = "embedded",
        decoding: str = "enhanced",
        layers: int = 1,
        decoder_weight: float = 1.0,
    ) -> None:
        super().__init__(lm, decoding, layers, query_stream)
        if head not in ("mlm", "tied", "linear"):
            raise ValueError(f"head {head!r} is not known")
        self.bow_weight, self.decoder_weight, self.head = bow_weight, decoder_weight, head
        width, words = shape_of(self.lm.config).width, self.lm.config.vocab_size
        self.ot_projection = nn.Linear(width, words, bias=False) if head == "linear" else None

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Terms]:
        """RetroMAE's batch, and ``bow_ids (B, W), bow_weights (B, W)`` (weight 0 is padding), or dense
        ``bow_weight (B, V)``; ``speaking (B, L)`` may narrow the tokens that count (else all but position 0)."""
        hidden = self.encode(batch["encoder_ids"], batch["attention_mask"])
        terms = self.terms(hidden, batch)
        terms["bow"] = self.bag_of_words(hidden, batch)
        return terms["mlm"] + self.decoder_weight * terms["decoder"] + self.bow_weight * terms["bow"], terms

    def bag_of_words(self, hidden: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Eq. 6-8: mean over texts of -sum_v w_v log softmax(mu_X)_v."""
        speaking = batch.get("speaking", batch["attention_mask"]).bool().clone()
        speaking[:, 0] = False
        logs = torch.log_softmax(self._pooled(hidden, speaking), dim=1)
        if "bow_weight" in batch:
            return -(batch["bow_weight"] * logs).sum(1).mean()
        return -(batch["bow_weights"] * logs.gather(1, batch["bow_ids"])).sum(1).mean()

    def _pooled(self, hidden: Tensor, speaking: Tensor) -> Tensor:
        if self.ot_projection is not None:
            return ot_max(hidden, speaking, self.ot_projection.weight)
        head = head_of(self.lm)
        if self.head == "tied":
            return ot_max(hidden, speaking, head.weight)
        return ot_max(head.transform(hidden), speaking, head.weight, head.bias)
