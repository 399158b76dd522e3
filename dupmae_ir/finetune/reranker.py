"""Cross-encoders: a query and a passage in one input, one score out. Loading and scoring."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dupmae_ir.errors import CheckpointError, UsageError
from dupmae_ir.models.checkpoints.loading import quiet_transformers
from dupmae_ir.models.inference.encoder import batches_by_tokens

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
    accepted = inspect.signature(model.forward).parameters
    tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name in accepted]
    return model.float().eval(), tokenizer


def check_length(length: int, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise :class:`UsageError` where the model has no positions for ``length`` word pieces."""
    max_length = min(getattr(model.config, "max_position_embeddings", None) or 1 << 30, tokenizer.model_max_length)
    if not 8 <= length <= max_length:
        raise UsageError(f"`length` {length}: this model reads 8 to {max_length} word pieces")


def separator(name: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """The string that ``--title-separator`` names."""
    return SEPARATORS[name].format(sep=tokenizer.sep_token or "")


def relevance(logits: Tensor) -> Tensor:
    """(n,) float32 scores of (n, 1) logits, or of (n, 2) logits: relevant minus irrelevant, the log odds."""
    logits = logits.float()
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


def tokenise(
    tokenizer: PreTrainedTokenizerBase, queries: Sequence[str], texts: Sequence[str], length: int
) -> list[dict[str, list[int]]]:
    """The model's inputs for each pair, unpadded; the longer text is truncated if both do not fit."""
    rows = tokenizer(list(queries), list(texts), truncation="longest_first", max_length=length, padding=False)
    return [{k: rows[k][i] for k in rows.keys()} for i in range(len(queries))]  # noqa: SIM118


def pad(rows: Sequence[dict[str, list[int]]], tokenizer: PreTrainedTokenizerBase) -> dict[str, Tensor]:
    """The rows as one batch: name -> (n, L) int64, padded on the right."""
    width = max(len(r["input_ids"]) for r in rows)
    blank = {"input_ids": tokenizer.pad_token_id or 0}
    return {
        name: torch.tensor([r[name] + [blank.get(name, 0)] * (width - len(r[name])) for r in rows]) for name in rows[0]
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
