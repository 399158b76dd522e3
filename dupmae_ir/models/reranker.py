"""Rerankers: cross-encoders, which read a query and a passage together, and MaxSim over vectors of single tokens."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from pathlib import Path

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

from dupmae_ir.device import pick_batch_tokens, pick_device, pick_dtype
from dupmae_ir.errors import CheckpointError, UsageError
from dupmae_ir.models.checkpoints.layout import COLBERT_LINEAR, folder_digest
from dupmae_ir.models.checkpoints.loading import from_folder, quiet_transformers
from dupmae_ir.models.inference.encoder import TextEncoder, batches_by_tokens
from dupmae_ir.models.inference.pair_model import PAIR_LENGTH
from dupmae_ir.models.names import model_folder
from dupmae_ir.types import Document, Reranker

SEPARATORS = {"space": " ", "sep": " {sep} ", "colon": ": "}
"""What joins title and text; {sep} is the tokenizer's separator token."""


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
            is_classifier = any(
                "SequenceClassification" in name for name in config.architectures or ()
            )
            is_reranker = is_classifier and config.num_labels in (1, 2)
            if not is_reranker and not new_head:
                what = "not a sequence classifier"
                if is_classifier:
                    what = f"a classifier with {config.num_labels} labels"
                raise CheckpointError(
                    f"{folder}: {what}; train one with dupmae-ir finetune.cross_encoder"
                )
            options = {}
            if not is_reranker:
                # A head with another number of labels does not fit, and is initialised at random.
                options = {"num_labels": 1, "ignore_mismatched_sizes": True}
            model, info = from_folder(AutoModelForSequenceClassification, folder, **options)
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except CheckpointError:
            raise
        except Exception as e:
            raise CheckpointError(
                f"{folder}: the model does not load: {' '.join(str(e).split())[:300]}"
            ) from None
    encoder_prefix = f"{model.base_model_prefix}."
    missing = []
    for name in sorted(info["missing_keys"]):
        # A new head, and the pooler before it, may start at random.
        if new_head and (not name.startswith(encoder_prefix) or "pooler" in name):
            continue
        missing.append(name)
    if missing:
        raise CheckpointError(
            f"{folder}: {len(missing)} weights are missing (first: {missing[0]}); the file is incomplete"
        )
    # Some tokenizers give token types that their model does not accept.
    accepted = inspect.signature(model.forward).parameters
    tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name in accepted]
    return model.float().eval(), tokenizer


def check_length(length: int, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise :class:`UsageError` if the model has no positions for ``length`` word pieces."""
    positions = getattr(model.config, "max_position_embeddings", None) or 1 << 30
    max_length = min(positions, tokenizer.model_max_length)
    if not 8 <= length <= max_length:
        raise UsageError(f"`length` {length}: this model reads 8 to {max_length} word pieces")


def separator(name: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """The string that ``--title-separator`` names."""
    return SEPARATORS[name].format(sep=tokenizer.sep_token or "")


def relevance(logits: Tensor) -> Tensor:
    """(n,) float32 scores of (n, 1) logits, or of (n, 2) logits: relevant minus irrelevant, the log odds."""
    logits = logits.float()
    if logits.shape[1] == 1:
        return logits[:, 0]
    return logits[:, 1] - logits[:, 0]


def tokenise(
    tokenizer: PreTrainedTokenizerBase, queries: Sequence[str], texts: Sequence[str], length: int
) -> list[dict[str, list[int]]]:
    """The model's inputs for each pair, unpadded; the longer text is truncated if both do not fit."""
    columns = tokenizer(
        list(queries), list(texts), truncation="longest_first", max_length=length, padding=False
    )
    names = list(columns.keys())
    rows = []
    for position in range(len(queries)):
        rows.append({name: columns[name][position] for name in names})
    return rows


def pad(
    rows: Sequence[dict[str, list[int]]], tokenizer: PreTrainedTokenizerBase
) -> dict[str, Tensor]:
    """The rows as one batch: name -> (n, L) int64, padded on the right."""
    # Attention masks and token types are padded with 0.
    padding = {"input_ids": tokenizer.pad_token_id or 0}
    batch = {}
    for name in rows[0]:
        values = [torch.tensor(row[name]) for row in rows]
        batch[name] = pad_sequence(values, batch_first=True, padding_value=padding.get(name, 0))
    return batch


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
    lengths = [len(row["input_ids"]) for row in rows]
    scores = torch.zeros(len(rows))
    for batch in batches_by_tokens(lengths, batch_tokens):
        padded = pad([rows[position] for position in batch], tokenizer)
        inputs = {name: values.to(model.device) for name, values in padded.items()}
        scores[batch] = relevance(model(**inputs).logits).cpu()
    return scores


class CrossEncoder:
    """A sequence classifier as a :class:`Reranker`; its products are in bfloat16 where the hardware has them."""

    def __init__(self, folder: Path, device: str) -> None:
        model, self._tokenizer = load_reranker(folder)
        chosen_device = pick_device(device)[0]
        self._model = model.to(chosen_device)
        self._batch_tokens = pick_batch_tokens(chosen_device)[0]
        self._dtype = pick_dtype("auto", chosen_device)[0]
        positions = getattr(model.config, "max_position_embeddings", None) or PAIR_LENGTH
        self._length = min(PAIR_LENGTH, positions, self._tokenizer.model_max_length)
        self._lock = threading.Lock()  # a tokenizer's truncation is a state

    def scores(self, query: str, documents: Sequence[Document]) -> list[float]:
        texts = [document.joined() for document in documents]
        with self._lock, self._products():
            queries = [query] * len(texts)
            scores = score_pairs(
                self._model, self._tokenizer, queries, texts, self._length, self._batch_tokens
            )
        return scores.tolist()

    def _products(self) -> AbstractContextManager[object]:
        if self._dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self._model.device.type, self._dtype)


class MaxSim:
    """BGE-M3's vectors of single tokens as a :class:`Reranker`.

    The score of a document is the mean over the query's tokens of the largest inner product with a token of the
    document (FlagEmbedding's ``colbert_score``). The first token of a text does not count.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder
        self._lock = threading.Lock()

    def scores(self, query: str, documents: Sequence[Document]) -> list[float]:
        separator = self._encoder.settings.title_separator
        texts = [document.joined(separator) for document in documents]
        with self._lock:
            (query_vectors,) = self._encoder.token_vectors([query], "query")
            document_vectors = self._encoder.token_vectors(texts, "document")
        return [float((query_vectors @ vectors.t()).amax(1).mean()) for vectors in document_vectors]


def open_reranker(model: str, encoder: object, device: str) -> Reranker:
    """The reranker of a model's name or folder; ``encoder`` is used, not loaded again, if it is the model's."""
    folder = model_folder(model)
    if not (folder / COLBERT_LINEAR).is_file():
        return _cross_encoder(folder, device)
    # A cache of vectors wraps its encoder.
    encoder = getattr(encoder, "encoder", encoder)
    if isinstance(encoder, TextEncoder) and encoder.digest == folder_digest(folder):
        return MaxSim(encoder)
    return MaxSim(_token_encoder(folder, device))


@lru_cache(1)
def _cross_encoder(folder: Path, device: str) -> CrossEncoder:
    return CrossEncoder(folder, device)


@lru_cache(1)
def _token_encoder(folder: Path, device: str) -> TextEncoder:
    return TextEncoder.load(folder, device=device)
