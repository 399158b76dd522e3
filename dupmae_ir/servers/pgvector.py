"""PostgreSQL with pgvector: one table with a ``vector``, a ``sparsevec``, texts and metadata.

``(cls <#> q) + (ot <#> r)`` is the exact sum of Eq. 12 up to float32 rounding of the two inner products, so the server
ranks hybrid searches by itself. Exact searches order by expressions that no vector index serves, so an HNSW index that
somebody made cannot change their lists. Lists of several queries are one statement each on one connection.

Credentials are libpq's: ``PGPASSWORD``, ``~/.pgpass``, ``PGSERVICE``, ``PGSSLMODE`` and so on.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, cast
from urllib.parse import SplitResult

import numpy as np

from dupmae_ir.console import say
from dupmae_ir.errors import EnvironmentProblem, UsageError
from dupmae_ir.servers.pgvector_filters import condition_sql
from dupmae_ir.servers.protocol import Record, Rows, ServerFailed, ServerHits, ServerQuery, Spec, Where
from dupmae_ir.servers.urls import shown

if TYPE_CHECKING:
    import psycopg

_RECORDS = "dupmae_ir_collections"
_PAGE = 8160  #: bytes of a row that stay together: reading a vector out of line costs more than comparing it
_HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
_COLUMNS = ("docid", "fingerprint", "cls", "ot", "title", "text", "metadata")


def connect(parts: SplitResult, collection: str, timeout: float) -> PgVector:
    """Open a collection of a database."""
    return PgVector(parts, collection, timeout)


class PgVector:
    """A :class:`~dupmae_ir.servers.protocol.ServerTable`."""

    kind = "pgvector"
    sums = True
    rounding = 8.0
    max_rows = 0

    def __init__(self, parts: SplitResult, collection: str, timeout: float) -> None:
        import psycopg

        self._psycopg, self._where, self._timeout = psycopg, shown(parts), timeout
        self.name, self.table = collection, f'"{collection}"'
        url = re.sub("^postgres(ql)?(\\+[a-z]+)?:", "postgresql:", parts.geturl())
        with self._errors():
            wait = max(2, round(timeout))
            self._connection = psycopg.connect(url, autocommit=True, connect_timeout=wait, application_name="dupmae-ir")
        self._turn = threading.RLock()
        self._terms: int | None = None

    def read_record(self) -> Record | None:
        """See :class:`ServerTable`; a table of this name without a record is refused."""
        with self._running():
            known = self._one("SELECT to_regclass(%s) IS NOT NULL, to_regclass(%s) IS NOT NULL", _RECORDS, self.table)
            statement = f"SELECT record FROM {_RECORDS} WHERE name = %s"
            found = self._execute(statement, self.name).fetchone() if known[0] else None
        if found is None and known[1]:
            raise UsageError(
                f"{self._where}: the table {self.name} was not made by dupmae-ir; choose another `collection`"
            )
        return None if found is None else Record.of(cast(dict[str, object], found[0]), f"{self._where}, {self.name}")

    def write_record(self, record: Record) -> None:
        """See :class:`ServerTable`."""
        with self._running():
            self._execute(
                f"INSERT INTO {_RECORDS} VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET record = EXCLUDED.record",
                self.name,
                json.dumps(record.as_dict()),
            )

    def lock(self) -> None:
        """Take the advisory lock of the collection; the server releases it when the connection ends."""
        with self._running():
            (free,) = self._one("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", f"dupmae-ir {self.name}")
        if not free:
            raise UsageError(f"{self._where}: another process is loading {self.name}; wait until it has ended")

    def create(self, spec: Spec) -> None:
        """Make the extension, the record table and the collection's table, in one transaction with its record."""
        columns = ['docid text COLLATE "C" PRIMARY KEY', "fingerprint bytea NOT NULL"]
        columns += [f"cls vector({spec.dim}) STORAGE MAIN"] if spec.dim else []
        columns += [f"ot sparsevec({spec.terms}) STORAGE MAIN"] if spec.terms else []
        columns += ["title text", "text text", "metadata jsonb"]
        with self._running(), self._connection.transaction():
            execute = self._execute
            execute("CREATE EXTENSION IF NOT EXISTS vector")
            execute(f"CREATE TABLE IF NOT EXISTS {_RECORDS} (name text PRIMARY KEY, record jsonb NOT NULL)")
            body = f"({', '.join(columns)}) WITH (toast_tuple_target = {_PAGE})"
            execute(f"CREATE TABLE IF NOT EXISTS {self.table} {body}")
            empty = Record(spec, "loading", "", 0)
            execute(
                f"INSERT INTO {_RECORDS} VALUES (%s, %s) ON CONFLICT (name) DO NOTHING",
                self.name,
                json.dumps(empty.as_dict()),
            )

    def stored(self) -> Iterator[tuple[str, bytes]]:
        """See :class:`ServerTable`; streamed by a server-side cursor."""
        with self._connection.transaction(), self._connection.cursor("stored") as cursor:
            with self._running():
                cursor.execute(f"SELECT docid, fingerprint FROM {self.table}".encode())
            while True:
                with self._running():
                    found = cursor.fetchmany(20_000)
                if not found:
                    return
                yield from ((str(docid), bytes(fingerprint)) for docid, fingerprint in found)

    def upsert(self, rows: Rows) -> None:
        """Copy the rows into a temporary table and merge that, in one transaction."""
        names = _columns(rows)
        listed = ", ".join(names)
        terms = self._vocabulary()
        updates = ", ".join(f"{name} = EXCLUDED.{name}" for name in names[1:])
        with self._running(), self._connection.transaction():
            execute = self._execute
            command = f"COPY incoming ({listed}) FROM STDIN (FORMAT BINARY)"
            execute(f"CREATE TEMP TABLE incoming (LIKE {self.table}) ON COMMIT DROP")
            with self._connection.cursor().copy(command.encode()) as copy:
                copy.write(_HEADER)
                for row in _binary_rows(rows, terms):
                    copy.write(row)
                copy.write(struct.pack("!h", -1))
            execute(
                f"INSERT INTO {self.table} ({listed}) SELECT {listed} FROM incoming "
                f"ON CONFLICT (docid) DO UPDATE SET {updates}"
            )

    def delete(self, docids: Sequence[str]) -> None:
        """See :class:`ServerTable`."""
        with self._running():
            self._execute(f"DELETE FROM {self.table} WHERE docid = ANY(%s)", list(docids))

    def finish(self, approximate: bool) -> None:
        """Analyse the table; with ``approximate``, build HNSW indexes of both columns."""
        record = self.read_record()
        if approximate and record is not None:
            with self._running(forever=True):
                for column, operators in (("cls", "vector_ip_ops"), ("ot", "sparsevec_ip_ops")):
                    if column in record.spec.parts:
                        self._index(column, operators)
        with self._running():
            self._execute(f"ANALYZE {self.table}")

    def drop(self) -> None:
        """See :class:`ServerTable`."""
        with self._running(), self._connection.transaction():
            self._execute(f"DROP TABLE IF EXISTS {self.table}")
            self._execute(f"DELETE FROM {_RECORDS} WHERE name = %s", self.name)

    def count(self, where: Where | None = None) -> int:
        """See :class:`ServerTable`."""
        condition, values = _where(where)
        with self._running():
            (rows,) = self._one(f"SELECT count(*) FROM {self.table} WHERE {condition}", *values)
        return cast(int, rows)

    def size(self) -> int | None:
        """Bytes of the table, its TOAST table and its indexes."""
        with self._running():
            (size,) = self._one("SELECT pg_total_relation_size(%s::regclass)", self.table)
        return cast(int, size)

    def top(
        self, part: str, queries: Sequence[ServerQuery], depth: int, where: Where | None, approximate: bool
    ) -> list[ServerHits]:
        """See :class:`ServerTable`."""
        return [self._top(part, query, depth, where, approximate) for query in queries]

    def close(self) -> None:
        """End the connection, and with it the lock."""
        self._connection.close()

    def _top(self, part: str, query: ServerQuery, depth: int, where: Where | None, approximate: bool) -> ServerHits:
        condition, values = _where(where)
        dense, impact = "(cls <#> %s::vector)", "(ot <#> %s::sparsevec)"
        scores: dict[str, tuple[str, list[object]]] = {
            "dense": (dense, [_dense(query)]),
            "impact": (impact, [self._sparse(query)]),
            "hybrid": (
                f"%s::float8 * {dense} + %s::float8 * {impact}",
                [query.dense_weight, _dense(query), query.impact_weight, self._sparse(query)],
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
        with self._running(), self._connection.transaction():
            if approximate:
                self._execute(f"SET LOCAL hnsw.ef_search = {min(1000, max(40, depth))}")
                self._execute("SET LOCAL hnsw.iterative_scan = strict_order")
            found = self._execute(statement, *vectors, *values).fetchall()
        return ServerHits([str(row[0]) for row in found], -np.array([row[1] for row in found], np.float64))

    def _sparse(self, query: ServerQuery) -> str:
        """The impacts of a query as pgvector reads them; its numbers of elements start at 1."""
        pairs = zip(query.ids.tolist(), query.impacts.tolist(), strict=True)
        return "{" + ",".join(f"{term + 1}:{impact}" for term, impact in pairs) + f"}}/{self._vocabulary()}"

    def _vocabulary(self) -> int:
        if self._terms is None:
            record = self.read_record()
            self._terms = record.spec.terms if record else 0
        return self._terms

    def _index(self, column: str, operators: str) -> None:
        name = f'"{self.name}_{column}_hnsw"'
        try:
            self._execute(f"CREATE INDEX IF NOT EXISTS {name} ON {self.table} USING hnsw ({column} {operators})")
        except (self._psycopg.errors.ProgramLimitExceeded, self._psycopg.errors.DataException) as e:
            if column == "cls":
                raise
            say(f"note: impacts are searched without an index: {_line(e)}")

    def _execute(self, statement: str, *values: object) -> psycopg.Cursor[tuple[object, ...]]:
        return self._connection.execute(statement.encode(), values or None)

    def _one(self, statement: str, *values: object) -> tuple[object, ...]:
        found = self._execute(statement, *values).fetchone()
        assert found is not None
        return found

    @contextmanager
    def _running(self, forever: bool = False) -> Iterator[None]:
        """Within the block, the connection is this thread's, and is cut when the server does not answer in time."""
        with self._turn:
            late = threading.Event()
            timer = threading.Timer(self._timeout, self._cut, [late])
            timer.daemon = True
            if not forever:
                timer.start()
            try:
                with self._errors(late):
                    yield
            finally:
                timer.cancel()

    def _cut(self, late: threading.Event) -> None:
        late.set()
        with suppress(OSError, self._psycopg.Error), socket.socket(fileno=os.dup(self._connection.fileno())) as own:
            own.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _errors(self, late: threading.Event | None = None) -> Iterator[None]:
        """The client's errors in one line."""
        psycopg = self._psycopg
        try:
            yield
        except psycopg.errors.ConnectionTimeout:
            raise ServerFailed(f"{self._where}: no answer within {self._timeout:g} s; is the server up?") from None
        except psycopg.errors.UndefinedFile:
            raise EnvironmentProblem(
                f"{self._where}: the server has no pgvector; install its package postgresql-NN-pgvector"
            ) from None
        except psycopg.Error as e:
            if late is not None and late.is_set():
                raise ServerFailed(
                    f"{self._where}: no answer within {self._timeout:g} s; raise `timeout`, or check server and network"
                ) from None
            raise ServerFailed(f"{self._where}: {_line(e)}") from None


def _line(error: Exception) -> str:
    """The first line of a message."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _where(where: Where | None) -> tuple[str, list[object]]:
    """A WHERE clause and its values."""
    if where is None:
        return "true", []
    if where.docids is not None:
        return "docid = ANY(%s)", [list(where.docids)]
    assert where.condition is not None
    return condition_sql(where.condition)


def _dense(query: ServerQuery) -> str:
    return "[" + ",".join(map(repr, query.cls.tolist())) + "]"


def _columns(rows: Rows) -> list[str]:
    given = {"cls": rows.cls is not None, "ot": rows.impacts is not None}
    return [name for name in _COLUMNS if given.get(name, True)]


def _binary_rows(rows: Rows, terms: int) -> Iterator[bytes]:
    """Rows in the format of COPY ... (FORMAT BINARY): for each field its length and its bytes, big-endian."""
    for place, docid in enumerate(rows.docids):
        fields: list[bytes | None] = [docid.encode(), rows.fingerprints[place]]
        if rows.cls is not None:
            fields.append(struct.pack("!HH", rows.cls.shape[1], 0) + rows.cls[place].astype(">f4").tobytes())
        if rows.impacts is not None:
            ids, impacts = rows.impacts[place]
            order = np.argsort(ids)
            head = struct.pack("!iii", terms, len(ids), 0)
            fields.append(head + ids[order].astype(">i4").tobytes() + impacts[order].astype(">f4").tobytes())
        document = rows.documents[place] if rows.documents is not None else None
        if document is None:
            fields += [None, None, None]
        else:
            metadata = json.dumps(dict(document.metadata)).replace("\\u0000", "\\ufffd")
            fields += [_text(document.title), _text(document.text), b"\x01" + metadata.encode()]
        body = b"".join(struct.pack("!i", -1) if f is None else struct.pack("!i", len(f)) + f for f in fields)
        yield struct.pack("!h", len(fields)) + body


def _text(text: str) -> bytes:
    """UTF-8 without what PostgreSQL refuses: NUL and half surrogate pairs."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace")
