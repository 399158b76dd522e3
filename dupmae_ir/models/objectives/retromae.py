"""RetroMAE: a lightly masked encoder and a heavily masked one-layer decoder (RetroMAE section 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dupmae_ir.models.heads.masked_lm import position_rows
from dupmae_ir.models.objectives.bottleneck import Bottleneck, Masked, Terms, decoder_layers, sum_of
from dupmae_ir.models.objectives.decoders import unpack

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class RetroMAE(Bottleneck):
    """``L_enc + L_dec`` (RetroMAE section 3).

    Args:
        lm: the masked LM to train.
        decoding: ``enhanced`` (two streams and one mask per row, Eq. 4-7) or ``basic`` (Eq. 2-3).
        layers: layers of the decoder; enhanced decoding has one.
        query_stream: ``raw`` is position + h_cls, as in RetroMAE's code; ``embedded`` also applies the embeddings'
            LayerNorm and dropout, as in DupMAE's code. Both papers print the same equation (RetroMAE Eq. 4, DupMAE
            Eq. 2).
    """

    def __init__(
        self,
        lm: PreTrainedModel,
        decoding: str = "enhanced",
        layers: int = 1,
        query_stream: str = "raw",
    ) -> None:
        super().__init__(lm)
        if decoding not in ("enhanced", "basic") or query_stream not in ("raw", "embedded"):
            raise ValueError(f"decoding {decoding!r} or query stream {query_stream!r} is not known")
        if decoding == "enhanced" and layers != 1:
            raise ValueError(
                "enhanced decoding has one layer: a second would see what the masks of the first hide"
            )
        self.decoding = decoding
        self.query_stream = query_stream
        stack = decoder_layers(self.lm.config, layers)
        self.c_head: nn.Module = stack
        if decoding == "enhanced":
            # In released checkpoints the one layer is c_head itself, without an index.
            self.c_head = stack[0]

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Terms]:
        """The loss and its terms.

        ``batch``: ``encoder_ids, attention_mask, encoder_labels``, and for enhanced decoding the unmasked ``ids``,
        ``decoder_labels`` and ``decoder_visible``, (B, L, L) bool or packed (B, L, ceil(L / 8)) uint8; for basic
        decoding the masked ``decoder_ids`` and ``decoder_labels``.
        """
        hidden = self.encode(batch["encoder_ids"], batch["attention_mask"])
        terms = self.terms(hidden, batch)
        texts = Masked(
            hidden, batch["encoder_ids"], batch["attention_mask"], batch["encoder_labels"]
        )
        return self.add_anchor(sum_of(terms), terms, texts)

    def terms(self, hidden: Tensor, batch: dict[str, Tensor]) -> Terms:
        """Losses of encoder and decoder from the (B, L, d) hidden states of the masked text."""
        cls = self.bottleneck_vectors(hidden[:, :1])
        terms: Terms = {"mlm": self.predict(hidden, batch["encoder_labels"])}
        if self.decoding == "enhanced":
            terms["decoder"] = self._enhanced(cls, batch)
        else:
            terms["decoder"] = self.decode(
                self.c_head.children(),
                cls,
                batch["decoder_ids"],
                batch["attention_mask"],
                batch["decoder_labels"],
            )
        return terms

    def _enhanced(self, cls: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Eq. 4-6: each token is predicted from its own random subset of the others."""
        ids = batch["ids"]
        visible = batch["decoder_visible"]
        if visible.dtype == torch.uint8:
            visible = unpack(visible, ids.shape[1])
        # H1 of Eq. 4: (B, L, d), h_cls at every position.
        if self.query_stream == "embedded":
            queries = self.embed(vectors=cls.expand(-1, ids.shape[1], -1))
        else:
            queries = position_rows(self.lm, ids.shape[1]).unsqueeze(0) + cls
        hidden = self.c_head(queries, self.decoder_input(cls, ids), visible)
        return self.predict(hidden, batch["decoder_labels"])
