"""``python -m dupmae_ir.pretrain.tokenizer``: a WordPiece vocabulary from a corpus, for pre-training from scratch."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass
from itertools import islice
from pathlib import Path
from typing import TypedDict, cast

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from dupmae_ir.command import Command
from dupmae_ir.config import OutputOptions, changed, option, output_option
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.jobs import Job
from dupmae_ir.pretrain.config import PretrainConfig
from dupmae_ir.pretrain.corpus import digest, read_texts
from dupmae_ir.types import SEPARATORS

HEAD_WIDTH = 64
"""Dimensions of an attention head, as in BERT."""


class TokenizerResult(TypedDict):
    """What a run reports."""

    pieces: int
    documents: int


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(OutputOptions):
    r"""Train a WordPiece tokenizer on a corpus, for pre-training from scratch in a language or domain that the
    vocabularies of existing models do not cover. The output folder also has config.json, a BERT model with this
    vocabulary, for dupmae-ir pretrain --from-config.

    Examples:
        dupmae-ir pretrain.tokenizer --corpus passages.txt.gz --size 8192 --output models/pieces
        dupmae-ir pretrain --method dupmae --from-config models/pieces/config.json --tokenizer models/pieces \
            --init-embeddings corpus --corpus passages.txt.gz --output models/dupmae
    """

    corpus: tuple[str, ...] = changed(PretrainConfig, "corpus", MISSING)
    title_separator: str | None = changed(PretrainConfig, "title_separator", None)
    output: str = output_option(
        help="folder of the tokenizer, and of config.json: a BERT model that fits it",
        metavar="FOLDER",
    )
    size: int = option(
        30522, "word pieces, special tokens included", group="vocabulary", at_least=64
    )
    cased: bool = option(False, "keep upper case and accents", group="vocabulary")
    min_frequency: int = option(
        2, "occurrences of a pair of pieces that is merged", group="vocabulary", above=0
    )
    layers: int = option(4, "layers of the model in config.json", group="model", above=0)
    width: int = option(
        256,
        "hidden dimensions of the model in config.json; heads have 64 dimensions and the feed-forward part 4 * WIDTH",
        group="model",
        above=0,
    )
    positions: int = option(
        512, "longest input of the model in config.json, in tokens", group="model", at_least=8
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % HEAD_WIDTH:
            raise UsageError(f"`width` {self.width} must be a multiple of {HEAD_WIDTH}")


SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
"""Special tokens by role; their ids are 0 to 4."""
BATCH = 1000
"""Texts passed to the trainer at a time."""
MAX_LETTERS = 1000
"""Different characters in the vocabulary; at most half of it."""


def run(config: TokenizerConfig) -> TokenizerResult:
    """Write the tokenizer's folder with its record, and return the counts: word pieces and documents.

    Raises :class:`InputError` for a corpus with too few different words. See :mod:`dupmae_ir.io.jobs` for what a second
    run returns.
    """
    names = ("title_separator", "size", "cased", "min_frequency", "layers", "width", "positions")
    settings = {name: getattr(config, name) for name in names}
    with Job(
        config.output,
        "pretrain.tokenizer",
        settings,
        lambda: _inputs(config),
        resumable=False,
        quiet=config.quiet,
    ) as job:
        result = job.finished()
        if result:
            return cast("TokenizerResult", result)
        work = job.begin()
        texts = _Texts(config)
        tokenizer = train(
            texts, config.size, config.cased, config.min_frequency, quiet=config.quiet
        )
        pieces = tokenizer.get_vocab_size()
        if pieces < config.size:
            raise InputError(
                f"`size` {config.size}: the corpus gives only {pieces} word pieces; use {pieces}"
            )
        folder = work / "tokenizer"
        write(tokenizer, folder, config)
        counts = {"pieces": pieces, "documents": texts.documents}
        return cast("TokenizerResult", job.publish(folder, counts))


def _inputs(config: TokenizerConfig) -> dict[str, str]:
    digests = " ".join(digest(source) for source in config.corpus)
    return {"corpus": hashlib.sha256(digests.encode()).hexdigest()}


@dataclass
class _Texts:
    """The passages of the corpora, in batches, as often as they are iterated over.

    ``documents`` counts the documents of the last iteration.
    """

    config: TokenizerConfig
    documents: int = 0

    def __iter__(self) -> Iterator[list[str]]:
        self.documents = 0
        passages = self._passages()
        while batch := list(islice(passages, BATCH)):
            yield batch

    def _passages(self) -> Iterator[str]:
        separator = SEPARATORS[self.config.title_separator or "space"]
        for source in self.config.corpus:
            for text in read_texts(source, separator=separator):
                self.documents += 1
                yield from text.passages


def train(
    batches: Iterable[list[str]],
    size: int,
    cased: bool = False,
    min_frequency: int = 2,
    quiet: bool = True,
) -> Tokenizer:
    """A WordPiece tokenizer with BERT's normalisation, splitting and special tokens.

    Args:
        batches: the texts, which are read twice.
        size: word pieces, special tokens included; fewer if the texts do not give as many.
        cased: keep upper case and accents.
        min_frequency: occurrences of a pair of pieces that is merged.
        quiet: show no progress.
    """
    tokenizer = _untrained({}, cased)
    # Rare characters would take the place of words; they become [UNK].
    max_letters = min(MAX_LETTERS, size // 2)
    letters = _letters(batches, tokenizer.normalizer, max_letters)
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        # The trainer numbers letters inside words in the order of a hash table, and decides ties by these numbers.
        # Named here, they are in order, so that the same corpus gives the same vocabulary.
        special_tokens=[*SPECIAL.values(), *(f"##{letter}" for letter in letters)],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=not quiet,
    )
    tokenizer.train_from_iterator(batches, trainer)

    # The trainer was given the letters inside words as special tokens. A new tokenizer has only the real ones.
    special_tokens = list(SPECIAL.values())
    pieces = sorted(set(tokenizer.get_vocab()) - set(special_tokens))
    vocabulary = {piece: number for number, piece in enumerate([*special_tokens, *pieces])}
    tokenizer = _untrained(vocabulary, cased)
    tokenizer.add_special_tokens(special_tokens)
    cls = SPECIAL["cls"]
    sep = SPECIAL["sep"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )
    return tokenizer


def _letters(
    batches: Iterable[list[str]], normalizer: normalizers.Normalizer, limit: int
) -> list[str]:
    """The most frequent characters of the texts, in the order of their code points."""
    counts: Counter[str] = Counter()
    for batch in batches:
        for text in batch:
            counts.update(normalizer.normalize_str(text))
    # Ties are in the order of code points, so that the limit leaves out the same letters every time.
    by_frequency = sorted(counts, key=lambda letter: (-counts[letter], letter))
    letters = [letter for letter in by_frequency if not letter.isspace()]
    return sorted(letters[:limit])


def _untrained(vocabulary: dict[str, int], cased: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def write(tokenizer: Tokenizer, folder: Path, config: TokenizerConfig) -> None:
    """Write the tokenizer in Hugging Face's format, and ``config.json`` of a BERT model with its vocabulary."""
    # Importing transformers takes seconds, and --help does not need it.
    from transformers import BertConfig, BertTokenizerFast

    folder.mkdir(parents=True)
    special_tokens = {f"{role}_token": token for role, token in SPECIAL.items()}
    bert_tokenizer = BertTokenizerFast(
        tokenizer_object=tokenizer,
        do_lower_case=not config.cased,
        model_max_length=config.positions,
        **special_tokens,
    )
    bert_tokenizer.save_pretrained(folder)
    BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.width // HEAD_WIDTH,
        intermediate_size=4 * config.width,
        max_position_embeddings=config.positions,
        pad_token_id=tokenizer.token_to_id(SPECIAL["pad"]),
        architectures=["BertForMaskedLM"],
    ).save_pretrained(folder)


def summarize(config: TokenizerConfig, result: TokenizerResult) -> str:
    """``models/pieces: 8,192 word pieces from 12,000 documents``."""
    return (
        f"{config.output}: {result['pieces']:,} word pieces from {result['documents']:,} documents"
    )


main = Command(
    "pretrain.tokenizer", TokenizerConfig, "dupmae_ir.pretrain.tokenizer:run", summarize=summarize
)

if __name__ == "__main__":
    main.exit()
