"""Texts measured in the word pieces of a model, so that documents are cut into passages that it reads to their end.

Only the tokenizer and the settings of a model are read, since documents are cut before the model is loaded: the first
of them decide on its language.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing

from dupmae_ir.models import SLOW, WEIGHTLESS
from dupmae_ir.models.checkpoints.layout import CONFIG, untied_folders
from dupmae_ir.models.checkpoints.model_config import ModelConfig, first_position, read_config
from dupmae_ir.models.checkpoints.modules import Modules, read_json, read_modules
from dupmae_ir.models.checkpoints.plain_files import BERT, BERT_CLASSES
from dupmae_ir.models.names import model_folder

_AT_BORDERS = 4
"""Pieces that a passage may have beyond those counted: its first word has no blank before it there, and a title and a
text have one between them."""
_LEAST = 8
"""Pieces of a text, however little the model reads."""
_TITLES = 1024
"""Titles whose pieces are remembered: all passages under a heading have the same."""


class WordPieces:
    """The word pieces of a model. It is a :class:`~dupmae_ir.io.documents.passages.TokenMeasure`.

    Args:
        tokenizer: the model's own, with truncation turned off.
        length: word pieces that the model reads of a document, special tokens included.
        prompt: what the model has before every document.
        separator: what is between title and text.
    """

    def __init__(self, tokenizer: Tokenizer, length: int, prompt: str, separator: str) -> None:
        self._tokenizer = tokenizer
        self._separator = separator
        self._count = lru_cache(_TITLES)(lambda text: len(self.starts(text)))
        special = tokenizer.num_special_tokens_to_add(is_pair=False)
        self.length = length - special - self._count(prompt)

    def starts(self, text: str) -> Sequence[int]:
        """Where each piece of a text begins. Several pieces of one character begin at the same place."""
        pieces = self._tokenizer.encode(text, add_special_tokens=False)
        return [start for start, _ in pieces.offsets]

    def room(self, title: str, most: int) -> int:
        """How many pieces of a text the model reads after its title; no more than ``most``."""
        before = self._count(self.fitted(title) + self._separator) + _AT_BORDERS
        return max(_LEAST, min(most, self.length - before))

    def fitted(self, title: str) -> str:
        """The title, shortened if it would take more than half of what the model reads."""
        most = self.length // 2
        if self._count(title) <= most:
            return title
        return title[: self.starts(title)[most]].rstrip()


def read_word_pieces(
    model: str | Path | None, document_length: int | None = None, separator: str | None = None
) -> WordPieces | None:
    """The word pieces of a model, as an encoder with these options counts them.

    None for a model that reads texts of any length, as static embeddings do, and for a folder without a readable
    ``tokenizer.json``; if the folder is damaged, loading the model says so.

    Args:
        model: name or folder.
        document_length: word pieces that are read of a document; None is the model's.
        separator: what is between title and text; None is the model's.
    """
    if model in (WEIGHTLESS, SLOW):
        return None
    folder = model_folder(model)
    if folder.is_file():
        folder = folder.parent
    if not folder.is_dir():
        return None
    modules = read_modules(folder)
    if modules is not None and modules.static:
        return None
    encoder = _document_encoder(folder, modules)
    tokenizer = _read_tokenizer(encoder) or _read_tokenizer(folder)
    if tokenizer is None:
        return None
    config = read_config(folder if (folder / CONFIG).is_file() else encoder)
    prompt = config.document_prompt
    if modules is not None:
        prompt = str(modules.settings.get("document_prompt") or "")
    length = document_length or _length(encoder, config, modules)
    if separator is None:
        separator = config.title_separator
    return WordPieces(tokenizer, length, prompt, separator)


def _document_encoder(folder: Path, modules: Modules | None) -> Path:
    """The folder of what reads documents."""
    if modules is not None:
        return modules.encoder
    sides = untied_folders(folder)
    return sides["document"] if sides else folder


def _length(encoder: Path, config: ModelConfig, modules: Modules | None) -> int:
    """Word pieces that a model reads of a document."""
    sizes: Mapping[str, Any] = read_json(encoder / "config.json")
    first = first_position(str(sizes.get("model_type")), sizes.get("pad_token_id"))
    longest = int(sizes.get("max_position_embeddings") or 512) - first
    if modules is None:
        return min(config.document_length, longest)
    # transformers writes a very large number where a tokenizer has no limit.
    settings = read_json(encoder / "tokenizer_config.json")
    longest = min(longest, int(settings.get("model_max_length") or longest))
    return min(modules.length or longest, longest)


def _read_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a folder, without truncation; None without a file that the library tokenizers reads."""
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path)) if path.is_file() else _bert_tokenizer(folder)
    except Exception:  # tokenizers raises Exception
        return None
    if tokenizer is not None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
    return tokenizer


def _bert_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of an older BERT folder, which has a list of word pieces alone, as transformers makes it; None for
    another folder."""
    vocabulary = folder / "vocab.txt"
    settings = read_json(folder / "tokenizer_config.json")
    if not vocabulary.is_file() or settings.get("tokenizer_class", BERT) not in BERT_CLASSES:
        return None
    tokenizer = Tokenizer(WordPiece.from_file(str(vocabulary), unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = BertPreTokenizer()
    first = tokenizer.token_to_id("[CLS]")
    last = tokenizer.token_to_id("[SEP]")
    if first is None or last is None:
        return None
    tokenizer.post_processor = BertProcessing(("[SEP]", last), ("[CLS]", first))
    return tokenizer
