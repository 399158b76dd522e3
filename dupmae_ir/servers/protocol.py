"""What a server must do, and the values that cross the boundary to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np

from dupmae_ir.errors import DupmaeError, IndexMismatch
from dupmae_ir.index.conditions import Node
from dupmae_ir.index.format.texts import StoredDocument

LOADING, COMPLETE = "loading", "complete"
FORMAT = 1


class ServerFailed(DupmaeError):
    """A server that cannot be reached, does not answer in time, or refuses a request."""


class Untranslatable(Exception):
    """A condition that a server's filters cannot express with the same meaning."""


@dataclass(frozen=True)
class Spec:
    """What all rows of a collection have in common. Rows of another spec are refused.

    ``model``: digest of the encoder. ``dim``: width of the [CLS] vectors, 0 without. ``terms``: size of the
    vocabulary, 0 without impacts. ``scale``: the impact scale.
    """

    model: str
    dim: int
    terms: int
    scale: float
    format: int = FORMAT

    @property
    def parts(self) -> tuple[str, ...]:
        """``cls`` and ``ot``, as far as rows have them."""
        return tuple(part for part, size in (("cls", self.dim), ("ot", self.terms)) if size)


@dataclass(frozen=True)
class Record:
    """What a collection holds: one generation of one index, complete or while it is loaded.

    ``digest``: of the index. ``longest``: the largest norm of a vector, for bounds on rounding. ``written``: rows
    written by the load so far.
    """

    spec: Spec
    state: str
    digest: str
    documents: int
    longest: float = 0.0
    written: int = 0

    def as_dict(self) -> dict[str, object]:
        """JSON-able fields."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, found: Mapping[str, object], where: str) -> Self:
        """The record with these fields. Raises :class:`IndexMismatch` for anything else."""
        try:
            spec = found["spec"]
            assert isinstance(spec, Mapping)
            return cls(**{**found, "spec": Spec(**spec)})  # type: ignore[arg-type]
        except (KeyError, TypeError, AssertionError):
            raise IndexMismatch(
                f"{where}: its load record is not one of this version; load it again into another `collection`"
            ) from None


class Rows(NamedTuple):
    """Documents to store, as parallel sequences. ``cls``: (m, d) float32; ``impacts``: ids and impacts of each row."""

    docids: Sequence[str]
    fingerprints: Sequence[bytes]
    cls: np.ndarray | None
    impacts: Sequence[tuple[np.ndarray, np.ndarray]] | None
    documents: Sequence[StoredDocument] | None


class ServerQuery(NamedTuple):
    """A query as servers take it. ``dense_weight`` and ``impact_weight`` make up the sum of the two parts."""

    cls: np.ndarray  #: (d,) float32
    ids: np.ndarray  #: (t,) int64 vocabulary ids
    impacts: np.ndarray  #: (t,) int64
    dense_weight: float
    impact_weight: float


class ServerHits(NamedTuple):
    """The best documents of a query in a server: ids and the server's own scores, best first.

    Scores of the impact part are sums of products of integers; others are in real units.
    """

    docids: list[str]
    scores: np.ndarray


@dataclass(frozen=True)
class Where:
    """Documents to which a search is restricted: those that satisfy ``condition``, or those with ``docids``."""

    condition: Node | None = None
    docids: tuple[str, ...] | None = None


class ServerTable(Protocol):
    """One collection in a server. Safe for several threads where the client is; errors are one line.

    ``server``: its name. ``sums``: whether it ranks by the exact sum of both parts. ``rounding``: units in the last
    place (2**-24) by which its inner products may differ from exact ones, beside one for each term. ``max_rows``: the
    longest list that it returns; 0 for no limit.
    """

    kind: str
    sums: bool
    rounding: float
    max_rows: int

    def read_record(self) -> Record | None:
        """The load record; None where the collection does not exist."""

    def write_record(self, record: Record) -> None:
        """Replace the load record."""

    def lock(self) -> None:
        """Refuse other loaders of this collection until :meth:`close`, where the server can."""

    def create(self, spec: Spec) -> None:
        """Make the collection where it does not exist."""

    def stored(self) -> Iterator[tuple[str, bytes]]:
        """The id and the fingerprint of each stored row."""

    def upsert(self, rows: Rows) -> None:
        """Store rows, replacing those with the same ids; durable when it returns."""

    def delete(self, docids: Sequence[str]) -> None:
        """Delete rows by id; unknown ids are ignored."""

    def finish(self, approximate: bool) -> None:
        """Make written rows searchable; with ``approximate``, build the server's approximate index."""

    def drop(self) -> None:
        """Remove the collection and its record."""

    def count(self, where: Where | None = None) -> int:
        """How many rows there are, or satisfy ``where``. Raises :class:`Untranslatable`."""

    def size(self) -> int | None:
        """Bytes of the collection in the server; None where it does not say."""

    def top(
        self, part: str, queries: Sequence[ServerQuery], depth: int, where: Where | None, approximate: bool
    ) -> list[ServerHits]:
        """The ``depth`` best rows of each query by ``dense``, ``impact`` or, if it :attr:`sums`, ``hybrid`` scores.

        Lists of the impact part contain only documents with a common term. Exact unless ``approximate``.
        """

    def close(self) -> None:
        """Release the connection."""
