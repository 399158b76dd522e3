"""A corpus as word-piece ids in memory-mapped arrays, cached by the digest of its source, tokenizer and settings.

Next to them are the counts of its words, from which the weights of MASTER's keyword masks are computed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

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
"""Version of the cache's files; part of its key."""
CHUNK = 1024
"""Documents tokenised together."""

# After a full stop, and a closing quote or bracket if there is one, and before a capital or a digit.
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
    queries: Ragged  #: generated queries
    query_range: np.ndarray  #: (texts + 1,) int64: text i has the queries ``[i]:[i + 1]``
    following: Ragged  #: generated continuations
    following_range: np.ndarray  #: (texts + 1,) int64, like ``query_range``
    folder: Path  #: the cache folder

    def __len__(self) -> int:
        return len(self.texts)

    def queries_of(self, row: int) -> list[np.ndarray]:
        """Generated queries of a text; may be empty."""
        first, last = self.query_range[row : row + 2]
        return [self.queries[i] for i in range(first, last)]

    def following_of(self, row: int) -> list[np.ndarray]:
        """Generated continuations of a text; may be empty."""
        first, last = self.following_range[row : row + 2]
        return [self.following[i] for i in range(first, last)]

    def neighbour(self, row: int) -> int | None:
        """Row of the next text of the same document, otherwise of the previous one; None if there is neither."""
        for other in (row + 1, row - 1):
            if 0 <= other < len(self) and self.document[other] == self.document[row]:
                return other
        return None


@dataclass(frozen=True)
class Cutting:
    """How documents are divided into texts."""

    unit: str = "passages"
    """``passages``: truncated at ``length`` ids; ``blocks``: sentences packed up to ``length``; ``spans``: sentences
    joined until they have more than ``length`` ids (:func:`spans`)."""
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
    tokenizer_json = tokenizer.backend_tokenizer.to_str()
    settings = {
        "format": FORMAT,
        "source": source_digest or digest(source),
        "tokenizer": hashlib.sha256(tokenizer_json.encode()).hexdigest(),
        **vars(cutting),
    }
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]
    folder = root / key
    # A second process waits, and then finds the corpus tokenised.
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
        self.folder = folder
        self.kind = kind
        self.dtype = np.dtype(dtype)
        self.raw: IO[bytes] = open(folder / f"{kind}.raw", "wb")  # noqa: SIM115 - closed in finish
        self.lengths: list[int] = []

    def add(self, ids: Iterable[int]) -> None:
        row = np.fromiter(ids, self.dtype)
        self.raw.write(row.tobytes())
        self.lengths.append(len(row))

    def add_all(self, rows: Iterable[Iterable[int]]) -> None:
        for row in rows:
            self.add(row)

    def __enter__(self) -> _RaggedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()

    def finish(self) -> None:
        self.raw.close()
        raw = self.folder / f"{self.kind}.raw"
        # The header of a .npy file has the number of ids, which is known only now.
        total = sum(self.lengths)
        ids = np.lib.format.open_memmap(
            self.folder / f"{self.kind}.ids.npy", "w+", self.dtype, (total,)
        )
        if total:  # an empty file cannot be mapped
            ids[:] = np.memmap(raw, self.dtype, "r")
        ids.flush()
        offsets = np.cumsum([0, *self.lengths], dtype=np.int64)
        np.save(self.folder / f"{self.kind}.offsets.npy", offsets)
        raw.unlink()


def _tokenise(
    source: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    cutting: Cutting,
    folder: Path,
    quiet: bool,
) -> None:
    writing = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir(parents=True)
    dtype = np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32
    document_numbers: list[int] = []
    query_range = [0]
    following_range = [0]
    with (
        _RaggedWriter(writing, "texts", dtype) as texts,
        _RaggedWriter(writing, "queries", dtype) as queries,
        _RaggedWriter(writing, "following", dtype) as following,
        progress("tokenising", "documents", quiet=quiet) as bar,
    ):
        for number, document in enumerate(_documents(source, tokenizer, cutting)):
            for position, ids in enumerate(document.texts):
                texts.add(ids)
                document_numbers.append(number)
                # Generated texts of a document belong to its first text.
                if position == 0:
                    queries.add_all(document.queries)
                    following.add_all(document.following)
                query_range.append(len(queries.lengths))
                following_range.append(len(following.lengths))
            bar.update()
        if not document_numbers:
            raise InputError(f"{source}: contains no text; give a corpus with at least one passage")
        for writer in (texts, queries, following):
            writer.finish()
    np.save(writing / "document.npy", np.array(document_numbers, np.int64))
    np.save(writing / "query_range.npy", np.array(query_range, np.int64))
    np.save(writing / "following_range.npy", np.array(following_range, np.int64))
    # load_corpus takes a folder with meta.json for complete, so it is written last.
    tokens = sum(texts.lengths)
    write_json(
        writing / "meta.json", {"format": FORMAT, "texts": len(document_numbers), "tokens": tokens}
    )
    move_into_place(writing, folder)


class TokenisedDocument(NamedTuple):
    """A document as ids, one list for each text."""

    texts: list[list[int]]
    queries: list[list[int]]
    following: list[list[int]]


def _documents(
    source: str | Path, tokenizer: PreTrainedTokenizerBase, cutting: Cutting
) -> Iterator[TokenisedDocument]:
    """The documents of a source, tokenised in chunks."""
    documents = read_texts(source, cutting.documents, cutting.separator)
    while chunk := list(islice(documents, CHUNK)):
        texts = _texts_of(chunk, tokenizer, cutting)
        queries = _tokenise_groups(tokenizer, [text.queries for text in chunk])
        following = _tokenise_groups(tokenizer, [text.following for text in chunk])
        for number in range(len(chunk)):
            yield TokenisedDocument(
                texts[number],
                _truncate(queries[number], cutting.length),
                _truncate(following[number], cutting.length),
            )


def _texts_of(
    chunk: Sequence[Text], tokenizer: PreTrainedTokenizerBase, cutting: Cutting
) -> list[list[list[int]]]:
    """The texts of each document, as ids; a document may have none."""
    groups = []
    for document in chunk:
        if cutting.unit == "passages":
            groups.append(document.passages)
        else:
            groups.append(_sentences(document.passages))

    texts = []
    for rows in _tokenise_groups(tokenizer, groups):
        # A passage may have no pieces, for example if it consists of control characters.
        nonempty = [row for row in rows if row]
        if cutting.unit == "blocks":
            texts.append(list(pack(nonempty, cutting.length)))
        elif cutting.unit == "spans":
            texts.append(list(spans(nonempty, cutting.length)))
        else:
            texts.append(_truncate(nonempty, cutting.length))
    return texts


def _sentences(passages: Iterable[str]) -> list[str]:
    sentences: list[str] = []
    for passage in passages:
        sentences += filter(str.strip, _SENTENCE_END.split(passage))
    return sentences


def _truncate(rows: Iterable[list[int]], length: int) -> list[list[int]]:
    return [row[:length] for row in rows]


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


SHORT_SPANS = 0.15
"""Share of the spans that are short, as in CoT-MAE's released code."""
SHORTEST_SPAN = 2


def spans(sentences: Sequence[list[int]], length: int) -> Iterator[list[int]]:
    """Join consecutive sentences until they have more ids than the target of the span.

    The target is ``length``, or, for a share of :data:`SHORT_SPANS`, any number from :data:`SHORTEST_SPAN` to it. The
    sentence that exceeds it belongs to the span, so most spans are truncated when they are used. The targets depend on
    the document's ids alone.
    """
    rng = np.random.default_rng([id_ for sentence in sentences[:1] for id_ in sentence])
    span: list[int] = []
    target = _span_target(rng, length)
    for sentence in sentences:
        span = span + sentence
        if len(span) > target:
            yield span
            span = []
            target = _span_target(rng, length)
    if span:
        yield span


def _span_target(rng: np.random.Generator, length: int) -> int:
    if rng.random() < SHORT_SPANS:
        return int(rng.integers(SHORTEST_SPAN, length + 1))
    return length


def _tokenise_groups(
    tokenizer: PreTrainedTokenizerBase, groups: Sequence[Sequence[str]]
) -> list[list[list[int]]]:
    """The ids of each text of each group, from one call of the tokenizer, which uses all cores."""
    texts = list(itertools.chain.from_iterable(groups))
    if not texts:
        return [[] for _ in groups]
    encoding = tokenizer(
        texts, add_special_tokens=False, return_attention_mask=False, verbose=False
    )
    ids = iter(encoding["input_ids"])
    return [list(islice(ids, len(group))) for group in groups]


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
        special_ids = {}
        for kind in ("cls", "sep", "pad", "mask"):
            special_id = getattr(tokenizer, f"{kind}_token_id")
            if special_id is None:
                raise CheckpointError(
                    f"{name}: the tokenizer has no {kind} token, which masked auto-encoding needs; "
                    "use a BERT, DistilBERT or RoBERTa tokenizer"
                )
            special_ids[kind] = special_id
        special = np.zeros(size, bool)
        special[list(tokenizer.all_special_ids)] = True
        continues = _continuing(tokenizer.get_vocab(), size, special, name)
        return cls(size=size, continues=continues, special=special, **special_ids)


def _continuing(pieces: dict[str, int], size: int, special: np.ndarray, name: str) -> np.ndarray:
    """(size,) bool. WordPiece marks continuations (##); byte-pair and unigram vocabularies mark word starts (Ġ, ▁)."""
    continues = np.zeros(size, bool)
    continuations = [number for piece, number in pieces.items() if piece.startswith("##")]
    if continuations:
        continues[continuations] = True
        return continues

    for start_mark in ("Ġ", "▁"):
        if any(piece.startswith(start_mark) for piece in pieces):
            break
    else:
        raise CheckpointError(
            f"{name}: the tokenizer marks neither the start nor the continuation of words (##, Ġ or ▁), "
            "so whole words cannot be masked"
        )
    for piece, number in pieces.items():
        # Punctuation starts a new word, as in BERT's pre-tokenizer.
        is_punctuation = not any(map(str.isalnum, piece))
        if not piece.startswith(start_mark) and not is_punctuation:
            continues[number] = True
    # <s> and the like have letters and no mark.
    continues[special] = False
    return continues


COUNTED_IDS = 1 << 22
"""Number of ids counted together."""

# One odd multiplier per position in a word. The seed must not change: cached counts are looked up by these hashes.
_HASH_SEED = 20221112
_RANDOM = np.random.default_rng(_HASH_SEED).integers(1, 2**63, 64, dtype=np.uint64)
_MULTIPLIERS = _RANDOM | np.uint64(1)

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
        # A hash above the highest would be looked up behind the end.
        position = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        in_corpus = self.hashes[position] == hashes
        if kind == "invfreq":
            weights = np.where(in_corpus, 1.0 / self.counts[position], UNKNOWN_WEIGHT)
            return weights.astype(np.float32)

        _, inverse, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        term_frequency = counts[inverse]
        document_frequency = np.where(in_corpus, self.texts[position], 1)
        # The minimum lets a word that is in all texts be drawn at all.
        idf = np.maximum(np.log(self.total_texts / document_frequency), 1e-3)
        return (term_frequency * idf).astype(np.float32)


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
    position_in_word = np.arange(len(ids)) - np.repeat(starts, sizes)
    multipliers = _MULTIPLIERS[position_in_word % len(_MULTIPLIERS)]
    # Plus 1, because the id 0 would add nothing. Products and sums wrap around at 2^64.
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * multipliers
    mixed ^= mixed >> np.uint64(29)
    return np.add.reduceat(mixed, starts)


def count_words(corpus: Corpus, continues: np.ndarray) -> WordCounts:
    """Counts of all words of a corpus, cached in the folder of its ids."""
    path = corpus.folder / "words.npz"
    if not path.is_file():
        _count(corpus, continues, path)
    with np.load(path) as cached:
        return WordCounts(cached["hashes"], cached["counts"], cached["texts"], len(corpus))


def _count(corpus: Corpus, continues: np.ndarray, path: Path) -> None:
    hashes = np.zeros(0, np.uint64)
    counts = np.zeros(0, np.int64)
    texts = np.zeros(0, np.int64)
    offsets = corpus.texts.offsets
    first = 0
    while first < len(corpus):
        # As many texts as have COUNTED_IDS ids together, but at least one.
        end = int(np.searchsorted(offsets, offsets[first] + COUNTED_IDS, "right"))
        last = max(first + 1, end - 1)

        words, text_of_word = _hashes_of(corpus, first, last, continues)
        new_hashes, new_counts = np.unique(words, return_counts=True)
        # Unique (word, text) pairs, as each text counts once.
        pairs = np.unique(np.stack([words, text_of_word.astype(np.uint64)], 1), axis=0)
        _, new_texts = np.unique(pairs[:, 0], return_counts=True)

        # bincount adds in float64, which is exact for counts below 2^53.
        merged, inverse = np.unique(np.concatenate([hashes, new_hashes]), return_inverse=True)
        all_counts = np.concatenate([counts, new_counts])
        all_texts = np.concatenate([texts, new_texts])
        counts = np.bincount(inverse, all_counts, len(merged)).astype(np.int64)
        texts = np.bincount(inverse, all_texts, len(merged)).astype(np.int64)
        hashes = merged
        first = last
    with atomic_write(path, "wb") as file:
        np.savez(file, hashes=hashes, counts=counts, texts=texts)


def _hashes_of(
    corpus: Corpus, first: int, last: int, continues: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(hash of each word of the texts ``first`` to ``last`` - 1, number of the text that it is in)."""
    offsets = corpus.texts.offsets[first : last + 1]
    ids = corpus.texts.ids[offsets[0] : offsets[-1]]
    text_starts = offsets - offsets[0]
    is_word_start = ~continues[ids]
    # Each text starts with a word; an empty last text has no piece to mark.
    nonempty = text_starts[:-1] < len(ids)
    is_word_start[text_starts[:-1][nonempty]] = True
    word_positions = np.flatnonzero(is_word_start)
    text_of_word = np.searchsorted(text_starts, word_positions, "right") - 1
    return word_hashes(ids, word_positions), text_of_word
