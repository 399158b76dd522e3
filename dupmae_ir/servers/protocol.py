"""What a server must do, the values that cross the boundary to it, and the URLs that select one."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar, cast
from urllib.parse import SplitResult, urlsplit

import numpy as np

from dupmae_ir.console import one_line
from dupmae_ir.device import need_packages
from dupmae_ir.errors import DupmaeError, IndexMismatch, UsageError
from dupmae_ir.index.conditions import TEXT_OPERATIONS, Condition, Joined, Node, Not
from dupmae_ir.index.format.texts import StoredDocument
from dupmae_ir.index.index import Index
from dupmae_ir.io.transfer import has_credentials
from dupmae_ir.registry import suggest
from dupmae_ir.types import Metadata, MetadataScalar

LOADING = "loading"
COMPLETE = "complete"
FORMAT = 2
"""Layout of rows and records. 2: a fingerprint has two digests, and the record has the digest of all fingerprints."""
TEXTS = ("title", "text", "metadata")
"""The fields of a document."""
FINGERPRINT = "fingerprint"
"""The field of a row's fingerprint."""
_DIGEST_BYTES = 16
"""Bytes of each of the two digests of a fingerprint."""
UNKNOWN = -1
"""A number of changes that cannot be relied on."""
RECORDS = "dupmae_ir_collections"
"""The table of the load records, in every server."""
Expression = TypeVar("Expression")


class ServerFailed(DupmaeError):
    """A server that cannot be reached, does not answer in time, or refuses a request."""


class Untranslatable(UsageError):
    """A condition that a server's filters cannot express with the same meaning."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"`filter`: the server has no filter with the same meaning ({what}); search with the index"
        )


@dataclass(frozen=True)
class Spec:
    """What all rows of a table have in common. Rows of another spec are refused.

    ``model``: digest of the encoder. ``dim``: width of the [CLS] vectors, 0 without. ``terms``: size of the
    vocabulary, 0 without impacts. ``scale``: the impact scale.
    """

    model: str
    dim: int
    terms: int
    scale: float
    format: int = FORMAT

    @classmethod
    def of(cls, index: Index) -> Self:
        """What the rows of an index have in common."""
        encoder = index.meta.get("encoder") or {}
        return cls(
            model=str(encoder.get("digest", "")),
            dim=index.dim or 0,
            terms=index.vocabulary,
            scale=float(index.scale or 1.0),
        )

    def check_index(self, index: Index, table: str) -> None:
        """Raise :class:`IndexMismatch`, with both values, unless rows of an index can be in the table of this spec."""
        index_spec = type(self).of(index)
        for field in dataclasses.fields(self):
            in_table = getattr(self, field.name)
            in_index = getattr(index_spec, field.name)
            if in_table == in_index:
                continue
            if field.name == "model":
                # Digests, of which the beginning is enough to tell them apart.
                in_table = str(in_table)[:12]
                in_index = str(in_index)[:12]
            raise IndexMismatch(
                f"table {table} holds rows with {field.name} {in_table}, but {index.path} has {in_index}; "
                "load it into another `table`, or drop this one with dupmae-ir servers drop"
            )

    @property
    def parts(self) -> tuple[str, ...]:
        """``cls`` and ``ot``, as far as rows have them."""
        parts = []
        if self.dim:
            parts.append("cls")
        if self.terms:
            parts.append("ot")
        return tuple(parts)


@dataclass(frozen=True)
class Record:
    """What a table holds: one generation of one index, complete or while it is loaded.

    ``digest``: of the index. ``longest``: the largest norm of a vector, for bounds on rounding. ``written``: rows
    written by the load so far. ``changes``: :meth:`ServerTable.changes` at the end of the load. ``loaded``: when that
    was, ISO 8601. ``rows_digest``: :func:`digest_of_rows` of all rows.
    """

    spec: Spec
    state: str
    digest: str
    documents: int
    longest: float = 0.0
    written: int = 0
    changes: int | None = None
    loaded: str = ""
    rows_digest: str = ""

    def as_dict(self) -> dict[str, object]:
        """JSON-able fields."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, fields: Mapping[str, object], where: str) -> Self:
        """The record with these fields. Raises :class:`IndexMismatch` for anything else."""
        again = (
            "load the index into another `table`, or remove this one with dupmae-ir servers drop"
        )
        spec = fields.get("spec")
        layout = spec.get("format") if isinstance(spec, Mapping) else None
        if layout != FORMAT:
            raise IndexMismatch(
                f"{where}: its rows have layout {layout}, and this version reads layout {FORMAT}; {again}"
            )
        if not _has_types(cls, fields) or not _has_types(Spec, cast(Mapping[str, object], spec)):
            raise IndexMismatch(f"{where}: its load record was edited or damaged; {again}")
        return cls(**{**fields, "spec": Spec(**cast(dict[str, Any], spec))})  # type: ignore[arg-type]


_RECORD_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "int | None": (int, type(None)),
    "Spec": (Mapping,),
}
"""The annotation of a field -> the types that its stored value may have."""


def _has_types(record: type[Record] | type[Spec], fields: Mapping[str, object]) -> bool:
    """Whether these are all fields of a record, with values of their types; numbers must be finite."""
    annotations = {field.name: str(field.type) for field in dataclasses.fields(record)}
    if set(fields) != set(annotations):
        return False
    for name, value in fields.items():
        # A bool is an int to Python, and no field is a truth value.
        if isinstance(value, bool) or not isinstance(value, _RECORD_TYPES[annotations[name]]):
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return False
    return True


class Row(NamedTuple):
    """A document in a table. ``cls``: (d,) float32; ``impacts``: vocabulary ids and impacts; ``document``: empty
    without texts."""

    docid: str
    cls: np.ndarray | None
    impacts: tuple[np.ndarray, np.ndarray]
    document: StoredDocument
    fingerprint: bytes = (
        b""  #: :func:`fingerprint_of` the row that was loaded; empty if it is not known
    )

    @classmethod
    def of(
        cls, values: Mapping[str, Any], vector: Any = None, ids: Any = (), impacts: Any = ()
    ) -> Self:
        """A row that was read, from its values by field and from numbers in any form."""
        docid = values["docid"]
        if vector is not None:
            vector = np.asarray(vector, np.float32)
        # Servers store impacts as floats; they are integers up to 255, so the conversion is exact.
        integers = (np.asarray(ids, np.int64), np.asarray(impacts, np.int64))
        # Fields that were not requested, or are null, are empty.
        document = StoredDocument(
            docid, values.get("title") or "", values.get("text") or "", values.get("metadata") or {}
        )
        return cls(docid, vector, integers, document, stored_fingerprint(values.get(FINGERPRINT)))


def stored_fingerprint(value: object) -> bytes:
    """A fingerprint as a server returns it, in bytes or hexadecimal digits; empty if it is not one."""
    if isinstance(value, bytes):
        return value
    try:
        return bytes.fromhex(str(value))
    except ValueError:
        return b""


def fingerprint_of(row: Row) -> bytes:
    """Two digests of 16 bytes: of id, vector and impacts, and of id, title, text and metadata.

    Computed from a row that was loaded and from the one that the server returns, so values are brought into one form
    first. It detects changes by programs that do not know it, and not a forger who computes it anew.
    """
    numbers = hashlib.blake2b(row.docid.encode(), digest_size=_DIGEST_BYTES)
    # Fixed types and byte order: the server may have been loaded from another machine.
    if row.cls is not None:
        # Adding 0 turns -0, whose sign a server may drop, into 0.
        numbers.update((row.cls.astype("<f4") + np.float32(0)).tobytes())
    terms, impacts = row.impacts
    # Servers may return terms in another order.
    order = np.argsort(terms, kind="stable")
    numbers.update(np.asarray(terms)[order].astype("<i8").tobytes())
    numbers.update(np.asarray(impacts)[order].astype("<i8").tobytes())
    document = row.document._replace(docid=row.docid, metadata=_in_one_form(row.document.metadata))
    contents = json.dumps(document, sort_keys=True).encode()
    return numbers.digest() + hashlib.blake2b(contents, digest_size=_DIGEST_BYTES).digest()


def _in_one_form(metadata: Metadata) -> dict[str, Any]:
    """Metadata with numbers as text: PostgreSQL returns 1e16 as an integer."""
    values: dict[str, Any] = {}
    for name, value in metadata.items():
        if isinstance(value, str | bool):
            values[name] = value
        elif isinstance(value, int | float):
            # Adding 0 turns -0, which PostgreSQL has not, into 0.
            values[name] = ["number", repr(float(value) + 0.0)]
        else:
            values[name] = ["list", _in_one_form({str(n): item for n, item in enumerate(value)})]
    return values


def is_as_loaded(row: Row, fields: Iterable[str]) -> bool:
    """Whether the values of a row that was read are those that were loaded: ``cls`` and ``ot``, and the document too
    if ``fields`` has :data:`TEXTS`."""
    length = 2 * _DIGEST_BYTES if "text" in fields else _DIGEST_BYTES
    complete = len(row.fingerprint) == 2 * _DIGEST_BYTES
    return complete and fingerprint_of(row)[:length] == row.fingerprint[:length]


def digest_of_rows(fingerprints: Iterable[bytes]) -> str:
    """The sha256 of all fingerprints, in any order."""
    return hashlib.sha256(b"".join(sorted(fingerprints))).hexdigest()


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


Where = Node | tuple[str, ...]
"""Documents to which a search is restricted: those that satisfy a condition, or those with some ids."""


class ConditionWriter(ABC, Generic[Expression]):
    """Writes conditions on metadata as expressions of a server that select the same documents.

    Methods raise :class:`Untranslatable` for what the server cannot express.
    """

    def write(self, node: Node) -> Expression:
        """The expression of a condition."""
        if isinstance(node, Not):
            return self.negate(self.write(node.node))
        if isinstance(node, Joined):
            return self.join([self.write(member) for member in node.nodes], node.every)
        return self.condition(node)

    def condition(self, node: Condition) -> Expression:
        """One condition. An inverted one holds for documents that have a value but fail the tests."""
        present = self.present(node.name)
        if node.operation == "missing":
            return present if node.inverted else self.negate(present)
        tests = self.tests(node)
        if node.inverted:
            return self.join([present, self.negate(tests)], every=True)
        return tests

    def tests(self, node: Condition) -> Expression:
        """Whether a value of the document passes the test with one of the values of the condition."""
        if node.operation in TEXT_OPERATIONS:
            raise Untranslatable("parts of strings")
        tests = [self.test(node.name, node.operation, value) for value in node.values]
        return self.join(tests, every=False)

    @abstractmethod
    def present(self, name: str) -> Expression:
        """Whether a document has a value."""

    @abstractmethod
    def test(self, name: str, operation: str, value: MetadataScalar) -> Expression:
        """Whether a document's value, or an element of it, is equal to ``value``, or in the order of ``operation``."""

    @abstractmethod
    def negate(self, expression: Expression) -> Expression:
        """Whether the expression does not hold."""

    @abstractmethod
    def join(self, expressions: Sequence[Expression], every: bool) -> Expression:
        """Whether every expression holds, or any."""


class ServerTable(ABC):
    """One table in a server. Safe for several threads where the client is; errors are one line.

    ``kind``: the server. ``noun``: what it calls a table. ``sums``: whether it ranks by the exact sum of both parts.
    ``rounding``: units in the last place (2**-24) by which its inner products may differ from exact ones, in addition
    to one for each term. ``max_rows``: the longest list that it returns; 0 for no limit.
    """

    kind: str
    noun = "collection"
    sums = False
    rounding = 8.0
    max_rows = 0
    #: terms of a document that the approximate index takes at most; 0 = no limit
    max_indexed_terms = 0

    def __init__(self, parts: SplitResult, name: str, timeout: float) -> None:
        self.name = name
        self.where = shown(parts)
        self.timeout = timeout

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Within the block, errors of the client are raised as :class:`ServerFailed`."""
        yield

    def unanswered(self, cause: str = "") -> ServerFailed:
        """The error of a request that was not answered: its cause, or that none came in time."""
        reason = cause or f"no answer within {self.timeout:g} s"
        return ServerFailed(f"{self.where}: {reason}; raise `timeout`, or check server and network")

    def read_record(self) -> Record | None:
        """The load record; None if the table does not exist. Another program's table of this name is refused."""
        fields = self.stored_record()
        if fields is None:
            return None
        return self.record_of(fields)

    def stored_record(self) -> Mapping[str, object] | None:
        """The fields of the load record, of any version; None if the table does not exist.

        Raises :class:`UsageError` for another program's table of this name.
        """
        with self.errors():
            fields = self.record_fields()
            if fields is None and self.exists(self.name):
                raise UsageError(
                    f"{self.where}: the {self.noun} {self.name} was not made by dupmae-ir; choose another `table`"
                )
        return fields

    def foreign_row(self, what: str) -> ServerFailed:
        """The error of a row that no load wrote and that a load cannot replace."""
        return ServerFailed(
            f"{self.where}: the {self.noun} {self.name} has a row that dupmae-ir did not write: {what}; delete it, "
            "or run dupmae-ir servers drop and load the index again"
        )

    def storable(self, document: StoredDocument) -> StoredDocument:
        """The document as this server can store it. Fingerprints are computed from that."""
        return document

    def record_of(self, fields: Mapping[str, object]) -> Record:
        """The load record with these stored fields."""
        return Record.of(fields, f"{self.where}, {self.name}")

    def state(self) -> tuple[Record | None, int | None]:
        """The load record, and :meth:`changes`; in one request if the server can."""
        return self.read_record(), self.changes()

    @abstractmethod
    def record_fields(self) -> Mapping[str, object] | None:
        """The fields of the load record as they are stored; None without one."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether the server has a table of this name."""

    @abstractmethod
    def write_record(self, record: Record) -> None:
        """Replace the load record."""

    def lock(self) -> None:  # noqa: B027  (not every server has locks)
        """Refuse other loads of this table until :meth:`close`, if the server has locks.

        Without locks, two loads of one index at the same time write the same rows.
        """

    def create(self, spec: Spec) -> None:
        """Make the table if it does not exist. The record comes first, so that a killed load is continued."""
        self.write_record(Record(spec, LOADING, "", 0))
        with self.errors():
            if not self.exists(self.name):
                self.create_table(spec)

    def create_table(self, spec: Spec) -> None:
        """Make the table, which does not exist."""
        raise NotImplementedError

    @abstractmethod
    def stored(self) -> Iterator[tuple[str, bytes]]:
        """The id and the fingerprint of each stored row; :func:`stored_fingerprint` of what the server has."""

    @abstractmethod
    def read(self, docids: Sequence[str], fields: Sequence[str]) -> list[Row]:
        """The rows of some documents, in any order: ``fields`` of ``cls``, ``ot``, :data:`TEXTS` and
        :data:`FINGERPRINT`.

        Numbers are the stored ones, to the last bit.
        """

    @abstractmethod
    def upsert(self, rows: Sequence[Row]) -> None:
        """Store rows, replacing those with the same ids; durable when it returns."""

    @abstractmethod
    def delete(self, docids: Sequence[str]) -> None:
        """Delete rows by id; unknown ids are ignored."""

    def changes(self) -> int | None:
        """A number that the server raises in the transaction of every change of the rows by anything but a load.

        None: it keeps none. :data:`UNKNOWN`: what should count is missing.
        """
        return None

    def finish(self, approximate: bool) -> None:
        """Make written rows searchable; with ``approximate``, build the server's approximate index."""
        if approximate:
            raise UsageError(
                f"{self.kind}: `approximate` is not available; its lists compare every row"
            )

    @abstractmethod
    def drop(self) -> None:
        """Remove the table and its record."""

    @abstractmethod
    def count(self, where: Where | None = None) -> int:
        """How many rows there are, or satisfy ``where``. Raises :class:`Untranslatable`."""

    def size(self) -> int | None:
        """Bytes of the table in the server; None if it is not known."""
        return None

    @abstractmethod
    def top(
        self,
        part: str,
        queries: Sequence[ServerQuery],
        depth: int,
        where: Where | None,
        approximate: bool,
    ) -> list[ServerHits]:
        """The ``depth`` best rows of each query by ``dense``, ``impact`` or, if it :attr:`sums`, ``hybrid`` scores.

        Lists of the impact part contain only documents with a common term. Exact unless ``approximate``.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the connection."""

    @cached_property
    def vocabulary(self) -> int:
        """The size of the vocabulary."""
        record = self.read_record()
        if record is None:
            return 0
        return record.spec.terms


def first_line(error: Exception | str) -> str:
    """The first line of a message."""
    return one_line(str(error).strip().partition("\n")[0], 300) or type(error).__name__


class ServerKind(NamedTuple):
    """A server: its module, its table's class, the packages it imports, their extra, and where credentials belong."""

    module: str
    table: str
    packages: tuple[str, ...]
    extra: str
    credentials: str


_PG = ServerKind(
    "pgvector", "PgVector", ("psycopg",), "pgvector", "set PGPASSWORD or write it into ~/.pgpass"
)
SERVERS: dict[str, ServerKind] = {
    "postgresql": _PG,
    "postgres": _PG,
    "qdrant": ServerKind("qdrant", "Qdrant", ("qdrant_client",), "qdrant", "set QDRANT_API_KEY"),
    "milvus": ServerKind("milvus", "Milvus", ("pymilvus",), "milvus", "set MILVUS_TOKEN"),
}
"""Scheme -> server."""

# PostgreSQL cuts names after 63 bytes, which leaves room for the suffixes of indexes.
_TABLE = re.compile(r"[a-z][a-z0-9_]{0,47}")


def check_table(name: str) -> str:
    """The name of a table. Raises :class:`UsageError` for one that a server could refuse."""
    if not _TABLE.fullmatch(name):
        raise UsageError(
            f"`table` {name!r}: expected a lower-case letter, then at most 47 lower-case letters, digits "
            "and underscores"
        )
    return name


def parse(url: str) -> SplitResult:
    """The parts of a URL. Raises :class:`UsageError`, without its credentials, for one that cannot be used."""
    try:
        parts = urlsplit(url)
        has_secret = has_credentials(parts)
        # Reading the port checks it: urlsplit accepts any.
        _ = parts.port
    except ValueError as e:
        raise UsageError(f"the URL of the server cannot be read: {e}") from None
    scheme = parts.scheme.partition("+")[0]
    if scheme not in SERVERS:
        schemes = ", ".join(f"{name}://" for name in SERVERS)
        shown_scheme = parts.scheme or "a URL without a scheme"
        raise UsageError(
            f"no server for {shown_scheme!r}; known: {schemes}.{suggest(scheme, SERVERS)}"
        )
    if has_secret:
        raise UsageError(
            f"{scheme}: a URL must not contain a password, which other users of this machine can see; "
            f"{SERVERS[scheme].credentials}"
        )
    return parts


def shown(parts: SplitResult) -> str:
    """The URL for messages: without user and query."""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def default_table(index: str | Path) -> str:
    """A name for the table of an index folder, from the name of the folder."""
    # Absolute, because the folder may be given as `.`, which has no name.
    name = re.sub(r"[^a-z0-9]+", "_", Path(index).absolute().name.lower()).strip("_")
    if not name[:1].isalpha():
        name = f"index_{name}"
    return name[:48].rstrip("_")


def check_secret(parts: SplitResult, name: str, secure_scheme: str) -> None:
    """Raise :class:`UsageError` if credentials would cross a network without TLS."""
    host = parts.hostname
    # What is sent to this machine does not cross a network.
    is_local = host in (None, "", "localhost", "::1") or str(host).startswith("127.")
    if not parts.scheme.endswith("+https") and not is_local:
        raise UsageError(f"{name} would be sent in the clear to {host}; use {secure_scheme}://")


def open_table(url: str, name: str, timeout: float) -> ServerTable:
    """Open a table of a server. Raises :class:`UsageError` for a URL that names no server or has credentials,
    :class:`ServerFailed` for a server that does not answer within ``timeout`` seconds."""
    parts = parse(url)
    entry = SERVERS[parts.scheme.partition("+")[0]]
    need_packages(f"{parts.scheme}://", entry.packages, entry.extra)
    module = importlib.import_module(f"dupmae_ir.servers.{entry.module}")
    return cast(ServerTable, getattr(module, entry.table)(parts, check_table(name), timeout))
