"""The retriever: one forward pass, two parts (DupMAE section 3.4).

[CLS] part (Eq. 10): ``h_0 W_cls``, d -> d' (384 by default); without a projection it is ``h_0`` itself, as
RetroMAE, MASTER and CoT-MAE use it; ``normalize`` scales it to unit length, as SimLM does. OT part (Eq. 6-7):
activation of the vocabulary logits' maximum over ordinary tokens. Similarity (Eq. 12): the sum of both inner products,
the document's OT part cut to its top k.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dupmae_ir.models import pooling
from dupmae_ir.models.masked_lm import encoder_of, head_of


class Retriever(nn.Module):
    """``lm``: a Hugging Face masked LM (or a bare encoder, then there is no OT part); ``projection``: W_cls or None.

    ``silent`` lists the vocabulary ids that never take part in the OT vector: special tokens, and BERT's unused ones;
    ``quiet`` those whose tokens do not speak. ``normalize``: [CLS] vectors of unit length.
    """

    heard: Tensor
    speaks: Tensor

    def __init__(
        self,
        lm: nn.Module,
        projection: nn.Linear | None,
        silent: list[int],
        quiet: list[int],
        activation: str = "relu",
        normalize: bool = False,
    ) -> None:
        super().__init__()
        self.lm: Any = lm
        self.projection = projection
        self.activation = activation
        self.normalize = normalize
        config: Any = lm.config
        heard = torch.ones(config.vocab_size, dtype=torch.bool)
        heard[silent] = False
        self.register_buffer("heard", heard, persistent=False)
        speaks = torch.ones(config.vocab_size, dtype=torch.bool)
        speaks[quiet] = False
        self.register_buffer("speaks", speaks, persistent=False)

    @property
    def dim(self) -> int:
        """Width d' of the [CLS] part."""
        return self.projection.out_features if self.projection is not None else int(self.lm.config.hidden_size)

    def side(self, name: str) -> Retriever:  # noqa: ARG002
        """The retriever of ``"query"`` or ``"document"`` texts: this one serves both."""
        return self

    def hidden(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, L) ids and mask -> (B, L, d) last hidden states."""
        out = encoder_of(self.lm)(input_ids=input_ids, attention_mask=attention_mask)
        return out.last_hidden_state

    def cls_part(self, hidden: Tensor) -> Tensor:
        """(B, L, d) -> (B, d'), Eq. 10."""
        return self.project(hidden[:, 0])

    def project(self, first: Tensor) -> Tensor:
        """(B, d) hidden states of [CLS] -> (B, d'): through W_cls if there is one, to unit length if so trained."""
        part = self.projection(first) if self.projection is not None else first
        return nn.functional.normalize(part, dim=-1) if self.normalize else part

    def ot_part(self, hidden: Tensor, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, L, d) -> (B, V), Eq. 6-7: zero at silent ids; a text without ordinary tokens is all zero."""
        head = head_of(self.lm)
        speaking = attention_mask.bool() & self.speaks[input_ids]
        pooled = pooling.ot_max(head.transform(hidden), speaking, head.weight, head.bias)
        # -inf (nobody spoke) must not survive an identity activation.
        pooled = pooled.masked_fill(~(self.heard & speaking.any(1, keepdim=True)), 0.0)
        return pooling.ACTIVATIONS[self.activation](pooled)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, cls: bool = True, ot: bool = True
    ) -> tuple[Tensor | None, Tensor | None]:
        """(B, L) ids and mask -> ([CLS] part (B, d') or None, OT part (B, V) or None) from one encoder pass."""
        hidden = self.hidden(input_ids, attention_mask)
        return (self.cls_part(hidden) if cls else None, self.ot_part(hidden, input_ids, attention_mask) if ot else None)


class UntiedRetriever(nn.Module):
    """One retriever for queries and another for documents, with one vocabulary and [CLS] parts of one width.

    The two may share modules: Tevatron has one encoder with two projections. Which side a text belongs to is never
    guessed, so a forward pass has to name it.
    """

    def __init__(self, query: Retriever, document: Retriever) -> None:
        super().__init__()
        if query.dim != document.dim:
            raise ValueError(f"the query side makes {query.dim} dimensions and the document side {document.dim}")
        self.query, self.document = query, document

    @property
    def dim(self) -> int:
        """Width d' of the [CLS] part."""
        return self.document.dim

    def side(self, name: str) -> Retriever:
        """The retriever of ``"query"`` or ``"document"`` texts."""
        return {"query": self.query, "document": self.document}[name]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, cls: bool = True, ot: bool = True, *, side: str
    ) -> tuple[Tensor | None, Tensor | None]:
        """:meth:`Retriever.forward` of one side."""
        return self.side(side)(input_ids, attention_mask, cls, ot)


def similarity(query: tuple[Tensor | None, Tensor | None], document: tuple[Tensor | None, Tensor | None]) -> Tensor:
    """Eq. 12 for every pair of the two batches: (Q, D). Either part may be None; cut the document's OT part first."""
    both = [(q, d) for q, d in zip(query, document, strict=True) if q is not None and d is not None]
    return torch.stack([_at_least_float32(q) @ _at_least_float32(d).t() for q, d in both]).sum(0)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
