"""Cross-encoders: a query and a passage in one input, one score out. Loading, scoring, and listwise training.

Imported by the commands that train and score: torch and transformers come with it.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments

from dupmae_ir.errors import CheckpointError, UsageError
from dupmae_ir.finetune.data.mined import Mined, Passages
from dupmae_ir.models.checkpoints.transformers_state import quiet_transformers
from dupmae_ir.models.inference.encoder import batches_by_tokens
from dupmae_ir.training import CheckedTrainer

SEPARATORS = {"space": " ", "sep": " {sep} ", "colon": ": "}
"""Between title and text; {sep} is the tokenizer's own separator."""


def load_reranker(folder: str | Path, new_head: bool = False) -> tuple[Any, Any]:
    """(sequence-classification model in float32 and eval mode, tokenizer) of a folder.

    One label is a score, two are irrelevant and relevant. ``new_head`` gives an encoder, or a classifier of more
    labels, a fresh one of one label; without it they are refused, as is a file without the head's weights, which
    transformers would fill with random numbers.
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
                what = f"a classifier of {config.num_labels} labels" if classifies else "no classifier's labels"
                raise CheckpointError(f"{folder}: {what}; a reranker has one or two: dupmae-ir finetune.cross_encoder")
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
    lost = [k for k in sorted(info["missing_keys"]) if not new_head or (k.startswith(body) and "pooler" not in k)]
    if lost:
        raise CheckpointError(f"{folder}: {len(lost)} weights are missing (first: {lost[0]}); the file is incomplete")
    known = inspect.signature(model.forward).parameters
    tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name in known]
    return model.float().eval(), tokenizer


def check_length(length: int, model: Any, tokenizer: Any) -> None:
    """Raise :class:`UsageError` for more word pieces than the model has positions for."""
    longest = min(getattr(model.config, "max_position_embeddings", None) or 1 << 30, tokenizer.model_max_length)
    if not 8 <= length <= longest:
        raise UsageError(f"--length {length}: this model reads 8 to {longest} word pieces")


def separator(name: str, tokenizer: Any) -> str:
    """The string that ``--title-separator`` names."""
    return SEPARATORS[name].format(sep=tokenizer.sep_token or "")


def relevance(logits: Tensor) -> Tensor:
    """(n, 1) logits -> (n,) themselves; (n, 2) -> (n,) relevant minus irrelevant, the log odds. float32."""
    logits = logits.float()
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


def listwise(scores: Tensor, mask: Tensor) -> Tensor:
    """Mean over the queries of -log softmax at column 0, the positive: (B, n) scores, (B, n) True where a passage is.

    The contrastive estimation loss of rerankers that the papers' teachers are trained with.
    """
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))


def tokenise(tokenizer: Any, queries: Sequence[str], texts: Sequence[str], length: int) -> list[dict[str, list[int]]]:
    """Each pair as the model's inputs, unpadded; the longer side gives way where both do not fit."""
    rows = tokenizer(list(queries), list(texts), truncation="longest_first", max_length=length, padding=False)
    return [{k: rows[k][i] for k in rows.keys()} for i in range(len(queries))]  # noqa: SIM118


def pad(rows: Sequence[dict[str, list[int]]], tokenizer: Any) -> dict[str, Tensor]:
    """The rows as one batch: name -> (n, L) int64, padded on the right."""
    longest = max(len(r["input_ids"]) for r in rows)
    blank = {"input_ids": tokenizer.pad_token_id or 0}
    return {
        name: torch.tensor([r[name] + [blank.get(name, 0)] * (longest - len(r[name])) for r in rows])
        for name in rows[0]
    }


@torch.inference_mode()
def score_pairs(
    model: Any, tokenizer: Any, queries: Sequence[str], texts: Sequence[str], length: int, batch_tokens: int
) -> Tensor:
    """(n,) float32 scores of n pairs, in batches of like length of at most ``batch_tokens`` word pieces."""
    rows = tokenise(tokenizer, queries, texts, length)
    scores = torch.zeros(len(rows))
    for batch in batches_by_tokens([len(r["input_ids"]) for r in rows], batch_tokens):
        inputs = {k: v.to(model.device) for k, v in pad([rows[i] for i in batch], tokenizer).items()}
        scores[batch] = relevance(model(**inputs).logits).cpu()
    return scores


class Draw(NamedTuple):
    """A query, and the pass in which it is drawn: together they decide its negatives."""

    epoch: int
    row: int


class Draws:
    """All batches of a run: the queries in a new random order every pass, ``count`` batches of ``batch_size``."""

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
    """A draw -> (query, texts): one positive, then up to ``size`` - 1 negatives drawn without repetition."""

    def __init__(self, mined: Sequence[Mined], passages: Passages, size: int, separator: str, seed: int) -> None:
        self.mined, self.passages, self.size, self.separator, self.seed = mined, passages, size, separator, seed

    def __len__(self) -> int:
        return len(self.mined)

    def __getitem__(self, draw: Any) -> tuple[str, list[str]]:
        m = self.mined[draw.row]
        rng = random.Random(f"{self.seed} {draw.epoch} {m.qid}")
        positive = m.positives[rng.randrange(len(m.positives))]
        negatives = rng.sample(m.negatives, min(self.size - 1, len(m.negatives)))
        documents = [positive, *(self.passages[docid] for docid in negatives)]
        return m.query, [d.joined(self.separator) for d in documents]


class GroupCollator:
    """Groups -> padded pairs, (sum of the groups' sizes, L), and ``mask`` (B, size of the largest group)."""

    def __init__(self, tokenizer: Any, length: int) -> None:
        self.tokenizer, self.length = tokenizer, length

    def __call__(self, groups: Sequence[tuple[str, list[str]]]) -> dict[str, Tensor]:
        queries = [query for query, texts in groups for _ in texts]
        rows = tokenise(self.tokenizer, queries, [t for _, texts in groups for t in texts], self.length)
        sizes = torch.tensor([len(texts) for _, texts in groups])
        return {**pad(rows, self.tokenizer), "mask": torch.arange(int(sizes.max())) < sizes.unsqueeze(1)}


def group_scores(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """((B, n) scores, zero where no passage is; (B, n) mask) of a collated batch."""
    mask = batch["mask"]
    flat = relevance(model(**{k: v for k, v in batch.items() if k != "mask"}).logits)
    return torch.zeros(mask.shape, dtype=flat.dtype, device=flat.device).masked_scatter(mask, flat), mask


@torch.inference_mode()
def evaluate(model: Any, groups: Groups, collator: GroupCollator, rows: Iterable[int]) -> dict[str, float]:
    """Mean listwise loss over some queries, and the share of them whose positive has the best score; always on the
    same groups."""
    was_training = model.training
    model.eval()
    loss, first, count = 0.0, 0, 0
    for row in rows:
        batch = {k: v.to(model.device) for k, v in collator([groups[Draw(-1, row)]]).items()}
        scores, mask = group_scores(model, batch)
        loss += float(listwise(scores, mask))
        first += int(scores[0].argmax()) == 0
        count += 1
    model.train(was_training)
    return {"loss": round(loss / max(1, count), 6), "positive_first": round(first / max(1, count), 4)}


class RerankerTrainer(CheckedTrainer):
    """Trainer for :func:`listwise` on :class:`Draws`. Resumed, it goes on to the same numbers."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        groups: Groups,
        draws: Draws,
        length: int,
        arguments: TrainingArguments,
        quiet: bool = False,
    ) -> None:
        self.draws = draws
        super().__init__(
            quiet,
            tensorboard=False,
            model=model,
            args=arguments,
            train_dataset=groups,
            data_collator=GroupCollator(tokenizer, length),
            processing_class=tokenizer,
        )
        # The loss is a mean over the batch's queries, so accumulation has to divide it.
        self.model_accepts_loss_kwargs = False

    def get_train_dataloader(self) -> DataLoader:
        loader: Any = DataLoader(self.train_dataset, batch_sampler=self.draws, collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        scores, mask = group_scores(model, inputs)
        loss = listwise(scores, mask)
        return (loss, scores) if return_outputs else loss
