"""A Haystack component.

    from haystack import Pipeline
    from dupmae_ir.integrations.haystack import HaystackRetriever

    pipeline = Pipeline()
    pipeline.add_component("retriever", HaystackRetriever("my-index", top_k=5))
    pipeline.run({"retriever": {"query": "how do I rotate the logs?"}})

The component is saved with the pipeline: its parameters are the index folder and plain values. Loading needs
``Pipeline.loads(text, allowed_modules=["dupmae_ir.integrations.haystack"])``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dupmae_ir.errors import UsageError
from dupmae_ir.integrations import missing
from dupmae_ir.integrations.passages import PassageSearch
from dupmae_ir.search.config import QUERY_HITS

try:
    from haystack import Document, component, default_from_dict, default_to_dict
except ModuleNotFoundError as e:
    raise missing(e, "haystack-ai") from None


COMPARISONS = ("==", "!=", ">", ">=", "<", "<=", "in", "not in")
"""Haystack's comparison operators; the condition language has all of them, with ``=`` for ``==``."""
HaystackFilter = dict[str, Any]
"""A filter as Haystack writes it: ``field``, ``operator`` and ``value``, or ``operator`` and ``conditions``."""
SavedComponent = dict[str, Any]
"""A component as Haystack saves it: ``type`` and ``init_parameters``."""


@component
class HaystackRetriever:
    """Retrieves documents of an index folder by dense, impact or hybrid search.

    Args:
        index: index folder with stored texts.
        top_k: number of documents.
        mode: dense, impact or hybrid; None is everything that the index has.
        filters: Haystack's filter dictionary over the stored metadata.
    """

    def __init__(
        self,
        index: str | Path,
        top_k: int = QUERY_HITS,
        mode: str | None = None,
        filters: HaystackFilter | None = None,
    ) -> None:
        if top_k < 1:
            raise UsageError(f"top_k must be at least 1, got {top_k}")
        self.index = str(index)
        self.top_k = top_k
        self.mode = mode
        self.filters = filters
        # Opened by the first run: a pipeline is often only built to be saved.
        self._search: PassageSearch | None = None

    def warm_up(self) -> None:
        """Open the index and load the model."""
        if self._search is None:
            self._search = PassageSearch(self.index, self.mode)

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: HaystackFilter | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """``{"documents": [...]}``, best first. ``filters`` and ``top_k`` replace those of the component."""
        self.warm_up()
        assert self._search
        if filters is None:
            filters = self.filters
        if top_k is None:
            top_k = self.top_k
        # An empty dictionary is a filter that excludes nothing.
        where = condition(filters) if filters else None

        documents = []
        for hit in self._search.search(query, top_k, where):
            document = Document(id=hit.docid, content=hit.text, meta=hit.to_dict(), score=hit.score)
            documents.append(document)
        return {"documents": documents}

    def to_dict(self) -> SavedComponent:
        """The component as Haystack saves it."""
        return default_to_dict(
            self, index=self.index, top_k=self.top_k, mode=self.mode, filters=self.filters
        )

    @classmethod
    def from_dict(cls, data: SavedComponent) -> HaystackRetriever:
        """The component from what :meth:`to_dict` returned."""
        return default_from_dict(cls, data)


def condition(filters: HaystackFilter) -> str:
    """A filter dictionary of Haystack as a condition of ``--filter``.

    Raises :class:`UsageError` for an operator that the condition language lacks.
    """
    operator = filters.get("operator")
    if operator in ("AND", "OR"):
        conditions = [f"({condition(member)})" for member in filters["conditions"]]
        return f" {operator.lower()} ".join(conditions)
    if operator == "NOT":
        conditions = [f"not ({condition(member)})" for member in filters["conditions"]]
        return " and ".join(conditions)
    if operator not in COMPARISONS:
        raise UsageError(
            f"filters: operator {operator!r} is not one of AND, OR, NOT, {', '.join(COMPARISONS)}"
        )
    # Haystack's documents keep metadata in their field `meta`.
    name = str(filters["field"]).removeprefix("meta.")
    sign = "=" if operator == "==" else operator
    return f"{name} {sign} {_literal(filters['value'])}"


def _literal(value: Any) -> str:
    """A value as the condition language writes it."""
    # A bool is an int to Python, so this precedes the numbers.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_literal, value))})"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
