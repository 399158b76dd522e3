"""Qdrant: one collection of points with a dense vector ``cls``, a sparse vector ``ot``, texts and metadata.

Points are numbered by a UUID of the document id. Qdrant's own sum of two searches (``FormulaQuery``) knows a document's
second score only if both lists contain it, so it is exact only over lists of the whole collection. Instead, both lists
are certified and summed by :mod:`dupmae_ir.search.candidates.server`. Exact searches compare every vector (``exact``);
the sparse index is always exact.

``qdrant://host:6333`` and ``qdrant+https://host`` are servers, ``qdrant:///folder`` is the client's local mode. The key
of a server is read from ``QDRANT_API_KEY``.
"""

from __future__ import annotations

import os
import re
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, unquote

import numpy as np

from dupmae_ir.errors import UsageError
from dupmae_ir.index.conditions import Node
from dupmae_ir.index.format.texts import StoredDocument
from dupmae_ir.io.lines import usable
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
    from qdrant_client import QdrantClient, models

_POINT_NAMESPACE = uuid.UUID("8f7f3f3e-6a0b-5c5e-9d6d-2f1f0a6c7b11")
"""Must never change: points of existing tables are found by it."""
_ROWS_PER_PAGE = 1000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
"""Names that Qdrant does not read as a path into nested values."""
_BOUNDS = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
_MAX_EXACT_INTEGER = 2**53
"""Qdrant compares numbers as float64, which cannot represent every integer above."""
Json = dict[str, object]


class Qdrant(ServerTable):
    """A collection of Qdrant, in a server or in a folder, which the client locks."""

    kind = "qdrant"

    def __init__(self, parts: SplitResult, name: str, timeout: float) -> None:
        super().__init__(parts, name, timeout)
        self._local = Path(unquote(parts.path)) if not parts.netloc else None
        with self.errors():
            self._client = _client(parts, self._local, timeout)

    def exists(self, name: str) -> bool:
        return self._client.collection_exists(name)

    def record_fields(self) -> Mapping[str, object] | None:
        if not self.exists(RECORDS):
            return None
        points = self._client.retrieve(RECORDS, [_point(self.name)], with_payload=True)
        if not points:
            return None
        return points[0].payload

    def write_record(self, record: Record) -> None:
        from qdrant_client import models

        with self.errors():
            if not self.exists(RECORDS):
                plain = models.VectorParams(size=1, distance=models.Distance.DOT)
                self._client.create_collection(RECORDS, vectors_config=plain)
            point = models.PointStruct(id=_point(self.name), vector=[1.0], payload=record.as_dict())
            self._client.upsert(RECORDS, [point], wait=True)

    def create_table(self, spec: Spec) -> None:
        from qdrant_client import models

        dense = {}
        if spec.dim:
            dense["cls"] = models.VectorParams(size=spec.dim, distance=models.Distance.DOT)
        sparse = None
        if spec.terms:
            sparse = {"ot": models.SparseVectorParams()}
        self._client.create_collection(
            self.name,
            vectors_config=dense,
            sparse_vectors_config=sparse,
            # Searches are exact until an approximate index is asked for, and building it takes most of a load.
            hnsw_config=models.HnswConfigDiff(m=0),
        )

    def stored(self) -> Iterator[tuple[str, bytes]]:
        offset = None
        while True:
            with self.errors():
                points, offset = self._client.scroll(
                    self.name,
                    limit=_ROWS_PER_PAGE,
                    offset=offset,
                    with_payload=["docid", FINGERPRINT],
                    with_vectors=False,
                )
            for point in points:
                payload = point.payload or {}
                yield self._docid(point.id, payload), stored_fingerprint(payload.get(FINGERPRINT))
            if offset is None:
                return

    def read(self, docids: Sequence[str], fields: Sequence[str]) -> list[Row]:
        with self.errors():
            points = self._client.retrieve(
                self.name,
                [_point(docid) for docid in docids],
                with_payload=["docid", *fields],
                with_vectors=[name for name in fields if name in ("cls", "ot")],
            )
        no_terms = _sparse(np.zeros(0), np.zeros(0))
        rows = []
        for point in points:
            vectors = cast(dict[str, Any], point.vector or {})
            ot = vectors.get("ot", no_terms)
            rows.append(Row.of(point.payload or {}, vectors.get("cls"), ot.indices, ot.values))
        return rows

    def upsert(self, rows: Sequence[Row]) -> None:
        with self.errors():
            self._client.upsert(self.name, [_point_of(row) for row in rows], wait=True)

    def delete(self, docids: Sequence[str]) -> None:
        with self.errors():
            self._client.delete(self.name, [_point(docid) for docid in docids], wait=True)

    def finish(self, approximate: bool) -> None:
        """With ``approximate``, have the server build its HNSW graph, which it does in the background."""
        from qdrant_client import models

        if approximate and self._local is None:
            with self.errors():
                self._client.update_collection(self.name, hnsw_config=models.HnswConfigDiff(m=16))

    def drop(self) -> None:
        with self.errors():
            # The record last: a table without one would be taken for another program's.
            self._client.delete_collection(self.name)
            self._client.delete(RECORDS, [_point(self.name)], wait=True)

    def count(self, where: Where | None = None) -> int:
        selection = _filter(where)
        with self.errors():
            return int(self._client.count(self.name, count_filter=selection, exact=True).count)

    def size(self) -> int | None:
        """Bytes of the files of a folder; None for a server, whose client has no request for it."""
        if self._local is None:
            return None
        return bytes_of(self._local / "collection" / self.name)

    def top(
        self,
        part: str,
        queries: Sequence[ServerQuery],
        depth: int,
        where: Where | None,
        approximate: bool,
    ) -> list[ServerHits]:
        from qdrant_client import models

        selection = _filter(where)
        requests = []
        for query in queries:
            if part == "dense":
                vector = query.cls.tolist()
                field = "cls"
            else:
                vector = _sparse(query.ids, query.impacts)
                field = "ot"
            requests.append(
                models.QueryRequest(
                    query=vector,
                    using=field,
                    limit=depth,
                    filter=selection,
                    params=models.SearchParams(exact=not approximate),
                    with_payload=["docid"],
                )
            )
        with self.errors():
            answers = self._client.query_batch_points(
                self.name, requests, timeout=round(self.timeout + 0.5)
            )
        # A document without a term has no sparse vector, so an impact list may be shorter than the depth.
        lists = []
        for answer in answers:
            docids = [self._docid(point.id, point.payload or {}) for point in answer.points]
            scores = np.array([point.score for point in answer.points], np.float64)
            lists.append(ServerHits(docids, scores))
        return lists

    def close(self) -> None:
        with self.errors():
            self._client.close()

    def storable(self, document: StoredDocument) -> StoredDocument:
        return document._replace(title=usable(document.title), text=usable(document.text))

    def _docid(self, number: object, payload: Mapping[str, object]) -> str:
        """The document of a point. Raises :class:`ServerFailed` for another program's point, which may have the id of
        a document in its payload."""
        docid = str(payload.get("docid"))
        if str(number) != _point(docid):
            raise self.foreign_row(f"the point {number}")
        return docid

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Within the block, errors of the client have one line, and its warnings are not shown."""
        from httpx import HTTPError, TimeoutException
        from qdrant_client.http.exceptions import (
            ApiException,
            ResponseHandlingException,
            UnexpectedResponse,
        )

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield
            except (HTTPError, ResponseHandlingException) as e:
                cause: Exception = e
                if isinstance(e, ResponseHandlingException):
                    # The client's wrapper has no message of its own.
                    cause = e.source
                reason = first_line(cause)
                if isinstance(cause, TimeoutException):
                    reason = ""  # the error itself says that the time was up
                raise self.unanswered(reason) from None
            except UnexpectedResponse as e:
                fix = ""
                if e.status_code in (401, 403):
                    fix = "; set QDRANT_API_KEY"
                raise ServerFailed(
                    f"{self.where}: {e.status_code} {e.reason_phrase}: {first_line(e)}{fix}"
                ) from None
            except (ApiException, RuntimeError, ValueError, OSError) as e:
                raise ServerFailed(f"{self.where}: {first_line(e)}") from None


def _client(parts: SplitResult, local: Path | None, timeout: float) -> QdrantClient:
    from qdrant_client import QdrantClient

    if local is not None:
        if not local.parent.is_dir():
            raise UsageError(f"{local}: the folder {local.parent} does not exist")
        return QdrantClient(path=str(local))
    key = os.environ.get("QDRANT_API_KEY")
    if key:
        check_secret(parts, "QDRANT_API_KEY", "qdrant+https")
    return QdrantClient(
        host=parts.hostname,
        port=parts.port or 6333,
        https=parts.scheme.endswith("+https"),
        api_key=key,
        # The client takes whole seconds.
        timeout=max(1, round(timeout)),
        # The check is a request whose failure is only a warning; the first request that matters reports it.
        check_compatibility=False,
    )


def _point(docid: str) -> str:
    """The number of a document's point: Qdrant takes no strings, only integers and UUIDs."""
    return str(uuid.uuid5(_POINT_NAMESPACE, docid))


def _point_of(row: Row) -> models.PointStruct:
    from qdrant_client import models

    vector: dict[str, object] = {}
    if row.cls is not None:
        vector["cls"] = row.cls.tolist()
    ids, impacts = row.impacts
    if len(ids):
        vector["ot"] = _sparse(ids, impacts)
    metadata = dict(row.document.metadata)
    payload: dict[str, object] = {
        "docid": row.docid,
        FINGERPRINT: row.fingerprint.hex(),
        "title": row.document.title,
        "text": row.document.text,
        "metadata": metadata,
        # For conditions on whether a document has a value, see `_Filters.present`.
        "names": list(metadata),
    }
    return models.PointStruct(
        id=_point(row.docid), vector=cast(dict[str, models.Vector], vector), payload=payload
    )


def _sparse(ids: np.ndarray, impacts: np.ndarray) -> models.SparseVector:
    from qdrant_client import models

    return models.SparseVector(indices=ids.tolist(), values=impacts.astype(float).tolist())


def _filter(where: Where | None) -> models.Filter | None:
    from qdrant_client import models

    if where is None:
        return None
    if isinstance(where, tuple):
        # The client's type is a list of numbers, strings and UUIDs.
        ids: list[Any] = [_point(docid) for docid in where]
        return models.Filter(must=[models.HasIdCondition(has_id=ids)])
    return models.Filter.model_validate({"must": [condition_filter(where)]})


def condition_filter(node: Node) -> Json:
    """The filter that selects the same documents, in the JSON of Qdrant's REST API. Raises :class:`Untranslatable`."""
    return _Filters().write(node)


class _Filters(ConditionWriter[Json]):
    """Filters over the payload. A condition of a field holds if one element of a list satisfies it."""

    def present(self, name: str) -> Json:
        if not _NAME.fullmatch(name):
            raise Untranslatable("the name would be read as a path")
        # By the stored names of the values: Qdrant's is_empty also holds for an empty list, which is a value.
        return {"key": "names", "match": {"value": name}}

    def test(self, name: str, operation: str, value: MetadataScalar) -> Json:
        key = f"metadata.{name}"
        # A bool is an int to Python, so this precedes the numbers.
        if isinstance(value, bool | str):
            if operation in _BOUNDS:
                raise Untranslatable("the order of strings")
            return {"key": key, "match": {"value": value}}
        if abs(value) > _MAX_EXACT_INTEGER:
            raise Untranslatable("large numbers")
        # Equality of numbers is a range of one number: a match takes integers alone.
        bounds = ["gte", "lte"]
        if operation in _BOUNDS:
            bounds = [_BOUNDS[operation]]
        return {"key": key, "range": {bound: float(value) for bound in bounds}}

    def negate(self, expression: Json) -> Json:
        return {"must_not": [expression]}

    def join(self, expressions: Sequence[Json], every: bool) -> Json:
        clause = "must" if every else "should"
        return {clause: list(expressions)}
