"""Rerankers: cross-encoders, which read a query and a passage together, and MaxSim over vectors of single tokens."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dupmae_ir.device import pick_batch_tokens, pick_device
from dupmae_ir.errors import CheckpointError, UsageError
from dupmae_ir.models.checkpoints.layout import COLBERT_LINEAR, folder_digest
from dupmae_ir.models.checkpoints.loading import quiet_transformers
from dupmae_ir.models.inference.encoder import TextEncoder, batches_by_tokens
from dupmae_ir.models.names import model_folder
from dupmae_ir.types import Document

SEPARATORS = {"space": " ", "sep": " {sep} ", "colon": ": "}
"""Between title and text; {sep} is the tokenizer's own separator."""


def load_reranker(
    folder: str | Path, new_head: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """(sequence-classification model in float32 and eval mode, tokenizer) of a folder.

    One label is a score, two are irrelevant and relevant. With ``new_head``, an encoder or a classifier with more
    labels gets a new head with one label; without it they are refused. Raises :class:`CheckpointError` for these, and
    for missing weights, which transformers would initialise at random.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder}: no model folder (it has no config.json); nothing is downloaded"
        )
    with quiet_transformers():
        try:
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
            classifies = any(
                "SequenceClassification" in name for name in config.architectures or ()
            )
            fits = classifies and config.num_labels in (1, 2)
            if not (fits or new_head):
                what = (
                    f"a classifier with {config.num_labels} labels"
                    if classifies
                    else "not a sequence classifier"
                )
                raise CheckpointError(
                    f"{folder}: {what}; train one with dupmae-ir finetune.cross_encoder"
                )
            labels = {} if fits else {"num_labels": 1, "ignore_mismatched_sizes": True}
            model, info = AutoModelForSequenceClassification.from_pretrained(
                folder, local_files_only=True, output_loading_info=True, **labels
            )
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except CheckpointError:
            raise
        except Exception as e:
            raise CheckpointError(
                f"{folder}: the model does not load: {' '.join(str(e).split())[:300]}"
            ) from None
    body = f"{model.base_model_prefix}."
    missing = [
        k
        for k in sorted(info["missing_keys"])
        if not new_head or (k.startswith(body) and "pooler" not in k)
    ]
    if missing:
        raise CheckpointError(
            f"{folder}: {len(missing)} weights are missing (first: {missing[0]}); the file is incomplete"
        )
    accepted = inspect.signature(model.forward).parameters
    tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name in accepted]
    return model.float().eval(), tokenizer


def check_length(length: int, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise :class:`UsageError` where the model has no positions for ``length`` word pieces."""
    max_length = min(
        getattr(model.config, "max_position_embeddings", None) or 1 << 30,
        tokenizer.model_max_length,
    )
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
    rows = tokenizer(
        list(queries), list(texts), truncation="longest_first", max_length=length, padding=False
    )
    return [{k: rows[k][i] for k in rows.keys()} for i in range(len(queries))]  # noqa: SIM118


def pad(
    rows: Sequence[dict[str, list[int]]], tokenizer: PreTrainedTokenizerBase
) -> dict[str, Tensor]:
    """The rows as one batch: name -> (n, L) int64, padded on the right."""
    blank = {"input_ids": tokenizer.pad_token_id or 0}
    return {
        name: pad_sequence([torch.tensor(row[name]) for row in rows], True, blank.get(name, 0))
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
        inputs = {
            k: v.to(model.device) for k, v in pad([rows[i] for i in batch], tokenizer).items()
        }
        scores[batch] = relevance(model(**inputs).logits).cpu()
    return scores


class Reranker(Protocol):
    """Scores documents for a query; larger is better. Can be called from several threads."""

    def scores(self, query: str, documents: Sequence[Document]) -> list[float]:
        """One score for each document."""


PAIR_LENGTH = 512  #: word pieces that a cross-encoder reads of a query and a document


class CrossEncoder:
    """A sequence classifier as a :class:`Reranker`."""

    def __init__(self, folder: Path, device: str) -> None:
        model, self._tokenizer = load_reranker(folder)
        chosen = pick_device(device)[0]
        self._model, self._batch_tokens = model.to(chosen), pick_batch_tokens(chosen)[0]
        positions = getattr(model.config, "max_position_embeddings", None) or PAIR_LENGTH
        self._length = min(PAIR_LENGTH, positions, self._tokenizer.model_max_length)
        self._lock = threading.Lock()  # a tokenizer's truncation is a state

    def scores(self, query: str, documents: Sequence[Document]) -> list[float]:
        texts = [document.joined() for document in documents]
        with self._lock:
            queries = [query] * len(texts)
            found = score_pairs(
                self._model, self._tokenizer, queries, texts, self._length, self._batch_tokens
            )
        return found.tolist()


class MaxSim:
    """BGE-M3's vectors of single tokens as a :class:`Reranker`.

    The score of a document is the mean over the query's tokens of the largest inner product with one of its tokens,
    where tokens are all but the first (FlagEmbedding's ``colbert_score``).
    """

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder
        self._lock = threading.Lock()

    def scores(self, query: str, documents: Sequence[Document]) -> list[float]:
        separator = self._encoder.settings.title_separator
        with self._lock:
            (tokens,) = self._encoder.token_vectors([query], "query")
            found = self._encoder.token_vectors(
                [document.joined(separator) for document in documents], "document"
            )
        return [float((tokens @ one.t()).amax(1).mean()) for one in found]


def open_reranker(model: str, encoder: object, device: str) -> Reranker:
    """The reranker of a model's name or folder; ``encoder`` is used, not loaded again, if it is the model's."""
    folder = model_folder(model)
    if not (folder / COLBERT_LINEAR).is_file():
        return _cross_encoder(folder, device)
    encoder = getattr(encoder, "encoder", encoder)  # that of a cache
    if isinstance(encoder, TextEncoder) and encoder.digest == folder_digest(folder):
        return MaxSim(encoder)
    return MaxSim(_token_encoder(folder, device))


@lru_cache(1)
def _cross_encoder(folder: Path, device: str) -> CrossEncoder:
    return CrossEncoder(folder, device)


@lru_cache(1)
def _token_encoder(folder: Path, device: str) -> TextEncoder:
    return TextEncoder.load(folder, device=device)
