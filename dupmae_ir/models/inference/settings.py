"""What encoders with and without torch share: their settings, the terms of a vocabulary, prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dupmae_ir.errors import UsageError
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.types import EncoderSettings


class Vocabulary(Protocol):
    """The part of a tokenizer that names its tokens."""

    def get_vocab(self) -> dict[str, int]:
        """Token -> id."""
        ...


def encoder_settings(
    config: ModelConfig,
    longest: int,
    with_ot: bool,
    *,
    dtype: str,
    device: str,
    document_length: int | None = None,
    query_length: int | None = None,
    top_k: int | None = None,
    title_separator: str | None = None,
) -> EncoderSettings:
    """The settings of an encoder: those of ``config`` where none are given.

    ``longest``: word pieces that the model reads at most. ``with_ot``: the OT part is computed. Raises
    :class:`UsageError` for a length or a number that the model does not allow.
    """
    computed = with_ot and config.lexical is not None and not config.has_head
    scale = float(config.lexical.document_scale) if computed and config.lexical else config.impact_scale
    return EncoderSettings(
        document_length=_length("document", document_length or min(config.document_length, longest), longest),
        query_length=_length("query", query_length or min(config.query_length, longest), longest),
        top_k=positive("top_k", top_k or config.top_k),
        activation=config.activation,
        dtype=dtype,
        device=device,
        title_separator=config.title_separator if title_separator is None else title_separator,
        impact_scale=scale,
        normalize=config.normalize,
        ot=config.ot,
        head_scale=config.lexical.head_scale if config.lexical else 0.0,
    )


def _length(what: str, value: int, longest: int) -> int:
    if not 3 <= value <= longest:
        raise UsageError(f"--{what}-length {value}: this model reads 3 to {longest} word pieces")
    return value


def positive(what: str, value: int) -> int:
    """``value``; raises :class:`UsageError` below 1."""
    if value < 1:
        raise UsageError(f"{what} must be at least 1, got {value}")
    return value


def after(prompt: str, texts: Sequence[str]) -> Sequence[str]:
    """The texts with a prompt before each."""
    return [prompt + text for text in texts] if prompt else texts


def vocabulary(tokenizer: Vocabulary, size: int) -> list[str]:
    """The index term of each vocabulary id.

    Ids without a token, and tokens with white space (ModernBERT's runs of blanks), which Lucene would split, get a name
    that cannot occur in a text.
    """
    terms = [f"[unnamed{i}]" for i in range(size)]
    for token, i in tokenizer.get_vocab().items():
        if token and not any(map(str.isspace, token)):
            terms[i] = token
    return terms
