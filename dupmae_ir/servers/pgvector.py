"""PostgreSQL with pgvector: one table with a ``vector``, a ``sparsevec``, texts and metadata.

``(cls <#> q) + (ot <#> r)`` is the exact sum of Eq. 12 up to float32 rounding of the two inner products, so the server
ranks hybrid searches by itself. Exact searches order by expressions that no vector index serves, so an HNSW index that
somebody made cannot change their lists. Lists of several queries are one statement each on one connection.

A trigger counts the changes of the rows that no load made, in their own transactions, so that a search knows whether
the table is still the one that was loaded.

Credentials are libpq's: ``PGPASSWORD``, ``~/.pgpass``, ``PGSERVICE``, ``PGSSLMODE`` and so on.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, cast
from urllib.parse import SplitResult

import numpy as np

from dupmae_ir.console import say
from dupmae_ir.errors import EnvironmentProblem, UsageError
from dupmae_ir.index.conditions import Condition, Node
from dupmae_ir.io.lines import usable
from dupmae_ir.servers.protocol import (
    LOADING,
    RECORDS,
    UNKNOWN,
    ConditionWriter,
    Record,
    Row,
    ServerFailed,
    ServerHits,
    ServerQuery,
    ServerTable,
    Spec,
    Untranslatable,
    Where,
    first_line,
)
from dupmae_ir.types import MetadataScalar

if TYPE_CHECKING:
    import psycopg

_PAGE = 8160  #: bytes of a row that stay together: reading a vector out of line costs more than comparing it
_COLUMNS = ("docid", "fingerprint", "cls", "ot", "title", "text", "metadata")


_COUNTER = """
CREATE FUNCTION dupmae_ir_count_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('dupmae_ir.loading', true) IS DISTINCT FROM 'on' THEN
        UPDATE {records} SET changes = changes + 1 WHERE name = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$
"""
_TRIGGER = """
CREATE OR REPLACE TRIGGER dupmae_ir_changes AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION dupmae_ir_count_change()
"""


class PgVector(ServerTable):
    """A table of a database."""

    kind = "pgvector"
    noun = "table"
    sums = True
    max_indexed_terms = (
        1000  # pgvector's limit on the non-zero elements of a sparsevec in an HNSW index
    )

    def __init__(self, parts: SplitResult, name: str, timeout: float) -> None:
        import psycopg

        super().__init__(parts, name, timeout)
        self._psycopg, self.table = psycopg, f'"{name}"'
        url = re.sub("^postgres(ql)?(\\+[a-z]+)?:", "postgresql:", parts.geturl())
        with self._client_errors():
            wait = max(2, round(timeout))
            self._connection = psycopg.connect(
                url, autocommit=True, connect_timeout=wait, application_name="dupmae-ir"
            )
        self._turn = threading.RLock()

    def exists(self, name: str) -> bool:
        return bool(self._one("SELECT to_regclass(%s) IS NOT NULL", f'"{name}"')[0])

    def record_fields(self) -> Mapping[str, object] | None:
        return self._stored_state()[0]

    def changes(self) -> int:
        """See :class:`ServerTable`; :data:`UNKNOWN` if the table has no trigger that counts, or it is disabled."""
        with self.errors():
            return self._stored_state()[1]

    def state(self) -> tuple[Record | None, int | None]:
        with self.errors():
            fields, changes = self._stored_state()
        return (self.read_record() if fields is None else self.record_of(fields)), changes

    def _stored_state(self) -> tuple[Mapping[str, object] | None, int]:
        trigger = "tgrelid = to_regclass(%s) AND tgname = 'dupmae_ir_changes' AND tgenabled = 'A'"
        counted = f"CASE WHEN EXISTS (SELECT FROM pg_trigger WHERE {trigger}) THEN changes ELSE {UNKNOWN} END"
        try:
            row = self._execute(
                f"SELECT record, {counted} FROM {RECORDS} WHERE name = %s", self.table, self.name
            )
        except self._psycopg.errors.UndefinedTable:
            return None, UNKNOWN
        return cast("tuple[Mapping[str, object], int]", row.fetchone() or (None, UNKNOWN))

    def write_record(self, record: Record) -> None:
        with self.errors():
            self._execute(
                f"INSERT INTO {RECORDS} VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET record = EXCLUDED.record",
                self.name,
                json.dumps(record.as_dict()),
            )

    def lock(self) -> None:
        """Take the advisory lock of the collection; the server releases it when the connection ends."""
        with self.errors():
            (free,) = self._one(
                "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", f"dupmae-ir {self.name}"
            )
        if not free:
            raise UsageError(
                f"{self.where}: another process is loading {self.name}; wait until it has ended"
            )

    def create(self, spec: Spec) -> None:
        """Make the extension, the record table and the collection's table, in one transaction with its record."""
        columns = ['docid text COLLATE "C" PRIMARY KEY', "fingerprint bytea NOT NULL"]
        columns += [f"cls vector({spec.dim}) STORAGE MAIN"] if spec.dim else []
        columns += [f"ot sparsevec({spec.terms}) STORAGE MAIN"] if spec.terms else []
        columns += ["title text", "text text", "metadata jsonb"]
        with self.errors(), self._connection.transaction():
            execute = self._execute
            execute(
                "SELECT pg_advisory_xact_lock(hashtextextended('dupmae-ir', 0))"
            )  # of what all tables share
            execute("CREATE EXTENSION IF NOT EXISTS vector")
            columns_of_records = (
                "name text PRIMARY KEY, record jsonb NOT NULL, changes bigint NOT NULL DEFAULT 0"
            )
            execute(f"CREATE TABLE IF NOT EXISTS {RECORDS} ({columns_of_records})")
            body = f"({', '.join(columns)}) WITH (toast_tuple_target = {_PAGE})"
            execute(f"CREATE TABLE IF NOT EXISTS {self.table} {body}")
            if self._one("SELECT to_regprocedure('dupmae_ir_count_change()') IS NULL")[0]:
                (schema,) = self._one("SELECT quote_ident(current_schema())")
                execute(_COUNTER.format(records=f"{schema}.{RECORDS}"))
            execute(_TRIGGER.format(table=self.table))
            execute(f"ALTER TABLE {self.table} ENABLE ALWAYS TRIGGER dupmae_ir_changes")
            empty = Record(spec, LOADING, "", 0)
            execute(
                f"INSERT INTO {RECORDS} VALUES (%s, %s) ON CONFLICT (name) DO NOTHING",
                self.name,
                json.dumps(empty.as_dict()),
            )

    def stored(self) -> Iterator[tuple[str, bytes]]:
        """See :class:`ServerTable`; streamed by a server-side cursor."""
        with self._connection.transaction(), self._connection.cursor("stored") as cursor:
            with self.errors():
                cursor.execute(f"SELECT docid, fingerprint FROM {self.table}".encode())
            while True:
                with self.errors():
                    found = cursor.fetchmany(20_000)
                if not found:
                    return
                yield from ((str(docid), bytes(fingerprint)) for docid, fingerprint in found)

    def read(self, docids: Sequence[str], fields: Sequence[str]) -> list[Row]:
        """See :class:`ServerTable`; in PostgreSQL's binary format, whose numbers are big-endian."""
        statement = (
            f"SELECT {', '.join(('docid', *fields))} FROM {self.table} WHERE docid = ANY(%s)"
        )
        with (
            self.errors(),
            self._connection.cursor(binary=True, row_factory=self._psycopg.rows.dict_row) as cursor,
        ):
            found = cursor.execute(statement.encode(), [list(docids)]).fetchall()
        return [
            Row.of(
                row,
                np.frombuffer(row["cls"], ">f4", offset=4) if "cls" in row else None,
                *_impacts(row.get("ot")),
            )
            for row in found
        ]

    def upsert(self, rows: Sequence[Row]) -> None:
        """Copy the rows into a temporary table and merge that, in one transaction."""
        terms = (
            self.vocabulary
        )  # read before the copy, during which the connection answers nothing else
        given = {"cls": rows[0].cls is not None, "ot": terms > 0}
        names = [name for name in _COLUMNS if given.get(name, True)]
        listed = ", ".join(names)
        updates = ", ".join(f"{name} = EXCLUDED.{name}" for name in names[1:])
        with self.errors(), self._connection.transaction():
            execute = self._execute
            execute("SET LOCAL dupmae_ir.loading = 'on'")
            execute(f"CREATE TEMP TABLE incoming (LIKE {self.table}) ON COMMIT DROP")
            with self._connection.cursor().copy(
                f"COPY incoming ({listed}) FROM STDIN".encode()
            ) as copy:
                for row in _values(rows, terms):
                    copy.write_row(row)
            execute(
                f"INSERT INTO {self.table} ({listed}) SELECT {listed} FROM incoming "
                f"ON CONFLICT (docid) DO UPDATE SET {updates}"
            )

    def delete(self, docids: Sequence[str]) -> None:
        with self.errors(), self._connection.transaction():
            self._execute("SET LOCAL dupmae_ir.loading = 'on'")
            self._execute(f"DELETE FROM {self.table} WHERE docid = ANY(%s)", list(docids))

    def finish(self, approximate: bool) -> None:
        """Analyse the table; with ``approximate``, build HNSW indexes of both columns."""
        record = self.read_record()
        if approximate and record is not None:
            with self.errors(forever=True):
                for column, operators in (("cls", "vector_ip_ops"), ("ot", "sparsevec_ip_ops")):
                    if column in record.spec.parts:
                        self._index(column, operators)
        with self.errors():
            self._execute(f"ANALYZE {self.table}")

    def drop(self) -> None:
        with self.errors(), self._connection.transaction():
            self._execute(f"DROP TABLE IF EXISTS {self.table}")
            self._execute(f"DELETE FROM {RECORDS} WHERE name = %s", self.name)

    def count(self, where: Where | None = None) -> int:
        condition, values = _where(where)
        with self.errors():
            (rows,) = self._one(f"SELECT count(*) FROM {self.table} WHERE {condition}", *values)
        return cast(int, rows)

    def size(self) -> int | None:
        """Bytes of the table, its TOAST table and its indexes."""
        with self.errors():
            (size,) = self._one("SELECT pg_total_relation_size(%s::regclass)", self.table)
        return cast(int, size)

    def top(
        self,
        part: str,
        queries: Sequence[ServerQuery],
        depth: int,
        where: Where | None,
        approximate: bool,
    ) -> list[ServerHits]:
        return [self._top(part, query, depth, where, approximate) for query in queries]

    def close(self) -> None:
        """End the connection, and with it the lock."""
        self._connection.close()

    def _top(
        self, part: str, query: ServerQuery, depth: int, where: Where | None, approximate: bool
    ) -> ServerHits:
        condition, values = _where(where)
        dense, impact = "(cls <#> %s::vector)", "(ot <#> %s::sparsevec)"
        cls, ot = _dense(query.cls), _sparse(query.ids, query.impacts, self.vocabulary)
        scores: dict[str, tuple[str, list[object]]] = {
            "dense": (dense, [cls]),
            "impact": (impact, [ot]),
            "hybrid": (
                f"%s::float8 * {dense} + %s::float8 * {impact}",
                [query.dense_weight, cls, query.impact_weight, ot],
            ),
        }
        score, vectors = scores[part]
        # Added to 0, the expression is not the one of an index, which would make the list approximate.
        order = "score" if approximate else "score + 0"
        common = "score < 0" if part == "impact" else "true"
        statement = (
            f"SELECT docid, score FROM (SELECT docid, {score} AS score FROM {self.table} WHERE {condition}) AS scored "
            f"WHERE {common} ORDER BY {order} LIMIT {int(depth)}"
        )
        with self.errors(), self._connection.transaction():
            if approximate:
                self._execute(f"SET LOCAL hnsw.ef_search = {min(1000, max(40, depth))}")
                self._execute("SET LOCAL hnsw.iterative_scan = strict_order")
            found = self._execute(statement, *vectors, *values).fetchall()
        return ServerHits(
            [str(row[0]) for row in found], -np.array([row[1] for row in found], np.float64)
        )

    def _index(self, column: str, operators: str) -> None:
        name = f'"{self.name}_{column}_hnsw"'
        try:
            self._execute(
                f"CREATE INDEX IF NOT EXISTS {name} ON {self.table} USING hnsw ({column} {operators})"
            )
        except (self._psycopg.errors.ProgramLimitExceeded, self._psycopg.errors.DataException) as e:
            if column == "cls":
                raise
            say(f"note: impacts are searched without an index: {first_line(e)}")

    def _execute(self, statement: str, *values: object) -> psycopg.Cursor[tuple[object, ...]]:
        return self._connection.execute(statement.encode(), values or None)

    def _one(self, statement: str, *values: object) -> tuple[object, ...]:
        found = self._execute(statement, *values).fetchone()
        assert found is not None
        return found

    @contextmanager
    def errors(self, forever: bool = False) -> Iterator[None]:
        """Within the block, the connection is this thread's, and is cut when the server does not answer in time."""
        with self._turn:
            late = threading.Event()
            timer = threading.Timer(self.timeout, self._cut, [late])
            timer.daemon = True
            if not forever:
                timer.start()
            try:
                with self._client_errors(late):
                    yield
            finally:
                timer.cancel()

    def _cut(self, late: threading.Event) -> None:
        late.set()
        with (
            suppress(OSError, self._psycopg.Error),
            socket.socket(fileno=os.dup(self._connection.fileno())) as own,
        ):
            own.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _client_errors(self, late: threading.Event | None = None) -> Iterator[None]:
        """The client's errors in one line."""
        psycopg = self._psycopg
        try:
            yield
        except psycopg.errors.ConnectionTimeout:
            raise ServerFailed(
                f"{self.where}: no answer within {self.timeout:g} s; is the server up?"
            ) from None
        except psycopg.errors.UndefinedFile:
            raise EnvironmentProblem(
                f"{self.where}: the server has no pgvector; install its package postgresql-NN-pgvector"
            ) from None
        except psycopg.Error as e:
            if late is not None and late.is_set():
                raise self.unanswered() from None
            raise ServerFailed(f"{self.where}: {first_line(e)}") from None


def _where(where: Where | None) -> Sql:
    """A WHERE clause and its values."""
    if where is None:
        return "true", []
    return ("docid = ANY(%s)", [list(where)]) if isinstance(where, tuple) else condition_sql(where)


def _dense(vector: np.ndarray) -> str:
    """A vector as pgvector reads it."""
    return "[" + ",".join(map(repr, vector.tolist())) + "]"


def _sparse(ids: np.ndarray, impacts: np.ndarray, terms: int) -> str:
    """Impacts as pgvector reads them; its numbers of elements start at 1."""
    pairs = zip(ids.tolist(), impacts.tolist(), strict=True)
    return "{" + ",".join(f"{term + 1}:{impact}" for term, impact in pairs) + f"}}/{terms}"


def _impacts(stored: bytes | None) -> tuple[np.ndarray, np.ndarray]:
    """Ids and impacts of a ``sparsevec``: its width, the number of elements, 0, their places, their values."""
    numbers = np.frombuffer(stored or bytes(12), ">i4")[3:]
    return numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :].view(">f4")


def _values(rows: Sequence[Row], terms: int) -> Iterator[list[object]]:
    """The values of each row, in the order of :data:`_COLUMNS`."""
    for row in rows:
        values: list[object] = [row.docid, row.fingerprint]
        if row.cls is not None:
            values.append(_dense(row.cls))
        if terms:
            values.append(_sparse(*row.impacts, terms))
        metadata = json.dumps(row.document.metadata).replace("\\u0000", "\\ufffd")
        yield [*values, _text(row.document.title), _text(row.document.text), metadata]


def _text(text: str) -> str:
    """``text`` without what PostgreSQL refuses: NUL and half surrogate pairs."""
    return usable(text).replace("\0", "\ufffd")


Sql = tuple[str, list[object]]
"""A boolean SQL expression, never null, and its values."""


def condition_sql(node: Node) -> Sql:
    """The expression that selects the same documents. Raises :class:`Untranslatable`."""
    return _Conditions().write(node)


class _Conditions(ConditionWriter[Sql]):
    """SQL over a ``jsonb`` column.

    A value is compared by a lax SQL/JSON path ``$."name"[*]``, which takes a scalar as a list of one. As in
    :mod:`dupmae_ir.index.filters`, values of different kinds never compare, strings compare by code points, and
    a list satisfies a test if one of its elements does.
    """

    def condition(self, node: Condition) -> Sql:
        if any("\0" in text for text in (node.name, *node.values) if isinstance(text, str)):
            raise Untranslatable("PostgreSQL has no NUL character")
        return super().condition(node)

    def present(self, name: str) -> Sql:
        return "jsonb_exists(metadata, %s)", [name]

    def tests(self, node: Condition) -> Sql:
        if node.operation in ("like", "under"):
            return super().tests(node)
        if node.operation != "contains":
            return _path(node.name, node.operation, node.values)
        (part,) = node.values
        element, values = self.test(node.name, "=", part)
        sql = f"jsonb_typeof(metadata -> %s) = 'array' AND {element}"
        if not isinstance(part, str):
            return f"coalesce({sql}, false)", [node.name, *values]
        inside = "jsonb_typeof(metadata -> %s) = 'string' AND strpos(metadata ->> %s, %s) > 0"
        return f"coalesce(({sql}) OR ({inside}), false)", [
            node.name,
            *values,
            node.name,
            node.name,
            part,
        ]

    def test(self, name: str, operation: str, value: MetadataScalar) -> Sql:
        return _path(name, operation, [value])

    def negate(self, expression: Sql) -> Sql:
        return f"NOT ({expression[0]})", expression[1]

    def join(self, expressions: Sequence[Sql], every: bool) -> Sql:
        joined = (" AND " if every else " OR ").join(f"({sql})" for sql, _ in expressions)
        return joined, [value for _, values in expressions for value in values]


def _path(name: str, operation: str, values: Sequence[MetadataScalar]) -> Sql:
    """Whether a scalar, or an element of a list, compares with one of the values."""
    sign = operation if operation[0] in "<>" else "=="
    tests = " || ".join(f"@ {sign} $v{number}" for number in range(len(values)))
    path = f"$.{json.dumps(name)}[*] ? ({tests})"
    variables = {f"v{number}": value for number, value in enumerate(values)}
    return "jsonb_path_exists(metadata, %s::jsonpath, %s::jsonb, true)", [
        path,
        json.dumps(variables),
    ]
