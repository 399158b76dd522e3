"""Models and encoders; :func:`load_encoder` is the entry point."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dupmae_ir.models.inference.encoder import TextEncoder
    from dupmae_ir.types import Encoder

WEIGHTLESS = "testing:hashing"
"""Name of :class:`~dupmae_ir.testing.HashingEncoder`, which needs no model."""
SLOW = "testing:slow"
"""The same with a pause for each call, so that a test finds workers at their work."""


def load_encoder(model: str | Path | None = None, **settings: Any) -> Encoder:
    """The encoder of a model.

    ``model`` is a model folder, ``minilm``, ``default`` or None (the embedded model), or ``testing:hashing``.
    ``settings`` are those of :meth:`~dupmae_ir.models.inference.encoder.TextEncoder.load`: device, dtype,
    document_length, query_length, top_k, activation, title_separator, normalize and parts; None means the default.
    """
    if model in (WEIGHTLESS, SLOW):
        from dupmae_ir.testing import HashingEncoder

        encoder = HashingEncoder.load(**settings)
        encoder.pause = 0.15 if model == SLOW else 0.0
        return encoder
    return load_text_encoder(model, **settings)


def load_lazy_encoder(model: str | Path | None = None, **settings: Any) -> Encoder:
    """As :func:`load_encoder`, for queries: torch is imported when it is needed, which one query alone does not.

    A :class:`~dupmae_ir.models.inference.lazy.LazyTextEncoder` where the model and the machine allow it.
    """
    if model in (WEIGHTLESS, SLOW):
        return load_encoder(model, **settings)
    from dupmae_ir.models.inference.lazy import Choices, read_lazy

    choices = Choices(**{name: value for name, value in settings.items() if value is not None})
    return read_lazy(model, choices, lambda: load_text_encoder(model, **settings)) or load_encoder(model, **settings)


def load_text_encoder(model: str | Path | None, **settings: Any) -> TextEncoder:
    """The encoder of a model folder, with torch."""
    from dupmae_ir.models.inference.encoder import TextEncoder  # imports torch

    return TextEncoder.load(model, **{name: value for name, value in settings.items() if value is not None})
