"""Word counts of a corpus, from which the weights of MASTER's keyword masks are computed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.pretrain.tokens import Corpus

CHUNK = 1 << 22
"""Number of ids counted together."""

_MULTIPLIERS = np.random.default_rng(20221112).integers(1, 2**63, 64, dtype=np.uint64) | np.uint64(1)
UNKNOWN_WEIGHT = 1.0
"""Weight of a word that is not in the corpus, as in the released code."""


@dataclass(frozen=True)
class WordCounts:
    """Occurrences of each word. A word is identified by a 64-bit hash of its pieces; ``hashes`` are sorted."""

    hashes: np.ndarray  #: (words,) uint64
    counts: np.ndarray  #: (words,) int64 occurrences
    texts: np.ndarray  #: (words,) int64 number of texts that contain it
    total_texts: int

    def weights(self, hashes: np.ndarray, kind: str) -> np.ndarray:
        """Weights of the words of one text: (n,) hashes, with repeats -> (n,) float32.

        ``kind``: ``invfreq`` is 1 / occurrences in the corpus (released code); ``tfidf`` is occurrences in the text
        times log(texts / texts that contain the word) (MASTER section 4.1).
        """
        if not len(self.hashes):
            return np.full(len(hashes), UNKNOWN_WEIGHT, np.float32)
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        known = self.hashes[at] == hashes
        if kind == "invfreq":
            return np.where(known, 1.0 / self.counts[at], UNKNOWN_WEIGHT).astype(np.float32)
        _, inverse, in_text = np.unique(hashes, return_inverse=True, return_counts=True)
        containing = np.where(known, self.texts[at], 1)
        # The minimum lets a word that is in all texts be drawn at all.
        return (in_text[inverse] * np.maximum(np.log(self.total_texts / containing), 1e-3)).astype(np.float32)


def word_starts(ids: np.ndarray, continues: np.ndarray) -> np.ndarray:
    """(words,) index of the first piece of each word of one text; the first piece of a text always starts a word."""
    starts = ~continues[ids]
    starts[:1] = True
    return np.flatnonzero(starts)


def word_hashes(ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """(words,) uint64 hash of the pieces of each word."""
    if not len(starts):
        return np.zeros(0, np.uint64)
    sizes = np.diff(np.append(starts, len(ids)))
    position = np.arange(len(ids)) - np.repeat(starts, sizes)
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * _MULTIPLIERS[position % len(_MULTIPLIERS)]
    mixed ^= mixed >> np.uint64(29)
    return np.add.reduceat(mixed, starts)


def count_words(corpus: Corpus, continues: np.ndarray) -> WordCounts:
    """Counts of all words of a corpus, cached beside its ids."""
    path = corpus.folder / "words.npz"
    if not path.is_file():
        _count(corpus, continues, path)
    with np.load(path) as cached:
        return WordCounts(cached["hashes"], cached["counts"], cached["texts"], len(corpus))


def _count(corpus: Corpus, continues: np.ndarray, path: Path) -> None:
    hashes, counts, texts = np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    offsets = corpus.texts.offsets
    first = 0
    while first < len(corpus):
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + CHUNK, "right")) - 1)
        words, of_text = _hashes_of(corpus, first, last, continues)
        distinct, number = np.unique(words, return_counts=True)
        # Unique (word, text) pairs, as each text counts once.
        pairs = np.unique(np.stack([words, of_text.astype(np.uint64)], 1), axis=0)
        containing = np.unique(pairs[:, 0], return_counts=True)[1]
        merged, inverse = np.unique(np.concatenate([hashes, distinct]), return_inverse=True)
        counts = np.bincount(inverse, np.concatenate([counts, number]), len(merged)).astype(np.int64)
        texts = np.bincount(inverse, np.concatenate([texts, containing]), len(merged)).astype(np.int64)
        hashes, first = merged, last
    with atomic_write(path, "wb") as f:
        np.savez(f, hashes=hashes, counts=counts, texts=texts)


def _hashes_of(corpus: Corpus, first: int, last: int, continues: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(hash of each word of the texts ``first`` to ``last``, number of the text that it is in)."""
    offsets = corpus.texts.offsets[first : last + 1] - corpus.texts.offsets[first]
    ids = corpus.texts.ids[corpus.texts.offsets[first] : corpus.texts.offsets[last]]
    is_start = ~continues[ids]
    # Each text starts with a word; an empty last text has no piece to mark.
    is_start[offsets[:-1][offsets[:-1] < len(ids)]] = True
    starts = np.flatnonzero(is_start)
    return word_hashes(ids, starts), np.searchsorted(offsets, starts, "right") - 1
