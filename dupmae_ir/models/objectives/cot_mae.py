"""CoT-MAE: the [CLS] vector of a text helps decode its context, masked or left to right (CoT-MoTE section 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F

from dupmae_ir.models.heads.masked_lm import shape_of
from dupmae_ir.models.objectives.bottleneck import Bottleneck, Masked, Terms, decoder_layers, sum_of
from dupmae_ir.models.objectives.decoders import CausalBlock, causal
from dupmae_ir.models.objectives.token_loss import IGNORED

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LeftToRight(Bottleneck):
    """An objective with the auto-regressive decoder of CoT-MAE and CoT-MoTE; parameter names as in the release."""

    d_head: nn.ModuleList
    window: int

    def add_blocks(self, layers: int, window: int) -> None:
        """Add ``layers`` GPT-2 blocks that attend to position 0 and the last ``window`` tokens (0: all before)."""
        shape = shape_of(self.lm.config)
        self.window = window
        self.dropout = shape.dropout
        self.d_head = nn.ModuleList(CausalBlock(self.lm.config) for _ in range(layers))
        if layers:
            self.d_head_ln_f = nn.LayerNorm(shape.width, eps=shape.epsilon)

    def left_to_right(self, cls: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Loss of predicting each token of the context, [SEP] included, from ``cls`` (B, 1, d) and those before it."""
        hidden = F.dropout(self.decoder_input(cls, ids), self.dropout, self.training)
        visible = causal(mask, self.window)
        for block in self.d_head:
            hidden = block(hidden, visible)
        labels = ids.masked_fill(~mask.bool(), IGNORED)
        # The output at position i predicts token i + 1.
        return self.predict(self.d_head_ln_f(hidden)[:, :-1], labels[:, 1:])


class CoTMAE(LeftToRight):
    """The encoder's masked-LM loss plus the loss of each decoder that has layers.

    Args:
        lm: the masked LM to train.
        mask_layers: BERT layers that decode the masked context; 0 for none.
        causal_layers: GPT-2 blocks that predict the context left to right; 0 for none.
        window: tokens that the causal blocks look back, besides position 0; 0 for no limit.
    """

    def __init__(
        self, lm: PreTrainedModel, mask_layers: int = 2, causal_layers: int = 0, window: int = 0
    ) -> None:
        super().__init__(lm)
        if mask_layers + causal_layers < 1:
            raise ValueError("CoT-MAE needs a decoder: mask layers, causal layers or both")
        self.c_head = decoder_layers(self.lm.config, mask_layers)
        self.add_blocks(causal_layers, window)

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Terms]:
        """The loss and its terms.

        ``batch``: ``input_ids, attention_mask, labels`` of the masked text; for the mask decoder ``enc_head_*``, the
        masked context and its labels; for the causal decoder ``dec_head_input_ids, dec_head_attention_mask``, the
        unmasked context.
        """
        hidden = self.encode(batch["input_ids"], batch["attention_mask"])
        terms: Terms = {"mlm": self.predict(hidden, batch["labels"])}
        cls = self.bottleneck_vectors(hidden[:, :1])
        if len(self.c_head):
            terms["mask_decoder"] = self.decode(
                self.c_head,
                cls,
                batch["enc_head_input_ids"],
                batch["enc_head_attention_mask"],
                batch["enc_head_labels"],
            )
        if len(self.d_head):
            terms["causal_decoder"] = self.left_to_right(
                cls, batch["dec_head_input_ids"], batch["dec_head_attention_mask"]
            )
        texts = Masked(hidden, batch["input_ids"], batch["attention_mask"], batch["labels"])
        return self.add_anchor(sum_of(terms), terms, texts)
