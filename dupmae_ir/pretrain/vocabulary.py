"""What masking must know of a tokenizer: its special ids, and which pieces continue a word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dupmae_ir.errors import CheckpointError


@dataclass(frozen=True)
class Vocabulary:
    """Ids of a tokenizer as arrays over the vocabulary."""

    size: int  #: rows of the model's word embeddings
    cls: int
    sep: int
    pad: int
    mask: int
    continues: np.ndarray  #: (size,) bool: the piece continues the word before it
    special: np.ndarray  #: (size,) bool: [CLS], [SEP], [PAD], [MASK], [UNK] and the like

    @classmethod
    def of(cls, tokenizer: Any, size: int, name: str) -> Vocabulary:
        """From a tokenizer; ``name`` is said in errors. Raises :class:`CheckpointError` where masking is impossible."""
        ids = {kind: getattr(tokenizer, f"{kind}_token_id") for kind in ("cls", "sep", "pad", "mask")}
        if lacking := [kind for kind, value in ids.items() if value is None]:
            raise CheckpointError(
                f"{name}: the tokenizer has no {lacking[0]} token, which masked auto-encoding needs; "
                "use a BERT, DistilBERT or RoBERTa tokenizer"
            )
        pieces = tokenizer.get_vocab()
        special = np.zeros(size, bool)
        special[list(tokenizer.all_special_ids)] = True
        return cls(size=size, continues=_continuing(pieces, size, special, name), special=special, **ids)


def _continuing(pieces: dict[str, int], size: int, special: np.ndarray, name: str) -> np.ndarray:
    """WordPiece marks what continues (##); byte-pair and unigram vocabularies mark what begins (Ġ, ▁)."""
    continues = np.zeros(size, bool)
    if any(p.startswith("##") for p in pieces):
        continues[[i for p, i in pieces.items() if p.startswith("##")]] = True
        return continues
    start = next((mark for mark in ("Ġ", "▁") if any(p.startswith(mark) for p in pieces)), None)
    if start is None:
        raise CheckpointError(
            f"{name}: the tokenizer marks neither the beginning nor the continuation of words (##, Ġ or ▁), "
            "so whole words cannot be masked"
        )
    # Punctuation begins a word of its own, as BERT's pre-tokenizer has it.
    inside = [i for p, i in pieces.items() if not p.startswith(start) and any(c.isalnum() for c in p)]
    continues[inside] = True
    continues[special] = False
    return continues
