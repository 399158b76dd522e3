"""Stage 1: contrastive fine-tuning with the method's own similarity (DupMAE section 3.4, Eq. 12-13).

The loop is Hugging Face's Trainer (bf16, accumulation, several processes, resume); here is only what differs:
how a batch is scored, which batches are drawn, and what a checkpoint looks like.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from dupmae_ir.console import say
from dupmae_ir.finetune import losses
from dupmae_ir.finetune.data import Pair, PairCollator, TopicalBatches
from dupmae_ir.models.checkpoints import ModelConfig, load_model, save_model
from dupmae_ir.models.pooling import keep_top_k
from dupmae_ir.models.retriever import Retriever, similarity


@dataclass(frozen=True)
class Objective:
    """The weights of the loss's terms."""

    top_k: int = 384  #: document OT weights kept while training, as at search time
    part_weight: float = 0.0  #: weight of the same loss on [CLS] alone and on OT alone
    query_flops: float = 0.0  #: weight of the FLOPS regulariser on queries
    document_flops: float = 0.0  #: ... and on documents
    temperature: float = 1.0
    anchor_weight: float = 0.0  #: weight of the distance of [CLS] from the teacher's sentence vector


class Teacher:
    """A frozen sentence encoder: (B, L) ids and mask -> (B, d) mean of the tokens at length sqrt(``scale``)."""

    def __init__(self, encoder: Any, scale: float = 20.0) -> None:
        self.encoder, self.scale = encoder.eval().requires_grad_(False), scale

    @torch.no_grad()
    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        mean = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        return self.scale**0.5 * torch.nn.functional.normalize(mean.float(), dim=1)


def pair_loss(
    model: Any, batch: dict[str, Tensor], objective: Objective, teacher: Teacher | None = None
) -> tuple[Tensor, dict[str, float]]:
    """Eq. 13 on Eq. 12 for one batch, and the value of each term for the log.

    Both sides go through one call of ``model`` each, so that a wrapper (DDP) sees them.
    """
    q_cls, q_ot = model(batch["query_ids"], batch["query_mask"])
    d_cls, d_ot = model(batch["document_ids"], batch["document_mask"])
    kept = keep_top_k(d_ot, objective.top_k)
    dense, impact = similarity((q_cls, None), (d_cls, None)), similarity((None, q_ot), (None, kept))
    terms = {"sum": losses.contrastive(dense + impact, batch["same"], objective.temperature)}
    loss = terms["sum"]
    if objective.part_weight:
        terms["cls"] = losses.contrastive(dense, batch["same"], objective.temperature)
        terms["ot"] = losses.contrastive(impact, batch["same"], objective.temperature)
        loss = loss + objective.part_weight * (terms["cls"] + terms["ot"])
    if objective.query_flops or objective.document_flops:
        terms["flops_q"], terms["flops_d"] = losses.flops(q_ot), losses.flops(d_ot)
        loss = loss + objective.query_flops * terms["flops_q"] + objective.document_flops * terms["flops_d"]
    if teacher is not None:
        sides = ((q_cls, "query"), (d_cls, "document"))
        distances = [losses.anchor(v, teacher(batch[f"{s}_ids"], batch[f"{s}_mask"])) for v, s in sides]
        terms["anchor"] = torch.stack(distances).mean()
        loss = loss + objective.anchor_weight * terms["anchor"]
    return loss, {k: float(v.detach()) for k, v in terms.items()}


class PairTrainer(Trainer):
    """Trainer for :func:`pair_loss`. ``head_lr_factor`` multiplies the learning rate of the MLM head's transform
    and biases and of W_cls, which start far less trained than the encoder. ``group_size``: see TopicalBatches."""

    def __init__(
        self, model: Retriever, tokenizer: Any, config: ModelConfig, pairs: Sequence[Pair],
        arguments: TrainingArguments, objective: Objective, head_lr_factor: float = 1.0, group_size: int = 1,
        teacher: Teacher | None = None,
    ) -> None:
        self.retriever, self.objective, self.checkpoint_config = model, objective, config
        self.head_lr_factor, self.group_size, self.teacher = head_lr_factor, group_size, teacher
        self._terms: dict[str, list[float]] = {}
        collator = PairCollator(tokenizer, config.query_length, config.document_length, config.title_separator)
        super().__init__(
            model=model, args=arguments, train_dataset=list(pairs), data_collator=collator, processing_class=tokenizer
        )

    def report_to_terminal(self, quiet: bool) -> None:
        """One line per log entry on standard error instead of transformers' dictionaries on standard output."""
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)
        if not quiet:
            self.add_callback(_Lines())

    def get_train_dataloader(self) -> DataLoader:
        pairs: Any = self.train_dataset
        batches = TopicalBatches(pairs, self.args.per_device_train_batch_size, self.group_size, self.args.seed)
        loader: Any = DataLoader(pairs, batch_sampler=batches, collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)

    def create_optimizer(self, *_: Any) -> Any:
        young: list[Tensor] = []
        mature: list[Tensor] = []
        for name, p in self.model.named_parameters():
            (young if "cls.predictions" in name or name.startswith("projection") else mature).append(p)
        rate, decay = self.args.learning_rate, self.args.weight_decay
        groups = [
            {"params": mature, "weight_decay": decay},
            {"params": young, "lr": rate * self.head_lr_factor, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.999), eps=1e-8)
        return self.optimizer

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        loss, terms = pair_loss(model, inputs, self.objective, self.teacher)
        for name, value in terms.items():
            self._terms.setdefault(name, []).append(value)
        return (loss, terms) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            logs.update({f"loss_{k}": round(sum(v) / len(v), 4) for k, v in self._terms.items() if v})
            self._terms.clear()
        super().log(logs, *args, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:  # noqa: ARG002
        folder = Path(output_dir or self.args.output_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        save_model(folder / "model", self.retriever, self.processing_class, self.checkpoint_config)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:  # noqa: ARG002
        saved, _, _ = load_model(Path(resume_from_checkpoint) / "model")
        self.retriever.load_state_dict(saved.state_dict())


class _Lines(TrainerCallback):
    """``step 120/300  loss 2.006  cls 0.980 ...  31 min left``."""

    def __init__(self) -> None:
        self.started, self.first = time.monotonic(), 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self.started, self.first = time.monotonic(), state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        if not logs or "loss" not in logs:
            return
        terms = "  ".join(f"{k.removeprefix('loss_')} {float(v):.3f}" for k, v in logs.items() if k.startswith("loss"))
        pace = (time.monotonic() - self.started) / max(1, state.global_step - self.first)
        left = pace * (state.max_steps - state.global_step) / 60
        say(f"step {state.global_step}/{state.max_steps}  {terms}  {left:.0f} min left")
