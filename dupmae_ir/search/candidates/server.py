"""Candidates from a server (:mod:`dupmae_ir.servers`), with bounds, as parts of a certified search.

A server ranks by its own float32 arithmetic. Its lists only propose candidates: scores are computed from the index, in
float64 and integers, as in any other search, so hits and scores are the same as without a server. A list is
certified if the server's last score plus the largest error of its arithmetic is below the k-th exact score:

    dense    (d + c) u |q| max |v|     for inner products of d float32 terms in any order (Higham, section 3.1)
    impact   0 below 2**24, where sums of integers are exact in float32; (t + c) u score above

with ``u = 2**-24`` and ``c`` the server's own :attr:`~dupmae_ir.servers.protocol.ServerTable.rounding`. Every score in
a list must agree with the exact one within that error. Otherwise the server holds other vectors, or rounds them, and
the search ends with an error. After each list the load record must still name this index, and the
server's count of changes must be what it was after the load. A server without a count must have as many rows as were
loaded, and every row that is read from it must have the fingerprint that it was loaded with. Rows that are in no list
are not read, so the certificate names what it takes for granted: that they are unchanged.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.conditions import Node
from dupmae_ir.index.format.row_set import RowSet
from dupmae_ir.index.index import Index
from dupmae_ir.search.candidates.segments import Dense, Impact
from dupmae_ir.search.exact.certified_topk import Candidates, Part, Weighted, first_depth
from dupmae_ir.search.query.encoder import EncodedQuery
from dupmae_ir.servers.protocol import (
    COMPLETE,
    FINGERPRINT,
    Record,
    Row,
    ServerFailed,
    ServerHits,
    ServerQuery,
    Untranslatable,
    Where,
    default_table,
    is_as_loaded,
    open_table,
)

Exact = Callable[[int, np.ndarray], np.ndarray]
"""Exact scores of (m,) rows for a query, by its number: (m,) float64."""
RowsOf = Callable[[Sequence[str]], np.ndarray]
"""The rows of documents, (m,) int64; -1 for an unknown id."""
AGAIN = "load it again with dupmae-ir servers load --rewrite"
_UNIT = 2.0**-24
"""Half a unit in the last place of a float32 number between 1 and 2: the largest relative error of one operation."""
_MAX_EXACT_SUM = 2.0**24
"""Sums of integers below this are exact in float32."""


@dataclass(frozen=True)
class ServerSummary:
    """The server that proposed candidates."""

    server: str
    table: str
    exact: bool
    assumes: str | None  #: see :attr:`ServerIndex.assumes`


class ServerIndex:
    """A table that holds an index, opened for searching."""

    def __init__(
        self, index: Index, url: str, table: str | None, approximate: bool, timeout: float
    ) -> None:
        """Connect to the table of an index. Raises :class:`IndexMismatch` if it holds anything else."""
        self.index = index
        self.name = table or default_table(index.path)
        self.approximate = approximate
        self.table = open_table(url, self.name, timeout)
        weakref.finalize(self, self.table.close)
        self.record = self._check_state()
        self._wheres: weakref.WeakKeyDictionary[RowSet, Where] = weakref.WeakKeyDictionary()

    @property
    def sums(self) -> bool:
        """Whether hybrid lists are those of the server's own sum."""
        return self.table.sums and not self.approximate

    def first_depth(self, parts: int, hits: int) -> int:
        """The length of the first lists: a list by the sum needs only the hits and some room for ties.

        Raises :class:`UsageError` for more hits than the server lists.
        """
        if 0 < self.table.max_rows < hits:
            raise UsageError(
                f"{self.table.kind} lists at most {self.table.max_rows:,} rows, not {hits:,}"
            )
        # Ten more, so that a tie at the last place rarely needs a second list.
        if parts == 1:
            return hits + 10
        return first_depth(hits)

    def limited(self, max_depth: int) -> int:
        """The longest list: the shorter one of what is asked for and what the server returns; 0 for no limit."""
        limits = [limit for limit in (max_depth, self.table.max_rows) if limit]
        return min(limits, default=0)

    def summary(self) -> ServerSummary:
        """For the summary of a run."""
        return ServerSummary(self.table.kind, self.name, not self.approximate, self.assumes)

    @property
    def assumes(self) -> str | None:
        """What must hold for a certified list to be exact, in words; None if the server counts changes."""
        if self.record.changes is not None:
            return None
        return f"table {self.name} is unchanged since {self.record.loaded}"

    def parts(
        self,
        encoded: Sequence[EncodedQuery],
        dense: Dense | None,
        impact: Impact | None,
        unit: float,
        weights: tuple[float, float],
        rows: RowsOf,
        allowed: RowSet | None,
        condition: Node | None,
    ) -> list[Part]:
        """The parts of a search whose candidates come from the server.

        ``dense``, ``impact``: the parts of the index, which compute the exact scores. ``unit``: the server's impact
        score, a sum of integers, for a score of 1. ``weights``: of the two in a sum. ``rows``: of docids.
        """
        where = self._where(allowed, condition)
        documents = self.index.documents if allowed is None else len(allowed)
        both = dense is not None and impact is not None
        # The score of a part alone is not weighted.
        dense_weight, impact_weight = weights if both else (1.0, 1.0)
        queries = []
        for query in encoded:
            ids, impacts = query.ot
            queries.append(ServerQuery(query.cls, ids, impacts, dense_weight, impact_weight / unit))

        def score(query: int, rows: np.ndarray) -> np.ndarray:
            # In the order of a search without a server, so that scores are equal to the last bit.
            total = np.zeros(len(rows))
            if dense is not None:
                total = dense_weight * dense.scores(query, rows)
            if impact is not None:
                total = total + impact_weight * impact.scores(query, rows)
            return total

        part = partial(ServerPart, self, queries, rows, documents, allowed, where)
        if dense is not None and impact is not None:
            if self.sums:
                return [part("hybrid", 1.0, score)]
            return [
                part("dense", dense_weight, Weighted(dense, dense_weight).scores),
                part("impact", impact_weight / unit, Weighted(impact, impact_weight).scores),
            ]
        if dense is None:
            return [part("impact", 1.0 / unit, score)]
        return [part("dense", 1.0, score)]

    def top(
        self, part: str, queries: Sequence[ServerQuery], depth: int, where: Where | None
    ) -> list[ServerHits]:
        """The server's lists. Raises :class:`IndexMismatch` if the table was changed meanwhile: a load marks it
        as incomplete before its first change, and as another state after the last."""
        lists = self.table.top(part, queries, depth, where, self.approximate)
        # After the lists: a check before them would say nothing of a change in between.
        self._check_state()
        return lists

    def read(self, docids: Sequence[str], fields: Sequence[str]) -> list[Row]:
        """The rows of documents that the table has. Raises as :meth:`top`."""
        rows = self.table.read(docids, [*fields, FINGERPRINT]) if docids else []
        self._check_state()
        for row in rows:
            # Without fields, only the presence of the ids is of interest.
            if fields and not is_as_loaded(row, fields):
                raise ServerFailed(
                    f"table {self.name}: the row of {row.docid!r} is not as it was loaded; {AGAIN}"
                )
        return rows

    def restrict(self, where: Where) -> RowSet:
        """A selection by the server; only the number of its rows is known. Raises :class:`Untranslatable`."""
        # A record has no rows to mark, so every row is, and the table excludes the others.
        allowed = RowSet(np.ones(self.index.documents, np.bool_), self.table.count(where))
        self._wheres[allowed] = where
        return allowed

    def _check_state(self) -> Record:
        """The load record of the table. Raises unless the table is complete, unchanged, and of this index."""
        record, changes = self.table.state()
        load = "load the index into it with dupmae-ir servers load"
        if record is None:
            raise IndexMismatch(f"the server has no table {self.name!r}; {load}")
        record.spec.check_index(self.index, self.name)
        if record.state != COMPLETE:
            raise IndexMismatch(
                f"table {self.name} is not complete: a load is running or was interrupted; {load}"
            )
        if record.digest != self.index.digest:
            raise IndexMismatch(
                f"table {self.name} holds {record.documents:,} documents of another state of {self.index.path}; {load}"
            )
        if record.changes != changes:
            raise ServerFailed(
                f"table {self.name}: another program changed its rows since it was loaded; {AGAIN}"
            )
        if changes is None:
            rows = self.table.count()
            if rows != record.documents:
                raise ServerFailed(
                    f"table {self.name}: {rows:,} rows, and {record.documents:,} were loaded; another program added "
                    f"or removed some; {AGAIN}"
                )
        return record

    def _where(self, allowed: RowSet | None, condition: Node | None) -> Where | None:
        """The restriction to ``allowed`` in the server's terms, checked by the number of rows that it selects."""
        if allowed is None or len(allowed) == self.index.documents:
            return None
        if allowed not in self._wheres:
            self._wheres[allowed] = self._restriction(allowed, condition)
        return self._wheres[allowed]

    def _restriction(self, allowed: RowSet, condition: Node | None) -> Where:
        """The condition where the server knows it and selects as many rows; otherwise the ids of the documents."""
        if condition is not None:
            with suppress(Untranslatable):
                if self.table.count(condition) == len(allowed):
                    return condition
        docids = self.index.docids
        where = tuple(docids[row] for row in allowed.rows.tolist())
        rows = self.table.count(where)
        if rows != len(allowed):
            raise ServerFailed(
                f"table {self.name}: {rows:,} rows for {len(allowed):,} documents of {self.index.path}; {AGAIN}"
            )
        return where


@dataclass(frozen=True)
class ServerPart:
    """The server's lists by one part of the score, or by the sum of both.

    ``rows_of``: the rows of documents. ``score``: exact scores from the index. ``weight``: what the server's scores are
    multiplied by in these.
    """

    server: ServerIndex
    queries: Sequence[ServerQuery]
    rows_of: RowsOf
    documents: int
    allowed: RowSet | None
    where: Where | None
    part: str
    weight: float
    score: Exact

    def top(self, queries: Sequence[int], depth: int) -> list[Candidates]:
        """The server's ``depth`` best rows of each query, with a bound on all others."""
        count = min(depth, self.documents)
        if not self.documents:
            return [Candidates(np.zeros(0, np.int64), -np.inf, True)] * len(queries)
        # A query without terms has no impact list.
        listed = list(queries)
        if self.part == "impact":
            listed = [query for query in queries if len(self.queries[query].ids)]
        answers = {}
        if listed:
            server_queries = [self.queries[query] for query in listed]
            lists = self.server.top(self.part, server_queries, count, self.where)
            answers = dict(zip(listed, lists, strict=True))
        candidates = []
        for query in queries:
            if query in answers:
                candidates.append(self._candidates(query, answers[query], count))
            else:
                candidates.append(Candidates(np.zeros(0, np.int64), 0.0, True))
        return candidates

    def scores(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact scores of (m,) rows: (m,) float64."""
        return self.score(query, rows)

    def _candidates(self, query: int, answer: ServerHits, count: int) -> Candidates:
        if len(set(answer.docids)) < len(answer.docids):
            raise ServerFailed(
                f"table {self.server.name}: two rows of one document, of which another program added one; {AGAIN}"
            )
        rows = self.rows_of(answer.docids)
        if -1 in rows:
            unknown = answer.docids[rows.tolist().index(-1)]
            raise ServerFailed(
                f"table {self.server.name} has a document {unknown!r} that {self.server.index.path} lacks; {AGAIN}"
            )
        if self.allowed is not None and not self.allowed.mask[rows].all():
            raise ServerFailed(
                f"table {self.server.name}: a document that the filter excludes; {AGAIN}"
            )
        # An approximate list may lack any document, so nothing bounds the others.
        if self.server.approximate:
            return Candidates(rows, np.inf, False)
        if len(rows) < count and self.part != "impact":
            raise ServerFailed(
                f"table {self.server.name}: {self.server.table.kind} returned {len(rows):,} of {count:,} rows; {AGAIN}"
            )
        self._check(query, rows, answer)
        if len(rows) == self.documents:
            return Candidates(rows, -np.inf, True)
        if len(rows) < count:
            return Candidates(rows, 0.0, True)  # other rows have no term in common with the query
        last = float(answer.scores.min())
        error = float(self._error(query, np.array([last]))[0])
        return Candidates(rows, self.weight * (last + error), False)

    def _check(self, query: int, rows: np.ndarray, answer: ServerHits) -> None:
        exact = self.score(query, rows) / self.weight
        allowed_error = self._error(query, np.maximum(exact, answer.scores))
        wrong = np.flatnonzero(np.abs(exact - answer.scores) > allowed_error)
        if len(wrong):
            position = int(wrong[0])
            raise ServerFailed(
                f"table {self.server.name}: the {self.part} score of {answer.docids[position]!r} is "
                f"{answer.scores[position]:.9g} in {self.server.table.kind} and {exact[position]:.9g} in "
                f"{self.server.index.path}; the server holds or computes other vectors: {AGAIN}"
            )

    def _error(self, query: int, scores: np.ndarray) -> np.ndarray:
        """Upper bound on the error of the server's scores, with room for what follows in float64."""
        q = self.queries[query]
        extra_operations = self.server.table.rounding
        length = float(np.linalg.norm(q.cls.astype(np.float64))) * self.server.record.longest
        dense = (len(q.cls) + extra_operations) * _UNIT * length
        slack = 2.0**-48 * np.abs(scores)
        if self.part == "dense":
            return dense + slack
        if self.part == "impact":
            return _impact_error(scores, len(q.ids), extra_operations) + slack
        # The impact part of a sum is at most the sum less the least dense score.
        sums = np.maximum(0.0, scores + q.dense_weight * length) / q.impact_weight
        impact = _impact_error(sums, len(q.ids), extra_operations)
        slack += 2.0**-48 * q.dense_weight * length
        return q.dense_weight * dense + q.impact_weight * impact + slack


def _impact_error(scores: np.ndarray, terms: int, extra_operations: float) -> np.ndarray:
    error = 2 * (terms + extra_operations) * _UNIT * scores
    return np.where(scores + error < _MAX_EXACT_SUM, 0.0, error)
