"""Models and encoders. ``load_encoder`` is the front door."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dupmae_ir.types import Encoder


def load_encoder(model: str | Path | None = None, **settings: Any) -> Encoder:
    """The encoder of a model folder; None is the embedded default, ``testing:hashing`` the weightless one.

    ``settings``: device, dtype, document_length, query_length, top_k, activation, title_separator, normalize, parts;
    what is None comes from the checkpoint.
    """
    if model == "testing:hashing":
        from dupmae_ir.testing import HashingEncoder

        return HashingEncoder.load(**settings)
    from dupmae_ir.models.inference.encoder import TextEncoder

    return TextEncoder.load(model, **{k: v for k, v in settings.items() if v is not None})
