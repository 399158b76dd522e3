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
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import SplitResult

import numpy as np

from dupmae_ir.console import say
from dupmae_ir.errors import EnvironmentProblem, UsageError
from dupmae_ir.index.conditions import Condition, Node
from dupmae_ir.index.format.texts import StoredDocument
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

_MAX_INLINE_BYTES = 8160
"""Bytes of a row that stay together: reading a vector out of line costs more than comparing it. PostgreSQL takes no
more, because a row must fit a page of 8 kB."""
_COLUMNS = ("docid", "fingerprint", "cls", "ot", "title", "text", "metadata")
_ROWS_PER_FETCH = 20_000

# SECURITY DEFINER, so that a program that may change the rows but not the records is counted, too. The function
# therefore has a search path without schemas in which others could define functions or operators.
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
# Per statement, so that a program that changes many rows pays for one update.
_TRIGGER = """
CREATE OR REPLACE TRIGGER dupmae_ir_changes AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION dupmae_ir_count_change()
"""


class PgVector(ServerTable):
    """A table of a database."""

    kind = "pgvector"
    noun = "table"
    sums = True
    # pgvector's limit on the non-zero elements of a sparsevec in an HNSW index
    max_indexed_terms = 1000

    def __init__(self, parts: SplitResult, name: str, timeout: float) -> None:
        import psycopg

        super().__init__(parts, name, timeout)
        self._psycopg = psycopg
        # Quoted, so that a name may be a word of SQL. It has no quotes, see `check_table`.
        self.table = f'"{name}"'
        url = re.sub("^postgres(ql)?(\\+[a-z]+)?:", "postgresql:", parts.geturl())
        # Whole seconds, at least 2, as in libpq.
        connect_timeout = max(2, round(timeout))
        with self._client_errors():
            self._connection = psycopg.connect(
                url, autocommit=True, connect_timeout=connect_timeout, application_name="dupmae-ir"
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
        if fields is None:
            # Also refuses another program's table of this name.
            return self.read_record(), changes
        return self.record_of(fields), changes

    def _stored_state(self) -> tuple[Mapping[str, object] | None, int]:
        """The fields of the load record and the count of changes, from one statement and so of one moment."""
        # 'A': enabled always. A trigger that is enabled otherwise does not count in sessions that replicate.
        trigger = "tgrelid = to_regclass(%s) AND tgname = 'dupmae_ir_changes' AND tgenabled = 'A'"
        changes = (
            f"CASE WHEN EXISTS (SELECT FROM pg_trigger WHERE {trigger}) "
            f"THEN changes ELSE {UNKNOWN} END"
        )
        try:
            cursor = self._execute(
                f"SELECT record, {changes} FROM {RECORDS} WHERE name = %s", self.table, self.name
            )
        except self._psycopg.errors.UndefinedTable:
            return None, UNKNOWN
        row = cursor.fetchone()
        if row is None:
            return None, UNKNOWN
        return cast("tuple[Mapping[str, object], int]", row)

    def write_record(self, record: Record) -> None:
        with self.errors():
            # The column `changes` is left as it is: only the trigger may write it.
            self._execute(
                f"INSERT INTO {RECORDS} VALUES (%s, %s) "
                "ON CONFLICT (name) DO UPDATE SET record = EXCLUDED.record",
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
        # Ids compare by bytes, which is the order of code points, and without the cost of a language's collation.
        columns = ['docid text COLLATE "C" PRIMARY KEY', "fingerprint bytea NOT NULL"]
        # MAIN: the column is stored out of line only as a last resort, after texts and metadata.
        if spec.dim:
            columns.append(f"cls vector({spec.dim}) STORAGE MAIN")
        if spec.terms:
            columns.append(f"ot sparsevec({spec.terms}) STORAGE MAIN")
        columns += ["title text", "text text", "metadata jsonb"]
        table_body = f"({', '.join(columns)}) WITH (toast_tuple_target = {_MAX_INLINE_BYTES})"
        record_columns = (
            "name text PRIMARY KEY, record jsonb NOT NULL, changes bigint NOT NULL DEFAULT 0"
        )
        with self.errors(), self._connection.transaction():
            execute = self._execute
            # All tables share the extension, the record table and the function. IF NOT EXISTS does not suffice:
            # of two loads that start together, the second can fail because the first has just made the object.
            execute("SELECT pg_advisory_xact_lock(hashtextextended('dupmae-ir', 0))")
            execute("CREATE EXTENSION IF NOT EXISTS vector")
            execute(f"CREATE TABLE IF NOT EXISTS {RECORDS} ({record_columns})")
            execute(f"CREATE TABLE IF NOT EXISTS {self.table} {table_body}")
            if self._one("SELECT to_regprocedure('dupmae_ir_count_change()') IS NULL")[0]:
                # The function's search path lacks the schema of the records, so it names the schema.
                (schema,) = self._one("SELECT quote_ident(current_schema())")
                execute(_COUNTER.format(records=f"{schema}.{RECORDS}"))
            execute(_TRIGGER.format(table=self.table))
            # Also counts what replication and sessions with session_replication_role = replica change.
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
                # Only the request is in the block: the timeout must not run while the consumer works.
                with self.errors():
                    page = cursor.fetchmany(_ROWS_PER_FETCH)
                if not page:
                    return
                for docid, fingerprint in page:
                    yield str(docid), bytes(fingerprint)

    def read(self, docids: Sequence[str], fields: Sequence[str]) -> list[Row]:
        """See :class:`ServerTable`; in PostgreSQL's binary format, whose numbers are big-endian."""
        columns = ", ".join(("docid", *fields))
        statement = f"SELECT {columns} FROM {self.table} WHERE docid = ANY(%s)"
        dict_row = self._psycopg.rows.dict_row
        with self.errors(), self._connection.cursor(binary=True, row_factory=dict_row) as cursor:
            rows = cursor.execute(statement.encode(), [list(docids)]).fetchall()
        stored = []
        for row in rows:
            vector = None
            if "cls" in row:
                # pgvector's header has four bytes: the width and a number that is not used.
                vector = np.frombuffer(row["cls"], ">f4", offset=4)
            ids, impacts = _impacts(row.get("ot"))
            stored.append(Row.of(row, vector, ids, impacts))
        return stored

    def upsert(self, rows: Sequence[Row]) -> None:
        """Copy the rows into a temporary table and merge that, in one transaction.

        COPY is the fastest way into PostgreSQL, but it cannot replace rows.
        """
        # Read before the copy, during which the connection answers nothing else.
        terms = self.vocabulary
        absent = set()
        if rows[0].cls is None:
            absent.add("cls")
        if not terms:
            absent.add("ot")
        columns = [name for name in _COLUMNS if name not in absent]
        listed = ", ".join(columns)
        # All but the id, by which rows are matched.
        updates = ", ".join(f"{name} = EXCLUDED.{name}" for name in columns[1:])
        with self.errors(), self._connection.transaction():
            # Of this transaction alone: the trigger does not count what a load writes.
            self._execute("SET LOCAL dupmae_ir.loading = 'on'")
            self._execute(f"CREATE TEMP TABLE incoming (LIKE {self.table}) ON COMMIT DROP")
            statement = f"COPY incoming ({listed}) FROM STDIN"
            with self._connection.cursor().copy(statement.encode()) as copy:
                for values in _values(rows, terms):
                    copy.write_row(values)
            self._execute(
                f"INSERT INTO {self.table} ({listed}) SELECT {listed} FROM incoming "
                f"ON CONFLICT (docid) DO UPDATE SET {updates}"
            )

    def storable(self, document: StoredDocument) -> StoredDocument:
        # jsonb refuses the NUL character, which json.dumps escapes.
        metadata = json.dumps(document.metadata).replace("\\u0000", "\\ufffd")
        return document._replace(
            title=_text(document.title), text=_text(document.text), metadata=json.loads(metadata)
        )

    def delete(self, docids: Sequence[str]) -> None:
        with self.errors(), self._connection.transaction():
            self._execute("SET LOCAL dupmae_ir.loading = 'on'")
            self._execute(f"DELETE FROM {self.table} WHERE docid = ANY(%s)", list(docids))

    def finish(self, approximate: bool) -> None:
        """Analyse the table; with ``approximate``, build HNSW indexes of both columns."""
        record = self.read_record()
        if approximate and record is not None:
            # Without a timeout: the server answers only when the graph is complete.
            with self.errors(forever=True):
                for column, operators in (("cls", "vector_ip_ops"), ("ot", "sparsevec_ip_ops")):
                    if column in record.spec.parts:
                        self._index(column, operators)
        # The planner's statistics: autovacuum would collect them only some time after the load.
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
        condition = _where(where)
        score = _score(part, query, self.vocabulary)
        # Added to 0, the expression is not the one of an index, which would make the list approximate.
        order = "score" if approximate else "score + 0"
        # <#> is the negative inner product, so the best rows come first, and rows with a common term are below 0.
        common = "score < 0" if part == "impact" else "true"
        scored = f"SELECT docid, {score.sql} AS score FROM {self.table} WHERE {condition.sql}"
        statement = (
            f"SELECT docid, score FROM ({scored}) AS scored "
            f"WHERE {common} ORDER BY {order} LIMIT {int(depth)}"
        )
        with self.errors(), self._connection.transaction():
            if approximate:
                # 40 is pgvector's default, 1000 its maximum. A longer list is filled by further scans.
                self._execute(f"SET LOCAL hnsw.ef_search = {min(1000, max(40, depth))}")
                self._execute("SET LOCAL hnsw.iterative_scan = strict_order")
            rows = self._execute(statement, *score.values, *condition.values).fetchall()
        docids = [str(docid) for docid, _ in rows]
        scores = -np.array([score for _, score in rows], np.float64)
        return ServerHits(docids, scores)

    def _index(self, column: str, operators: str) -> None:
        name = f'"{self.name}_{column}_hnsw"'
        try:
            self._execute(
                f"CREATE INDEX IF NOT EXISTS {name} ON {self.table} USING hnsw ({column} {operators})"
            )
        except (self._psycopg.errors.ProgramLimitExceeded, self._psycopg.errors.DataException) as e:
            # Without an index, lists of the impact part are exact and slower. Without one of the vectors, nothing of
            # what was requested would be built.
            if column == "cls":
                raise
            say(f"note: impacts are searched without an index: {first_line(e)}")

    def _execute(self, statement: str, *values: object) -> psycopg.Cursor[tuple[object, ...]]:
        return self._connection.execute(statement.encode(), values or None)

    def _one(self, statement: str, *values: object) -> tuple[object, ...]:
        row = self._execute(statement, *values).fetchone()
        assert row is not None
        return row

    @contextmanager
    def errors(self, forever: bool = False) -> Iterator[None]:
        """Within the block, the connection is this thread's, and is cut when the server does not answer in time.

        A timer of this process, because the server's own statement_timeout does not help when the network or the
        server is what stalls. ``forever``: wait without a limit.
        """
        # The lock comes first, so that the time that a thread waits for its turn does not count.
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
        """Shut the connection's socket down, which wakes the thread that waits for an answer with an error."""
        late.set()
        with suppress(OSError, self._psycopg.Error):
            # A duplicate, because closing the socket object must not close the descriptor, which libpq does.
            descriptor = os.dup(self._connection.fileno())
            with socket.socket(fileno=descriptor) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _client_errors(self, late: threading.Event | None = None) -> Iterator[None]:
        """Within the block, errors of the client have one line. ``late``: set when the connection was cut."""
        psycopg = self._psycopg
        try:
            yield
        except psycopg.errors.ConnectionTimeout:
            raise ServerFailed(
                f"{self.where}: no answer within {self.timeout:g} s; is the server up?"
            ) from None
        except psycopg.errors.UndefinedFile:
            # CREATE EXTENSION found no control file.
            raise EnvironmentProblem(
                f"{self.where}: the server has no pgvector; install its package postgresql-NN-pgvector"
            ) from None
        except psycopg.Error as e:
            # A connection that was cut fails like a broken network; the reason is the time.
            if late is not None and late.is_set():
                raise self.unanswered() from None
            raise ServerFailed(f"{self.where}: {first_line(e)}") from None


class Sql(NamedTuple):
    """An SQL expression and the values of its placeholders. Conditions are never null."""

    sql: str
    values: list[object]


def _where(where: Where | None) -> Sql:
    """The condition of a WHERE clause."""
    if where is None:
        return Sql("true", [])
    if isinstance(where, tuple):
        return Sql("docid = ANY(%s)", [list(where)])
    return condition_sql(where)


def _score(part: str, query: ServerQuery, terms: int) -> Sql:
    """The negative score of a row, in a table whose vocabulary has ``terms`` terms."""
    dense = Sql("(cls <#> %s::vector)", [_dense(query.cls)])
    impact = Sql("(ot <#> %s::sparsevec)", [_sparse(query.ids, query.impacts, terms)])
    if part == "dense":
        return dense
    if part == "impact":
        return impact
    # pgvector accumulates an inner product in float32 and returns float8, so the weighted sum is in float64.
    return Sql(
        f"%s::float8 * {dense.sql} + %s::float8 * {impact.sql}",
        [query.dense_weight, *dense.values, query.impact_weight, *impact.values],
    )


def _dense(vector: np.ndarray) -> str:
    """A vector as pgvector reads it."""
    # A float32 number as the shortest float64 text, from which pgvector reads the same float32 number.
    return "[" + ",".join(map(repr, vector.tolist())) + "]"


def _sparse(ids: np.ndarray, impacts: np.ndarray, terms: int) -> str:
    """Impacts as pgvector reads them; its numbers of elements start at 1."""
    pairs = zip(ids.tolist(), impacts.tolist(), strict=True)
    elements = ",".join(f"{term + 1}:{impact}" for term, impact in pairs)
    return f"{{{elements}}}/{terms}"


def _impacts(stored: bytes | None) -> tuple[np.ndarray, np.ndarray]:
    """Ids and impacts of a ``sparsevec`` in binary format.

    It is the width, the number of elements and 0, then the indices of all elements, from 0, then their values.
    """
    if stored is None:
        return np.zeros(0, np.int32), np.zeros(0, np.float32)
    elements = np.frombuffer(stored, ">i4")[3:]
    count = len(elements) // 2
    return elements[:count], elements[count:].view(">f4")


def _values(rows: Sequence[Row], terms: int) -> Iterator[list[object]]:
    """The values of each row, in the order of :data:`_COLUMNS`."""
    for row in rows:
        values: list[object] = [row.docid, row.fingerprint]
        if row.cls is not None:
            values.append(_dense(row.cls))
        if terms:
            values.append(_sparse(*row.impacts, terms))
        document = row.document
        values += [document.title, document.text, json.dumps(document.metadata)]
        yield values


def _text(text: str) -> str:
    """``text`` without what PostgreSQL refuses: NUL and half surrogate pairs."""
    return usable(text).replace("\0", "\ufffd")


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
        for text in (node.name, *node.values):
            if isinstance(text, str) and "\0" in text:
                raise Untranslatable("PostgreSQL has no NUL character")
        return super().condition(node)

    def present(self, name: str) -> Sql:
        # The function behind the operator `?`.
        return Sql("jsonb_exists(metadata, %s)", [name])

    def tests(self, node: Condition) -> Sql:
        if node.operation in ("like", "under"):
            return super().tests(node)
        if node.operation != "contains":
            return _path(node.name, node.operation, node.values)
        (part,) = node.values
        element = self.test(node.name, "=", part)
        in_list = f"jsonb_typeof(metadata -> %s) = 'array' AND {element.sql}"
        values = [node.name, *element.values]
        # Without a value of this name, jsonb_typeof is null; a condition must be false then, so that NOT is true.
        if not isinstance(part, str):
            return Sql(f"coalesce({in_list}, false)", values)
        in_string = "jsonb_typeof(metadata -> %s) = 'string' AND strpos(metadata ->> %s, %s) > 0"
        values += [node.name, node.name, part]
        return Sql(f"coalesce(({in_list}) OR ({in_string}), false)", values)

    def test(self, name: str, operation: str, value: MetadataScalar) -> Sql:
        return _path(name, operation, [value])

    def negate(self, expression: Sql) -> Sql:
        return Sql(f"NOT ({expression.sql})", expression.values)

    def join(self, expressions: Sequence[Sql], every: bool) -> Sql:
        word = " AND " if every else " OR "
        joined = word.join(f"({expression.sql})" for expression in expressions)
        values: list[object] = []
        for expression in expressions:
            values += expression.values
        return Sql(joined, values)


def _path(name: str, operation: str, values: Sequence[MetadataScalar]) -> Sql:
    """Whether a scalar, or an element of a list, compares with one of the values."""
    sign = operation if operation[0] in "<>" else "=="
    # The values are variables of the path, so that nothing of a user's is part of it except the quoted name.
    variables = {f"v{number}": value for number, value in enumerate(values)}
    tests = " || ".join(f"@ {sign} ${variable}" for variable in variables)
    path = f"$.{json.dumps(name)}[*] ? ({tests})"
    # `true`: an error while the path is evaluated is no match.
    sql = "jsonb_path_exists(metadata, %s::jsonpath, %s::jsonb, true)"
    return Sql(sql, [path, json.dumps(variables)])
