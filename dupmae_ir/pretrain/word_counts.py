"""How often words occur in a corpus: the weights of MASTER's keyword masks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.pretrain.tokens import Corpus

AT_ONCE = 1 << 22
"""Ids counted together."""

_MULTIPLIERS = np.random.default_rng(20221112).integers(1, 2**63, 64, dtype=np.uint64) | np.uint64(1)
UNKNOWN = 1.0
"""Weight of a word that the corpus does not hold, as released."""


@dataclass(frozen=True)
class WordCounts:
    """Words are known by a 64-bit hash of their pieces; ``hashes`` ascend."""

    hashes: np.ndarray  #: (words,) uint64
    counts: np.ndarray  #: (words,) int64 occurrences
    texts: np.ndarray  #: (words,) int64 texts that hold it
    total_texts: int

    def weights(self, hashes: np.ndarray, kind: str) -> np.ndarray:
        """float32 weight of every word of one text, given by hash and with repeats.

        ``invfreq``: 1 / occurrences in the corpus (released code); ``tfidf``: occurrences in the text times
        log(texts / texts that hold it) (MASTER section 4.1).
        """
        if not len(self.hashes):
            return np.full(len(hashes), UNKNOWN, np.float32)
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        known = self.hashes[at] == hashes
        if kind == "invfreq":
            return np.where(known, 1.0 / self.counts[at], UNKNOWN).astype(np.float32)
        _, back, here = np.unique(hashes, return_inverse=True, return_counts=True)
        held = np.where(known, self.texts[at], 1)
        # A word of every text still has a chance, however small.
        return (here[back] * np.maximum(np.log(self.total_texts / held), 1e-3)).astype(np.float32)


def word_starts(ids: np.ndarray, continues: np.ndarray) -> np.ndarray:
    """Index of the first piece of every word of one text; its first piece begins one whatever it is."""
    begins = ~continues[ids]
    begins[:1] = True
    return np.flatnonzero(begins)


def word_hashes(ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """(words,) uint64 hash of the pieces of each word."""
    if not len(starts):
        return np.zeros(0, np.uint64)
    sizes = np.diff(np.append(starts, len(ids)))
    place = np.arange(len(ids)) - np.repeat(starts, sizes)
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * _MULTIPLIERS[place % len(_MULTIPLIERS)]
    mixed ^= mixed >> np.uint64(29)
    return np.add.reduceat(mixed, starts)


def count_words(corpus: Corpus, continues: np.ndarray) -> WordCounts:
    """Counts of all words of a corpus, kept beside its ids."""
    path = corpus.folder / "words.npz"
    if not path.is_file():
        _count(corpus, continues, path)
    with np.load(path) as kept:
        return WordCounts(kept["hashes"], kept["counts"], kept["texts"], len(corpus))


def _count(corpus: Corpus, continues: np.ndarray, path: Path) -> None:
    hashes, counts, texts = np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    offsets = corpus.texts.offsets
    first = 0
    while first < len(corpus):
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + AT_ONCE, "right")) - 1)
        words, of_text = _hashes_of(corpus, first, last, continues)
        here, number = np.unique(words, return_counts=True)
        # A word counts once for each text: unique (word, text) pairs.
        pairs = np.unique(np.stack([words, of_text.astype(np.uint64)], 1), axis=0)
        holding = np.unique(pairs[:, 0], return_counts=True)[1]
        merged, back = np.unique(np.concatenate([hashes, here]), return_inverse=True)
        counts = np.bincount(back, np.concatenate([counts, number]), len(merged)).astype(np.int64)
        texts = np.bincount(back, np.concatenate([texts, holding]), len(merged)).astype(np.int64)
        hashes, first = merged, last
    with atomic_write(path, "wb") as f:
        np.savez(f, hashes=hashes, counts=counts, texts=texts)


def _hashes_of(corpus: Corpus, first: int, last: int, continues: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hash of every word of the texts ``first`` to ``last``, and the text each is in."""
    offsets = corpus.texts.offsets[first : last + 1] - corpus.texts.offsets[first]
    ids = corpus.texts.ids[corpus.texts.offsets[first] : corpus.texts.offsets[last]]
    begins = ~continues[ids]
    # Every text begins with a word; an empty last text has no place to mark.
    begins[offsets[:-1][offsets[:-1] < len(ids)]] = True
    starts = np.flatnonzero(begins)
    return word_hashes(ids, starts), np.searchsorted(offsets, starts, "right") - 1
