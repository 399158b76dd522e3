"""Hits with their texts, as frameworks for retrieval-augmented generation want them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dupmae_ir.errors import UsageError
from dupmae_ir.search.config import QUERY_HITS
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Document, Hit

Texts = Mapping[str, Document] | Callable[[str], Document]
"""Document id -> document, for an index without stored texts."""


@dataclass(frozen=True)
class PassageHit:
    """A hit with its text. ``metadata`` is what the index stores about the document."""

    docid: str
    score: float
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Metadata with ``docid``, ``score`` and, if there is one, ``title``, for frameworks with one dictionary."""
        fields: dict[str, object] = dict(self.metadata)
        # After the metadata, which may have values of these names.
        fields["docid"] = self.docid
        fields["score"] = self.score
        if self.title:
            fields["title"] = self.title
        return fields


class PassageSearch:
    """Searches an index and attaches texts.

    Args:
        index: index folder, or an open searcher.
        mode: dense, impact or hybrid; None is everything that the index has.
        texts: where documents come from; None is the text store of the index.

    Raises :class:`UsageError` for an index without stored texts if ``texts`` is None.
    """

    def __init__(
        self, index: str | Path | Searcher, mode: str | None = None, texts: Texts | None = None
    ) -> None:
        self.searcher = index if isinstance(index, Searcher) else Searcher.open(index)
        self.mode = mode
        self.texts = texts
        if texts is None and not self.searcher.index.has_texts:
            raise UsageError(
                f"{self.searcher.index.path} stores no texts (it was made without `store_texts`); give `texts`"
            )

    def search(
        self, query: str, hits: int = QUERY_HITS, condition: str | None = None
    ) -> list[PassageHit]:
        """The best ``hits`` passages for ``query`` among those that satisfy ``condition`` (see Searcher)."""
        if not query.strip():
            return []
        results = self.searcher.search(query, hits, self.mode, filter=condition or None)
        return [self._passage(hit) for hit in results]

    def _passage(self, hit: Hit) -> PassageHit:
        if self.texts is not None:
            if isinstance(self.texts, Mapping):
                document = self.texts[hit.docid]
            else:
                document = self.texts(hit.docid)
            return PassageHit(hit.docid, hit.score, document.text, document.title)
        stored = self.searcher.document(hit.docid)
        assert stored is not None, "the constructor checked that the index stores texts"
        return PassageHit(hit.docid, hit.score, stored.text, stored.title, stored.metadata)
