"""The trainer: losses by term, negatives of all processes, GradCache, dev scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import TrainingArguments

from dupmae_ir.finetune.config import Objective
from dupmae_ir.finetune.data.examples import (
    Batches,
    Draw,
    Example,
    ExampleCollator,
    MinedExamples,
    PairExamples,
    unpadded,
)
from dupmae_ir.finetune.data.pairs import Pair
from dupmae_ir.finetune.gather import gather_batch, gather_rows
from dupmae_ir.finetune.grad_cache import cached_step, chunks_of
from dupmae_ir.finetune.lexical import cut, with_lexical
from dupmae_ir.finetune.objective import BiEncoder, Parts, batch_loss, in_groups
from dupmae_ir.models.checkpoints.layout import SIDES
from dupmae_ir.models.retriever import similarity
from dupmae_ir.training.trainer import CheckedTrainer
from dupmae_ir.types import Document


class Teacher:
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


class PairTrainer(CheckedTrainer):
    """Trainer of a :class:`BiEncoder` on :mod:`~dupmae_ir.finetune.data.examples`.

    Args:
        model: the retriever.
        examples: the training data.
        batches: the rows of each batch.
        collator: tokenises a batch.
        arguments: of Hugging Face's Trainer.
        objective: similarity, terms and weights of the loss.
        head_lr_factor: factor on the learning rate of W_cls and of the MLM head's transform and biases, which are far
            less trained than the encoder.
        chunk: texts encoded at a time (:mod:`~dupmae_ir.finetune.grad_cache`); 0 = all at once.
        warm_steps: updates until the regulariser has its full weight, growing quadratically.
        teacher: sentence encoder whose vectors the [CLS] part is held to.
        dev: pairs evaluated in training.
        quiet: print nothing.
    """

    def __init__(
        self,
        model: BiEncoder,
        examples: PairExamples | MinedExamples,
        batches: Batches,
        collator: ExampleCollator,
        arguments: TrainingArguments,
        objective: Objective,
        head_lr_factor: float = 1.0,
        chunk: int = 0,
        warm_steps: int = 0,
        teacher: Teacher | None = None,
        dev: Sequence[Pair] = (),
        quiet: bool = False,
    ) -> None:
        self.objective, self.batches, self.head_lr_factor = objective, batches, head_lr_factor
        self.chunk, self.warm_steps, self.teacher, self.dev = chunk, warm_steps, teacher, list(dev)
        super().__init__(
            quiet,
            model=model,
            args=arguments,
            train_dataset=_ExampleDataset(examples),
            eval_dataset=_ExampleDataset(examples),
            data_collator=collator,
        )

    @property
    def bi_encoder(self) -> BiEncoder:
        """The model without the wrapper of a distributed run."""
        return cast(BiEncoder, self.bare)

    def counters(self) -> dict[str, int]:
        """The tokens that were trained on, for the share of padding."""
        return {"real_tokens": self.bi_encoder.real_tokens, "padded_tokens": self.bi_encoder.padded_tokens}

    def restore_counters(self, values: Mapping[str, int]) -> None:
        """Continue counting tokens."""
        for name, value in values.items():
            setattr(self.bi_encoder, name, value)

    def get_train_dataloader(self) -> DataLoader:
        """Batches as ``batches`` lists them."""
        loader: Any = DataLoader(
            self.train_dataset,
            batch_sampler=self.batches,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
        )
        return self.accelerator.prepare(loader)

    def create_optimizer(self, *_: Any) -> torch.optim.Optimizer:
        """AdamW with two groups: the encoder, and the MLM head with its scale and the projection."""
        head: list[Tensor] = []
        encoder: list[Tensor] = []
        for name, p in self.model.named_parameters():
            in_head = "cls.predictions" in name or ".projection." in name or name.endswith("head_scale")
            if p.requires_grad:  # frozen beside adapters
                (head if in_head else encoder).append(p)
        rate, decay = self.args.learning_rate, self.args.weight_decay
        groups = [
            {"params": encoder, "weight_decay": decay},
            {"params": head, "lr": rate * self.head_lr_factor, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.999), eps=1e-8)
        return self.optimizer

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, **_: Any
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch, with its terms if ``return_outputs``."""
        parts = {side: model(inputs[f"{side}_ids"], inputs[f"{side}_mask"], side) for side in SIDES}
        loss, terms = self._loss(parts, inputs)
        return (loss, terms) if return_outputs else loss

    def training_step(self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward pass of a batch, through GradCache with ``chunk``."""
        if not self.chunk:
            return super().training_step(model, inputs, *args, **kwargs)
        model.train()
        inputs = self._prepare_inputs(inputs)
        share = 1 / self.current_gradient_accumulation_steps
        return cached_step(
            model,
            inputs,
            self.chunk,
            lambda parts: self._loss(parts, inputs)[0] * share,
            self.accelerator.backward,
            self.compute_loss_context_manager,
        )

    def _loss(self, parts: dict[str, Parts], batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss over the batches of all processes, and its terms, which are added to the log's sums."""
        anchors = self._anchors(batch)
        queries, documents = parts["query"], parts["document"]
        if self.args.world_size > 1:
            queries, documents, batch = gather_batch(queries, documents, batch, self.accelerator)
            anchors = tuple(gather_rows(a, self.accelerator) for a in anchors)
        scale = min(1.0, (self.state.global_step + 1) / self.warm_steps) ** 2 if self.warm_steps else 1.0
        loss, terms = batch_loss(queries, documents, batch, self.objective, scale, anchors)
        self.sums.add({"loss": loss, **{f"loss_{k}": v for k, v in terms.items()}})
        # Gradients are averaged over processes, and each process has only its own texts' share of the whole.
        return loss * self.args.world_size, terms

    def _anchors(self, batch: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """The teacher's vectors of queries and documents, if there is a teacher; encoded ``chunk`` texts at a time."""
        if self.teacher is None:
            return ()
        vectors: dict[str, list[Tensor]] = {side: [] for side in SIDES}
        for side, ids, mask in chunks_of(batch, self.chunk or len(batch["document_ids"])):
            vectors[side].append(self.teacher(ids, mask))
        return tuple(torch.cat(vectors[side]) for side in SIDES)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Log MRR@10 and accuracy of the dev queries, as ``eval_mrr`` and ``eval_accuracy``, once per step."""
        if self.evaluated():
            return {}
        scores = dev_scores(self.bi_encoder, self.dev, self.data_collator, self.objective, self.args.device)
        self.model.train()
        self.log(scores)
        return scores


class _ExampleDataset(Dataset):
    """torch ``Dataset`` over the examples; its keys are draws."""

    def __init__(self, examples: PairExamples | MinedExamples) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, draw: Draw) -> Example:
        return self.examples[draw]


def _lexical(
    collator: ExampleCollator, queries: list[str], documents: Sequence[Document], device: torch.device
) -> dict[str, Tensor]:
    """The lexical weights of the dev pairs, as of a batch; nothing for a model without them."""
    if collator.lexical is None:
        return {}
    pieces = unpadded(collator.tokens(queries, collator.query_length))
    texts = [d.joined(collator.separator) for d in documents]
    of_documents = unpadded(collator.tokens(texts, collator.document_length))
    batch = collator.lexical(queries, pieces, documents, of_documents)
    return {name: value.to(device) for name, value in batch.items()}


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
    texts = {"query": [p.query for p in pairs], "document": [p.positive.joined(collator.separator) for p in pairs]}
    lengths = {"query": collator.query_length, "document": collator.document_length}
    parts: dict[str, Parts] = {}
    lexical = _lexical(collator, texts["query"], [p.positive for p in pairs], device)
    with torch.inference_mode():
        for side in SIDES:
            done = []
            for start in range(0, len(pairs), batch_size):
                rows = collator.tokens(texts[side][start : start + batch_size], lengths[side]).to(device)
                done.append(model(rows["input_ids"], rows["attention_mask"], side))
            cls, ot = (None if p[0] is None else torch.cat(list(p)) for p in zip(*done, strict=True))
            k = objective.top_k if side == "document" else objective.query_top_k
            parts[side] = cls, cut(with_lexical(ot, lexical, side, len(pairs)), k, lexical)
        if objective.similarity != "sum":
            kept = objective.similarity == "cls"
            parts = {s: (p[0] if kept else None, None if kept else p[1]) for s, p in parts.items()}
        scores = similarity(parts["query"], parts["document"])
    own = scores.diagonal().unsqueeze(1)
    # Copies of the positive do not count.
    names = {text: i for i, text in enumerate(texts["document"])}
    keys = torch.tensor([names[text] for text in texts["document"]])
    copies = keys.unsqueeze(0) == keys.unsqueeze(1)
    rank = 1 + ((scores > own) & ~copies.to(scores.device)).sum(1)
    reciprocal = torch.where(rank <= 10, 1 / rank, 0.0)
    return {"eval_mrr": float(reciprocal.mean()), "eval_accuracy": float((rank == 1).float().mean())}
