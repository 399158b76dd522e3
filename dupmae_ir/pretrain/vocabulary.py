"""The parts of a tokenizer that masking needs: its special ids, and which pieces continue a word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dupmae_ir.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Vocabulary:
    """Special ids of a tokenizer, and properties of its pieces as arrays over the vocabulary."""

    size: int  #: rows of the model's word embeddings
    cls: int
    sep: int
    pad: int
    mask: int
    continues: np.ndarray  #: (size,) bool: the piece continues the word before it
    special: np.ndarray  #: (size,) bool: special tokens ([CLS], [SEP], [PAD], [MASK], [UNK], ...)

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, size: int, name: str) -> Vocabulary:
        """The vocabulary of a tokenizer for a model with ``size`` word embeddings.

        Raises :class:`CheckpointError`, which starts with ``name``, if whole words cannot be masked with it.
        """
        ids = {kind: getattr(tokenizer, f"{kind}_token_id") for kind in ("cls", "sep", "pad", "mask")}
        if missing := [kind for kind, value in ids.items() if value is None]:
            raise CheckpointError(
                f"{name}: the tokenizer has no {missing[0]} token, which masked auto-encoding needs; "
                "use a BERT, DistilBERT or RoBERTa tokenizer"
            )
        pieces = tokenizer.get_vocab()
        special = np.zeros(size, bool)
        special[list(tokenizer.all_special_ids)] = True
        return cls(size=size, continues=_continuing(pieces, size, special, name), special=special, **ids)


def _continuing(pieces: dict[str, int], size: int, special: np.ndarray, name: str) -> np.ndarray:
    """(size,) bool. WordPiece marks continuations (##); byte-pair and unigram vocabularies mark word starts (Ġ, ▁)."""
    continues = np.zeros(size, bool)
    if any(p.startswith("##") for p in pieces):
        continues[[i for p, i in pieces.items() if p.startswith("##")]] = True
        return continues
    start_mark = next((mark for mark in ("Ġ", "▁") if any(p.startswith(mark) for p in pieces)), None)
    if start_mark is None:
        raise CheckpointError(
            f"{name}: the tokenizer marks neither the start nor the continuation of words (##, Ġ or ▁), "
            "so whole words cannot be masked"
        )
    # Punctuation starts a new word, as in BERT's pre-tokenizer.
    inside = [i for p, i in pieces.items() if not p.startswith(start_mark) and any(c.isalnum() for c in p)]
    continues[inside] = True
    continues[special] = False
    return continues
