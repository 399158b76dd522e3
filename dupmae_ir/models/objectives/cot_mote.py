"""CoT-MoTE: contextual masked auto-encoding with a textual expert for queries and one for passages."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dupmae_ir.errors import UsageError
from dupmae_ir.models.experts import Experts, TextType, separate, siamese, with_experts
from dupmae_ir.models.masked_lm import encoder_of, head_of, shape_of
from dupmae_ir.models.objectives.bottleneck import Terms
from dupmae_ir.models.objectives.cot_mae import LeftToRight
from dupmae_ir.models.pooling import ACTIVATIONS, ot_max

EXPERTS = ("ffn", "none", "all")


def _experts(lm: nn.Module, kind: str, shared_norm: bool) -> Experts:
    return {"none": siamese, "all": separate}[kind](lm) if kind != "ffn" else with_experts(lm, shared_norm)


class CoTMoTE(LeftToRight):
    """Masked-LM losses of a query and of a passage, each through its expert (Eq. 11), and the auto-regressive loss of
    the passage's context led by its representations (Eq. 12).

    ``decode``: led by ``den`` (Eq. 3), by ``spr`` (Eq. 4), or by each in turn (``both``). ``sparse_head``: SPR through
    the ``mlm`` head or by the word embeddings alone (``tied``, Eq. 4 as printed). ``spr_to_hidden``: how a vocabulary
    vector leads a decoder, which the paper leaves open: times the word embeddings, held fixed, or a ``linear`` map.
    ``lm`` may be :class:`Experts` already; else ``experts`` says what queries and passages have of their own: the
    feed-forward part (``ffn``), nothing (``none``: Siamese) or everything (``all``), the rows of Table 3. ``switched``:
    each expert reads the other's texts, Table 4.
    """

    def __init__(
        self,
        lm: nn.Module,
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
        known = (("den", "spr", "both"), ("mlm", "tied"), ("embeddings", "linear"), EXPERTS)
        for value, names in zip((decode, sparse_head, spr_to_hidden, experts), known, strict=True):
            if value not in names:
                raise ValueError(f"{value!r} is not known; use {' or '.join(names)}")
        if layers < 1:
            raise UsageError(f"CoT-MoTE's left-to-right decoder has {layers} layers; --causal-layers wants 1 or more")
        self.experts = lm if isinstance(lm, Experts) else _experts(lm, experts, shared_norm)
        self.reads: tuple[TextType, TextType] = ("query", "passage") if switched else ("passage", "query")
        self.decode_from, self.sparse_head = decode, sparse_head
        self.add_blocks(layers, window)
        width, words = shape_of(self.lm.config).width, self.lm.config.vocab_size
        learned = spr_to_hidden == "linear" and decode != "den"
        self.spr_projection = nn.Linear(words, width, bias=False) if learned else None

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Terms]:
        """``input_ids, attention_mask, labels`` of the masked passage, ``query_*`` of a masked query, and the plain
        context, ``dec_head_input_ids, dec_head_attention_mask``."""
        mask = batch["attention_mask"]
        of_passages, of_queries = self.reads
        passage = self.experts.encode(batch["input_ids"], mask, of_passages)
        query = self.experts.encode(batch["query_input_ids"], batch["query_attention_mask"], of_queries)
        terms: Terms = {
            "mlm_passage": self.predict(passage, batch["labels"], self.experts.of(of_passages)),
            "mlm_query": self.predict(query, batch["query_labels"], self.experts.of(of_queries)),
        }
        context = batch["dec_head_input_ids"], batch["dec_head_attention_mask"]
        if self.decode_from in ("den", "both"):
            terms["causal_den"] = self.left_to_right(passage[:, :1], *context)
        if self.decode_from in ("spr", "both"):
            terms["causal_spr"] = self.left_to_right(self.as_hidden(self.spr(passage, mask)), *context)
        return torch.stack(list(terms.values())).sum(), terms

    @property
    def words(self) -> Tensor:
        """E (V, d), the word embeddings: the weight of the head too, unless a base has untied them."""
        embeddings: Any = encoder_of(self.lm).embeddings
        return embeddings.word_embeddings.weight

    def spr(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(B, L, d) -> (B, V), Eq. 4: the tokens between [CLS] and [SEP] speak; a text without any is zero."""
        speaking = mask.bool().clone()
        speaking[:, 0] = False
        speaking.scatter_(1, mask.sum(1, keepdim=True) - 1, False)
        if self.sparse_head == "tied":
            pooled = ot_max(hidden, speaking, self.words)
        else:
            head = head_of(self.lm)
            pooled = ot_max(head.transform(hidden), speaking, head.weight, head.bias)
        return ACTIVATIONS["log1p"](pooled)

    def as_hidden(self, spr: Tensor) -> Tensor:
        """(B, V) -> (B, 1, d): the vocabulary vector in the place of h_0."""
        if self.spr_projection is not None:
            return self.spr_projection(spr).unsqueeze(1)
        # Held fixed, as LexMAE does: else the embeddings would learn to carry the text past the bottleneck.
        return (spr @ self.words.detach().to(spr.dtype)).unsqueeze(1)
