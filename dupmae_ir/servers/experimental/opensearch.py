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
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import cast
from urllib.parse import SplitResult

import numpy as np

from dupmae_ir.errors import UsageError
from dupmae_ir.servers.experimental.opensearch_filters import NAME, condition_query
from dupmae_ir.servers.experimental.rest import Json, Rest, line
from dupmae_ir.servers.protocol import Record, Rows, ServerFailed, ServerHits, ServerQuery, Spec, Where
from dupmae_ir.servers.urls import shown
from dupmae_ir.types import Metadata

RECORDS = "dupmae_ir_collections"
RECORDS_BODY: dict[str, object] = {"mappings": {"enabled": False}}
_PAGE = 1000
_LONGEST_ID = 512
_LONGEST_KEYWORD = 8191  #: characters; Lucene refuses terms of more than 32,766 bytes
_DIALECTS: dict[str, tuple[str, str]] = {
    "opensearch": ("innerProduct(params.q, doc['cls'])", "knn_vector"),
    "elasticsearch": ("dotProduct(params.q, 'cls')", "dense_vector"),
}
"""Server -> the inner product in its scripts, and the type of a vector."""


def connect(parts: SplitResult, collection: str, timeout: float) -> OpenSearch:
    """Open an index of a server."""
    return OpenSearch(parts, collection, timeout)


class OpenSearch:
    """A :class:`~dupmae_ir.servers.protocol.ServerTable` for both servers."""

    sums = False
    rounding = 16.0  #: the constant that is added doubles the magnitude of a float32 score
    max_rows = 100_000

    def __init__(self, parts: SplitResult, collection: str, timeout: float) -> None:
        self.kind = parts.scheme.partition("+")[0]
        self.name, self._where = collection, shown(parts)
        self._rest = Rest(parts, 9200, timeout)
        self._call, self._post = self._rest.call, self._rest.post
        self._authorize()
        self._longest = 0.0

    def read_record(self) -> Record | None:
        """See :class:`ServerTable`; an index of this name without a record is refused."""
        found = self._call("GET", f"{RECORDS}/_doc/{self.name}", missing=True)
        source = found.get("_source") if found else None
        if source is None:
            if self._call("GET", self.name, missing=True) is not None:
                raise UsageError(
                    f"{self._where}: the index {self.name} was not made by dupmae-ir; choose another `collection`"
                )
            return None
        record = Record.of(cast(Json, source), f"{self._where}, {self.name}")
        self._longest = record.longest
        return record

    def write_record(self, record: Record) -> None:
        """See :class:`ServerTable`; records are documents of an index of their own."""
        if self._call("GET", RECORDS, missing=True) is None:
            self._call("PUT", RECORDS, RECORDS_BODY)
        self._call("PUT", f"{RECORDS}/_doc/{self.name}?refresh=true", record.as_dict())

    def lock(self) -> None:
        """There are no locks; writes of several loaders are the same."""

    def create(self, spec: Spec) -> None:
        """See :class:`ServerTable`; the record comes first, so that a killed load is continued."""
        self.write_record(Record(spec, "loading", "", 0))
        if self._call("GET", self.name, missing=True) is None:
            self._call("PUT", self.name, index_body(self.kind, spec))

    def stored(self) -> Iterator[tuple[str, bytes]]:
        """See :class:`ServerTable`; read by a scroll."""
        self._call("POST", f"{self.name}/_refresh")
        body: Json = {"size": _PAGE, "sort": ["_doc"], "_source": ["fingerprint"], "query": {"match_all": {}}}
        page = self._post(f"{self.name}/_search?scroll=5m", body)
        while hits := _hits(page):
            for hit in hits:
                yield str(hit["_id"]), bytes.fromhex(str(cast(Json, hit["_source"])["fingerprint"]))
            page = self._post("_search/scroll", {"scroll": "5m", "scroll_id": page["_scroll_id"]})
        self._call("DELETE", "_search/scroll", {"scroll_id": page["_scroll_id"]}, missing=True)

    def upsert(self, rows: Rows) -> None:
        """See :class:`ServerTable`."""
        self._bulk(part for action in bulk_lines(rows) for part in action)

    def delete(self, docids: Sequence[str]) -> None:
        """See :class:`ServerTable`."""
        self._bulk({"delete": {"_id": docid}} for docid in docids)

    def finish(self, approximate: bool) -> None:
        """Make written rows searchable. An approximate index is refused."""
        if approximate:
            raise UsageError(f"{self.kind}: `approximate` is not available; lists compare every document")
        self._call("POST", f"{self.name}/_refresh")

    def drop(self) -> None:
        """See :class:`ServerTable`."""
        self._call("DELETE", self.name, missing=True)
        self._call("DELETE", f"{RECORDS}/_doc/{self.name}?refresh=true", missing=True)

    def count(self, where: Where | None = None) -> int:
        """See :class:`ServerTable`."""
        return int(str(self._post(f"{self.name}/_count", {"query": _query(where)})["count"]))

    def size(self) -> int | None:
        """Bytes of the primary shards."""
        found = self._call("GET", f"{self.name}/_stats/store") or {}
        total = cast(Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]], found)
        return total["_all"]["primaries"]["store"]["size_in_bytes"]

    def top(
        self, part: str, queries: Sequence[ServerQuery], depth: int, where: Where | None, approximate: bool
    ) -> list[ServerHits]:
        """See :class:`ServerTable`. Every list is exact in any case."""
        del approximate
        return [self._dense(q, depth, where) if part == "dense" else self._impact(q, depth, where) for q in queries]

    def close(self) -> None:
        """Release the connections."""
        self._rest.close()

    def _dense(self, query: ServerQuery, depth: int, where: Where | None) -> ServerHits:
        body = dense_body(self.kind, query, depth, self._longest, where)
        found = self._search(body)
        return ServerHits(found.docids, found.scores - _shift(query, self._longest))

    def _impact(self, query: ServerQuery, depth: int, where: Where | None) -> ServerHits:
        return self._search(impact_body(query, depth, where))

    def _search(self, body: Json) -> ServerHits:
        hits = _hits(self._post(f"{self.name}/_search", body))
        return ServerHits([str(hit["_id"]) for hit in hits], np.array([hit["_score"] for hit in hits], np.float64))

    def _bulk(self, lines: Iterator[Json]) -> None:
        body = "".join(json.dumps(one) + "\n" for one in lines)
        found = self._post(f"{self.name}/_bulk", body)
        if not found.get("errors"):
            return
        for item in cast(list[Mapping[str, Json]], found["items"]):
            for action, result in item.items():
                if "error" in result and not (action == "delete" and result.get("status") == 404):
                    raise ServerFailed(f"{self._where}: {result['_id']}: {line(json.dumps(result['error']))}")

    def _authorize(self) -> None:
        key, user = os.environ.get("ELASTICSEARCH_API_KEY"), os.environ.get("OPENSEARCH_USERNAME")
        elastic = self.kind == "elasticsearch"
        if elastic and key:
            self._rest.session.headers["Authorization"] = f"ApiKey {key}"
        elif not elastic and user:
            self._rest.session.auth = (user, os.environ.get("OPENSEARCH_PASSWORD", ""))
        else:
            return
        self._rest.check_secret(f"{self.kind}+https")


def index_body(kind: str, spec: Spec) -> Json:
    """Settings and mappings of a collection."""
    vector: Json = {"type": _DIALECTS[kind][1]}
    vector |= {"dimension": spec.dim} if kind == "opensearch" else {"dims": spec.dim, "index": False}
    plain: Json = {"type": "keyword", "index": False, "doc_values": False}
    properties: Json = {"fingerprint": plain, "names": {"type": "keyword"}}
    properties |= {name: {"type": "object", "enabled": False} for name in ("stored",)}
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
            source["stored"] = {"title": _text(document.title), "text": _text(document.text), "metadata": metadata}
            source |= {"names": list(metadata), **_typed(metadata)}
        yield {"index": {"_id": docid}}, source


def _typed(metadata: Metadata) -> Json:
    """The values by their kinds, each kind under a field of its own, so that they never compare."""
    typed: dict[str, dict[str, list[object]]] = {"num": {}, "str": {}, "bool": {}}
    for name, value in metadata.items():
        for one in value if isinstance(value, list) else [value]:
            kind = "bool" if isinstance(one, bool) else "str" if isinstance(one, str) else "num"
            if NAME.fullmatch(name) and (kind != "num" or math.isfinite(float(cast(float, one)))):
                typed[kind].setdefault(name, []).append(one)
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


def _text(text: str) -> str:
    """A text without half surrogate pairs, which UTF-8 lacks."""
    return text.encode("utf-8", "replace").decode()
