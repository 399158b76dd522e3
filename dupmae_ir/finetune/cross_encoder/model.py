"""Cross-encoders: a query and a passage in one input, one score out. Loading, scoring, and listwise training.

Imported by the commands that train and score: torch and transformers come with it.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)

from dupmae_ir.errors import CheckpointError, UsageError
from dupmae_ir.finetune.data.mined import Mined, Passages
from dupmae_ir.models.checkpoints.transformers_state import quiet_transformers
from dupmae_ir.models.inference.encoder import batches_by_tokens
from dupmae_ir.training.trainer import CheckedTrainer

SEPARATORS = {"space": " ", "sep": " {sep} ", "colon": ": "}
"""Between title and text; {sep} is the tokenizer's own separator."""


def load_reranker(folder: str | Path, new_head: bool = False) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """(sequence-classification model in float32 and eval mode, tokenizer) of a folder.

    One label is a score, two are irrelevant and relevant. With ``new_head``, an encoder or a classifier with more
    labels gets a new head with one label; without it they are refused. Raises :class:`CheckpointError` for these, and
    for missing weights, which transformers would initialise at random.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder}: no model folder (it has no config.json); nothing is downloaded")
    with quiet_transformers():
        try:
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
            classifies = any("SequenceClassification" in name for name in config.architectures or ())
            fits = classifies and config.num_labels in (1, 2)
            if not (fits or new_head):
                what = f"a classifier with {config.num_labels} labels" if classifies else "not a sequence classifier"
                raise CheckpointError(f"{folder}: {what}; train one with dupmae-ir finetune.cross_encoder")
            labels = {} if fits else {"num_labels": 1, "ignore_mismatched_sizes": True}
            model, info = AutoModelForSequenceClassification.from_pretrained(
                folder, local_files_only=True, output_loading_info=True, **labels
            )
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except CheckpointError:
            raise
        except Exception as e:
            raise CheckpointError(f"{folder}: the model does not load: {' '.join(str(e).split())[:300]}") from None
    body = f"{model.base_model_prefix}."
    missing = [k for k in sorted(info["missing_keys"]) if not new_head or (k.startswith(body) and "pooler" not in k)]
    if missing:
        raise CheckpointError(
            f"{folder}: {len(missing)} weights are missing (first: {missing[0]}); the file is incomplete"
        )
    known = inspect.signature(model.forward).parameters
    tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name in known]
    return model.float().eval(), tokenizer


def check_length(length: int, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise :class:`UsageError` where the model has no positions for ``length`` word pieces."""
    longest = min(getattr(model.config, "max_position_embeddings", None) or 1 << 30, tokenizer.model_max_length)
    if not 8 <= length <= longest:
        raise UsageError(f"--length {length}: this model reads 8 to {longest} word pieces")


def separator(name: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """The string that ``--title-separator`` names."""
    return SEPARATORS[name].format(sep=tokenizer.sep_token or "")


def relevance(logits: Tensor) -> Tensor:
    """(n,) float32 scores of (n, 1) logits, or of (n, 2) logits: relevant minus irrelevant, the log odds."""
    logits = logits.float()
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


def listwise(scores: Tensor, mask: Tensor) -> Tensor:
    """Mean over the queries of -log softmax at column 0, the positive, of (B, n) ``scores`` where ``mask`` is True.

    The localized contrastive estimation loss, with which the papers' teachers are trained.
    """
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))


def tokenise(
    tokenizer: PreTrainedTokenizerBase, queries: Sequence[str], texts: Sequence[str], length: int
) -> list[dict[str, list[int]]]:
    """The model's inputs for each pair, unpadded; the longer side is truncated where both do not fit."""
    rows = tokenizer(list(queries), list(texts), truncation="longest_first", max_length=length, padding=False)
    return [{k: rows[k][i] for k in rows.keys()} for i in range(len(queries))]  # noqa: SIM118


def pad(rows: Sequence[dict[str, list[int]]], tokenizer: PreTrainedTokenizerBase) -> dict[str, Tensor]:
    """The rows as one batch: name -> (n, L) int64, padded on the right."""
    longest = max(len(r["input_ids"]) for r in rows)
    blank = {"input_ids": tokenizer.pad_token_id or 0}
    return {
        name: torch.tensor([r[name] + [blank.get(name, 0)] * (longest - len(r[name])) for r in rows])
        for name in rows[0]
    }


@torch.inference_mode()
def score_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    queries: Sequence[str],
    texts: Sequence[str],
    length: int,
    batch_tokens: int,
) -> Tensor:
    """(n,) float32 scores of n pairs, in batches of similar length of at most ``batch_tokens`` word pieces."""
    rows = tokenise(tokenizer, queries, texts, length)
    scores = torch.zeros(len(rows))
    for batch in batches_by_tokens([len(r["input_ids"]) for r in rows], batch_tokens):
        inputs = {k: v.to(model.device) for k, v in pad([rows[i] for i in batch], tokenizer).items()}
        scores[batch] = relevance(model(**inputs).logits).cpu()
    return scores


class Draw(NamedTuple):
    """A query and the epoch in which it is drawn; together they determine its negatives."""

    epoch: int
    row: int


class Draws:
    """All batches of a run, ``count`` of ``batch_size`` draws, with the queries in a new random order every epoch."""

    def __init__(self, queries: int, batch_size: int, count: int, seed: int) -> None:
        self.queries, self.batch_size, self.count, self.seed = queries, batch_size, count, seed
        self.drop_last = True

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[list[Draw]]:
        draws = self._draws()
        for _ in range(self.count):
            yield [next(draws) for _ in range(self.batch_size)]

    def _draws(self) -> Iterator[Draw]:
        epoch = 0
        while True:
            order = list(range(self.queries))
            random.Random(f"{self.seed} {epoch}").shuffle(order)
            yield from (Draw(epoch, row) for row in order)
            epoch += 1


class Groups(Dataset):
    """Dataset: a :class:`Draw` -> (query, texts), one positive, then up to ``size`` - 1 distinct negatives."""

    def __init__(self, mined: Sequence[Mined], passages: Passages, size: int, separator: str, seed: int) -> None:
        self.mined, self.passages, self.size, self.separator, self.seed = mined, passages, size, separator, seed

    def __len__(self) -> int:
        return len(self.mined)

    def __getitem__(self, draw: Draw) -> tuple[str, list[str]]:
        m = self.mined[draw.row]
        rng = random.Random(f"{self.seed} {draw.epoch} {m.qid}")
        positive = m.positives[rng.randrange(len(m.positives))]
        negatives = rng.sample(m.negatives, min(self.size - 1, len(m.negatives)))
        documents = [positive, *(self.passages[docid] for docid in negatives)]
        return m.query, [d.joined(self.separator) for d in documents]


class GroupCollator:
    """Collates groups: padded pairs (sum of the group sizes, L), and ``mask`` (B, largest group size)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, length: int) -> None:
        self.tokenizer, self.length = tokenizer, length

    def __call__(self, groups: Sequence[tuple[str, list[str]]]) -> dict[str, Tensor]:
        queries = [query for query, texts in groups for _ in texts]
        rows = tokenise(self.tokenizer, queries, [t for _, texts in groups for t in texts], self.length)
        sizes = torch.tensor([len(texts) for _, texts in groups])
        return {**pad(rows, self.tokenizer), "mask": torch.arange(int(sizes.max())) < sizes.unsqueeze(1)}


def group_scores(model: torch.nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(scores, mask) of a collated batch, both (B, n); scores are 0 where the mask is False."""
    mask = batch["mask"]
    flat = relevance(model(**{k: v for k, v in batch.items() if k != "mask"}).logits)
    return torch.zeros(mask.shape, dtype=flat.dtype, device=flat.device).masked_scatter(mask, flat), mask


@torch.inference_mode()
def evaluate(model: PreTrainedModel, groups: Groups, collator: GroupCollator) -> dict[str, float]:
    """``loss``: mean listwise loss of the queries; ``positive_first``: fraction whose positive has the best score.

    Every call uses the same negatives.
    """
    was_training = model.training
    model.eval()
    loss, first, count = 0.0, 0, 0
    for row in range(len(groups)):
        batch = {k: v.to(model.device) for k, v in collator([groups[Draw(-1, row)]]).items()}
        scores, mask = group_scores(model, batch)
        loss += float(listwise(scores, mask))
        first += int(scores[0].argmax()) == 0
        count += 1
    model.train(was_training)
    return {"loss": round(loss / max(1, count), 6), "positive_first": round(first / max(1, count), 4)}


class RerankerTrainer(CheckedTrainer):
    """Trainer with the loss :func:`listwise` on the batches of ``draws``, evaluated on ``held_out``."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        groups: Groups,
        draws: Draws,
        length: int,
        arguments: TrainingArguments,
        held_out: Groups,
        quiet: bool = False,
    ) -> None:
        self.draws, self.held_out = draws, held_out
        super().__init__(
            quiet,
            model=model,
            args=arguments,
            train_dataset=groups,
            eval_dataset=held_out,
            data_collator=GroupCollator(tokenizer, length),
            processing_class=tokenizer,
        )
        # The loss is a mean over the queries of a batch, so the Trainer must divide it by the accumulated batches.
        self.model_accepts_loss_kwargs = False

    def get_train_dataloader(self) -> DataLoader:
        """Batches as ``draws`` lists them."""
        loader: Any = DataLoader(
            self.train_dataset,
            batch_sampler=self.draws,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
        )
        return self.accelerator.prepare(loader)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Log :func:`evaluate` of the held-out queries with the prefix ``eval_``, once per step."""
        if self.evaluated():
            return {}
        values = evaluate(cast(PreTrainedModel, self.bare), self.held_out, self.data_collator)
        scores = {f"eval_{name}": value for name, value in values.items()}
        self.log(scores)
        return scores

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, **_: Any
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The loss of a batch, with its scores if ``return_outputs``."""
        scores, mask = group_scores(model, inputs)
        loss = listwise(scores, mask)
        return (loss, scores) if return_outputs else loss
