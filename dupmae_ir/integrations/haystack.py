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
        chosen = self.filters if filters is None else filters
        passages = self._search.search(
            query, self.top_k if top_k is None else top_k, condition(chosen) if chosen else None
        )
        return {
            "documents": [
                Document(id=p.docid, content=p.text, meta=p.to_dict(), score=p.score)
                for p in passages
            ]
        }

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
        return f" {operator.lower()} ".join(
            f"({condition(part)})" for part in filters["conditions"]
        )
    if operator == "NOT":
        return " and ".join(f"not ({condition(part)})" for part in filters["conditions"])
    if operator not in COMPARISONS:
        raise UsageError(
            f"filters: operator {operator!r} is not one of AND, OR, NOT, {', '.join(COMPARISONS)}"
        )
    name = str(filters["field"]).removeprefix("meta.")
    return f"{name} {'=' if operator == '==' else operator} {_literal(filters['value'])}"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_literal, value))})"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
