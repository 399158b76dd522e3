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
from urllib.parse import SplitResult, quote

import numpy as np

from dupmae_ir.backend.opensearch_filters import NAME, Json, condition_query
from dupmae_ir.backend.protocol import BackendFailed, EngineQuery, Found, Record, Rows, Spec, Where
from dupmae_ir.backend.urls import is_loopback, shown
from dupmae_ir.errors import UsageError
from dupmae_ir.types import Metadata

_RECORDS = "dupmae_ir_collections"
_PAGE = 1000
_LONGEST_ID = 512
_DIALECTS: dict[str, tuple[str, str]] = {
    "opensearch": ("innerProduct(params.q, doc['cls'])", "knn_vector"),
    "elasticsearch": ("dotProduct(params.q, 'cls')", "dense_vector"),
}
"""Engine -> the inner product in its scripts, and the type of a vector."""


def connect(parts: SplitResult, collection: str, timeout: float) -> OpenSearch:
    """Open an index of a server."""
    return OpenSearch(parts, collection, timeout)


class OpenSearch:
    """A :class:`~dupmae_ir.backend.protocol.Backend` for both engines."""

    sums = False
    rounding = 16.0  #: the constant that is added doubles the magnitude of a float32 score
    deepest = 100_000

    def __init__(self, parts: SplitResult, collection: str, timeout: float) -> None:
        import requests

        self.engine = parts.scheme.partition("+")[0]
        self.name, self._where, self._timeout = collection, shown(parts), timeout
        secure = parts.scheme.endswith("+https")
        self._base = f"{'https' if secure else 'http'}://{parts.hostname}:{parts.port or 9200}"
        self._session = requests.Session()
        self._session.trust_env = False  # no proxies, and no passwords of ~/.netrc for another service
        self._authorize(secure, parts.hostname)
        self._longest = 0.0

    def read_record(self) -> Record | None:
        """See :class:`Backend`; an index of this name without a record is refused."""
        found = self._call("GET", f"{_RECORDS}/_doc/{self.name}", missing=True)
        source = found.get("_source") if found else None
        if source is None:
            if self._call("GET", self.name, missing=True) is not None:
                raise UsageError(
                    f"{self._where}: the index {self.name} was not made by dupmae-ir; choose another --collection"
                )
            return None
        record = Record.of(cast(Json, source), f"{self._where}, {self.name}")
        self._longest = record.longest
        return record

    def write_record(self, record: Record) -> None:
        """See :class:`Backend`; records are documents of an index of their own."""
        if self._call("GET", _RECORDS, missing=True) is None:
            self._call("PUT", _RECORDS, {"mappings": {"enabled": False}})
        self._call("PUT", f"{_RECORDS}/_doc/{self.name}?refresh=true", record.as_dict())

    def lock(self) -> None:
        """There are no locks; writes of several loaders are the same."""

    def create(self, spec: Spec) -> None:
        """See :class:`Backend`; the record comes first, so that a killed load is continued."""
        self.write_record(Record(spec, "loading", "", 0))
        if self._call("GET", self.name, missing=True) is None:
            self._call("PUT", self.name, index_body(self.engine, spec))

    def stored(self) -> Iterator[tuple[str, bytes]]:
        """See :class:`Backend`; read by a scroll."""
        self._call("POST", f"{self.name}/_refresh")
        body: Json = {"size": _PAGE, "sort": ["_doc"], "_source": ["fingerprint"], "query": {"match_all": {}}}
        page = self._post(f"{self.name}/_search?scroll=5m", body)
        while hits := _hits(page):
            for hit in hits:
                yield str(hit["_id"]), bytes.fromhex(str(cast(Json, hit["_source"])["fingerprint"]))
            page = self._post("_search/scroll", {"scroll": "5m", "scroll_id": page["_scroll_id"]})
        self._call("DELETE", "_search/scroll", {"scroll_id": page["_scroll_id"]}, missing=True)

    def upsert(self, rows: Rows) -> None:
        """See :class:`Backend`."""
        self._bulk(line for action in bulk_lines(rows) for line in action)

    def delete(self, docids: Sequence[str]) -> None:
        """See :class:`Backend`."""
        self._bulk({"delete": {"_id": docid}} for docid in docids)

    def finish(self, approximate: bool) -> None:
        """Make written rows searchable. An approximate index is refused."""
        if approximate:
            raise UsageError(f"{self.engine}: --approximate is not available; lists compare every document")
        self._call("POST", f"{self.name}/_refresh")

    def drop(self) -> None:
        """See :class:`Backend`."""
        self._call("DELETE", self.name, missing=True)
        self._call("DELETE", f"{_RECORDS}/_doc/{self.name}?refresh=true", missing=True)

    def count(self, where: Where | None = None) -> int:
        """See :class:`Backend`."""
        return int(str(self._post(f"{self.name}/_count", {"query": _query(where)})["count"]))

    def size(self) -> int | None:
        """Bytes of the primary shards."""
        found = self._call("GET", f"{self.name}/_stats/store") or {}
        total = cast(Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]], found)
        return total["_all"]["primaries"]["store"]["size_in_bytes"]

    def top(
        self, side: str, queries: Sequence[EngineQuery], depth: int, where: Where | None, approximate: bool
    ) -> list[Found]:
        """See :class:`Backend`. Every list is exact in any case."""
        del approximate
        return [self._dense(q, depth, where) if side == "dense" else self._impact(q, depth, where) for q in queries]

    def close(self) -> None:
        """Release the connections."""
        self._session.close()

    def _dense(self, query: EngineQuery, depth: int, where: Where | None) -> Found:
        product, _ = _DIALECTS[self.engine]
        length = float(np.linalg.norm(query.cls.astype(np.float64)))
        shift = float(np.float32(length * self._longest * 1.001 + 1e-6))
        script = {"source": f"{product} + params.shift", "params": {"q": query.cls.tolist(), "shift": shift}}
        found = self._search({"script_score": {"query": _query(where), "script": script}}, depth)
        return Found(found.docids, found.scores - shift)

    def _impact(self, query: EngineQuery, depth: int, where: Where | None) -> Found:
        pairs = zip(query.ids.tolist(), query.impacts.tolist(), strict=True)
        clauses = [{"rank_feature": {"field": f"ot.{term}", "linear": {}, "boost": float(w)}} for term, w in pairs]
        return self._search({"bool": {"should": clauses, "minimum_should_match": 1, "filter": [_query(where)]}}, depth)

    def _search(self, query: Json, depth: int) -> Found:
        body: Json = {"query": query, "size": depth, "_source": False, "track_total_hits": False}
        hits = _hits(self._post(f"{self.name}/_search", body))
        return Found([str(hit["_id"]) for hit in hits], np.array([hit["_score"] for hit in hits], np.float64))

    def _bulk(self, lines: Iterator[Json]) -> None:
        body = "".join(json.dumps(line) + "\n" for line in lines)
        found = self._post(f"{self.name}/_bulk", body)
        if not found.get("errors"):
            return
        for item in cast(list[Mapping[str, Json]], found["items"]):
            for action, result in item.items():
                if "error" in result and not (action == "delete" and result.get("status") == 404):
                    raise BackendFailed(f"{self._where}: {result['_id']}: {_line(json.dumps(result['error']))}")

    def _post(self, path: str, body: Json | str) -> Json:
        found = self._call("POST", path, body)
        assert found is not None
        return found

    def _call(self, method: str, path: str, body: Json | str | None = None, missing: bool = False) -> Json | None:
        """The answer to a request; None for a 404 if that may be ``missing``."""
        import requests

        data = body if isinstance(body, str) or body is None else json.dumps(body)
        kind = "application/x-ndjson" if isinstance(body, str) else "application/json"
        url = f"{self._base}/{quote(path, safe='/?=&_')}"
        try:
            answer = self._session.request(
                method, url, data=data, headers={"Content-Type": kind}, timeout=self._timeout, allow_redirects=False
            )
        except requests.RequestException as e:
            raise BackendFailed(
                f"{self._where}: no answer within {self._timeout:g} s ({type(e).__name__}); raise --timeout, or check "
                "server and network"
            ) from None
        if answer.status_code == 404 and missing:
            return None
        if not answer.ok:
            raise BackendFailed(f"{self._where}: {answer.status_code} {answer.reason}: {_line(answer.text)}")
        return cast(Json, answer.json())

    def _authorize(self, secure: bool, host: str | None) -> None:
        key, user = os.environ.get("ELASTICSEARCH_API_KEY"), os.environ.get("OPENSEARCH_USERNAME")
        elastic = self.engine == "elasticsearch"
        if elastic and key:
            self._session.headers["Authorization"] = f"ApiKey {key}"
        elif not elastic and user:
            self._session.auth = (user, os.environ.get("OPENSEARCH_PASSWORD", ""))
        else:
            return
        if not secure and not is_loopback(host):
            raise UsageError(f"credentials would be sent in the clear to {host}; use {self.engine}+https://")


def index_body(engine: str, spec: Spec) -> Json:
    """Settings and mappings of a collection."""
    vector: Json = {"type": _DIALECTS[engine][1]}
    vector |= {"dimension": spec.dim} if engine == "opensearch" else {"dims": spec.dim, "index": False}
    plain: Json = {"type": "keyword", "index": False, "doc_values": False}
    properties: Json = {"fingerprint": plain, "names": {"type": "keyword"}}
    properties |= {name: {"type": "object", "enabled": False} for name in ("stored",)}
    properties |= {"cls": vector} if spec.dim else {}
    properties |= {"ot": {"type": "rank_features"}} if spec.terms else {}
    typed = {"num": "double", "str": "keyword", "bool": "boolean"}
    properties |= {name: {"type": "object", "dynamic": True} for name in typed}
    templates = [{name: {"path_match": f"{name}.*", "mapping": {"type": kind}}} for name, kind in typed.items()]
    return {
        "settings": {"index": {"max_result_window": OpenSearch.deepest}},
        "mappings": {"dynamic": "strict", "dynamic_templates": templates, "properties": properties},
    }


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
            source["stored"] = {"title": document.title, "text": document.text, "metadata": metadata}
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


def _line(text: str) -> str:
    """The start of a message, on one line."""
    return " ".join(text.split())[:300]
