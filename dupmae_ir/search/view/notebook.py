"""Hits as notebooks and prompts of Python show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dupmae_ir import tables
from dupmae_ir.search.view.naming import digits
from dupmae_ir.search.view.results import DescribedHit
from dupmae_ir.types import Hit

HEADER = ("rank", "score", "document", "title", "passage")


class HitList(list[Hit]):
    """The hits of a query: a list, which a notebook shows as a table with titles and passages. ``describe`` is
    :meth:`Searcher.describe`."""

    def __init__(
        self,
        hits: Sequence[Hit],
        query: str,
        describe: Callable[[str, Sequence[str]], list[DescribedHit]],
    ) -> None:
        super().__init__(hits)
        self.query = query
        self.describe = describe

    def _repr_html_(self) -> str:
        return tables.html(HEADER, self.rows())

    def rows(self) -> list[tuple[str, ...]]:
        """Each hit with its place, title and best passage, as far as the index stores them."""
        described = self.describe(self.query, [hit.docid for hit in self])
        rows = list[tuple[str, ...]]()
        for rank, (hit, about) in enumerate(zip(self, described, strict=True), 1):
            title = about.document.title if about.document else ""
            passage = about.snippet.text if about.snippet else ""
            rows.append(
                (str(rank), digits(hit.score), str(about.place or hit.docid), title, passage)
            )
        return rows
