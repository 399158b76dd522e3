"""CoT-MoTE: contextual masked auto-encoding with one textual expert for queries and one for passages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from dupmae_ir.errors import UsageError
from dupmae_ir.models.experts import Experts, TextType, separate, siamese, with_experts
from dupmae_ir.models.heads.masked_lm import head_of, shape_of
from dupmae_ir.models.objectives.bottleneck import Masked, Terms, sum_of
from dupmae_ir.models.objectives.cot_mae import LeftToRight
from dupmae_ir.models.pooling import ACTIVATIONS, ot_max

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CHOICES = {
    "decode": ("den", "spr", "both"),
    "sparse_head": ("mlm", "tied"),
    "spr_to_hidden": ("embeddings", "linear"),
    "experts": ("ffn", "none", "all"),
}


class CoTMoTE(LeftToRight):
    """Masked-LM losses of a query and a passage, each through its expert (Eq. 11), plus the auto-regressive loss of
    the passage's context, decoded from the passage's representations (Eq. 12).

    Args:
        lm: the masked LM to train, or :class:`Experts`, which are then used as they are.
        decode: decode from ``den`` (Eq. 3), from ``spr`` (Eq. 4), or from each in turn (``both``).
        sparse_head: compute SPR with the ``mlm`` head, or with the word embeddings only (``tied``, Eq. 4 as printed).
        spr_to_hidden: how a vocabulary vector becomes a decoder input, which the paper leaves open: multiplied by the
            word embeddings without gradient (``embeddings``), or by a learned map (``linear``).
        window: tokens that the decoder looks back, besides position 0; 0 for no limit.
        layers: GPT-2 blocks of the decoder.
        shared_norm: both experts use the same LayerNorm after the feed-forward part.
        experts: what queries and passages do not share (Table 3): the feed-forward part (``ffn``), nothing (``none``,
            Siamese) or everything (``all``).
        switched: each expert reads the other's texts (Table 4).
    """

    def __init__(
        self,
        lm: PreTrainedModel | Experts,
        decode: str = "both",
        sparse_head: str = "mlm",
        spr_to_hidden: str = "embeddings",
        window: int = 0,
        layers: int = 1,
        shared_norm: bool = False,
        experts: str = "ffn",
        switched: bool = False,
    ) -> None:
        super().__init__(lm.passage if isinstance(lm, Experts) else lm)
        options = {
            "decode": decode,
            "sparse_head": sparse_head,
            "spr_to_hidden": spr_to_hidden,
            "experts": experts,
        }
        for name, value in options.items():
            if value not in _CHOICES[name]:
                raise ValueError(
                    f"{name} {value!r} is not known; use {' or '.join(_CHOICES[name])}"
                )
        if layers < 1:
            raise UsageError(f"`causal_layers` must be at least 1 for CoT-MoTE, got {layers}")
        if isinstance(lm, Experts):
            self.experts = lm
        elif experts == "ffn":
            self.experts = with_experts(lm, shared_norm)
        elif experts == "all":
            self.experts = separate(lm)
        else:
            self.experts = siamese(lm)
        # The text types whose experts encode the passage and the query.
        self.passage_expert: TextType = "query" if switched else "passage"
        self.query_expert: TextType = "passage" if switched else "query"
        self.decode_from = decode
        self.sparse_head = sparse_head
        self.add_blocks(layers, window)
        self.spr_projection: nn.Linear | None = None
        if spr_to_hidden == "linear" and decode != "den":
            width = shape_of(self.lm.config).width
            self.spr_projection = nn.Linear(self.lm.config.vocab_size, width, bias=False)

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Terms]:
        """The loss and its terms.

        ``batch``: ``input_ids, attention_mask, labels`` of the masked passage, ``query_*`` of the masked query, and
        ``dec_head_input_ids, dec_head_attention_mask``, the unmasked context.
        """
        passage = Masked(
            self.experts.encode(batch["input_ids"], batch["attention_mask"], self.passage_expert),
            batch["input_ids"],
            batch["attention_mask"],
            batch["labels"],
        )
        query = Masked(
            self.experts.encode(
                batch["query_input_ids"], batch["query_attention_mask"], self.query_expert
            ),
            batch["query_input_ids"],
            batch["query_attention_mask"],
            batch["query_labels"],
        )
        # Eq. 11
        passage_lm = self.experts.of(self.passage_expert)
        query_lm = self.experts.of(self.query_expert)
        terms: Terms = {
            "mlm_passage": self.predict(passage.hidden, passage.labels, passage_lm),
            "mlm_query": self.predict(query.hidden, query.labels, query_lm),
        }
        # Eq. 12
        context_ids = batch["dec_head_input_ids"]
        context_mask = batch["dec_head_attention_mask"]
        if self.decode_from in ("den", "both"):
            den = self.bottleneck_vectors(passage.hidden[:, :1])
            terms["causal_den"] = self.left_to_right(den, context_ids, context_mask)
        if self.decode_from in ("spr", "both"):
            spr = self.spr_as_hidden(self.spr(passage.hidden, passage.mask))
            spr = self.bottleneck_vectors(spr)
            terms["causal_spr"] = self.left_to_right(spr, context_ids, context_mask)
        return self.add_anchor(sum_of(terms), terms, passage, query)

    @property
    def word_embeddings(self) -> Tensor:
        """E (V, d): also the weight of the prediction head, unless the base model has untied them."""
        return self.lm.get_input_embeddings().weight

    def spr(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Sparse representation (Eq. 4): (B, L, d) -> (B, V), pooled over the tokens between [CLS] and [SEP].

        A text without such tokens is zero.
        """
        pooling_mask = mask.bool().clone()
        pooling_mask[:, 0] = False
        # [SEP] is the last token; texts are padded on the right.
        pooling_mask.scatter_(1, mask.sum(1, keepdim=True) - 1, False)
        if self.sparse_head == "tied":
            pooled = ot_max(hidden, pooling_mask, self.word_embeddings)
        else:
            head = head_of(self.lm)
            pooled = ot_max(head.transform(hidden), pooling_mask, head.weight, head.bias)
        return ACTIVATIONS["log1p"](pooled)

    def spr_as_hidden(self, spr: Tensor) -> Tensor:
        """A vocabulary vector as a decoder input in place of h_0: (B, V) -> (B, 1, d)."""
        if self.spr_projection is not None:
            return self.spr_projection(spr).unsqueeze(1)
        # Detached, as in LexMAE: otherwise the embeddings would learn to carry the text past the bottleneck.
        return (spr @ self.word_embeddings.detach().to(spr.dtype)).unsqueeze(1)
