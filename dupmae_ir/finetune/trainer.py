"""The trainer: losses by term, negatives of all processes, GradCache, dev scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import TrainingArguments

from dupmae_ir.finetune.config import Objective
from dupmae_ir.finetune.examples import (
    ExampleCollator,
    MinedExamples,
    PairExamples,
    TopicalSchedule,
)
from dupmae_ir.finetune.large_batches import cached_step, chunks_of, gather_batch, gather_rows
from dupmae_ir.finetune.lexical import cut, with_lexical
from dupmae_ir.finetune.objective import BiEncoder, Parts, batch_loss
from dupmae_ir.finetune.pairs import Pair
from dupmae_ir.finetune.teacher import FrozenTeacher
from dupmae_ir.models.checkpoints.layout import SIDES
from dupmae_ir.models.retriever import similarity
from dupmae_ir.training.config import Share
from dupmae_ir.training.trainer import CheckedTrainer
from dupmae_ir.types import CollectionStatistics, Encoder, LexicalEncoder

HEAD_PARTS = ("cls.predictions", "projection.", "token_weight.", "head_scale")
"""Parts of the names of parameters that have the head's learning rate."""


@dataclass(frozen=True)
class TrainingData:
    """What a :class:`PairTrainer` trains on."""

    examples: PairExamples | MinedExamples
    batches: TopicalSchedule  #: the keys of each batch
    dev: Sequence[Pair] = ()  #: pairs evaluated in training


@dataclass(frozen=True)
class Schedule:
    """How long a stage trains, and how each update is computed."""

    steps: int  #: number of updates
    share: Share  #: what each process does of an update
    learning_rate: float
    head_learning_rate: float  #: of the masked-LM head and the projection
    regularizer_warmup_steps: int  #: updates until the regulariser has its full weight
    grad_cache: int  #: texts encoded at a time with GradCache; 0 = off


class PairTrainer(CheckedTrainer):
    """Trainer of a :class:`BiEncoder` on :mod:`~dupmae_ir.finetune.examples`.

    Args:
        model: the retriever.
        data: examples, batches and dev pairs.
        collator: makes the tensors of a batch.
        arguments: of Hugging Face's Trainer.
        schedule: learning rate of the head, warm-up of the regulariser, and GradCache.
        objective: similarity, terms and weights of the loss.
        teacher: sentence encoder whose vectors the [CLS] part is held to.
        quiet: print nothing.
    """

    def __init__(
        self,
        model: BiEncoder,
        data: TrainingData,
        collator: ExampleCollator,
        arguments: TrainingArguments,
        schedule: Schedule,
        objective: Objective,
        teacher: FrozenTeacher | None = None,
        quiet: bool = False,
    ) -> None:
        self.data = data
        self.schedule = schedule
        self.objective = objective
        self.teacher = teacher
        super().__init__(
            quiet,
            data.batches,
            model=model,
            args=arguments,
            train_dataset=data.examples,
            eval_dataset=data.examples,
            data_collator=collator,
        )

    @property
    def bi_encoder(self) -> BiEncoder:
        """The model without the wrapper of a distributed run."""
        return cast(BiEncoder, self.bare)

    def counters(self) -> dict[str, int]:
        """The tokens that were trained on, and the places for tokens, padding included."""
        return {
            "real_tokens": self.bi_encoder.real_tokens,
            "token_slots": self.bi_encoder.token_slots,
        }

    def restore_counters(self, values: Mapping[str, int]) -> None:
        """Continue counting tokens."""
        for name, value in values.items():
            setattr(self.bi_encoder, name, value)

    def create_optimizer(self, *_: Any) -> torch.optim.Optimizer:
        """AdamW with two groups: the encoder, and the MLM head with its scale and the projection."""
        head: list[Tensor] = []
        encoder: list[Tensor] = []
        for name, parameter in self.model.named_parameters():
            if not parameter.requires_grad:  # frozen if there are adapters
                continue
            if any(part in name for part in HEAD_PARTS):
                head.append(parameter)
            else:
                encoder.append(parameter)
        groups = [
            {"params": encoder, "weight_decay": self.args.weight_decay},
            {"params": head, "lr": self.schedule.head_learning_rate, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups, lr=self.args.learning_rate, betas=(0.9, 0.999), eps=1e-8, fused=True
        )
        return self.optimizer

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], *_: Any, **__: Any
    ) -> Tensor:
        """The loss of a batch."""
        return self._loss(model(inputs), inputs)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any
    ) -> Tensor:
        """Forward and backward pass of a batch, through GradCache if it is on."""
        if not self.schedule.grad_cache:
            return super().training_step(model, inputs, *args, **kwargs)
        # Trainer.training_step would have switched dropout on.
        model.train()
        inputs = self._prepare_inputs(inputs)
        # Trainer.training_step, which this replaces, divides the loss by the accumulated batches.
        share = 1 / self.current_gradient_accumulation_steps
        return cached_step(
            model,
            inputs,
            self.schedule.grad_cache,
            lambda parts: self._loss(parts, inputs) * share,
            self.accelerator.backward,
            self.compute_loss_context_manager,
        )

    def _loss(self, parts: dict[str, Parts], batch: dict[str, Tensor]) -> Tensor:
        """The loss over the batches of all processes; it and its terms are added to the log's sums."""
        anchors = self._anchors(batch)
        queries = parts["query"]
        documents = parts["document"]
        if self.args.world_size > 1:
            queries, documents, batch = gather_batch(queries, documents, batch, self.accelerator)
            # The teacher is frozen, so that its rows, unlike those of the model, need no graph.
            anchors = tuple(gather_rows(vectors, self.accelerator) for vectors in anchors)
        scale = 1.0
        if self.schedule.regularizer_warmup_steps:
            progress = (self.state.global_step + 1) / self.schedule.regularizer_warmup_steps
            # SPLADE's quadratic warm-up.
            scale = min(1.0, progress) ** 2
        loss, terms = batch_loss(queries, documents, batch, self.objective, scale, anchors)
        losses = {"loss": loss}
        for name, term in terms.items():
            losses[f"loss_{name}"] = term
        self.sums.add(losses)
        # DDP averages the gradients of the processes. Each has the gradient of its own texts only, so their sum is due.
        return loss * self.args.world_size

    def _anchors(self, batch: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """The teacher's vectors of queries and documents, if there is a teacher; ``grad_cache`` texts at a time."""
        if self.teacher is None:
            return ()
        vectors: dict[str, list[Tensor]] = {side: [] for side in SIDES}
        # Without GradCache one chunk a side: a batch has at least as many documents as queries.
        chunk_size = self.schedule.grad_cache or len(batch["document_ids"])
        for side, ids, mask in chunks_of(batch, chunk_size):
            vectors[side].append(self.teacher(ids, mask))
        return tuple(torch.cat(vectors[side]) for side in SIDES)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Log MRR@10 and accuracy of the dev queries, as ``eval_mrr`` and ``eval_accuracy``, once per step."""
        if self.evaluated():
            return {}
        scores = dev_scores(
            self.bi_encoder, self.data.dev, self.data_collator, self.objective, self.args.device
        )
        # `dev_scores` has switched dropout off.
        self.model.train()
        self.log(scores)
        return scores


def dev_scores(
    model: BiEncoder,
    pairs: Sequence[Pair],
    collator: ExampleCollator,
    objective: Objective,
    device: torch.device,
    batch_size: int = 32,
) -> dict[str, float]:
    """``eval_mrr`` (MRR@10) and ``eval_accuracy`` of the queries of ``pairs``, each against the positives of all."""
    model.eval()
    texts = {
        "query": [pair.query for pair in pairs],
        "document": [pair.positive.joined(collator.separator) for pair in pairs],
    }
    lengths = {"query": collator.query_length, "document": collator.document_length}
    top_k = {"query": objective.query_top_k, "document": objective.top_k}
    lexical: dict[str, Tensor] = {}
    if collator.lexical is not None:
        weights = collator.lexical(texts["query"], [pair.positive for pair in pairs])
        lexical = {name: value.to(device) for name, value in weights.items()}

    parts: dict[str, Parts] = {}
    with torch.inference_mode():
        for side in SIDES:
            cls_parts: list[Tensor | None] = []
            ot_parts: list[Tensor | None] = []
            for start in range(0, len(pairs), batch_size):
                rows = collator.tokens(texts[side][start : start + batch_size], lengths[side])
                rows = rows.to(device)
                cls, ot = model.encode(rows["input_ids"], rows["attention_mask"], side)
                cls_parts.append(cls)
                ot_parts.append(ot)
            ot = with_lexical(_concatenated(ot_parts), lexical, side, len(pairs))
            parts[side] = _concatenated(cls_parts), cut(ot, top_k[side], lexical)
        query_parts = _weighted(parts["query"], objective)
        scores = similarity(query_parts, _compared(parts["document"], objective.similarity))
    rank = ranks(scores, texts["document"])
    return {"eval_mrr": mrr(rank), "eval_accuracy": float((rank == 1).float().mean())}


def _concatenated(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The rows of all batches; None for a part that is not computed."""
    computed = [part for part in parts if part is not None]
    if not computed:
        return None
    return torch.cat(computed)


def _compared(parts: Parts, compared: str) -> Parts:
    """The parts that the similarity (``sum``, ``cls`` or ``ot``) reads."""
    cls, ot = parts
    if compared == "cls":
        return cls, None
    if compared == "ot":
        return None, ot
    return cls, ot


def _weighted(queries: Parts, objective: Objective) -> Parts:
    """The queries' parts that the similarity reads, times their weights in a sum."""
    cls, ot = _compared(queries, objective.similarity)
    if objective.similarity == "sum":
        if cls is not None:
            cls = (objective.dense_weight or 1.0) * cls
        if ot is not None:
            ot = (objective.impact_weight or 1.0) * ot
    return cls, ot


def encoder_mrr(encoder: Encoder, pairs: Sequence[Pair]) -> float:
    """MRR@10 of an encoder with both parts on ``pairs``, as a search of an index of their positives would have it."""
    passages = [pair.positive for pair in pairs]
    if isinstance(encoder, LexicalEncoder):
        documents = encoder.encode_collection(passages)
        assert documents.ot is not None
        frequencies = np.bincount(documents.ot.indices, minlength=documents.ot.shape[1])
        encoder = encoder.for_collection(CollectionStatistics(len(passages), frequencies))
    else:
        documents = encoder.encode_documents([passage.joined() for passage in passages])
    queries = encoder.encode_queries([pair.query for pair in pairs])
    assert queries.cls is not None
    assert queries.ot is not None
    assert documents.cls is not None
    assert documents.ot is not None
    dense_weight, impact_weight = encoder.settings.part_weights
    dense = dense_weight * (queries.cls @ documents.cls.T)
    impact = impact_weight * (queries.ot @ documents.ot.T).toarray()
    return mrr(ranks(torch.from_numpy(dense + impact), [passage.joined() for passage in passages]))


def ranks(scores: Tensor, documents: Sequence[str]) -> Tensor:
    """(n, n) scores of queries and positives -> (n,) the rank of each query's positive; copies of it do not count."""
    # Equal texts have the position of the last of them as their key.
    last_position = {text: position for position, text in enumerate(documents)}
    keys = torch.tensor([last_position[text] for text in documents])
    copies = keys.unsqueeze(0) == keys.unsqueeze(1)
    better = scores > scores.diagonal().unsqueeze(1)
    return 1 + (better & ~copies.to(scores.device)).sum(1)


def mrr(rank: Tensor) -> float:
    """MRR@10 of (n,) ranks."""
    return float(torch.where(rank <= 10, 1 / rank, 0.0).mean())
