"""The loss of a batch from the representations of its queries and documents (DupMAE Eq. 12-15)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dupmae_ir.finetune import losses
from dupmae_ir.models.masked_lm import encoder_of
from dupmae_ir.models.pooling import keep_top_k
from dupmae_ir.models.retriever import Retriever, UntiedRetriever, similarity

Parts = tuple[Tensor | None, Tensor | None]
"""[CLS] part (n, d') and OT part (n, V)."""

SIMILARITIES = ("sum", "cls", "ot")
GROUP_COST = 48
"""Tokens in whose time a forward and backward pass starts and ends; so much padding is borne to spare a group."""


@dataclass(frozen=True)
class Objective:
    """The terms of the loss and their weights."""

    similarity: str = "sum"  #: Eq. 12, or one of its halves
    top_k: int = 384  #: document OT weights kept at search time; 0 = all
    train_top_k: bool = True  #: ... and while training
    query_top_k: int = 0  #: query OT weights kept; 0 = all
    temperature: float = 1.0
    contrastive_weight: float = 1.0  #: of Eq. 13 and 14
    distill: str | None = None  #: one of :data:`losses.DISTILLATIONS`, Eq. 15
    teacher_temperature: float = 1.0
    part_weight: float = 0.0  #: of the same contrastive loss on [CLS] alone and on OT alone
    regularizer: str = "flops"
    query_weight: float = 0.0  #: of the regulariser on queries
    document_weight: float = 0.0  #: ... and on documents
    anchor_weight: float = 0.0  #: of the distance of [CLS] from the teacher's sentence vectors

    @property
    def uses(self) -> tuple[bool, bool]:
        """Whether the [CLS] part, and whether the OT part is needed."""
        return self.similarity != "ot" or bool(self.anchor_weight), self.similarity != "cls"


class BiEncoder(nn.Module):
    """Queries and documents of a batch through one module, as wrappers for several processes want it.

    Texts are encoded in groups of like length, so that little of the work is padding whatever the batch is made of.
    """

    def __init__(self, retriever: Retriever | UntiedRetriever, parts: tuple[bool, bool] = (True, True)) -> None:
        super().__init__()
        self.retriever, self.parts = retriever, parts
        self.real_tokens = self.padded_tokens = 0

    def forward(self, ids: Tensor, mask: Tensor, side: str) -> Parts:
        """(n, L) ids and mask -> the parts of ``n`` texts of one ``side``, ``query`` or ``document``."""
        cls, ot = self.parts
        model: Any = self.retriever.side(side)
        encoder: Any = encoder_of(model.lm)
        # One look-up for all groups: the gradient of each is as large as the vocabulary.
        words = encoder.get_input_embeddings()(ids)

        def encode(rows: Tensor, length: int) -> Parts:
            some_ids, some_mask = ids[rows, :length], mask[rows, :length]
            self.padded_tokens += some_mask.numel()
            hidden = encoder(inputs_embeds=words[rows, :length], attention_mask=some_mask).last_hidden_state
            return model.cls_part(hidden) if cls else None, model.ot_part(hidden, some_ids, some_mask) if ot else None

        self.real_tokens += int(mask.sum())
        return in_groups(mask, encode)

    @property
    def waste(self) -> float:
        """Share of the tokens encoded so far that were padding."""
        return 1 - self.real_tokens / max(1, self.padded_tokens)


def in_groups(mask: Tensor, encode: Callable[[Tensor, int], Parts]) -> Parts:
    """``encode(rows, length)`` for groups of rows of like length of an (n, L) ``mask``, put back in order."""
    lengths = mask.sum(1).tolist()
    groups = like_lengths(lengths)
    done = [encode(torch.tensor(rows, device=mask.device), lengths[rows[0]]) for rows in groups]
    order = torch.tensor([row for rows in groups for row in rows], device=mask.device).argsort()
    cls, ot = (None if p[0] is None else torch.cat(list(p))[order] for p in zip(*done, strict=True))
    return cls, ot


def like_lengths(lengths: Sequence[int], group_cost: int = GROUP_COST) -> list[list[int]]:
    """Rows in groups, longest first, so that the padded tokens, and ``group_cost`` more for each group, are fewest."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    # A group begins where a length does, and is as long as its first row.
    starts = [at for at, row in enumerate(order) if not at or lengths[row] < lengths[order[at - 1]]]
    ends = [*starts[1:], len(order)]
    cheapest = {len(order): (0, 0)}  # from a start: (tokens, end of the first group)
    for at in reversed(starts):
        longest = lengths[order[at]]
        cheapest[at] = min((longest * (end - at) + group_cost + cheapest[end][0], end) for end in ends if end > at)
    groups, at = [], 0
    while at < len(order):
        end = cheapest[at][1]
        groups.append(order[at:end])
        at = end
    return groups


def batch_loss(
    queries: Parts,
    documents: Parts,
    batch: dict[str, Tensor],
    objective: Objective,
    warmth: float = 1.0,
    anchors: Sequence[Tensor] = (),
) -> tuple[Tensor, dict[str, Tensor]]:
    """(loss, its terms without weights). ``warmth`` in [0, 1] scales the regulariser; ``anchors`` are the teacher's
    vectors of queries and documents."""
    # Autocast would round the inner products to 8 bits: half a unit at 100, where a softmax sees hundredths.
    with torch.autocast(batch["group"].device.type, enabled=False):
        return _batch_loss(queries, documents, batch, objective, warmth, anchors)


def _batch_loss(
    queries: Parts,
    documents: Parts,
    batch: dict[str, Tensor],
    objective: Objective,
    warmth: float,
    anchors: Sequence[Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    cut_queries = _cut(queries[1], objective.query_top_k)
    cut_documents = _cut(documents[1], objective.top_k if objective.train_top_k else 0)
    dense = similarity((queries[0], None), (documents[0], None)) if objective.similarity != "ot" else None
    impact = similarity((None, cut_queries), (None, cut_documents)) if objective.similarity != "cls" else None
    halves = [s for s in (dense, impact) if s is not None]
    scores = halves[0] if len(halves) == 1 else halves[0] + halves[1]
    target, same = batch["group"][:, 0], answering(batch)
    terms: dict[str, Tensor] = {}
    loss = scores.new_zeros(())
    if objective.contrastive_weight:
        terms["contrastive"] = losses.contrastive(scores, same, objective.temperature, target)
        loss = loss + objective.contrastive_weight * terms["contrastive"]
    if objective.distill is not None:
        group = batch["group"]
        own = scores.gather(1, group.clamp(min=0))
        terms["distill"] = losses.distillation(
            own, batch["taught"].to(own.dtype), group >= 0, objective.distill, objective.teacher_temperature
        )
        loss = loss + terms["distill"]
    if objective.part_weight and dense is not None and impact is not None:
        for name, half in (("cls", dense), ("ot", impact)):
            terms[name] = losses.contrastive(half, same, objective.temperature, target)
            loss = loss + objective.part_weight * terms[name]
    measure = losses.REGULARIZERS[objective.regularizer]
    sides = (("q", queries[1], objective.query_weight), ("d", documents[1], objective.document_weight))
    for side, weights, weight in sides:
        if weight and weights is not None:
            terms[f"{objective.regularizer}_{side}"] = measure(weights)
            loss = loss + warmth * weight * terms[f"{objective.regularizer}_{side}"]
    if anchors and queries[0] is not None and documents[0] is not None:
        distances = [losses.anchor(v, t) for v, t in zip((queries[0], documents[0]), anchors, strict=True)]
        terms["anchor"] = torch.stack(distances).mean()
        loss = loss + objective.anchor_weight * terms["anchor"]
    return loss, terms


def answering(batch: dict[str, Tensor]) -> Tensor:
    """(Q, D) True where a document of the batch answers the query, its own target excepted. A query that is asked
    twice has the answers of both."""
    answered = (batch["document_keys"][None, :, None] == batch["answers"][:, None, :]).any(-1)
    asked = batch["query_keys"][:, None] == batch["query_keys"][None, :]
    same = asked.float() @ answered.float() > 0
    return same.scatter(1, batch["group"][:, :1], False)


def _cut(weights: Tensor | None, k: int) -> Tensor | None:
    return weights if weights is None or not k else keep_top_k(weights, k)
