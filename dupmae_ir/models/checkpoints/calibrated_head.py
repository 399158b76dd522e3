"""A starting point for DupMAE from a sentence encoder that has no masked-LM head.

Fine-tuning a random head costs more text than most people have. Where the encoder's last hidden states still
point at their own word embeddings (they do in MiniLM: the residual stream keeps the word), the head need not be
learned from nothing:

* transform: dense = identity less the embeddings' common direction, with a bias that puts GELU on its linear
  arm; LayerNorm then centres the tokens. Logits become centred inner products with the word embeddings.
* bias: for each word, minus the level that its pooled logit reaches in texts in general, so that after the
  ReLU only words that stand out remain.
* W_cls: least squares from [CLS] to the encoder's own sentence vector (mean of the tokens, unit length).

Everything is closed form on a sample of passages; nothing here is trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dupmae_ir.errors import CheckpointError, InputError

if TYPE_CHECKING:
    import torch

LINEAR_ARM = 12.0
"""GELU(x) = x to 1e-9 for x > 6; hidden units of a LayerNormed encoder stay well within +-6."""


def add_head(
    encoder: Any,
    tokenizer: Any,
    passages: Sequence[str],
    *,
    cls_dim: int | None = 384,
    dense_scale: float = 20.0,
    ot_scale: float = 0.3,
    silence: float = 2.5,
    length: int = 128,
) -> Any:
    """A :class:`~dupmae_ir.models.retriever.Retriever` around a BERT ``encoder`` (a ``BertModel``), on ``passages``.

    ``dense_scale`` is the inner product of two equal sentence vectors (an inverse temperature); ``ot_scale`` the
    factor on the logits; ``silence`` the standard deviations above a word's usual level that count as silence.
    """
    import torch
    from transformers import BertForMaskedLM

    from dupmae_ir.models.checkpoints.folder import silent_ids
    from dupmae_ir.models.retriever import Retriever

    if type(encoder).__name__ != "BertModel":
        raise CheckpointError(f"a head can be added to a BertModel, not to {type(encoder).__name__}")
    if len(passages) < 256:
        raise InputError(f"{len(passages)} passages are too few to calibrate a head; give at least 256")
    lm = BertForMaskedLM(encoder.config)
    lm.bert.load_state_dict({k: v for k, v in encoder.state_dict().items() if not k.startswith("pooler.")})
    silent, quiet = silent_ids(tokenizer)
    model = Retriever(lm, None, silent, quiet).eval()
    with torch.no_grad():
        _linear_transform(lm)
        batches = list(_batches(model, tokenizer, passages, length))
        _centre_tokens(lm, batches, ot_scale)
        _silence_words(lm, batches, silence)
        if cls_dim is not None:
            means = [(h * a.unsqueeze(-1)).sum(1) / a.sum(1, keepdim=True) for h, _, a in batches]
            model.projection = _least_squares([h[:, 0] for h, _, _ in batches], means, cls_dim, dense_scale)
    return model


def taught_projection(model: Any, tokenizer: Any, passages: Sequence[str], teacher: Any, length: int = 128) -> Any:
    """W_cls for a retriever that has none: least squares from its [CLS] to the vectors of ``teacher``
    ((B, L) ids and mask -> (B, d'), all of one length), on a sample of ``passages``."""
    import torch

    first, taught = [], []
    with torch.no_grad():
        for texts in _sorted_batches(passages):
            b = tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
            first.append(model.hidden(b["input_ids"], b["attention_mask"])[:, 0])
            taught.append(teacher(b["input_ids"], b["attention_mask"]))
        return _least_squares(first, taught, taught[0].shape[1], teacher.scale)


def _linear_transform(lm: Any) -> None:
    import torch

    transform = lm.cls.predictions.transform
    words = lm.bert.embeddings.word_embeddings.weight
    common = torch.nn.functional.normalize(words.mean(0), dim=0)
    transform.dense.weight.copy_(torch.eye(len(common)) - torch.outer(common, common))
    transform.dense.bias.fill_(LINEAR_ARM)
    transform.LayerNorm.weight.fill_(1.0)
    transform.LayerNorm.bias.zero_()
    lm.cls.predictions.decoder.weight = words
    lm.cls.predictions.decoder.bias.zero_()
    lm.cls.predictions.bias.zero_()


def _batches(model: Any, tokenizer: Any, passages: Sequence[str], length: int) -> Any:
    """(hidden (B, L, d), speaking (B, L), attention (B, L)) for the passages in order of length."""
    for texts in _sorted_batches(passages):
        b = tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
        hidden = model.hidden(b["input_ids"], b["attention_mask"])
        yield hidden, b["attention_mask"].bool() & model.speaks[b["input_ids"]], b["attention_mask"]


def _sorted_batches(passages: Sequence[str]) -> Iterator[list[str]]:
    ordered = sorted(passages, key=len)
    return (ordered[start : start + 32] for start in range(0, len(ordered), 32))


def _centre_tokens(lm: Any, batches: list[Any], scale: float) -> None:
    """LayerNorm's gain and bias: (z - mean token) * scale."""
    transform = lm.cls.predictions.transform
    total, count = 0.0, 0
    for hidden, speaking, _ in batches:
        z = transform(hidden)[speaking]
        total, count = total + z.sum(0), count + len(z)
    transform.LayerNorm.weight.fill_(scale)
    transform.LayerNorm.bias.copy_(-scale * total / count)


def _silence_words(lm: Any, batches: list[Any], silence: float) -> None:
    """Bias of each word: minus (mean + silence * deviation) of its pooled logit over the passages, outliers trimmed."""
    import torch

    from dupmae_ir.models.pooling import ot_max

    head = lm.cls.predictions
    pooled = torch.cat([ot_max(head.transform(h), s, head.decoder.weight) for h, s, _ in batches])
    pooled = pooled[torch.isfinite(pooled).all(1)]
    mean, deviation = pooled.mean(0), pooled.std(0)
    # Texts that are about the word are what must stand out, so they do not count towards its usual level.
    usual = torch.where(pooled > mean + 3 * deviation, torch.nan, pooled)
    mean = usual.nanmean(0)
    deviation = (usual - mean).square().nanmean(0).sqrt()
    head.decoder.bias.copy_(-(mean + silence * deviation))
    head.bias = head.decoder.bias


def _least_squares(states: list[Any], targets: list[Any], dim: int, scale: float) -> torch.nn.Linear:
    """[CLS] states -> unit vectors of ``targets``, then (for dim < d) their leading directions; times sqrt(scale)."""
    import torch

    first = torch.cat(states)
    target = torch.nn.functional.normalize(torch.cat(targets), dim=1)
    # A little ridge: a few thousand passages determine a few hundred directions only softly.
    gram = first.t() @ first + 1e-2 * len(first) * torch.eye(first.shape[1])
    weight = torch.linalg.solve(gram, first.t() @ target)
    if dim < weight.shape[1]:
        directions = torch.linalg.svd(target, full_matrices=False).Vh[:dim]
        weight = weight @ directions.t()
    projection = torch.nn.Linear(weight.shape[0], weight.shape[1], bias=False)
    projection.weight.copy_(scale**0.5 * weight.t())
    return projection
