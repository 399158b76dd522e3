"""Models and encoders; :func:`load_encoder` is the entry point."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from dupmae_ir.arguments import checked
from dupmae_ir.types import Encoder, EncoderOptions

if TYPE_CHECKING:
    from dupmae_ir.models.inference.encoder import TextEncoder

WEIGHTLESS = "testing:hashing"
"""Name of :class:`~dupmae_ir.testing.HashingEncoder`, which needs no model."""
SLOW = "testing:slow"
"""The same with a pause for each call, so that a test can interrupt workers before they finish."""


@checked
def load_encoder(model: str | Path | None = None, **options: Unpack[EncoderOptions]) -> Encoder:
    """The encoder of a model.

    ``model`` is a model folder, ``minilm``, ``default`` or None (the embedded model), or ``testing:hashing``.
    """
    if model in (WEIGHTLESS, SLOW):
        from dupmae_ir.testing import HashingEncoder

        encoder = HashingEncoder.load(**options)
        if model == SLOW:
            encoder.pause = 0.15
        return encoder
    from dupmae_ir.models.inference.static import load_static

    return load_static(model, options) or load_text_encoder(model, **options)


def load_lazy_encoder(
    model: str | Path | None = None, **options: Unpack[EncoderOptions]
) -> Encoder:
    """As :func:`load_encoder`, for queries: torch is imported when it is needed, which one query alone does not.

    A :class:`~dupmae_ir.models.inference.query_model.LazyTextEncoder` if the model and the machine allow it.
    """
    if model in (WEIGHTLESS, SLOW):
        return load_encoder(model, **options)
    from dupmae_ir.models.inference.query_model import read_lazy

    lazy = read_lazy(model, options, lambda: load_text_encoder(model, **options))
    return lazy or load_encoder(model, **options)


def load_text_encoder(model: str | Path | None, **options: Unpack[EncoderOptions]) -> TextEncoder:
    """The encoder of a model folder, with torch."""
    from dupmae_ir.models.inference.encoder import TextEncoder  # imports torch

    return TextEncoder.load(model, **options)
