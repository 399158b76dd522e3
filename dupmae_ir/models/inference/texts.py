"""An encoder's tokenizer and lexicon: the word pieces of texts, and the names and places of index terms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from dupmae_ir.models.inference.settings import vocabulary
from dupmae_ir.models.lexical.lexicon import Lexicon

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from dupmae_ir.models.checkpoints.plain_files import PlainTokenizer


class TermEncoder:
    """The part of an encoder that needs no model.

    Args:
        tokenizer: that of the model.
        width: vocabulary entries of the model.
        parts: ``cls``, ``ot`` or both.
        lexicon: of a lexical OT part.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | PlainTokenizer,
        width: int,
        parts: tuple[str, ...],
        lexicon: Lexicon | None,
    ) -> None:
        self.tokenizer = tokenizer
        self.parts = parts
        self._width = width
        self._lexicon = lexicon if "ot" in parts else None
        self._special = frozenset(tokenizer.all_special_ids)

    def term_names(self, text: str) -> dict[str, str]:
        """Index term -> words of ``text``, for stems of a lexical OT part; their own terms are hashes."""
        if self._lexicon is None or self.terms is None:
            return {}
        return {self.terms[dimension]: name for dimension, name in self._lexicon.names(text).items()}

    def term_spans(self, text: str) -> list[tuple[str, int, int]]:
        """(index term, start, end) of each place of ``text`` that gives a term: stems, then word pieces."""
        if (terms := self.terms) is None:
            return []
        found = [] if self._lexicon is None else [(terms[d], a, b) for d, a, b in self._lexicon.spans(text)]
        if (splitter := self._splitter) is not None:
            pieces = splitter.encode(text, add_special_tokens=False)
            found += [(terms[i], a, b) for i, (a, b) in zip(pieces.ids, pieces.offsets, strict=True) if a < b]
        return found

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

    def _tokenise(self, texts: Sequence[str], length: int) -> list[list[int]]:
        if not len(texts):
            return []
        out = self.tokenizer(
            list(texts),
            truncation=True,
            max_length=length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        return out["input_ids"]
