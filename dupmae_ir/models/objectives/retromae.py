"""RetroMAE: an encoder masked a little, a one-layer decoder masked a lot (RetroMAE section 3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dupmae_ir.models.masked_lm import position_rows
from dupmae_ir.models.objectives.bottleneck import Bottleneck, Terms, decoder_layers
from dupmae_ir.models.objectives.decoders import unpack


class RetroMAE(Bottleneck):
    """``L_enc + L_dec`` (RetroMAE section 3). ``decoding``: enhanced (two streams, Eq. 4-7) or basic (Eq. 2-3).

    ``query_stream``: ``raw`` is position + h_cls as RetroMAE's code has it, ``embedded`` goes through the embeddings'
    LayerNorm and dropout as DupMAE's code does; both papers write Eq. 4 (Eq. 2 of DupMAE) alike.
    """

    def __init__(self, lm: nn.Module, decoding: str = "enhanced", layers: int = 1, query_stream: str = "raw") -> None:
        super().__init__(lm)
        if decoding not in ("enhanced", "basic") or query_stream not in ("raw", "embedded"):
            raise ValueError(f"decoding {decoding!r} or query stream {query_stream!r} is not known")
        if decoding == "enhanced" and layers != 1:
            raise ValueError("enhanced decoding has one layer: its masks would leak through a second")
        self.decoding, self.query_stream = decoding, query_stream
        made = decoder_layers(self.lm.config, layers)
        # The released decoder of one layer is called c_head, without a number.
        self.c_head: nn.Module = made[0] if decoding == "enhanced" else made

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Terms]:
        """``encoder_ids, attention_mask, encoder_labels`` and what the decoding needs: enhanced: unmasked ``ids,
        decoder_labels`` and ``decoder_visible``, (B, L, L) bool or its bits, (B, L, ceil(L / 8)) uint8; basic:
        masked ``decoder_ids, decoder_labels``."""
        hidden = self.encode(batch["encoder_ids"], batch["attention_mask"])
        terms = self.terms(hidden, batch)
        return torch.stack(list(terms.values())).sum(), terms

    def terms(self, hidden: Tensor, batch: dict[str, Tensor]) -> Terms:
        """The encoder's and the decoder's loss from (B, L, d) hidden states of the masked text."""
        cls = hidden[:, :1]
        decode = self._enhanced if self.decoding == "enhanced" else self._basic
        return {"mlm": self.predict(hidden, batch["encoder_labels"]), "decoder": decode(cls, batch)}

    def _enhanced(self, cls: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Eq. 4-6: every token is predicted from its own sample of the others."""
        ids = batch["ids"]
        visible = batch["decoder_visible"]
        if visible.dtype == torch.uint8:
            visible = unpack(visible, ids.shape[1])
        hidden = self.c_head(self._queries(cls, ids), self.led_by(cls, ids), visible)
        return self.predict(hidden, batch["decoder_labels"])

    def _queries(self, cls: Tensor, ids: Tensor) -> Tensor:
        """H1 of Eq. 4: (B, L, d) h_cls at every position."""
        if self.query_stream == "embedded":
            return self.embed(vectors=cls.expand(-1, ids.shape[1], -1))
        return position_rows(self.lm, ids.shape[1]).unsqueeze(0) + cls

    def _basic(self, cls: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return self.decode(self.c_head, cls, batch["decoder_ids"], batch["attention_mask"], batch["decoder_labels"])
