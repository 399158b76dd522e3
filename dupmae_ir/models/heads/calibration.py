"""A masked-LM head for a sentence encoder that has none, as a starting point for pre-training or fine-tuning.

Training a random head needs a lot of text. If the encoder's last hidden states still point at their own word
embeddings (as in MiniLM, because the residual connections preserve the word), the head can be computed instead:

* transform: dense = identity minus the embeddings' common direction, with a bias that keeps GELU in its linear range.
  Logits become inner products of normalised states with the word embeddings.
* bias: for fine-tuning and search, minus the usual level of each word's pooled logit, so that after the ReLU only words
  that stand out in a text remain; for pre-training, the logarithm of the word's frequency minus its mean logit at
  masked tokens, so that their average prediction is the frequencies of the words. Logits are then multiplied by the
  factor with which masked tokens are predicted best.
* W_cls: least squares from [CLS] to the encoder's sentence vector (mean of the tokens, unit length).

Everything is computed in closed form from a sample of passages, without training.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from dupmae_ir.console import waiting
from dupmae_ir.errors import CheckpointError, InputError
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.heads.masked_lm import Head, encoder_of, excluded_ids, has_head
from dupmae_ir.models.pooling import ot_max
from dupmae_ir.models.retriever import Retriever

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SAMPLE = 2000
"""Passages that a new head is calibrated on."""

MIN_PASSAGES = 256
"""Passages that a calibration needs at least."""

THRESHOLD = 2.5
"""A word has an OT weight if its pooled logit is this many standard deviations above the word's mean."""

GELU_OFFSET = 12.0
"""GELU(x) = x to 1e-9 for x > 6, and hidden units after LayerNorm stay well within +-6."""

FACTORS = tuple(2.0 ** (power / 2) for power in range(-14, 5))
"""Factors of the logits that are tried, from 1/128 to 4."""

PREDICTED = 1000
"""Masked tokens, about, whose prediction decides between them."""

_BATCH_SIZE = 32


class Batch(NamedTuple):
    """A batch of encoded passages."""

    hidden: Tensor  #: (B, L, d) hidden states
    pooling_mask: Tensor  #: (B, L) bool
    attention_mask: Tensor  #: (B, L)


Teacher = Callable[[Tensor, Tensor], Tensor]
"""Sentence vectors to imitate, all of one length: (B, L) ids and attention mask -> (B, d')."""


def load_with_calibrated_head(
    folder: Path,
    passages: Sequence[str],
    *,
    cls_dim: int | None,
    for_pretraining: bool = False,
    seed: int = 0,
    quiet: bool = True,
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
        model = add_head(
            document.lm, tokenizer, sample, cls_dim=cls_dim, for_pretraining=for_pretraining
        )
    if document.projection is not None:
        model.projection = document.projection
    return model, tokenizer


def sample_passages(passages: Sequence[str], seed: int) -> list[str]:
    """A random sample of at most :data:`SAMPLE` passages."""
    return random.Random(seed).sample(passages, min(SAMPLE, len(passages)))


def add_head(
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    passages: Sequence[str],
    *,
    cls_dim: int | None = 384,
    for_pretraining: bool = False,
    dense_scale: float = 20.0,
    ot_scale: float = 0.3,
    threshold: float = THRESHOLD,
    length: int = 128,
) -> Retriever:
    """A :class:`Retriever` around ``encoder`` with a head calibrated on ``passages``.

    Args:
        encoder: an encoder of a family that has a masked LM; its weights are copied.
        tokenizer: its tokenizer.
        passages: at least :data:`MIN_PASSAGES` texts.
        cls_dim: width d' of W_cls; None for no projection.
        for_pretraining: which bias the words get, see the module; there is no W_cls then.
        dense_scale: inner product of two equal sentence vectors (an inverse temperature).
        ot_scale: factor on the logits; not used for pre-training.
        threshold: see :data:`THRESHOLD`; not used for pre-training.
        length: word pieces kept per passage.
    """
    if len(passages) < MIN_PASSAGES:
        raise InputError(
            f"{len(passages)} passages are too few to calibrate a head; give at least {MIN_PASSAGES}"
        )
    lm = _masked_lm(encoder)
    model = Retriever(lm, None, *excluded_ids(tokenizer)).eval()
    with torch.no_grad():
        _set_transform(model.head, 1.0 if for_pretraining else ot_scale)
        if for_pretraining:
            _predict_masked_words(model, tokenizer, passages, length)
            return model
        batches = list(_encode_batches(model, tokenizer, passages, length))
        _set_bias(model.head, batches, threshold)
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


def _masked_lm(encoder: PreTrainedModel) -> PreTrainedModel:
    """The masked LM of the encoder's family with a copy of its weights, a new head, and tied word embeddings.

    Raises :class:`CheckpointError` for an encoder whose family has none.
    """
    from transformers import AutoModelForMaskedLM

    name = type(encoder).__name__
    config = copy.deepcopy(encoder.config)
    config.tie_word_embeddings = True
    # ModernBERT's head has a bias if this says so, which the others have always.
    config.classifier_bias = True
    try:
        lm = AutoModelForMaskedLM.from_config(config)
    except ValueError:
        lm = None
    if lm is None or not has_head(lm):
        raise CheckpointError(
            f"a head cannot be added to {name}; use a BERT, RoBERTa, MPNet, DistilBERT or ModernBERT encoder"
        )
    weights = {}
    for key, value in encoder.state_dict().items():
        # A masked LM has no pooler.
        if not key.startswith("pooler."):
            weights[key] = value
    encoder_of(lm).load_state_dict(weights)
    lm.tie_weights()
    return lm


def _set_transform(head: Head, scale: float) -> None:
    """The dense layer and the LayerNorm of a head."""
    norm: Any = head.norm
    assert head.dense is not None
    common = torch.nn.functional.normalize(head.weight.mean(0), dim=0)
    head.dense.weight.copy_(torch.eye(len(common)) - torch.outer(common, common))
    head.dense.bias.fill_(GELU_OFFSET)
    norm.weight.fill_(scale)
    # ModernBERT's norms have no bias. None is needed: it would add a constant to each word's logits, as the bias of the
    # words does.
    if norm.bias is not None:
        norm.bias.zero_()


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


def _predict_masked_words(
    model: Retriever, tokenizer: PreTrainedTokenizerBase, passages: Sequence[str], length: int
) -> None:
    """Set the bias of a head for pre-training, and the factor of its logits, which was 1.

    Every third token is masked. The states of visible tokens are different: with their mean, the masked-LM loss of
    MiniLM starts at 7.9 instead of 7.1 (a uniform prediction has 10.3).
    """
    head = model.head
    norm: Any = head.norm
    assert head.bias is not None
    # A word that does not occur counts as one that occurs once.
    counts = torch.ones(len(head.bias))
    states_of_batches = []
    words_of_batches = []
    for ids, mask in _tokenise_batches(tokenizer, passages, length):
        ordinary = mask.bool() & model.pooled_mask[ids]
        counts += torch.bincount(ids[ordinary], minlength=len(counts))
        masked = ordinary & (torch.arange(ids.shape[1]) % 3 == 1)
        hidden = model.hidden(ids.masked_fill(masked, tokenizer.mask_token_id), mask)
        states_of_batches.append(head.transform(hidden[masked]))
        words_of_batches.append(ids[masked])
    states = torch.cat(states_of_batches)
    mean = states.mean(0)
    frequencies = torch.log(counts / counts.sum())

    # Passages are sorted by length, so that every n-th token is a sample of all of them.
    step = max(1, len(states) // PREDICTED)
    targets = torch.cat(words_of_batches)[::step]
    logits = (states[::step] - mean) @ head.weight.t()
    losses = [
        torch.nn.functional.cross_entropy(factor * logits + frequencies, targets)
        for factor in FACTORS
    ]
    factor = FACTORS[int(torch.stack(losses).argmin())]
    norm.weight.mul_(factor)
    head.bias.copy_(frequencies - factor * (head.weight @ mean))


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
