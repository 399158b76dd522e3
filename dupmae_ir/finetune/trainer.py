"""The trainer: losses by term, negatives of all processes, GradCache, dev scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import TrainingArguments

from dupmae_ir.finetune.config import FinetuneConfig, Objective
from dupmae_ir.finetune.data import Pair
from dupmae_ir.finetune.examples import (
    ExampleCollator,
    MinedExamples,
    PairExamples,
    TopicalSchedule,
)
from dupmae_ir.finetune.large_batches import cached_step, chunks_of, gather_batch, gather_rows
from dupmae_ir.finetune.lexical import cut, with_lexical
from dupmae_ir.finetune.objective import BiEncoder, Parts, batch_loss, in_groups
from dupmae_ir.models.checkpoints.layout import SIDES
from dupmae_ir.models.retriever import similarity
from dupmae_ir.training.trainer import CheckedTrainer
from dupmae_ir.types import CollectionStatistics, Encoder, LexicalEncoder


class FrozenTeacher:
    """A frozen sentence encoder: (B, L) ids and mask -> (B, d) mean of the token vectors, of length sqrt(``scale``)."""

    def __init__(self, encoder: nn.Module, scale: float = 20.0) -> None:
        self.encoder, self.scale = encoder.eval().requires_grad_(False), scale

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        def means(rows: Tensor, length: int) -> Parts:
            some_ids, some_mask = input_ids[rows, :length], attention_mask[rows, :length]
            hidden = self.encoder(input_ids=some_ids, attention_mask=some_mask).last_hidden_state
            return (hidden * some_mask.unsqueeze(-1)).sum(1) / some_mask.sum(1, keepdim=True), None

        vectors, _ = in_groups(attention_mask, means)
        assert vectors is not None
        return self.scale**0.5 * torch.nn.functional.normalize(vectors.float(), dim=1)


class TrainingData(NamedTuple):
    """What a :class:`PairTrainer` trains on."""

    examples: PairExamples | MinedExamples
    batches: TopicalSchedule  #: the keys of each batch
    collator: ExampleCollator
    dev: Sequence[Pair] = ()  #: pairs evaluated in training


class PairTrainer(CheckedTrainer):
    """Trainer of a :class:`BiEncoder` on :mod:`~dupmae_ir.finetune.examples`.

    Args:
        model: the retriever.
        data: examples, batches and dev pairs.
        arguments: of Hugging Face's Trainer.
        config: the stage: similarity, terms and weights of the loss, ``head_lr_factor``, ``grad_cache`` and
            ``regularizer_warmup``.
        teacher: sentence encoder whose vectors the [CLS] part is held to.
        quiet: print nothing.
    """

    def __init__(
        self,
        model: BiEncoder,
        data: TrainingData,
        arguments: TrainingArguments,
        config: FinetuneConfig,
        teacher: FrozenTeacher | None = None,
        quiet: bool = False,
    ) -> None:
        self.data, self.config, self.teacher = data, config, teacher
        self.warm_steps = round(config.regularizer_warmup * arguments.max_steps)
        super().__init__(
            quiet,
            data.batches,
            model=model,
            args=arguments,
            train_dataset=data.examples,
            eval_dataset=data.examples,
            data_collator=data.collator,
        )

    @property
    def bi_encoder(self) -> BiEncoder:
        """The model without the wrapper of a distributed run."""
        return cast(BiEncoder, self.bare)

    def counters(self) -> dict[str, int]:
        """The tokens that were trained on, for the share of padding."""
        return {
            "real_tokens": self.bi_encoder.real_tokens,
            "padded_tokens": self.bi_encoder.padded_tokens,
        }

    def restore_counters(self, values: Mapping[str, int]) -> None:
        """Continue counting tokens."""
        for name, value in values.items():
            setattr(self.bi_encoder, name, value)

    def create_optimizer(self, *_: Any) -> torch.optim.Optimizer:
        """AdamW with two groups: the encoder, and the MLM head with its scale and the projection."""
        head: list[Tensor] = []
        encoder: list[Tensor] = []
        for name, p in self.model.named_parameters():
            in_head = any(
                part in name
                for part in ("cls.predictions", "projection.", "token_weight.", "head_scale")
            )
            if p.requires_grad:  # frozen if there are adapters
                (head if in_head else encoder).append(p)
        rate, decay = self.args.learning_rate, self.args.weight_decay
        groups = [
            {"params": encoder, "weight_decay": decay},
            {"params": head, "lr": rate * self.config.head_lr_factor, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.999), eps=1e-8)
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
        if not self.config.grad_cache:
            return super().training_step(model, inputs, *args, **kwargs)
        model.train()
        inputs = self._prepare_inputs(inputs)
        share = 1 / self.current_gradient_accumulation_steps
        return cached_step(
            model,
            inputs,
            self.config.grad_cache,
            lambda parts: self._loss(parts, inputs) * share,
            self.accelerator.backward,
            self.compute_loss_context_manager,
        )

    def _loss(self, parts: dict[str, Parts], batch: dict[str, Tensor]) -> Tensor:
        """The loss over the batches of all processes; it and its terms are added to the log's sums."""
        anchors = self._anchors(batch)
        queries, documents = parts["query"], parts["document"]
        if self.args.world_size > 1:
            queries, documents, batch = gather_batch(queries, documents, batch, self.accelerator)
            anchors = tuple(gather_rows(a, self.accelerator) for a in anchors)
        scale = (
            min(1.0, (self.state.global_step + 1) / self.warm_steps) ** 2
            if self.warm_steps
            else 1.0
        )
        loss, terms = batch_loss(queries, documents, batch, self.config, scale, anchors)
        self.sums.add({"loss": loss, **{f"loss_{k}": v for k, v in terms.items()}})
        # Gradients are averaged over processes, and each process has only its own texts' share of the whole.
        return loss * self.args.world_size

    def _anchors(self, batch: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """The teacher's vectors of queries and documents, if there is a teacher; ``grad_cache`` texts at a time."""
        if self.teacher is None:
            return ()
        vectors: dict[str, list[Tensor]] = {side: [] for side in SIDES}
        for side, ids, mask in chunks_of(
            batch, self.config.grad_cache or len(batch["document_ids"])
        ):
            vectors[side].append(self.teacher(ids, mask))
        return tuple(torch.cat(vectors[side]) for side in SIDES)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Log MRR@10 and accuracy of the dev queries, as ``eval_mrr`` and ``eval_accuracy``, once per step."""
        if self.evaluated():
            return {}
        scores = dev_scores(
            self.bi_encoder, self.data.dev, self.data.collator, self.config, self.args.device
        )
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
        "query": [p.query for p in pairs],
        "document": [p.positive.joined(collator.separator) for p in pairs],
    }
    lengths = {"query": collator.query_length, "document": collator.document_length}
    parts: dict[str, Parts] = {}
    lexical: dict[str, Tensor] = {}
    if collator.lexical is not None:
        weights = collator.lexical(texts["query"], [p.positive for p in pairs])
        lexical = {name: value.to(device) for name, value in weights.items()}
    with torch.inference_mode():
        for side in SIDES:
            done = []
            for start in range(0, len(pairs), batch_size):
                rows = collator.tokens(texts[side][start : start + batch_size], lengths[side]).to(
                    device
                )
                done.append(model.encode(rows["input_ids"], rows["attention_mask"], side))
            cls, ot = (
                None if p[0] is None else torch.cat(list(p)) for p in zip(*done, strict=True)
            )
            k = objective.top_k if side == "document" else objective.query_top_k
            parts[side] = cls, cut(with_lexical(ot, lexical, side, len(pairs)), k, lexical)
        if objective.similarity != "sum":
            dense = objective.similarity == "cls"
            parts = {
                s: (p[0] if dense else None, None if dense else p[1]) for s, p in parts.items()
            }
        else:
            cls, ot = parts["query"]
            parts["query"] = (
                None if cls is None else (objective.dense_weight or 1.0) * cls,
                None if ot is None else (objective.impact_weight or 1.0) * ot,
            )
        scores = similarity(parts["query"], parts["document"])
    rank = ranks(scores, texts["document"])
    return {"eval_mrr": mrr(rank), "eval_accuracy": float((rank == 1).float().mean())}


def encoder_mrr(encoder: Encoder, pairs: Sequence[Pair]) -> float:
    """MRR@10 of an encoder with both parts on ``pairs``, as a search of an index of their positives would have it."""
    documents = [pair.positive for pair in pairs]
    if isinstance(encoder, LexicalEncoder):
        found = encoder.encode_collection(documents)
        assert found.ot is not None
        frequencies = np.bincount(found.ot.indices, minlength=found.ot.shape[1])
        encoder = encoder.for_collection(CollectionStatistics(len(documents), frequencies))
    else:
        found = encoder.encode_documents([document.joined() for document in documents])
    queries = encoder.encode_queries([pair.query for pair in pairs])
    assert queries.cls is not None
    assert queries.ot is not None
    assert found.cls is not None
    dense, impact = encoder.settings.part_weights
    scores = dense * (queries.cls @ found.cls.T) + impact * (queries.ot @ found.ot.T).toarray()  # type: ignore[union-attr]
    return mrr(ranks(torch.from_numpy(scores), [document.joined() for document in documents]))


def ranks(scores: Tensor, documents: Sequence[str]) -> Tensor:
    """(n, n) scores of queries and positives -> (n,) the rank of each query's own; copies of it do not count."""
    names = {text: i for i, text in enumerate(documents)}
    keys = torch.tensor([names[text] for text in documents])
    copies = keys.unsqueeze(0) == keys.unsqueeze(1)
    return 1 + ((scores > scores.diagonal().unsqueeze(1)) & ~copies.to(scores.device)).sum(1)


def mrr(rank: Tensor) -> float:
    """MRR@10 of (n,) ranks."""
    return float(torch.where(rank <= 10, 1 / rank, 0.0).mean())
