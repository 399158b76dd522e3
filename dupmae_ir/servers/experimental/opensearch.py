"""OpenSearch and Elasticsearch: one index with a dense vector, ``rank_features``, texts and metadata, over REST.

Impacts are features of a ``rank_features`` field, which keeps 9 significant bits, so 8-bit impacts are exact. Impact
lists are ``bool`` queries of linear ``rank_feature`` clauses with the query's impacts as boosts. Dense lists are a
``script_score`` of the inner product plus a constant, since scores must not be negative. Both read every document.

The requests follow the published REST references and are tested against a stand-in; they were not run against a server.

``opensearch://host:9200`` and ``elasticsearch+https://host``. Credentials are read from ``OPENSEARCH_USERNAME`` and
``OPENSEARCH_PASSWORD``, or from ``ELASTICSEARCH_API_KEY``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast
from urllib.parse import SplitResult

import numpy as np

from dupmae_ir.console import one_line
from dupmae_ir.errors import UsageError
from dupmae_ir.index.conditions import Node
from dupmae_ir.io.lines import usable
from dupmae_ir.servers.experimental.rest import EXACT, Json, RestTable, kind_of, scalars
from dupmae_ir.servers.protocol import (
    RECORDS,
    ConditionWriter,
    Record,
    Rows,
    ServerFailed,
    ServerHits,
    ServerQuery,
    Spec,
    Untranslatable,
    Where,
    check_secret,
)
from dupmae_ir.types import Metadata, MetadataScalar

RECORDS_BODY: dict[str, object] = {"mappings": {"enabled": False}}
_PAGE = 1000
_LONGEST_ID = 512
_LONGEST_KEYWORD = 8191  #: characters; Lucene refuses terms of more than 32,766 bytes
_DIALECTS: dict[str, tuple[str, str]] = {
    "opensearch": ("innerProduct(params.q, doc['cls'])", "knn_vector"),
    "elasticsearch": ("dotProduct(params.q, 'cls')", "dense_vector"),
}
"""Server -> the inner product in its scripts, and the type of a vector."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_BOUNDS = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}


class OpenSearch(RestTable):
    """An index of OpenSearch or Elasticsearch. Every list is exact."""

    noun = "index"
    rounding = 16.0  #: the constant that is added doubles the magnitude of a float32 score
    max_rows = 100_000

    def __init__(self, parts: SplitResult, name: str, timeout: float) -> None:
        super().__init__(parts, name, timeout, 9200)
        self.kind = parts.scheme.partition("+")[0]
        self._authorize(parts)
        self._longest = 0.0

    def exists(self, name: str) -> bool:
        return self.call("GET", name, missing=True) is not None

    def record_fields(self) -> Mapping[str, object] | None:
        answer = self.call("GET", f"{RECORDS}/_doc/{self.name}", missing=True) or {}
        return cast(Json | None, answer.get("_source"))

    def read_record(self) -> Record | None:
        record = super().read_record()
        self._longest = record.longest if record else 0.0
        return record

    def write_record(self, record: Record) -> None:
        if not self.exists(RECORDS):
            self.call("PUT", RECORDS, RECORDS_BODY)
        self.call("PUT", f"{RECORDS}/_doc/{self.name}?refresh=true", record.as_dict())

    def create_table(self, spec: Spec) -> None:
        self.call("PUT", self.name, index_body(self.kind, spec))

    def stored(self) -> Iterator[tuple[str, bytes]]:
        """See :class:`ServerTable`; read by a scroll."""
        self.call("POST", f"{self.name}/_refresh")
        body: Json = {"size": _PAGE, "sort": ["_doc"], "_source": ["fingerprint"], "query": {"match_all": {}}}
        page = self.post(f"{self.name}/_search?scroll=5m", body)
        while hits := _hits(page):
            for hit in hits:
                yield str(hit["_id"]), bytes.fromhex(str(cast(Json, hit["_source"])["fingerprint"]))
            page = self.post("_search/scroll", {"scroll": "5m", "scroll_id": page["_scroll_id"]})
        self.call("DELETE", "_search/scroll", {"scroll_id": page["_scroll_id"]}, missing=True)

    def upsert(self, rows: Rows) -> None:
        self._bulk(part for action in bulk_lines(rows) for part in action)

    def delete(self, docids: Sequence[str]) -> None:
        self._bulk({"delete": {"_id": docid}} for docid in docids)

    def finish(self, approximate: bool) -> None:
        super().finish(approximate)
        self.call("POST", f"{self.name}/_refresh")

    def drop(self) -> None:
        self.call("DELETE", self.name, missing=True)
        self.call("DELETE", f"{RECORDS}/_doc/{self.name}?refresh=true", missing=True)

    def count(self, where: Where | None = None) -> int:
        return int(str(self.post(f"{self.name}/_count", {"query": _query(where)})["count"]))

    def size(self) -> int | None:
        """Bytes of the primary shards."""
        found = self.call("GET", f"{self.name}/_stats/store") or {}
        total = cast(Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]], found)
        return total["_all"]["primaries"]["store"]["size_in_bytes"]

    def top(
        self, part: str, queries: Sequence[ServerQuery], depth: int, where: Where | None, approximate: bool
    ) -> list[ServerHits]:
        del approximate
        lists = []
        for query in queries:
            if part == "dense":
                body, shift = dense_body(self.kind, query, depth, self._longest, where), _shift(query, self._longest)
            else:
                body, shift = impact_body(query, depth, where), 0.0
            hits = _hits(self.post(f"{self.name}/_search", body))
            scores = np.array([hit["_score"] for hit in hits], np.float64) - shift
            lists.append(ServerHits([str(hit["_id"]) for hit in hits], scores))
        return lists

    def _bulk(self, lines: Iterator[Json]) -> None:
        body = "".join(json.dumps(one) + "\n" for one in lines)
        found = self.post(f"{self.name}/_bulk", body)
        if not found.get("errors"):
            return
        for item in cast(list[Mapping[str, Json]], found["items"]):
            for action, result in item.items():
                if "error" in result and not (action == "delete" and result.get("status") == 404):
                    raise ServerFailed(f"{self.where}: {result['_id']}: {one_line(json.dumps(result['error']), 300)}")

    def _authorize(self, parts: SplitResult) -> None:
        key, user = os.environ.get("ELASTICSEARCH_API_KEY"), os.environ.get("OPENSEARCH_USERNAME")
        elastic = self.kind == "elasticsearch"
        if elastic and key:
            self.session.headers["Authorization"] = f"ApiKey {key}"
        elif not elastic and user:
            self.session.auth = (user, os.environ.get("OPENSEARCH_PASSWORD", ""))
        else:
            return
        check_secret(parts, "credentials", f"{self.kind}+https")


def index_body(kind: str, spec: Spec) -> Json:
    """Settings and mappings of a collection."""
    vector: Json = {"type": _DIALECTS[kind][1]}
    vector |= {"dimension": spec.dim} if kind == "opensearch" else {"dims": spec.dim, "index": False}
    plain: Json = {"type": "keyword", "index": False, "doc_values": False}
    properties: Json = {"fingerprint": plain, "names": {"type": "keyword"}}
    properties["stored"] = {"type": "object", "enabled": False}
    properties |= {"cls": vector} if spec.dim else {}
    properties |= {"ot": {"type": "rank_features"}} if spec.terms else {}
    typed: dict[str, Json] = {"num": {"type": "double"}, "bool": {"type": "boolean"}}
    typed["str"] = {"type": "keyword", "ignore_above": _LONGEST_KEYWORD}
    properties |= {name: {"type": "object", "dynamic": True} for name in typed}
    templates = [{name: {"path_match": f"{name}.*", "mapping": mapping}} for name, mapping in typed.items()]
    return {
        "settings": {"index": {"max_result_window": OpenSearch.max_rows}},
        "mappings": {"dynamic": "strict", "dynamic_templates": templates, "properties": properties},
    }


def dense_body(kind: str, query: ServerQuery, depth: int, longest: float, where: Where | None = None) -> Json:
    """A search for the largest inner products, plus a constant that makes them positive. ``longest``: as in
    :class:`Record`."""
    product, _ = _DIALECTS[kind]
    params = {"q": query.cls.tolist(), "shift": _shift(query, longest)}
    script = {"source": f"{product} + params.shift", "params": params}
    return _search_body({"script_score": {"query": _query(where), "script": script}}, depth)


def impact_body(query: ServerQuery, depth: int, where: Where | None = None) -> Json:
    """A search for the largest sums of products of impacts."""
    pairs = zip(query.ids.tolist(), query.impacts.tolist(), strict=True)
    clauses = [{"rank_feature": {"field": f"ot.{term}", "linear": {}, "boost": float(w)}} for term, w in pairs]
    matching = {"should": clauses, "minimum_should_match": 1, "filter": [_query(where)]}
    return _search_body({"bool": matching}, depth)


def _search_body(query: Json, depth: int) -> Json:
    return {"query": query, "size": depth, "_source": False, "track_total_hits": False}


def _shift(query: ServerQuery, longest: float) -> float:
    length = float(np.linalg.norm(query.cls.astype(np.float64)))
    return float(np.float32(length * longest * 1.001 + 1e-6))


def bulk_lines(rows: Rows) -> Iterator[tuple[Json, Json]]:
    """An action and a document for each row, as ``_bulk`` takes them."""
    for place, docid in enumerate(rows.docids):
        if len(docid.encode()) > _LONGEST_ID:
            raise UsageError(f"the document id {docid[:40]!r}... has more than {_LONGEST_ID} bytes, the most here")
        source: Json = {"fingerprint": rows.fingerprints[place].hex()}
        if rows.cls is not None:
            source["cls"] = rows.cls[place].tolist()
        if rows.impacts is not None:
            pairs = zip(*(part.tolist() for part in rows.impacts[place]), strict=True)
            source["ot"] = {str(term): impact for term, impact in pairs}
        if rows.documents is not None:
            document = rows.documents[place]
            metadata = dict(document.metadata)
            source["stored"] = {"title": usable(document.title), "text": usable(document.text), "metadata": metadata}
            source |= {"names": list(metadata), **_typed(metadata)}
        yield {"index": {"_id": docid}}, source


def _typed(metadata: Metadata) -> Json:
    """The values by their kinds, each kind under a field of its own, so that they never compare."""
    typed: dict[str, dict[str, list[object]]] = {"num": {}, "str": {}, "bool": {}}
    for name, value in scalars(metadata):
        if _NAME.fullmatch(name):
            typed[kind_of(value)].setdefault(name, []).append(value)
    return dict(typed)


def _query(where: Where | None) -> Json:
    if where is None:
        return {"match_all": {}}
    if where.docids is not None:
        return {"ids": {"values": list(where.docids)}}
    assert where.condition is not None
    return condition_query(where.condition)


def _hits(page: Json) -> list[Json]:
    return cast(list[Json], cast(Json, page["hits"])["hits"])


def condition_query(node: Node) -> Json:
    """The query that selects the same documents. Raises :class:`Untranslatable`."""
    return _Queries().write(node)


class _Queries(ConditionWriter[Json]):
    """The query language of both servers.

    Values are stored by kind (``num.NAME``, ``str.NAME``, ``bool.NAME``), so kinds never compare; keywords are ordered
    by UTF-8, which is the order of code points. ``names`` lists the names that have a value.
    """

    def present(self, name: str) -> Json:
        if not _NAME.fullmatch(name):
            raise Untranslatable("names with signs")
        return {"term": {"names": name}}

    def test(self, name: str, operation: str, value: MetadataScalar) -> Json:
        field = f"{kind_of(value)}.{name}"
        if kind_of(value) == "num" and abs(float(value)) > EXACT:
            raise Untranslatable("large numbers")
        if operation in _BOUNDS:
            return {"range": {field: {_BOUNDS[operation]: value}}}
        return {"term": {field: value}}

    def negate(self, expression: Json) -> Json:
        return {"bool": {"must_not": [expression]}}

    def join(self, expressions: Sequence[Json], every: bool) -> Json:
        if every:
            return {"bool": {"filter": list(expressions)}}
        return {"bool": {"should": list(expressions), "minimum_should_match": 1}}
