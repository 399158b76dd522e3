"""A corpus as word-piece ids in memory-mapped arrays, cached by the digest of its source, tokenizer and settings.

Next to them are the counts of its words, from which the weights of MASTER's keyword masks are computed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from dupmae_ir.console import progress, say
from dupmae_ir.errors import CheckpointError, InputError
from dupmae_ir.io.locks import exclusive, lock_path
from dupmae_ir.io.publishing import atomic_write, move_into_place, write_json
from dupmae_ir.io.transfer import cache_folder
from dupmae_ir.pretrain.corpus import Text, digest, read_texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


FORMAT = 1
CHUNK = 1024
"""Documents tokenised together."""

_SENTENCE_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')\]]))\s+(?=[\"'(\[]*[A-Z0-9])")


@dataclass(frozen=True)
class Ragged:
    """Rows of different length: row i is ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: np.ndarray
    offsets: np.ndarray  #: (rows + 1,) int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.ids[self.offsets[row] : self.offsets[row + 1]]


@dataclass(frozen=True)
class Corpus:
    """Texts of one corpus without special tokens, in reading order; memory-mapped."""

    name: str
    texts: Ragged
    document: np.ndarray  #: (texts,) int64: number of each text's document
    queries: (
        Ragged  #: generated queries; those of text i are rows ``query_range[i]:query_range[i + 1]``
    )
    query_range: np.ndarray
    following: Ragged  #: generated continuations, with ``following_range`` likewise
    following_range: np.ndarray
    folder: Path  #: the cache folder

    def __len__(self) -> int:
        return len(self.texts)

    def queries_of(self, row: int) -> list[np.ndarray]:
        """Generated queries of a text; may be empty."""
        return [self.queries[i] for i in range(self.query_range[row], self.query_range[row + 1])]

    def following_of(self, row: int) -> list[np.ndarray]:
        """Generated continuations of a text; may be empty."""
        return [
            self.following[i]
            for i in range(self.following_range[row], self.following_range[row + 1])
        ]

    def neighbour(self, row: int) -> int | None:
        """Row of the next text of the same document, otherwise of the previous one; None if there is neither."""
        for other in (row + 1, row - 1):
            if 0 <= other < len(self) and self.document[other] == self.document[row]:
                return other
        return None


@dataclass(frozen=True)
class Cutting:
    """How documents are divided into texts."""

    unit: str = "passages"  #: ``passages``: truncated at ``length`` ids; ``blocks``: sentences packed up to ``length``
    length: int = 510
    documents: str = "line"  #: see :func:`~dupmae_ir.pretrain.corpus.read_texts`
    separator: str = " "  #: between title and text


def load_corpus(
    source: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    cutting: Cutting,
    cache: str | Path | None = None,
    quiet: bool = False,
    source_digest: str | None = None,
) -> Corpus:
    """The tokenised corpus of ``source``, from the cache or tokenised into it first.

    The cache key is a digest of the source's bytes, the tokenizer and ``cutting``; names do not matter. ``cache`` is
    the folder of the cache, by default the user's; ``source_digest`` saves computing the digest of the source again.
    Raises :class:`InputError` for a source without text.
    """
    root = Path(cache) if cache else cache_folder()
    pieces = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
    settings = {
        "format": FORMAT,
        "source": source_digest or digest(source),
        "tokenizer": pieces,
        **cutting.__dict__,
    }
    folder = root / hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]
    with exclusive(lock_path(folder), f"tokenising {source}", wait=True, quiet=quiet):
        if not (folder / "meta.json").is_file():
            say(f"tokenising {source} (cached in {folder})", quiet)
            _tokenise(source, tokenizer, cutting, folder, quiet)
    return _open(folder, Path(source).name)


def _open(folder: Path, name: str) -> Corpus:
    def ragged(kind: str) -> Ragged:
        ids = folder / f"{kind}.ids.npy"
        return Ragged(np.load(ids, mmap_mode="r"), np.load(folder / f"{kind}.offsets.npy"))

    return Corpus(
        name,
        ragged("texts"),
        np.load(folder / "document.npy"),
        ragged("queries"),
        np.load(folder / "query_range.npy"),
        ragged("following"),
        np.load(folder / "following_range.npy"),
        folder,
    )


class _RaggedWriter:
    """Writes rows of ids to a raw file, which :meth:`finish` turns into ``KIND.ids.npy`` and ``KIND.offsets.npy``."""

    def __init__(self, folder: Path, kind: str, dtype: type[np.unsignedinteger]) -> None:
        self.folder, self.kind, self.dtype = folder, kind, np.dtype(dtype)
        self.raw: IO[bytes] = open(folder / f"{kind}.raw", "wb")  # noqa: SIM115 - closed in finish
        self.lengths: list[int] = []

    def add(self, ids: Iterable[int]) -> None:
        row = np.fromiter(ids, self.dtype)
        self.raw.write(row.tobytes())
        self.lengths.append(len(row))

    def __enter__(self) -> _RaggedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()

    def finish(self) -> None:
        self.raw.close()
        raw = self.folder / f"{self.kind}.raw"
        total = sum(self.lengths)
        out = np.lib.format.open_memmap(
            self.folder / f"{self.kind}.ids.npy", "w+", self.dtype, (total,)
        )
        if total:
            out[:] = np.memmap(raw, self.dtype, "r")
        out.flush()
        np.save(
            self.folder / f"{self.kind}.offsets.npy", np.cumsum([0, *self.lengths], dtype=np.int64)
        )
        raw.unlink()


def _tokenise(
    source: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    cutting: Cutting,
    folder: Path,
    quiet: bool,
) -> None:
    aside = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    dtype = np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32
    document: list[int] = []
    with contextlib.ExitStack() as open_files:
        texts, queries, following = (
            open_files.enter_context(_RaggedWriter(aside, kind, dtype))
            for kind in ("texts", "queries", "following")
        )
        ranges = {"query_range": (queries, [0]), "following_range": (following, [0])}
        bar = open_files.enter_context(progress("tokenising", "documents", quiet=quiet))
        for number, (own, asked, continued) in enumerate(_documents(source, tokenizer, cutting)):
            for ids in own:
                texts.add(ids)
                document.append(number)
                # Generated texts of a document belong to its first text.
                for rows, (writer, ends) in zip((asked, continued), ranges.values(), strict=True):
                    for row in rows:
                        writer.add(row)
                    ends.append(len(writer.lengths))
                    rows.clear()
            bar.update()
        if not document:
            raise InputError(f"{source}: contains no text; give a corpus with at least one passage")
        for writer in (texts, queries, following):
            writer.finish()
    np.save(aside / "document.npy", np.array(document, np.int64))
    for name, (_, ends) in ranges.items():
        np.save(aside / f"{name}.npy", np.array(ends, np.int64))
    write_json(
        aside / "meta.json",
        {"format": FORMAT, "texts": len(document), "tokens": sum(texts.lengths)},
    )
    move_into_place(aside, folder)


Ids = list[list[int]]


def _documents(
    source: str | Path, tokenizer: PreTrainedTokenizerBase, cutting: Cutting
) -> Iterator[tuple[Ids, Ids, Ids]]:
    """(texts, generated queries, generated continuations) of each document, as ids."""
    documents = read_texts(source, cutting.documents, cutting.separator)
    while chunk := list(islice(documents, CHUNK)):
        queries = _ids(tokenizer, [q for text in chunk for q in text.queries])
        following = _ids(tokenizer, [f for text in chunk for f in text.following])
        for text, own in zip(chunk, _texts_of(chunk, tokenizer, cutting), strict=True):
            asked = [next(queries)[: cutting.length] for _ in text.queries]
            yield own, asked, [next(following)[: cutting.length] for _ in text.following]


def _texts_of(chunk: list[Text], tokenizer: PreTrainedTokenizerBase, cutting: Cutting) -> list[Ids]:
    """The texts of each document, as ids; a document may have none."""
    parts = [text.passages for text in chunk]
    if cutting.unit == "blocks":
        parts = [
            [s for passage in p for s in _SENTENCE_END.split(passage) if s.strip()] for p in parts
        ]
    ids = _ids(tokenizer, [p for passages in parts for p in passages])
    rows = [[row for row in (next(ids) for _ in passages) if row] for passages in parts]
    if cutting.unit == "blocks":
        return [list(pack(sentences, cutting.length)) for sentences in rows]
    return [[row[: cutting.length] for row in document] for document in rows]


def pack(sentences: Iterable[list[int]], length: int) -> Iterator[list[int]]:
    """Join consecutive sentences while they fit into ``length`` ids; a longer sentence is split."""
    block: list[int] = []
    for sentence in sentences:
        if block and len(block) + len(sentence) > length:
            yield block
            block = []
        block = block + sentence
        while len(block) > length:
            yield block[:length]
            block = block[length:]
    if block:
        yield block


def _ids(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> Iterator[list[int]]:
    if not texts:
        return iter(())
    return iter(
        tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)[
            "input_ids"
        ]
    )


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
        ids = {
            kind: getattr(tokenizer, f"{kind}_token_id") for kind in ("cls", "sep", "pad", "mask")
        }
        if missing := [kind for kind, value in ids.items() if value is None]:
            raise CheckpointError(
                f"{name}: the tokenizer has no {missing[0]} token, which masked auto-encoding needs; "
                "use a BERT, DistilBERT or RoBERTa tokenizer"
            )
        pieces = tokenizer.get_vocab()
        special = np.zeros(size, bool)
        special[list(tokenizer.all_special_ids)] = True
        return cls(
            size=size, continues=_continuing(pieces, size, special, name), special=special, **ids
        )


def _continuing(pieces: dict[str, int], size: int, special: np.ndarray, name: str) -> np.ndarray:
    """(size,) bool. WordPiece marks continuations (##); byte-pair and unigram vocabularies mark word starts (Ġ, ▁)."""
    continues = np.zeros(size, bool)
    if any(p.startswith("##") for p in pieces):
        continues[[i for p, i in pieces.items() if p.startswith("##")]] = True
        return continues
    start_mark = next(
        (mark for mark in ("Ġ", "▁") if any(p.startswith(mark) for p in pieces)), None
    )
    if start_mark is None:
        raise CheckpointError(
            f"{name}: the tokenizer marks neither the start nor the continuation of words (##, Ġ or ▁), "
            "so whole words cannot be masked"
        )
    # Punctuation starts a new word, as in BERT's pre-tokenizer.
    inside = [
        i for p, i in pieces.items() if not p.startswith(start_mark) and any(c.isalnum() for c in p)
    ]
    continues[inside] = True
    continues[special] = False
    return continues


COUNTED_IDS = 1 << 22
"""Number of ids counted together."""

_MULTIPLIERS = np.random.default_rng(20221112).integers(1, 2**63, 64, dtype=np.uint64) | np.uint64(
    1
)
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
        return (in_text[inverse] * np.maximum(np.log(self.total_texts / containing), 1e-3)).astype(
            np.float32
        )


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
        last = max(
            first + 1, int(np.searchsorted(offsets, offsets[first] + COUNTED_IDS, "right")) - 1
        )
        words, of_text = _hashes_of(corpus, first, last, continues)
        distinct, number = np.unique(words, return_counts=True)
        # Unique (word, text) pairs, as each text counts once.
        pairs = np.unique(np.stack([words, of_text.astype(np.uint64)], 1), axis=0)
        containing = np.unique(pairs[:, 0], return_counts=True)[1]
        merged, inverse = np.unique(np.concatenate([hashes, distinct]), return_inverse=True)
        counts = np.bincount(inverse, np.concatenate([counts, number]), len(merged)).astype(
            np.int64
        )
        texts = np.bincount(inverse, np.concatenate([texts, containing]), len(merged)).astype(
            np.int64
        )
        hashes, first = merged, last
    with atomic_write(path, "wb") as f:
        np.savez(f, hashes=hashes, counts=counts, texts=texts)


def _hashes_of(
    corpus: Corpus, first: int, last: int, continues: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(hash of each word of the texts ``first`` to ``last``, number of the text that it is in)."""
    offsets = corpus.texts.offsets[first : last + 1] - corpus.texts.offsets[first]
    ids = corpus.texts.ids[corpus.texts.offsets[first] : corpus.texts.offsets[last]]
    is_start = ~continues[ids]
    # Each text starts with a word; an empty last text has no piece to mark.
    is_start[offsets[:-1][offsets[:-1] < len(ids)]] = True
    starts = np.flatnonzero(is_start)
    return word_hashes(ids, starts), np.searchsorted(offsets, starts, "right") - 1
