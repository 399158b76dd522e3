"""DupMAE (RetroMAE-2): RetroMAE's decoding from [CLS], plus a bag of words decoded from the ordinary tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dupmae_ir.models.heads.masked_lm import head_of, shape_of
from dupmae_ir.models.objectives.bottleneck import Masked, Terms
from dupmae_ir.models.objectives.retromae import RetroMAE
from dupmae_ir.models.pooling import ot_max

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class DupMAE(RetroMAE):
    """``L_mlm + decoder_weight * L_dec + bow_weight * L_bow`` (DupMAE Eq. 9).

    Args:
        lm: the masked LM to train.
        bow_weight: weight of the bag-of-words loss: 0.1 in the released code, 1 in the paper; 0 leaves only CLS
            decoding (Table 4).
        head: vocabulary logits of the tokens come from the ``mlm`` head as in the release, from the word embeddings
            only (``tied``), or from a separate ``linear`` map (W^O of Eq. 6).
        query_stream: see :class:`RetroMAE`.
        decoding: see :class:`RetroMAE`.
        layers: layers of the [CLS] decoder.
        decoder_weight: weight of the [CLS] decoder's loss; with 0 it is not computed, which leaves only OT decoding
            (Table 4).
    """

    def __init__(
        self,
        lm: PreTrainedModel,
        bow_weight: float = 0.1,
        head: str = "mlm",
        query_stream: str = "embedded",
        decoding: str = "enhanced",
        layers: int = 1,
        decoder_weight: float = 1.0,
    ) -> None:
        super().__init__(lm, decoding, layers, query_stream)
        if head not in ("mlm", "tied", "linear"):
            raise ValueError(f"head {head!r} is not known; use mlm, tied or linear")
        self.bow_weight = bow_weight
        self.decoder_weight = decoder_weight
        self.head = head
        if decoder_weight == 0:
            # Not computed, so its parameters have no gradient.
            self.c_head.requires_grad_(False)
        self.ot_projection: nn.Linear | None = None
        if head == "linear":
            width = shape_of(self.lm.config).width
            self.ot_projection = nn.Linear(width, self.lm.config.vocab_size, bias=False)

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Terms]:
        """The loss and its terms.

        ``batch``: that of :class:`RetroMAE`, and the bag of words as ``bow_ids (B, W), bow_weights (B, W)`` (weight 0
        is padding) or as a dense ``bow_weight (B, V)``. The optional ``pooling_mask (B, L)`` restricts the tokens that
        are pooled; by default all tokens but the first are.
        """
        hidden = self.encode(batch["encoder_ids"], batch["attention_mask"])
        terms = self.terms(hidden, batch)
        terms["bow"] = self.bag_of_words(hidden, batch)
        loss = terms["mlm"] + self.bow_weight * terms["bow"]
        if "decoder" in terms:
            loss = loss + self.decoder_weight * terms["decoder"]
        texts = Masked(
            hidden, batch["encoder_ids"], batch["attention_mask"], batch["encoder_labels"]
        )
        return self.add_anchor(loss, terms, texts)

    def terms(self, hidden: Tensor, batch: dict[str, Tensor]) -> Terms:
        """Losses of encoder and decoder; of the encoder alone if ``decoder_weight`` is 0."""
        if self.decoder_weight:
            return super().terms(hidden, batch)
        return {"mlm": self.predict(hidden, batch["encoder_labels"])}

    def bag_of_words(self, hidden: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Mean over the texts of -sum_v w_v log softmax(mu_X)_v (Eq. 6-8)."""
        pooling_mask = batch.get("pooling_mask", batch["attention_mask"]).bool().clone()
        # [CLS] is not an ordinary token.
        pooling_mask[:, 0] = False
        pooled = self._max_logits(hidden, pooling_mask)
        logs = torch.log_softmax(self.bottleneck_vectors(pooled), dim=1)
        if "bow_weight" in batch:
            return -(batch["bow_weight"] * logs).sum(1).mean()
        return -(batch["bow_weights"] * logs.gather(1, batch["bow_ids"])).sum(1).mean()

    def _max_logits(self, hidden: Tensor, pooling_mask: Tensor) -> Tensor:
        """mu_X (B, V), the maximum of the logits over the pooled tokens (Eq. 6-7)."""
        if self.ot_projection is not None:
            return ot_max(hidden, pooling_mask, self.ot_projection.weight)
        head = head_of(self.lm)
        if self.head == "tied":
            return ot_max(hidden, pooling_mask, head.weight)
        return ot_max(head.transform(hidden), pooling_mask, head.weight, head.bias)
