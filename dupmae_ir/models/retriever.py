"""The retriever: one forward pass, two representations (DupMAE section 3.4).

[CLS] part (Eq. 10): ``h_0 W_cls``, d -> d' (384 by default). Without a projection it is ``h_0`` itself, as in RetroMAE,
MASTER and CoT-MAE; ``normalize`` is the length that it is scaled to, 1 in SimLM. OT part (Eq. 6-7): activation of the
maximum of the vocabulary logits over ordinary tokens. Similarity (Eq. 12): the sum of both inner products, with the
document's OT part cut to its top k.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dupmae_ir.models import pooling
from dupmae_ir.models.heads.masked_lm import Head, encoder_of, head_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Parts = tuple[Tensor | None, Tensor | None]
"""[CLS] part (B, d') and OT part (B, V) of a batch; None for a part that was not computed."""


class DenseLayers(nn.Sequential):
    """Linear maps, each followed by its activation: the Dense modules of sentence-transformers."""

    @property
    def out_features(self) -> int:
        """Width of the output."""
        return dense_layers(self)[-1][0].out_features


def dense_layers(projection: nn.Linear | DenseLayers | None) -> list[tuple[nn.Linear, nn.Module]]:
    """The linear maps of a projection, each with its activation."""
    if projection is None:
        return []
    if isinstance(projection, nn.Linear):
        return [(projection, nn.Identity())]
    # Linear maps and activations alternate.
    modules = list(projection)
    layers = []
    for linear, activation in zip(modules[::2], modules[1::2], strict=True):
        assert isinstance(linear, nn.Linear)
        layers.append((linear, activation))
    return layers


class Retriever(nn.Module):
    """A retriever with one encoder.

    Args:
        lm: a Hugging Face masked LM, or a bare encoder, which has no OT part.
        projection: W_cls, or the Dense layers of a sentence encoder, or None.
        excluded_terms: vocabulary ids that never have an OT weight (special tokens, and BERT's unused ones).
        unpooled_tokens: ids of the tokens left out of pooling.
        activation: a key of :data:`~dupmae_ir.models.pooling.ACTIVATIONS`.
        normalize: length that [CLS] vectors are scaled to; true is 1, and false leaves them unscaled.
        pooling: what the dense part is made from: ``cls``, the state of [CLS]; ``last``, that of the last token;
            ``mean``, the mean over all tokens; or ``weighted-mean``, in which the n-th token has the weight n.
        head_scale: learned factor of OT weights that are added to lexical ones; None for the paper's form.
        ot_pooling: how the OT part joins the tokens of a text: ``max`` (Eq. 6-7), or ``sum`` of activated logits.
        tied_ot: compute the OT logits with the word embeddings only, without the transform and bias of the head.
        ot_projection: W^O of Eq. 6, used in place of the masked-LM head for the OT part; None = the head.
        token_weight: layer d -> 1 that gives every token one logit, for its own term (BGE-M3); None = every token has
            logits for all terms.
        token_vectors: layer d -> d'' for the vectors of single tokens, or None.
    """

    term_mask: Tensor  #: (V,) bool, True for ids that can have an OT weight
    pooled_mask: Tensor  #: (V,) bool, True for ids whose tokens are pooled

    def __init__(
        self,
        lm: PreTrainedModel,
        projection: nn.Linear | DenseLayers | None,
        excluded_terms: Sequence[int],
        unpooled_tokens: Sequence[int],
        activation: str = "relu",
        normalize: float = False,
        pooling: str = "cls",
        head_scale: float | None = None,
        ot_pooling: str = "max",
        tied_ot: bool = False,
        ot_projection: nn.Linear | None = None,
        token_weight: nn.Linear | None = None,
        token_vectors: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.token_weight = token_weight
        self.token_vectors = token_vectors
        self.tied_ot = tied_ot
        self.ot_projection = ot_projection
        self.ot_pooling = ot_pooling
        self.lm = lm
        self.pooling = pooling
        self.projection = projection
        self.dimensions: int | None = None  # leading dimensions kept of a vector; None = all
        self.activation = activation
        self.normalize = normalize
        self.head_scale: nn.Parameter | None = None
        if head_scale is not None:
            self.head_scale = nn.Parameter(torch.tensor(float(head_scale)))
        # Not persistent: they follow from tokenizer and configuration.
        term_mask = _mask_without(excluded_terms, lm.config.vocab_size)
        pooled_mask = _mask_without(unpooled_tokens, lm.config.vocab_size)
        self.register_buffer("term_mask", term_mask, persistent=False)
        self.register_buffer("pooled_mask", pooled_mask, persistent=False)

    @property
    def head(self) -> Head:
        """The layer that gives the vocabulary logits of the OT part."""
        if self.ot_projection is not None:
            return Head(nn.Identity(), self.ot_projection.weight, None)
        head = head_of(self.lm)
        if self.tied_ot:
            return Head(nn.Identity(), head.weight, None)
        return head

    @property
    def dim(self) -> int:
        """Width d' of the [CLS] part."""
        width = int(self.lm.config.hidden_size)
        if self.projection is not None:
            width = self.projection.out_features
        return min(width, self.dimensions or width)

    def side(self, name: str) -> Retriever:  # noqa: ARG002
        """The retriever for ``"query"`` or ``"document"`` texts, which is this one for both."""
        return self

    def hidden(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, L) ids and mask -> (B, L, d) last hidden states."""
        out = encoder_of(self.lm)(input_ids=input_ids, attention_mask=attention_mask)
        return out.last_hidden_state

    def cls_part(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, L, d) states and (B, L) mask -> (B, d'), Eq. 10."""
        if self.pooling == "cls":
            return self.project(hidden[:, 0])
        if self.pooling == "last":
            batch, length = attention_mask.shape
            rows = torch.arange(batch, device=hidden.device)
            positions = torch.arange(length, device=hidden.device)
            # The last position with a mask of 1, so that texts may be padded on either side.
            last = (attention_mask * positions).argmax(1)
            return self.project(hidden[rows, last])
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        if self.pooling == "weighted-mean":
            weights = weights * weights.cumsum(1)
        return self.project((hidden * weights).sum(1) / weights.sum(1).clamp(min=1))

    def project(self, first: Tensor) -> Tensor:
        """(B, d) pooled hidden states -> (B, d'): W_cls, the leading dimensions, then the length ``normalize``."""
        part = first if self.projection is None else self.projection(first)
        part = part[..., : self.dimensions]
        if not self.normalize:
            return part
        return self.normalize * nn.functional.normalize(part, dim=-1)

    def ot_part(self, hidden: Tensor, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, L, d) -> (B, V), Eq. 6-7: zero at excluded terms, and all zero for a text without ordinary tokens.

        With ``head_scale``, times its absolute value.
        """
        mask = attention_mask.bool() & self.pooled_mask[input_ids]
        if self.token_weight is not None:
            logits = self.token_weight(hidden).squeeze(-1)
            pooled = pooling.token_max(logits, input_ids, mask, len(self.term_mask))
            # Terms that do not occur have the maximum -inf.
            has_weight = self.term_mask & pooled.isfinite()
            return self.activate(pooled.masked_fill(~has_weight, 0.0))
        head = self.head
        if self.ot_pooling == "sum":
            summed = pooling.ot_sum(
                head.transform(hidden), mask, (head.weight, head.bias), self.activation
            )
            return summed.masked_fill(~self.term_mask, 0.0)
        pooled = pooling.ot_max(head.transform(hidden), mask, head.weight, head.bias)
        # -inf (no token to pool) must not pass through an identity activation.
        has_weight = self.term_mask & mask.any(1, keepdim=True)
        return self.activate(pooled.masked_fill(~has_weight, 0.0))

    def activate(self, logits: Tensor) -> Tensor:
        """OT weights from the maxima of logits: the activation, and the learned factor if there is one."""
        weights = pooling.ACTIVATIONS[self.activation](logits)
        if self.head_scale is None:
            return weights
        # The factor is learned without a constraint; its absolute value keeps weights positive.
        return weights * self.head_scale.abs()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, cls: bool = True, ot: bool = True
    ) -> Parts:
        """(B, L) ids and mask -> the requested parts, from one encoder pass."""
        hidden = self.hidden(input_ids, attention_mask)
        cls_part = self.cls_part(hidden, attention_mask) if cls else None
        ot_part = self.ot_part(hidden, input_ids, attention_mask) if ot else None
        return cls_part, ot_part


class UntiedRetriever(nn.Module):
    """One retriever for queries and another for documents, with the same vocabulary and the same width d'.

    The two may share modules: Tevatron has one encoder with two projections.
    """

    def __init__(self, query: Retriever, document: Retriever) -> None:
        super().__init__()
        if query.dim != document.dim:
            raise ValueError(
                f"the query side has {query.dim} dimensions and the document side {document.dim}"
            )
        self.query = query
        self.document = document

    @property
    def dim(self) -> int:
        """Width d' of the [CLS] part."""
        return self.document.dim

    def side(self, name: str) -> Retriever:
        """The retriever for ``"query"`` or ``"document"`` texts."""
        return {"query": self.query, "document": self.document}[name]


def similarity(query: Parts, document: Parts) -> Tensor:
    """(Q, D) similarities of all pairs, Eq. 12. Cut the document's OT part to its top k first; a part may be None."""
    products = []
    for q, d in zip(query, document, strict=True):
        if q is not None and d is not None:
            products.append(pooling.at_least_float32(q) @ pooling.at_least_float32(d).t())
    return torch.stack(products).sum(0)


def _mask_without(ids: Sequence[int], size: int) -> Tensor:
    """(size,) bool, False at ``ids``."""
    mask = torch.ones(size, dtype=torch.bool)
    # Tokenizers may have more entries than the model (see _common_tokenizer in checkpoints/loading.py).
    mask[[id_ for id_ in ids if id_ < size]] = False
    return mask
