"""A tiny encoder without weights, for tests of code that encodes or searches.

``HashingEncoder`` counts words into a small hashed vocabulary (the OT part) and projects the counts with a
fixed random matrix (the [CLS] part). It requires neither torch nor a model, and the representation of a text
is the same alone and in a batch.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from dupmae_ir.types import EncoderSettings, Representation

_WORD = re.compile(r"\w+")


class HashingEncoder:
    """Encodes word counts. ``dim`` and ``vocabulary`` are the widths of the two parts; None omits a part."""

    def __init__(
        self, dim: int | None = 16, vocabulary: int | None = 512, seed: int = 0, **settings: Any
    ) -> None:
        self.name = "testing:hashing"
        self.dim = dim
        self.pause = 0.0  #: seconds that encoding takes at least
        self.width = vocabulary or 512
        self.terms = [f"w{i}" for i in range(vocabulary)] if vocabulary else None
        self.settings = replace(
            EncoderSettings(document_length=64, query_length=32, top_k=32), **settings
        )
        self.digest = hashlib.sha256(f"hashing {dim} {vocabulary} {seed}".encode()).hexdigest()
        self._projection = (
            np.random.default_rng(seed).standard_normal((self.width, dim or 1)).astype(np.float32)
        )

    @classmethod
    def load(cls, parts: Sequence[str] | None = None, **settings: Any) -> HashingEncoder:
        """Called by ``load_encoder``; settings that are None keep their defaults, device and dtype are ignored."""
        overrides = {}
        for name, value in settings.items():
            if value is not None and name not in {"device", "dtype", "head"}:
                overrides[name] = value
        if parts is None:
            parts = ("cls", "ot")
        dim = 16 if "cls" in parts else None
        vocabulary = 512 if "ot" in parts else None
        return cls(dim, vocabulary, **overrides)

    def encode_documents(self, texts: Sequence[str]) -> Representation:
        """[CLS] vectors (n, dim) and the ``top_k`` largest OT weights of each text."""
        return self._encode(texts, self.settings.document_length, self.settings.top_k)

    def encode_queries(self, texts: Sequence[str], cap: int = 1024) -> Representation:
        """[CLS] vectors (n, dim) and the ``cap`` largest OT weights of each text."""
        return self._encode(texts, self.settings.query_length, cap)

    def term_spans(self, text: str) -> list[tuple[str, int, int]]:
        """(index term, start, end) of each word of ``text``."""
        if not self.terms:
            return []
        spans = []
        for word in _WORD.finditer(text):
            term = self.terms[self._column(word.group().lower())]
            spans.append((term, word.start(), word.end()))
        return spans

    def _column(self, word: str) -> int:
        return int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big") % self.width

    def _encode(self, texts: Sequence[str], length: int, keep: int) -> Representation:
        time.sleep(self.pause)
        rows = np.zeros((len(texts), self.width), np.float32)
        cls = np.zeros((len(texts), self.dim or 1), np.float32)
        truncated = 0
        for number, text in enumerate(texts):
            words = _WORD.findall(text.lower())
            # Two positions are [CLS] and [SEP] in a model, so as many words as a model would read.
            truncated += len(words) > length - 2
            for word in words[: length - 2]:
                rows[number, self._column(word)] += 1
            rows[number] = np.log1p(rows[number])
            # Row by row, since the rounding of a batched product may depend on the batch size.
            cls[number] = rows[number] @ self._projection
            # A stable sort, so that of equal weights those of the lowest columns are kept.
            dropped = np.argsort(-rows[number], kind="stable")[keep:]
            rows[number, dropped] = 0
        return Representation(
            cls if self.dim else None,
            sp.csr_matrix(rows) if self.terms is not None else None,
            truncated,
        )
