"""A masked-LM head for a sentence encoder that has none, as a starting point for DupMAE.

Fine-tuning a random head needs a lot of text. If the encoder's last hidden states still point at their own word
embeddings (as in MiniLM, because the residual connections preserve the word), the head can be computed instead:

* transform: dense = identity minus the embeddings' common direction, with a bias that keeps GELU in its linear range;
  LayerNorm then centres the tokens. Logits become centred inner products with the word embeddings.
* bias: for each word, minus the usual level of its pooled logit, so that after the ReLU only words that stand out in
  a text remain.
* W_cls: least squares from [CLS] to the encoder's sentence vector (mean of the tokens, unit length).

Everything is computed in closed form from a sample of passages, without training.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from transformers import BertForMaskedLM

from dupmae_ir.console import waiting
from dupmae_ir.errors import CheckpointError, InputError
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.heads.masked_lm import Head, excluded_ids
from dupmae_ir.models.pooling import ot_max
from dupmae_ir.models.retriever import Retriever

if TYPE_CHECKING:
    from transformers import BertModel, PreTrainedTokenizerBase

SAMPLE = 2000
"""Passages that a new head is calibrated on."""

MIN_PASSAGES = 256
"""Passages that a calibration needs at least."""

THRESHOLD = 2.5
"""A word has an OT weight if its pooled logit is this many standard deviations above the word's mean."""

GELU_OFFSET = 12.0
"""GELU(x) = x to 1e-9 for x > 6, and hidden units after LayerNorm stay well within +-6."""

_BATCH_SIZE = 32


class Batch(NamedTuple):
    """A batch of encoded passages."""

    hidden: Tensor  #: (B, L, d) hidden states
    pooling_mask: Tensor  #: (B, L) bool
    attention_mask: Tensor  #: (B, L)


Teacher = Callable[[Tensor, Tensor], Tensor]
"""Sentence vectors to imitate, all of one length: (B, L) ids and attention mask -> (B, d')."""


def load_with_calibrated_head(
    folder: Path, passages: Sequence[str], *, cls_dim: int | None, seed: int = 0, quiet: bool = True
) -> tuple[Retriever, PreTrainedTokenizerBase]:
    """Load an encoder without a masked-LM head and add one, calibrated on a sample of ``passages``.

    Returns the retriever and its tokenizer. ``cls_dim`` is the width of a new W_cls; an existing W_cls is kept.
    """
    bare, tokenizer, _ = load_model(folder, need_ot=False)
    document = bare.side("document")
    sample = sample_passages(passages, seed)
    if document.projection is not None:
        cls_dim = None
    with waiting(
        f"{folder.name} has no masked-LM head: calibrating one on {len(sample):,} passages", quiet
    ):
        model = add_head(document.lm, tokenizer, sample, cls_dim=cls_dim)
    if document.projection is not None:
        model.projection = document.projection
    return model, tokenizer


def sample_passages(passages: Sequence[str], seed: int) -> list[str]:
    """A random sample of at most :data:`SAMPLE` passages."""
    return random.Random(seed).sample(passages, min(SAMPLE, len(passages)))


def add_head(
    encoder: BertModel,
    tokenizer: PreTrainedTokenizerBase,
    passages: Sequence[str],
    *,
    cls_dim: int | None = 384,
    dense_scale: float = 20.0,
    ot_scale: float = 0.3,
    threshold: float = THRESHOLD,
    length: int = 128,
) -> Retriever:
    """A :class:`Retriever` around ``encoder`` with a head calibrated on ``passages``.

    Args:
        encoder: a ``BertModel``; its weights are copied.
        tokenizer: its tokenizer.
        passages: at least :data:`MIN_PASSAGES` texts.
        cls_dim: width d' of W_cls; None for no projection.
        dense_scale: inner product of two equal sentence vectors (an inverse temperature).
        ot_scale: factor on the logits.
        threshold: see :data:`THRESHOLD`.
        length: word pieces kept per passage.
    """
    if type(encoder).__name__ != "BertModel":
        raise CheckpointError(
            f"a head can be added to a BertModel, not to {type(encoder).__name__}"
        )
    if len(passages) < MIN_PASSAGES:
        raise InputError(
            f"{len(passages)} passages are too few to calibrate a head; give at least {MIN_PASSAGES}"
        )
    # A masked LM has no pooler.
    weights = {
        name: value
        for name, value in encoder.state_dict().items()
        if not name.startswith("pooler.")
    }
    lm = BertForMaskedLM(encoder.config)
    lm.bert.load_state_dict(weights)
    model = Retriever(lm, None, *excluded_ids(tokenizer)).eval()
    with torch.no_grad():
        _set_transform(lm)
        batches = list(_encode_batches(model, tokenizer, passages, length))
        # The bias is the level of the logits after centring, so this order.
        _centre_tokens(lm, batches, ot_scale)
        _set_bias(model.head, batches, threshold)
        lm.cls.predictions.bias = lm.cls.predictions.decoder.bias
        if cls_dim is not None:
            states = [batch.hidden[:, 0] for batch in batches]
            means = [_mean_states(batch) for batch in batches]
            model.projection = _least_squares(states, means, cls_dim, dense_scale)
    return model


def _mean_states(batch: Batch) -> Tensor:
    """(B, d) means of the hidden states over all tokens."""
    mask = batch.attention_mask
    return (batch.hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)


def calibrate_bias(
    model: Retriever, tokenizer: PreTrainedTokenizerBase, passages: Sequence[str], length: int = 128
) -> None:
    """Set the bias of a trained masked-LM head so that a word has an OT weight only in texts where it stands out.

    Nothing in pre-training fixes the level of the logits: masked LM and DupMAE's bag of words (Eq. 8) are softmaxes, so
    that thousands of words may be above 0, and the first contrastive losses on OT in the thousands.
    Raises :class:`CheckpointError` for a model whose OT part has no bias.
    """
    if model.head.bias is None:
        raise CheckpointError("the OT part of this model has no bias to calibrate")
    with torch.no_grad():
        batches = list(_encode_batches(model, tokenizer, passages, length))
        _set_bias(model.head, batches, THRESHOLD)


class _TokenisedTexts(NamedTuple):
    ids: Tensor
    mask: Tensor


def _tokenise_batches(
    tokenizer: PreTrainedTokenizerBase, passages: Sequence[str], length: int
) -> Iterator[_TokenisedTexts]:
    """The passages in batches of similar length, so that little of them is padding."""
    ordered = sorted(passages, key=len)
    for start in range(0, len(ordered), _BATCH_SIZE):
        texts = ordered[start : start + _BATCH_SIZE]
        inputs = tokenizer(
            texts, padding=True, truncation=True, max_length=length, return_tensors="pt"
        )
        yield _TokenisedTexts(inputs["input_ids"], inputs["attention_mask"])


def _encode_batches(
    model: Retriever, tokenizer: PreTrainedTokenizerBase, passages: Sequence[str], length: int
) -> Iterator[Batch]:
    for ids, mask in _tokenise_batches(tokenizer, passages, length):
        pooling_mask = mask.bool() & model.pooled_mask[ids]
        yield Batch(model.hidden(ids, mask), pooling_mask, mask)


def distilled_projection(
    model: Retriever,
    tokenizer: PreTrainedTokenizerBase,
    passages: Sequence[str],
    teacher: Teacher,
    length: int = 128,
) -> torch.nn.Linear:
    """W_cls for a retriever without one: least squares from its [CLS] to the teacher's vectors of ``passages``."""
    states = []
    targets = []
    with torch.no_grad():
        for ids, mask in _tokenise_batches(tokenizer, passages, length):
            states.append(model.hidden(ids, mask)[:, 0])
            targets.append(teacher(ids, mask))
        dim = targets[0].shape[1]
        # The teacher's vectors all have the same length.
        squared_length = float(targets[0][0].square().sum())
        return _least_squares(states, targets, dim, squared_length)


def _set_transform(lm: BertForMaskedLM) -> None:
    """The head's dense layer and its tied decoder; biases and LayerNorm are set later."""
    transform = lm.cls.predictions.transform
    words = lm.bert.embeddings.word_embeddings.weight
    common = torch.nn.functional.normalize(words.mean(0), dim=0)
    transform.dense.weight.copy_(torch.eye(len(common)) - torch.outer(common, common))
    transform.dense.bias.fill_(GELU_OFFSET)
    transform.LayerNorm.weight.fill_(1.0)
    transform.LayerNorm.bias.zero_()
    lm.cls.predictions.decoder.weight = words
    lm.cls.predictions.decoder.bias.zero_()
    lm.cls.predictions.bias.zero_()


def _centre_tokens(lm: BertForMaskedLM, batches: Sequence[Batch], scale: float) -> None:
    """LayerNorm's gain and bias: (z - mean token) * scale."""
    transform = lm.cls.predictions.transform
    total = torch.zeros(())
    count = 0
    for batch in batches:
        z = transform(batch.hidden)[batch.pooling_mask]
        total = total + z.sum(0)
        count += len(z)
    transform.LayerNorm.weight.fill_(scale)
    transform.LayerNorm.bias.copy_(-scale * total / count)


def _set_bias(head: Head, batches: Sequence[Batch], threshold: float) -> None:
    """Bias of each word: -(mean + threshold * standard deviation) of its pooled logit over the passages."""
    assert head.bias is not None
    pooled = torch.cat(
        [ot_max(head.transform(batch.hidden), batch.pooling_mask, head.weight) for batch in batches]
    )
    # The maximum of a passage without a token to pool is -inf.
    pooled = pooled[torch.isfinite(pooled).all(1)]
    mean = pooled.mean(0)
    deviation = pooled.std(0)
    # Texts about the word should stand out, so they do not count towards its usual level.
    usual = torch.where(pooled > mean + 3 * deviation, torch.nan, pooled)
    mean = usual.nanmean(0)
    deviation = (usual - mean).square().nanmean(0).sqrt()
    head.bias.copy_(-(mean + threshold * deviation))


def _least_squares(
    states: Sequence[Tensor], targets: Sequence[Tensor], dim: int, scale: float
) -> torch.nn.Linear:
    """[CLS] states -> unit vectors of ``targets``, reduced to ``dim`` leading directions; times sqrt(scale)."""
    inputs = torch.cat(list(states))
    target = torch.nn.functional.normalize(torch.cat(list(targets)), dim=1)
    # A small ridge, because a few thousand passages barely determine a few hundred directions.
    gram = inputs.t() @ inputs + 1e-2 * len(inputs) * torch.eye(inputs.shape[1])
    weight = torch.linalg.solve(gram, inputs.t() @ target)
    if dim < weight.shape[1]:
        directions = torch.linalg.svd(target, full_matrices=False).Vh[:dim]
        weight = weight @ directions.t()
    projection = torch.nn.Linear(weight.shape[0], weight.shape[1], bias=False)
    projection.weight.copy_(scale**0.5 * weight.t())
    return projection
