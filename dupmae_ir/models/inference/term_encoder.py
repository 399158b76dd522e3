"""What encoders with and without torch share: settings, prompts, word pieces, and the names and positions of terms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tokenizers import Tokenizer

from dupmae_ir.errors import UsageError
from dupmae_ir.models.checkpoints.layout import LEXICON, folder_digest
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.heads.lexical import Lexicon
from dupmae_ir.models.languages import ENGLISH, function_words, is_letter
from dupmae_ir.models.names import model_folder, model_name
from dupmae_ir.types import EncoderOptions, EncoderSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from dupmae_ir.models.checkpoints.plain_files import PlainTokenizer

PARTS = ("cls", "ot")


class TermEncoder:
    """The part of an encoder that needs no model.

    Args:
        model: name or folder of the model.
        config: the model's configuration, with the caller's options.
        settings: those of the encoder.
        tokenizer: that of the model.
        width: vocabulary entries of the model.
        parts: ``cls``, ``ot`` or both.
    """

    def __init__(
        self,
        model: str | Path | None,
        config: ModelConfig,
        settings: EncoderSettings,
        tokenizer: PreTrainedTokenizerBase | PlainTokenizer,
        width: int,
        parts: tuple[str, ...],
    ) -> None:
        folder = model_folder(model)
        self.name, self.digest = model_name(model), folder_digest(folder)
        self.config, self.settings, self.tokenizer, self.parts = config, settings, tokenizer, parts
        self._width = width
        self._special = frozenset(tokenizer.all_special_ids)
        self._lexicon = None
        if config.lexical is not None and "ot" in parts:
            self._lexicon = Lexicon.load(folder / LEXICON, config.lexical, width, settings.language)
            pieces, function = tokenizer.get_vocab(), function_words(settings.language)
            self._lexicon.function_pieces = frozenset(pieces[word] for word in function if word in pieces)
            if settings.language != ENGLISH:  # a letter of a word that the model does not know is no word
                self._special |= {i for piece, i in pieces.items() if is_letter(piece.removeprefix("##"))}

    def term_names(self, text: str) -> dict[str, str]:
        """Index term -> words of ``text``, for stems of a lexical OT part; their own terms are hashes."""
        if self._lexicon is None or self.terms is None:
            return {}
        return {self.terms[dimension]: name for dimension, name in self._lexicon.names(text).items()}

    def term_spans(self, text: str) -> list[tuple[str, int, int]]:
        """(index term, start, end) of each word of ``text`` that gives a term: stems, then word pieces."""
        if (terms := self.terms) is None:
            return []
        spans = [] if self._lexicon is None else [(terms[d], a, b) for d, a, b in self._lexicon.spans(text)]
        if (splitter := self._splitter) is not None:
            pieces = splitter.encode(text, add_special_tokens=False)
            # XLM-R's offsets include the blank before a word.
            words = [(i, b - len(text[a:b].lstrip()), b) for i, (a, b) in zip(pieces.ids, pieces.offsets, strict=True)]
            spans += [(terms[i], a, b) for i, a, b in words if a < b]
        return spans

    @cached_property
    def _splitter(self) -> Tokenizer | None:
        """The tokenizer without truncation, with offsets; None for one written in Python."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            return None
        own = Tokenizer.from_str(backend.to_str())
        own.no_truncation()
        own.no_padding()
        return own

    @cached_property
    def terms(self) -> list[str] | None:
        """The index term of each dimension of the OT part; None without one."""
        if "ot" not in self.parts:
            return None
        pieces = vocabulary(self.tokenizer, self._width)
        return pieces if self._lexicon is None else self._lexicon.terms(pieces)

    def _ordinary(self, pieces: Sequence[int]) -> list[int]:
        """Word pieces without special tokens."""
        return [piece for piece in pieces if piece not in self._special]

    def _tokenise(self, texts: Sequence[str], prompt: str, length: int) -> list[list[int]]:
        """The word pieces of texts, with ``prompt`` before each, cut to ``length``."""
        if not len(texts):
            return []
        out = self.tokenizer(
            [prompt + text for text in texts],
            truncation=True,
            max_length=length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        pieces: list[list[int]] = out["input_ids"]
        if len(self.tokenizer) <= self._width:
            return pieces
        unknown = self.tokenizer.unk_token_id or self.tokenizer.pad_token_id or 0
        return [[piece if piece < self._width else unknown for piece in one] for one in pieces]

    def _query_pieces(self, texts: Sequence[str]) -> list[list[int]]:
        return self._tokenise(texts, self.config.query_prompt, self.settings.query_length)

    def _query_terms(self, cap: int) -> int:
        """The number of OT weights kept of a query."""
        if cap < 1:
            raise UsageError(f"`cap` must be at least 1, got {cap}")
        return min(cap, self.config.query_top_k or cap)


def encoder_settings(
    config: ModelConfig, longest: int, options: EncoderOptions, dtype: str, device: str
) -> EncoderSettings:
    """The settings of an encoder: the caller's options, else those of ``config``.

    ``longest``: word pieces that the model reads at most. Raises :class:`UsageError` for a length or a number that the
    model does not allow.
    """
    lengths = {
        "document_length": options.get("document_length") or min(config.document_length, longest),
        "query_length": options.get("query_length") or min(config.query_length, longest),
    }
    for name, value in lengths.items():
        if not 3 <= value <= longest:
            raise UsageError(f"`{name}` must be 3 to {longest}, the word pieces that this model reads; got {value}")
    top_k = options.get("top_k") or config.top_k
    if top_k < 1:
        raise UsageError(f"`top_k` must be at least 1, got {top_k}")
    separator, lexical = options.get("title_separator"), config.lexical
    fixed = lexical is not None and not config.has_head and "ot" in (options.get("parts") or PARTS)
    return EncoderSettings(
        **lengths,
        top_k=top_k,
        activation=config.activation,
        dtype=dtype,
        device=device,
        title_separator=config.title_separator if separator is None else separator,
        impact_scale=float(lexical.document_scale) if lexical and fixed else config.impact_scale,
        normalize=config.normalize,
        ot=config.ot,
        head_scale=lexical.head_scale if lexical else 0.0,
        part_weights=(config.dense_weight, config.impact_weight),
        language=(options.get("language") if lexical else None) or ENGLISH,
    )


class TokenNames(Protocol):
    """The part of a tokenizer that names its tokens."""

    def get_vocab(self) -> dict[str, int]:
        """Token -> id."""
        ...


def vocabulary(tokenizer: TokenNames, size: int) -> list[str]:
    """The index term of each vocabulary id.

    Ids without a token, and tokens with white space (ModernBERT's runs of blanks), which Lucene would split, get a name
    that cannot occur in a text.
    """
    terms = [f"[unnamed{i}]" for i in range(size)]
    for token, i in tokenizer.get_vocab().items():
        if token and not any(map(str.isspace, token)):
            terms[i] = token
    return terms
