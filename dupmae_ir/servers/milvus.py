"""Milvus: one collection with a dense field ``cls``, a sparse field ``ot``, texts and metadata.

Both fields have exact indexes (``FLAT`` and ``SPARSE_INVERTED_INDEX``); their lists are certified and summed by
:mod:`dupmae_ir.search.candidates.server`. Milvus lists at most 16,384 rows.

``milvus://host:19530`` and ``milvus+https://host`` are servers, ``milvus:///file.db`` is milvus-lite. The token of a
server is read from ``MILVUS_TOKEN``.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, unquote

import numpy as np

from dupmae_ir.device import need_packages
from dupmae_ir.errors import UsageError
from dupmae_ir.index.conditions import Condition, Node
from dupmae_ir.index.format.texts import StoredDocument
from dupmae_ir.io.publishing import bytes_of
from dupmae_ir.servers.protocol import (
    FINGERPRINT,
    RECORDS,
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
    check_secret,
    first_line,
    stored_fingerprint,
)
from dupmae_ir.types import MetadataScalar

if TYPE_CHECKING:
    from pymilvus import MilvusClient

_ROWS_PER_PAGE = 1000
_MAX_ID_BYTES = 512
_MAX_TEXT_BYTES = 65_535
"""Milvus's limit on the bytes of a string field; longer texts are cut."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names that can be written between quotes in a key without escapes."""
_TEXT = re.compile(r"[^\x00-\x1f\"\\]*")
"""Strings that can be written between quotes without escapes."""
_ORDER = ("<", "<=", ">", ">=")


class Milvus(ServerTable):
    """A collection of Milvus. Both of its lists are always exact."""

    kind = "milvus"
    max_rows = 16_384

    def __init__(self, parts: SplitResult, name: str, timeout: float) -> None:
        super().__init__(parts, name, timeout)
        self._file = Path(unquote(parts.path)) if not parts.netloc else None
        _silence()
        with self.errors():
            self._client = _client(parts, self._file, timeout)
            # A released collection cannot be searched, and milvus-lite releases all of them when its process ends.
            for collection in (RECORDS, name):
                if self.exists(collection):
                    self._client.load_collection(collection, timeout=timeout)

    def exists(self, name: str) -> bool:
        return bool(self._client.has_collection(name, timeout=self.timeout))

    def record_fields(self) -> Mapping[str, object] | None:
        if not self.exists(RECORDS):
            return None
        rows = self._query(RECORDS, f"name == {json.dumps(self.name)}", "record")
        if not rows:
            return None
        return cast(Mapping[str, object], rows[0]["record"])

    def write_record(self, record: Record) -> None:
        with self.errors():
            if not self.exists(RECORDS):
                # Milvus refuses a collection without a vector field, so records get one that nothing reads.
                self._create(RECORDS, {"name": _MAX_ID_BYTES}, {"plain": 2}, False, "record")
            row = {"name": self.name, "plain": [1.0, 0.0], "record": record.as_dict()}
            self._client.upsert(RECORDS, [row], timeout=self.timeout)

    def create_table(self, spec: Spec) -> None:
        strings = {
            "docid": _MAX_ID_BYTES,
            # 32 bytes in hexadecimal digits: Milvus has no field for bytes.
            FINGERPRINT: 64,
            "title": _MAX_TEXT_BYTES,
            "text": _MAX_TEXT_BYTES,
        }
        dense = {}
        if spec.dim:
            dense["cls"] = spec.dim
        self._create(self.name, strings, dense, bool(spec.terms), "metadata")

    def stored(self) -> Iterator[tuple[str, bytes]]:
        # An iterator, because one query returns at most `max_rows` rows.
        with self.errors():
            pages = self._client.query_iterator(
                self.name,
                batch_size=_ROWS_PER_PAGE,
                output_fields=["docid", FINGERPRINT],
                timeout=self.timeout,
            )
        while True:
            # Only the request is in the block: errors of whoever consumes the rows are not the server's.
            with self.errors():
                page = pages.next()
            if not page:
                pages.close()
                return
            for row in page:
                yield str(row["docid"]), stored_fingerprint(row[FINGERPRINT])

    def read(self, docids: Sequence[str], fields: Sequence[str]) -> list[Row]:
        terms = self.vocabulary
        with self.errors():
            rows = self._query(self.name, _expression(tuple(docids)), "docid", *fields)
        stored = []
        for row in rows:
            ot: dict[int, float] = row.get("ot", {})
            # The term of a document without terms, see `_fields`.
            impacts = {term: impact for term, impact in ot.items() if term < terms}
            stored.append(Row.of(row, row.get("cls"), list(impacts), list(impacts.values())))
        return stored

    def storable(self, document: StoredDocument) -> StoredDocument:
        return document._replace(title=_cut(document.title), text=_cut(document.text))

    def upsert(self, rows: Sequence[Row]) -> None:
        terms = self.vocabulary
        with self.errors():
            entities = [_fields(row, terms) for row in rows]
            self._client.upsert(self.name, entities, timeout=self.timeout)

    def delete(self, docids: Sequence[str]) -> None:
        with self.errors():
            self._client.delete(self.name, ids=list(docids), timeout=self.timeout)

    def drop(self) -> None:
        with self.errors():
            # The record last: a table without one would be taken for another program's.
            self._client.drop_collection(self.name, timeout=self.timeout)
            self._client.delete(RECORDS, ids=[self.name], timeout=self.timeout)

    def count(self, where: Where | None = None) -> int:
        expression = _expression(where)
        with self.errors():
            rows = self._query(self.name, expression, "count(*)")
        return int(str(rows[0]["count(*)"]))

    def size(self) -> int | None:
        """Bytes of a milvus-lite file or folder; None for a server, whose client has no request for it."""
        if self._file is None:
            return None
        return bytes_of(self._file)

    def top(
        self,
        part: str,
        queries: Sequence[ServerQuery],
        depth: int,
        where: Where | None,
        approximate: bool,
    ) -> list[ServerHits]:
        # All indexes of the table are exact.
        del approximate
        vectors: list[Any]
        if part == "dense":
            field = "cls"
            vectors = [query.cls for query in queries]
        else:
            field = "ot"
            vectors = [_sparse(query.ids, query.impacts) for query in queries]
        with self.errors():
            answers = self._client.search(
                self.name,
                data=vectors,
                filter=_expression(where),
                limit=min(depth, self.max_rows),
                output_fields=["docid"],
                search_params={"metric_type": "IP"},
                anns_field=field,
                timeout=self.timeout,
            )
        lists = []
        for hits in answers:
            docids = [str(hit["docid"]) for hit in hits]
            # With the metric IP, what the client calls a distance is the inner product.
            scores = np.array([hit["distance"] for hit in hits], np.float64)
            lists.append(ServerHits(docids, scores))
        return lists

    def close(self) -> None:
        with self.errors():
            self._client.close()

    def _query(self, collection: str, expression: str, *fields: str) -> list[dict[str, Any]]:
        rows = self._client.query(
            collection,
            filter=expression,
            output_fields=[*fields],
            # Weaker levels may answer without rows that have just been written.
            consistency_level="Strong",
            timeout=self.timeout,
        )
        return cast(list[dict[str, Any]], rows)

    def _create(
        self, name: str, strings: dict[str, int], dense: dict[str, int], sparse: bool, values: str
    ) -> None:
        """Make a collection with string fields, the first of them its key, vectors, and a JSON field ``values``."""
        from pymilvus import DataType

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        indexes = self._client.prepare_index_params()
        key = next(iter(strings))
        for field, length in strings.items():
            schema.add_field(field, DataType.VARCHAR, is_primary=field == key, max_length=length)
        for field, width in dense.items():
            schema.add_field(field, DataType.FLOAT_VECTOR, dim=width)
            indexes.add_index(field, index_type="FLAT", metric_type="IP")
        if sparse:
            schema.add_field("ot", DataType.SPARSE_FLOAT_VECTOR)
            indexes.add_index("ot", index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
        schema.add_field(values, DataType.JSON)
        self._client.create_collection(
            name,
            schema=schema,
            index_params=indexes,
            consistency_level="Strong",
            timeout=self.timeout,
        )

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Within the block, errors of the client have one line, and its warnings are not shown."""
        import grpc
        from pymilvus.exceptions import MilvusException

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield
            except MilvusException as e:
                message = str(e.message)
                fix = ""
                if "auth" in message.lower():
                    fix = "; set MILVUS_TOKEN"
                raise ServerFailed(f"{self.where}: {first_line(message)}{fix}") from None
            except (grpc.RpcError, grpc.FutureTimeoutError, RuntimeError, OSError) as e:
                raise self.unanswered(first_line(e)) from None


def _silence() -> None:
    """Keep the client's logs from standard error: tracebacks of errors that are also raised, and of requests that
    milvus-lite lacks."""
    # Before the import: gRPC's C library reads it when it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Imported first, because the import sets the level of the client's log.
    importlib.import_module("pymilvus")
    for name in ("pymilvus", "grpc._server"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _client(parts: SplitResult, file: Path | None, timeout: float) -> MilvusClient:
    from pymilvus import MilvusClient

    if file is not None:
        need_packages("milvus:///file.db", ["milvus_lite"], "milvus")
        if not file.parent.is_dir():
            raise UsageError(f"{file}: the folder {file.parent} does not exist")
        return MilvusClient(str(file))
    token = os.environ.get("MILVUS_TOKEN", "")
    if token:
        check_secret(parts, "MILVUS_TOKEN", "milvus+https")
    scheme = "http"
    default_port = 19530
    if parts.scheme.endswith("+https"):
        scheme = "https"
        default_port = 443
    url = f"{scheme}://{parts.hostname}:{parts.port or default_port}"
    return MilvusClient(url, token=token, timeout=timeout)


def _fields(row: Row, terms: int) -> dict[str, object]:
    """The entity of a row, in a table whose vocabulary has ``terms`` terms."""
    # A shortened id could be another document's, so a long id is refused, unlike a long text.
    if len(row.docid.encode()) > _MAX_ID_BYTES:
        raise UsageError(
            f"the document id {row.docid[:40]!r}... has more than {_MAX_ID_BYTES} bytes, the most in Milvus"
        )
    fields: dict[str, object] = {"docid": row.docid, FINGERPRINT: row.fingerprint.hex()}
    fields |= row.document._asdict()
    if row.cls is not None:
        fields["cls"] = row.cls
    if terms:
        # A sparse vector must not be empty: without terms it gets one that no query has.
        fields["ot"] = _sparse(*row.impacts) or {terms: 1.0}
    return fields


def _cut(text: str) -> str:
    """The beginning of a text that fits a field, cut between characters."""
    # Half surrogate pairs, which UTF-8 lacks, are replaced; a character that the cut divides is left out.
    return text.encode("utf-8", "replace")[:_MAX_TEXT_BYTES].decode("utf-8", "ignore")


def _sparse(ids: np.ndarray, impacts: np.ndarray) -> dict[int, float]:
    """Impacts as the client takes them: vocabulary id -> impact."""
    return dict(zip(ids.tolist(), impacts.astype(float).tolist(), strict=True))


def _expression(where: Where | None) -> str:
    if where is None:
        return ""
    if isinstance(where, tuple):
        return f"docid in {json.dumps(where, ensure_ascii=False)}"
    return condition_expression(where)


def condition_expression(node: Node) -> str:
    """The expression that selects the same documents. Raises :class:`Untranslatable`."""
    return _Expressions().write(node)


class _Expressions(ConditionWriter[str]):
    """Boolean expressions over a JSON field: what is the same in every version, equality and the order of numbers.

    Expressions about a missing key are neither true nor false, so nothing is negated but the existence of a key.
    """

    def condition(self, node: Condition) -> str:
        if node.operation == "missing" and not node.inverted:
            return f"not ({self.present(node.name)})"
        return super().condition(node)

    def present(self, name: str) -> str:
        return f"exists {_key(name)}"

    def test(self, name: str, operation: str, value: MetadataScalar) -> str:
        sign = "=="
        if operation in _ORDER:
            sign = operation
        if isinstance(value, str):
            if sign != "==" or not _TEXT.fullmatch(value):
                raise Untranslatable("the order of strings, strings with signs")
            return f'{_key(name)} == "{value}"'
        # A bool is an int to Python, so this precedes the numbers.
        if isinstance(value, bool):
            raise Untranslatable("truth values, which some versions take for numbers")
        return f"{_key(name)} {sign} {json.dumps(value)}"

    def negate(self, expression: str) -> str:
        del expression
        raise Untranslatable("a negation")

    def join(self, expressions: Sequence[str], every: bool) -> str:
        word = " and " if every else " or "
        return word.join(f"({expression})" for expression in expressions)


def _key(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Untranslatable("names with signs")
    return f'metadata["{name}"]'
