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
        if result := job.finished():
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
        made = work / "tokenizer"
        write(tokenizer, made, config)
        return cast(
            "TokenizerResult", job.publish(made, {"pieces": pieces, "documents": texts.documents})
        )


def _inputs(config: TokenizerConfig) -> dict[str, str]:
    digests = " ".join(digest(source) for source in config.corpus)
    return {"corpus": hashlib.sha256(digests.encode()).hexdigest()}


@dataclass
class _Texts:
    """The passages of the corpora, in batches; counts the documents that were read."""

    config: TokenizerConfig
    documents: int = 0

    def __iter__(self) -> Iterator[list[str]]:
        self.documents = 0
        passages = self._passages()
        while batch := list(islice(passages, BATCH)):
            yield batch

    def _passages(self) -> Iterator[str]:
        join = SEPARATORS[self.config.title_separator or "space"]
        for source in self.config.corpus:
            for text in read_texts(source, separator=join):
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
    letters = _letters(batches, tokenizer.normalizer, min(1000, size // 2))
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
    pieces = sorted(set(tokenizer.get_vocab()) - set(SPECIAL.values()))
    tokenizer = _untrained(
        {piece: i for i, piece in enumerate([*SPECIAL.values(), *pieces])}, cased
    )
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    cls, sep = SPECIAL["cls"], SPECIAL["sep"]
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
    letters = [c for c in sorted(counts, key=lambda c: (-counts[c], c)) if not c.isspace()]
    return sorted(letters[:limit])


def _untrained(vocabulary: dict[str, int], cased: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def write(tokenizer: Tokenizer, folder: Path, config: TokenizerConfig) -> None:
    """Write the tokenizer in Hugging Face's format, and ``config.json`` of a BERT model with its vocabulary."""
    from transformers import (
        BertConfig,
        BertTokenizerFast,
    )  # importing it takes seconds, and --help needs none

    folder.mkdir(parents=True)
    named = {f"{role}_token": token for role, token in SPECIAL.items()}
    wrapped = BertTokenizerFast(
        tokenizer_object=tokenizer,
        do_lower_case=not config.cased,
        model_max_length=config.positions,
        **named,
    )
    wrapped.save_pretrained(folder)
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
