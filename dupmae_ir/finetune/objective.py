"""The loss of a batch from the representations of its queries and documents (DupMAE Eq. 12-15)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dupmae_ir.finetune.config import Objective
from dupmae_ir.finetune.lexical import cut, with_lexical
from dupmae_ir.models.checkpoints.layout import SIDES
from dupmae_ir.models.heads.masked_lm import encoder_of
from dupmae_ir.models.pooling import at_least_float32
from dupmae_ir.models.retriever import Retriever, UntiedRetriever, similarity

Parts = tuple[Tensor | None, Tensor | None]
"""[CLS] part (n, d') and OT part (n, V)."""

GROUP_COST = 48
"""Fixed cost of a forward and backward pass in tokens: a group is split only if that saves more padding."""


class BiEncoder(nn.Module):
    """Encodes queries and documents of a batch in one module, as DistributedDataParallel requires.

    Texts are encoded in groups of similar length, so that little of the work is padding.
    """

    def __init__(
        self, retriever: Retriever | UntiedRetriever, parts: tuple[bool, bool] = (True, True)
    ) -> None:
        super().__init__()
        self.retriever = retriever
        self.parts = parts
        self.real_tokens = 0
        self.token_slots = 0

    def forward(self, batch: dict[str, Tensor], sides: Sequence[str] = SIDES) -> dict[str, Parts]:
        """The parts by side, from ``{side}_ids`` and ``{side}_mask`` of each.

        One call for both sides: DistributedDataParallel takes weights that one call does not read for unused.
        """
        parts = {}
        for side in sides:
            parts[side] = self.encode(batch[f"{side}_ids"], batch[f"{side}_mask"], side)
        return parts

    def encode(self, ids: Tensor, mask: Tensor, side: str) -> Parts:
        """The [CLS] part and the OT part of n texts: ``ids`` and ``mask`` are (n, L), ``side`` is ``query`` or
        ``document``. A part that the objective does not use is None."""
        uses_cls, uses_ot = self.parts
        model: Any = self.retriever.side(side)
        encoder: Any = encoder_of(model.lm)
        # One look-up for all groups, as the gradient of each look-up is as large as the vocabulary.
        word_embeddings = encoder.get_input_embeddings()(ids)

        def encode_group(rows: Tensor, length: int) -> Parts:
            group_ids = ids[rows, :length]
            group_mask = mask[rows, :length]
            if self.training:
                self.token_slots += group_mask.numel()
            output = encoder(
                inputs_embeds=word_embeddings[rows, :length], attention_mask=group_mask
            )
            hidden = output.last_hidden_state
            cls = None
            if uses_cls:
                cls = model.cls_part(hidden, group_mask)
            ot = None
            if uses_ot:
                ot = model.ot_part(hidden, group_ids, group_mask)
            return cls, ot

        if self.training:
            # Added to by each forward pass: with GradCache, by both passes of a chunk. The fraction stays the same.
            self.real_tokens += int(mask.sum())
        return in_groups(mask, encode_group)

    @property
    def waste(self) -> float:
        """Fraction of padding among the tokens trained on so far."""
        return 1 - self.real_tokens / max(1, self.token_slots)


def in_groups(mask: Tensor, encode: Callable[[Tensor, int], Parts]) -> Parts:
    """Call ``encode(rows, length)`` for groups of similar length of an (n, L) ``mask``; its results in input order."""
    lengths = mask.sum(1).tolist()
    groups = group_by_length(lengths)
    cls_parts = []
    ot_parts = []
    for rows in groups:
        # The first row of a group is the longest.
        cls, ot = encode(torch.tensor(rows, device=mask.device), lengths[rows[0]])
        cls_parts.append(cls)
        ot_parts.append(ot)
    grouped_rows = list(itertools.chain.from_iterable(groups))
    order = torch.tensor(grouped_rows, device=mask.device).argsort()
    return _in_order(cls_parts, order), _in_order(ot_parts, order)


def _in_order(parts: list[Tensor | None], order: Tensor) -> Tensor | None:
    """The parts of all groups, one after the other, in ``order``; None for a part that is not computed."""
    computed = [part for part in parts if part is not None]
    if not computed:
        return None
    return torch.cat(computed)[order]


def group_by_length(lengths: Sequence[int], group_cost: int = GROUP_COST) -> list[list[int]]:
    """Partition rows by length, longest first, minimising padded tokens plus ``group_cost`` for each group."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    # A group starts at the first row of a length, and is as long as that row.
    starts = []
    for position, row in enumerate(order):
        if position == 0 or lengths[row] < lengths[order[position - 1]]:
            starts.append(position)
    ends = [*starts[1:], len(order)]

    # Dynamic programming from the end: the cheapest partition of the rows from each start on, as its tokens and the
    # end of its first group.
    cheapest = {len(order): (0, 0)}
    for start in reversed(starts):
        width = lengths[order[start]]
        costs = []
        for end in ends:
            if end > start:
                tokens, _ = cheapest[end]
                costs.append((width * (end - start) + group_cost + tokens, end))
        cheapest[start] = min(costs)

    groups = []
    start = 0
    while start < len(order):
        _, end = cheapest[start]
        groups.append(order[start:end])
        start = end
    return groups


def batch_loss(
    queries: Parts,
    documents: Parts,
    batch: dict[str, Tensor],
    objective: Objective,
    regularizer_scale: float = 1.0,
    anchors: Sequence[Tensor] = (),
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch, and its terms without their weights.

    Args:
        queries: parts of the Q queries.
        documents: parts of the D documents, the positives first.
        batch: of :class:`~dupmae_ir.finetune.examples.ExampleCollator`.
        objective: similarity, terms and weights.
        regularizer_scale: factor in [0, 1] on the regulariser.
        anchors: the teacher's vectors (Q, d') and (D, d'), or nothing.
    """
    # In float32: autocast would round inner products to 8 bits, half a unit at 100, where a softmax needs hundredths.
    with torch.autocast(batch["group"].device.type, enabled=False):
        terms = dict(_terms(queries, documents, batch, objective, anchors))
        zero = batch["group"].new_zeros((), dtype=torch.float32)
        weights = {
            "contrastive": objective.contrastive,
            "distill": 1.0,
            "cls": objective.part,
            "ot": objective.part,
            f"{objective.regularizer}_q": regularizer_scale * objective.query_flops,
            f"{objective.regularizer}_d": regularizer_scale * objective.document_flops,
            "anchor": objective.anchor,
        }
        loss = sum((weights[name] * term for name, term in terms.items()), zero)
        return loss, terms


def _terms(
    queries: Parts,
    documents: Parts,
    batch: dict[str, Tensor],
    objective: Objective,
    anchors: Sequence[Tensor],
) -> Iterator[tuple[str, Tensor]]:
    """The terms of the loss by name, without those of weight 0."""
    query_cls, query_ot = queries
    document_cls, document_ot = documents
    dense = None
    if objective.similarity != "ot":
        dense = similarity((query_cls, None), (document_cls, None))
        dense = (objective.dense_weight or 1.0) * dense
    impact = None
    if objective.similarity != "cls":
        impact = _impact_scores(query_ot, document_ot, batch, objective)
    scores = _sum_of_parts(dense, impact, objective)

    group = batch["group"]
    target = group[:, 0]
    excluded = other_answers(batch)
    if objective.contrastive:
        yield "contrastive", contrastive(scores, excluded, objective.temperature, target)
    if objective.distill is not None:
        # Columns of -1 pad a group. They may read any score, since `present` leaves them out.
        group_scores = scores.gather(1, group.clamp(min=0))
        teacher_scores = batch["teacher_scores"].to(scores.dtype)
        present = group >= 0
        temperature = objective.teacher_temperature
        distance = distillation(
            group_scores, teacher_scores, present, objective.distill, temperature
        )
        yield "distill", distance
    if objective.part and dense is not None and impact is not None:
        yield "cls", contrastive(dense, excluded, objective.temperature, target)
        yield "ot", contrastive(impact, excluded, objective.temperature, target)

    # Of the head's weights alone: lexical weights are constants.
    regularizer = REGULARIZERS[objective.regularizer]
    if objective.query_flops and query_ot is not None:
        yield f"{objective.regularizer}_q", regularizer(query_ot)
    if objective.document_flops and document_ot is not None:
        yield f"{objective.regularizer}_d", regularizer(document_ot)
    if anchors and query_cls is not None and document_cls is not None:
        query_anchors, document_anchors = anchors
        distances = [anchor(query_cls, query_anchors), anchor(document_cls, document_anchors)]
        yield "anchor", torch.stack(distances).mean()


def _impact_scores(
    query_ot: Tensor | None,
    document_ot: Tensor | None,
    batch: dict[str, Tensor],
    objective: Objective,
) -> Tensor:
    """(Q, D) inner products of the OT parts with the lexical weights, cut to the top k of both sides."""
    all_queries = with_lexical(query_ot, batch, "query", len(batch["query_keys"]))
    all_documents = with_lexical(document_ot, batch, "document", len(batch["document_keys"]))
    document_top_k = 0
    if objective.train_top_k:
        document_top_k = objective.top_k
    cut_queries = cut(all_queries, objective.query_top_k, batch)
    cut_documents = cut(all_documents, document_top_k, batch)
    return similarity((None, cut_queries), (None, cut_documents))


def _sum_of_parts(dense: Tensor | None, impact: Tensor | None, objective: Objective) -> Tensor:
    """The similarity (Eq. 12), or its only part; ``dense`` is weighted already, and ``impact`` only in a sum."""
    if impact is None:
        assert dense is not None
        return dense
    if dense is None:
        return impact
    return dense + (objective.impact_weight or 1.0) * impact


def other_answers(batch: dict[str, Tensor]) -> Tensor:
    """(Q, D) True where a document of the batch answers the query and is not its target, so that it is no negative.

    Copies of a query share their answers.
    """
    answered = (batch["document_keys"][None, :, None] == batch["answers"][:, None, :]).any(-1)
    copies = batch["query_keys"][:, None] == batch["query_keys"][None, :]
    # As floats, since torch has no matrix product of booleans: the number of copies that the document answers.
    answers = copies.float() @ answered.float() > 0
    # The query's own positive is the target of the softmax, and must stay in it.
    return answers.scatter(1, batch["group"][:, :1], False)


def contrastive(
    scores: Tensor,
    excluded: Tensor | None = None,
    temperature: float = 1.0,
    target: Tensor | None = None,
) -> Tensor:
    """In-batch softmax loss, DupMAE Eq. 13 (Eq. 14 with mined negatives among the columns).

    Mean over queries of -log softmax at the query's positive.

    Args:
        scores: (Q, D), D >= Q.
        excluded: (Q, D) True for a column that must not count as a negative.
        temperature: divides the scores; 1 in the paper, as the similarity is a plain inner product.
        target: (Q,) column of each query's positive; i for query i if not given.
    """
    scores = at_least_float32(scores)
    if excluded is not None:
        scores = scores.masked_fill(excluded, torch.finfo(scores.dtype).min)
    if target is None:
        target = torch.arange(len(scores), device=scores.device)
    return F.cross_entropy(scores / temperature, target)


def distillation(
    scores: Tensor,
    teacher_scores: Tensor,
    present: Tensor,
    kind: str = "kl",
    temperature: float = 1.0,
) -> Tensor:
    """Distillation of a teacher's scores of d+ and D- (DupMAE Eq. 15).

    Args:
        scores: (Q, 1 + N), the positive first.
        teacher_scores: (Q, 1 + N), in the same order.
        present: (Q, 1 + N), False for the columns that a query with fewer negatives lacks.
        kind: ``kl``: KL divergence of the student's softmax from the teacher's, mean over queries. ``kl-mean``: divided
            by the number of passages too, like the released code's reduction. ``soft-ce``: cross-entropy with the
            teacher's softmax as label (the same gradient as ``kl``). ``margin-mse``: squared difference of the margins
            between positive and negative.
        temperature: divides the teacher's scores.
    """
    scores = at_least_float32(scores)
    teacher_scores = at_least_float32(teacher_scores) / temperature
    if kind == "margin-mse":
        margins = scores[:, :1] - scores[:, 1:]
        teacher_margins = teacher_scores[:, :1] - teacher_scores[:, 1:]
        differences = margins - teacher_margins
        return differences[present[:, 1:]].square().mean()
    # Not -inf: both logarithms would be -inf, their difference NaN, and torch.where passes a NaN on to the gradient.
    min_score = torch.finfo(scores.dtype).min
    log_student = torch.log_softmax(scores.masked_fill(~present, min_score), 1)
    log_teacher = torch.log_softmax(teacher_scores.masked_fill(~present, min_score), 1)
    log_ratio = log_student
    # The teacher's entropy is a constant, so the gradient is the same without it.
    if kind != "soft-ce":
        log_ratio = log_student - log_teacher
    by_passage = -log_teacher.exp() * log_ratio
    total = torch.where(present, by_passage, 0.0).sum()
    if kind == "kl-mean":
        return total / present.sum()
    return total / len(scores)


def anchor(vectors: Tensor, targets: Tensor) -> Tensor:
    """Mean squared distance of (n, d') ``vectors`` from ``targets``, in units of the targets' squared length."""
    vectors = at_least_float32(vectors)
    targets = targets.to(vectors.dtype)
    return (vectors - targets).square().sum(1).mean() / targets.square().sum(1).mean()


def flops(weights: Tensor) -> Tensor:
    """SPLADE's FLOPS regulariser of (B, V) OT vectors: sum over the vocabulary of the squared mean weight."""
    return at_least_float32(weights).abs().mean(0).square().sum()


def l1(weights: Tensor) -> Tensor:
    """Mean over the batch of the sum of the (B, V) OT weights."""
    return at_least_float32(weights).abs().sum(1).mean()


REGULARIZERS = {"flops": flops, "l1": l1}
