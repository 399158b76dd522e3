"""Hits as notebooks and prompts of Python show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dupmae_ir import tables
from dupmae_ir.search.view.naming import digits
from dupmae_ir.search.view.results import DescribedHit
from dupmae_ir.types import Hit

if TYPE_CHECKING:
    import pandas

HEADER = ("rank", "score", "document", "title", "passage")


class HitList(list[Hit]):
    """The hits of a query: a list, which a notebook shows as a table with titles and passages.

    ``describe`` is :meth:`Searcher.describe`; None for a list that was pickled, whose table has ids and scores only.
    """

    def __init__(
        self,
        hits: Sequence[Hit],
        query: str,
        describe: Callable[[str, Sequence[str]], list[DescribedHit]] | None = None,
    ) -> None:
        super().__init__(hits)
        self.query = query
        self.describe = describe

    def __reduce__(self) -> tuple[type[HitList], tuple[list[Hit], str]]:
        # Without the searcher: a list of hits that is sent to another process opens no index there.
        return HitList, (list(self), self.query)

    def to_frame(self) -> pandas.DataFrame:
        """A row for each hit: ``rank`` (from 1), ``docid``, ``score``, and ``title`` and ``text`` as far as the index
        stores them."""
        texts = []
        for about in self._described():
            document = about.document if about else None
            texts.append((document.title, document.text) if document else (None, None))
        rows = []
        for rank, (hit, text) in enumerate(zip(self, texts, strict=True), 1):
            rows.append((rank, hit.docid, hit.score, *text))
        return tables.data_frame(rows, ("rank", "docid", "score", "title", "text"))

    def _repr_html_(self) -> str:
        return tables.html(HEADER, self.rows())

    def rows(self) -> list[tuple[str, ...]]:
        """Each hit with its place, title and best passage, as far as the index stores them."""
        rows = list[tuple[str, ...]]()
        for rank, (hit, about) in enumerate(zip(self, self._described(), strict=True), 1):
            place = about.place if about else None
            title = about.document.title if about and about.document else ""
            passage = about.snippet.text if about and about.snippet else ""
            rows.append((str(rank), digits(hit.score), str(place or hit.docid), title, passage))
        return rows

    def _described(self) -> Sequence[DescribedHit | None]:
        if self.describe is None:
            return [None] * len(self)
        return self.describe(self.query, [hit.docid for hit in self])
