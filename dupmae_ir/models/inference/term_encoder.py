"""What encoders with and without torch share: settings, prompts, word pieces, and the names and positions of terms."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import numpy as np
from tokenizers import Encoding, Tokenizer

from dupmae_ir.errors import UsageError
from dupmae_ir.models.checkpoints.model_config import ModelConfig, read_config
from dupmae_ir.models.heads.lexical import Lexicon, TermWeights
from dupmae_ir.models.heads.query_table import QueryTable
from dupmae_ir.models.languages import ENGLISH
from dupmae_ir.models.names import embedded_folder, lexicon_path, model_folder, model_name
from dupmae_ir.models.normal_form import normal_form
from dupmae_ir.types import (
    CollectionStatistics,
    Document,
    EncoderOptions,
    EncoderSettings,
    Representation,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from dupmae_ir.models.checkpoints.plain_files import PlainTokenizer

PARTS = ("cls", "ot")
_SPACES = "\u0120\u2581"  # a leading space in byte-level and in SentencePiece vocabularies


class TokenisedTexts(NamedTuple):
    """``pieces``: the word pieces of each text, ``truncated``: how many of the texts were cut to them."""

    pieces: list[list[int]]
    truncated: int = 0


def count_truncated(encodings: Sequence[Encoding] | None, length: int) -> int:
    """How many of these were cut to ``length`` word pieces; 0 for a tokenizer written in Python, which has none."""
    truncated = 0
    for encoding in encodings or ():
        # A text may have exactly this length.
        if len(encoding) == length and encoding.overflowing:
            truncated += 1
    return truncated


class TermEncoder:
    """The part of an encoder that needs no model.

    Args:
        model: name or folder of the model.
        digest: its :func:`~dupmae_ir.models.checkpoints.layout.folder_digest`.
        config: the model's configuration, with the caller's options.
        settings: those of the encoder.
        tokenizer: that of the model.
        width: vocabulary entries of the model.
        parts: ``cls``, ``ot`` or both.
    """

    dim: int | None  #: width d' of the vectors; None without the part cls

    def __init__(
        self,
        model: str | Path | None,
        digest: str,
        config: ModelConfig,
        settings: EncoderSettings,
        tokenizer: PreTrainedTokenizerBase | PlainTokenizer,
        width: int,
        parts: tuple[str, ...],
    ) -> None:
        folder = model_folder(model)
        self.name = model_name(model)
        self.digest = digest
        self.config = config
        self.settings = settings
        self.tokenizer = tokenizer
        self.parts = parts
        self._width = width
        self._lexicon = None
        if config.lexical is not None and "ot" in parts:
            language = settings.language
            path = lexicon_path(folder, config.embedded_lexicon)
            self._lexicon = Lexicon.load(path, config.lexical, width, language, config.multilingual)
        if settings.fold_terms and (self._lexicon is not None or config.query_table):
            raise UsageError("`fold_terms` is for term weights of the model's own head")
        self._table = None
        if config.query_table:
            vocabulary_ids = tokenizer.get_vocab()
            self._table = QueryTable.load(folder / config.query_table, vocabulary_ids, width)

    def encode_documents(self, texts: Sequence[str]) -> Representation:
        """[CLS] vectors (n, dim) float32 and the ``top_k`` largest OT weights of each text (DupMAE Eq. 11).

        A lexical OT part has higher weights for words of the title; :meth:`encode_collection` takes it apart.
        """
        if self._lexicon is not None:
            return self.encode_collection([Document("", text) for text in texts])
        pieces, truncated = self._document_pieces(texts)
        representation = self._encode(pieces, "document", self.settings.top_k)
        return replace(representation, truncated=truncated)

    def encode_collection(
        self,
        documents: Sequence[Document],
        separator: str | None = None,
        languages: Sequence[str] | None = None,
    ) -> Representation:
        """:meth:`encode_documents` of titles and texts.

        ``separator`` joins them (default: the model's); ``languages`` are those of the documents (default: all that of
        the encoder).
        """
        between = self.settings.title_separator if separator is None else separator
        texts = [document.joined(between) for document in documents]
        if self._lexicon is None:
            return self.encode_documents(texts)
        pieces, truncated = self._document_pieces(texts)
        if languages is None:
            languages = [self.settings.language] * len(documents)
        rows = []
        for document, language in zip(documents, languages, strict=True):
            rows.append(self._lexicon.document(document.title, document.text, language))
        representation = self._encode_lexical(pieces, "document", rows, self.settings.top_k)
        return replace(representation, truncated=truncated)

    def encode_queries(self, texts: Sequence[str], cap: int = 1024) -> Representation:
        """[CLS] vectors (n, dim) float32 and the ``cap`` largest OT weights of each text.

        DupMAE does not truncate the OT part of queries; ``cap`` is Lucene's limit on the clauses of a query. Of a
        SparseEncoder with ``max_active_dims``, no more than these are kept.
        """
        keep = self._query_terms(cap)
        pieces = self._query_pieces(texts)
        if self._table is not None:
            return Representation(None, self._table.matrix(pieces, keep))
        if self._lexicon is None:
            return self._encode(pieces, "query", keep)
        rows = [self._lexicon.query(text) for text in texts]
        found = self._encode_lexical(pieces, "query", rows, keep)
        return Representation(self._in_languages(found.cls, texts), found.ot)

    def _in_languages(self, cls: np.ndarray | None, texts: Sequence[str]) -> np.ndarray | None:
        """The vectors of queries times the factors of their languages."""
        assert self._lexicon is not None
        if cls is None:
            return None
        factors = np.array([self._lexicon.query_factor(text) for text in texts], np.float32)
        if (factors == 1).all():
            return cls
        return cls * factors[:, None]

    def for_collection(self, collection: CollectionStatistics) -> Self:
        """The encoder with query weights for a collection; itself unless the OT part is lexical."""
        if self._lexicon is None:
            return self
        other = copy.copy(self)
        other._use_collection(collection)
        return other

    def without_vectors(self) -> Self | None:
        """The encoder of word weights alone; None unless the OT part is lexical, without a head's weights."""
        if self._lexicon is None or self.settings.head_scale:
            return None
        other = copy.copy(self)
        other.parts = ("ot",)
        other.dim = None
        return other

    def _use_collection(self, collection: CollectionStatistics) -> None:
        """Let the query weights, and the terms of additional languages, be those of a collection."""
        assert self._lexicon is not None
        self._lexicon = self._lexicon.for_collection(collection)
        # A copy has what was cached of the encoder that it is copied from.
        self.__dict__.pop("terms", None)

    def _encode(self, pieces: list[list[int]], side: str, keep: int) -> Representation:
        """The parts that the model computes."""
        raise NotImplementedError

    def _encode_lexical(
        self, pieces: list[list[int]], side: str, rows: Sequence[TermWeights], keep: int
    ) -> Representation:
        """[CLS] vectors, and the ``keep`` largest of the lexical weights ``rows``."""
        assert self._lexicon is not None
        return Representation(self._encode(pieces, side, 0).cls, self._lexicon.matrix(rows, keep))

    def term_names(self, text: str) -> dict[str, str]:
        """Index term -> words of ``text``, for stems of a lexical OT part; their own terms are hashes."""
        if self._lexicon is None or self.terms is None:
            return {}
        names = self._lexicon.names(text)
        return {self.terms[dimension]: name for dimension, name in names.items()}

    def term_spans(self, text: str) -> list[tuple[str, int, int]]:
        """(index term, start, end) of each word of ``text`` that gives a term: stems, then word pieces."""
        terms = self.terms
        if terms is None:
            return []
        spans = []
        if self._lexicon is not None:
            for dimension, start, end in self._lexicon.spans(text):
                spans.append((terms[dimension], start, end))
            if not self._lexicon.pieces:
                return spans
        if self._splitter is None:
            return spans

        pieces = self._splitter.encode(text, add_special_tokens=False)
        ids = pieces.ids
        if self.settings.fold_terms:
            ids = self._folded[ids].tolist()
        for piece_id, (start, end) in zip(ids, pieces.offsets, strict=True):
            # XLM-R's offsets include the blank before a word.
            start = end - len(text[start:end].lstrip())
            if start < end:
                spans.append((terms[piece_id], start, end))
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
    def terms(self) -> Sequence[str] | None:
        """The index term of each dimension of the OT part; None without one."""
        if "ot" not in self.parts:
            return None
        if self._lexicon is None:
            return vocabulary(self.tokenizer, self._width)
        pieces = []
        if self._lexicon.pieces:
            pieces = vocabulary(self.tokenizer, self._lexicon.pieces)
        return self._lexicon.terms(pieces)

    @cached_property
    def _folded(self) -> np.ndarray:
        """(V,) the lowest id of the terms that differ from each by case or a leading space alone."""
        lowest_id: dict[str, int] = {}
        folded = []
        for term_id, term in enumerate(vocabulary(self.tokenizer, self._width)):
            name = term.lstrip(_SPACES).casefold() or term
            folded.append(lowest_id.setdefault(name, term_id))
        return np.array(folded)

    def _tokenise(
        self, texts: Sequence[str], prompt: str, length: int, special: bool = True
    ) -> TokenisedTexts:
        """The word pieces of texts, with ``prompt`` before each, cut to ``length``; with ``special`` tokens."""
        if not len(texts):
            return TokenisedTexts([])
        if "cls" not in self.parts and self._lexicon is not None and not self._lexicon.pieces:
            return TokenisedTexts([[] for _ in texts])  # no layer of the model reads them
        out = self.tokenizer(
            [prompt + self._readable(text) for text in texts],
            add_special_tokens=special,
            truncation=True,
            max_length=length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        pieces: list[list[int]] = out["input_ids"]
        truncated = count_truncated(out.encodings, length)
        if len(self.tokenizer) <= self._width:
            return TokenisedTexts(pieces, truncated)
        # A tokenizer with more tokens than the model has rows.
        unknown = self.tokenizer.unk_token_id or self.tokenizer.pad_token_id or 0
        known_pieces = []
        for text_pieces in pieces:
            known_pieces.append(
                [piece if piece < self._width else unknown for piece in text_pieces]
            )
        return TokenisedTexts(known_pieces, truncated)

    def _readable(self, text: str) -> str:
        """A text for the tokenizer. That of an embedded model has ``efficient`` but no ligature in it; a trained model
        reads texts as in its training."""
        return text if self._lexicon is None else normal_form(text)

    def _query_pieces(self, texts: Sequence[str]) -> list[list[int]]:
        # A table of query weights has none for special tokens.
        special = self._table is None
        length = self.settings.query_length
        return self._tokenise(texts, self.config.query_prompt, length, special=special).pieces

    def _document_pieces(self, texts: Sequence[str]) -> TokenisedTexts:
        length = self.settings.document_length
        return self._tokenise(texts, self.config.document_prompt, length)

    def _query_terms(self, cap: int) -> int:
        """The number of OT weights kept of a query."""
        if cap < 1:
            raise UsageError(f"`cap` must be at least 1, got {cap}")
        return min(cap, self.config.query_top_k or cap)


def with_head(config: ModelConfig, options: EncoderOptions) -> ModelConfig:
    """``config`` with the caller's head: ``lexical`` for word weights in closed form beside any dense part.

    A model with a lexical head keeps its own; any other gets the weights of words of the embedded model, whose
    document frequencies it does not need. Raises :class:`UsageError` for another head.
    """
    head = options.get("head")
    if head is None or head == config.ot:
        return config
    if head != "lexical":
        raise UsageError(f"`head` must be lexical, got {head}")
    if not config.has_dense:
        raise UsageError(
            "`head` lexical: the model has no dense part, and an OT part of its own; leave `head` out"
        )
    lexical = read_config(embedded_folder()).lexical
    return replace(
        config, ot="lexical", lexical=lexical, embedded_lexicon=True, top_k=ModelConfig.top_k
    )


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
            raise UsageError(
                f"`{name}` must be 3 to {longest}, the word pieces that this model reads; got {value}"
            )
    top_k = options.get("top_k") or config.top_k
    if top_k < 1:
        raise UsageError(f"`top_k` must be at least 1, got {top_k}")
    dimensions = options.get("dimensions")
    if dimensions is not None and dimensions < 1:
        raise UsageError(f"`dimensions` must be at least 1, got {dimensions}")
    separator = options.get("title_separator")
    if separator is None:
        separator = config.title_separator

    lexical = config.lexical
    impact_scale = config.impact_scale
    head_scale = 0.0
    language = ENGLISH
    if lexical:
        head_scale = lexical.head_scale
        language = options.get("language") or ENGLISH
        parts = options.get("parts") or PARTS
        if "ot" in parts and not config.has_head:
            # Weights in closed form have a scale of their own, which needs no calibration.
            impact_scale = float(lexical.document_scale)
    return EncoderSettings(
        **lengths,
        top_k=top_k,
        activation=config.activation,
        dtype=dtype,
        device=device,
        title_separator=separator,
        impact_scale=impact_scale,
        normalize=config.normalize,
        dimensions=dimensions,
        fold_terms=options.get("fold_terms") or "",
        ot=config.ot,
        head_scale=head_scale,
        part_weights=(config.dense_weight, config.impact_weight),
        language=language,
        multilingual=config.multilingual,
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
