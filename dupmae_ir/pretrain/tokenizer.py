"""``python -m dupmae_ir.pretrain.tokenizer``: a WordPiece vocabulary from a corpus, for pre-training from scratch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.config import OutputOptions, option
from dupmae_ir.errors import UsageError
from dupmae_ir.types import SEPARATORS

HEAD_WIDTH = 64
"""Dimensions of an attention head, as in BERT."""


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

    corpus: tuple[str, ...] = option(
        help="text files (one passage per line), JSON lines, BEIR folders, saved Hugging Face datasets", group="input"
    )
    title_separator: str | None = option(
        None, "between title and text: a space or [SEP] (default: space)", group="input", choices=tuple(SEPARATORS)
    )
    output: str = option(
        help="folder of the tokenizer, and of config.json: a BERT model that fits it", group="output", metavar="FOLDER"
    )
    size: int = option(30522, "word pieces, special tokens included", group="vocabulary", at_least=64)
    cased: bool = option(False, "keep upper case and accents", group="vocabulary")
    min_frequency: int = option(2, "occurrences of a pair of pieces that is merged", group="vocabulary", above=0)
    layers: int = option(4, "layers of the model in config.json", group="model", above=0)
    width: int = option(
        256,
        "hidden dimensions of the model in config.json; heads have 64 dimensions and the feed-forward part 4 * WIDTH",
        group="model",
        above=0,
    )
    positions: int = option(512, "longest input of the model in config.json, in tokens", group="model", at_least=8)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % HEAD_WIDTH:
            raise UsageError(f"`width` {self.width} must be a multiple of {HEAD_WIDTH}")


def summarize(config: TokenizerConfig, result: dict[str, Any]) -> str:
    """``models/pieces: 8,192 word pieces from 12,000 documents``."""
    return f"{config.output}: {result['pieces']:,} word pieces from {result['documents']:,} documents"


main = Command("pretrain.tokenizer", TokenizerConfig, "dupmae_ir.pretrain.vocabulary_training:run", summarize=summarize)

if __name__ == "__main__":
    main.exit()
