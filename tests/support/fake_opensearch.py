"""A stand-in for OpenSearch and Elasticsearch: the requests of the backend on dictionaries, with float32 scores.

It refuses unmapped fields, unknown queries and negative scores, as the servers do.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from support.fake_http import Refused


class StandIn:
    """Indexes by name. ``bulks``: number of bulk requests; the next ones fail while ``failing`` is not 0."""

    def __init__(self) -> None:
        self.indexes: dict[str, dict[str, Any]] = {}
        self.bodies: dict[str, Any] = {}
        self.scrolls: dict[str, list[str]] = {}
        self.bulks = self.fail_at = 0

    def answer(self, method: str, path: str, body: str) -> tuple[int, Any]:
        """Status and JSON of a request."""
        names = urlsplit(path).path.strip("/").split("/")
        index, *rest = names
        given = [json.loads(line) for line in body.splitlines()] if rest == ["_bulk"] else json.loads(body or "null")
        if names[:2] == ["_search", "scroll"]:
            return 200, self.page(given["scroll_id"]) if method == "POST" else {}
        if not rest:
            return self.whole(method, index, given)
        if index not in self.indexes:
            return 404, {"error": "no such index"}
        known = self.indexes[index]
        if rest[0] == "_doc":
            return self.document(method, known, rest[1], given)
        if rest == ["_bulk"]:
            return 200, self.bulk(index, known, given)
        if rest == ["_refresh"]:
            return 200, {}
        if rest == ["_count"]:
            return 200, {"count": sum(holds(given["query"], i, d) for i, d in known.items())}
        if rest == ["_stats", "store"]:
            return 200, {"_all": {"primaries": {"store": {"size_in_bytes": len(json.dumps(known))}}}}
        if "sort" in given:
            self.scrolls[index] = list(known)
            return 200, self.page(index)
        return 200, {"hits": {"hits": self.search(index, known, given)}}

    def whole(self, method: str, index: str, given: Any) -> tuple[int, Any]:
        if method == "PUT":
            self.indexes[index], self.bodies[index] = {}, given
        elif index not in self.indexes:
            return 404, {"error": "no such index"}
        elif method == "DELETE":
            del self.indexes[index]
        return 200, {}

    def document(self, method: str, known: dict[str, Any], docid: str, given: Any) -> tuple[int, Any]:
        if method == "PUT":
            known[docid] = given
        elif docid not in known:
            return 404, {"found": False}
        elif method == "DELETE":
            del known[docid]
        return 200, {"_source": known.get(docid)}

    def bulk(self, index: str, known: dict[str, Any], lines: list[Any]) -> Any:
        self.bulks += 1
        if self.bulks == self.fail_at:
            error = {"_id": "x", "status": 429, "error": {"type": "rejected_execution_exception"}}
            return {"errors": True, "items": [{"index": error}]}
        mapped = self.bodies[index]["mappings"]["properties"]
        while lines:
            ((action, where),) = lines.pop(0).items()
            if action == "delete":
                known.pop(where["_id"], None)
                continue
            source = lines.pop(0)
            if unknown := source.keys() - mapped.keys():
                raise Refused(f"mapping set to strict: {unknown}")
            if any(not 0 < value < 512 for value in source.get("ot", {}).values()):
                raise Refused("a feature of more than 9 bits, or not positive")
            known[where["_id"]] = source
        return {"errors": False, "items": []}

    def page(self, index: str) -> Any:
        docids, self.scrolls[index] = self.scrolls[index][:50], self.scrolls[index][50:]
        hits = [{"_id": docid, "_source": self.indexes[index][docid]} for docid in docids]
        return {"_scroll_id": index, "hits": {"hits": hits}}

    def search(self, index: str, known: dict[str, Any], given: Any) -> list[Any]:
        if given["size"] > self.bodies[index]["settings"]["index"]["max_result_window"]:
            raise Refused("result window is too large")
        scored = [(score(given["query"], i, d), i) for i, d in known.items()]
        found = sorted(((s, i) for s, i in scored if s is not None), key=lambda pair: -pair[0])[: given["size"]]
        return [{"_id": docid, "_score": float(value)} for value, docid in found]


def score(query: Any, docid: str, document: Any) -> np.float32 | None:
    """The score of a document, None for no match."""
    ((kind, body),) = query.items()
    if kind == "script_score":
        if not holds(body["query"], docid, document):
            return None
        params, source = body["script"]["params"], body["script"]["source"]
        assert source in (
            "innerProduct(params.q, doc['cls']) + params.shift",
            "dotProduct(params.q, 'cls') + params.shift",
        )
        total = float(np.dot(np.float32(params["q"]), np.float32(document["cls"]))) + params["shift"]
        if total < 0:
            raise Refused("script_score must not be negative")
        return np.float32(total)
    assert kind == "bool"
    if not all(holds(one, docid, document) for one in body["filter"]):
        return None
    features = [clause["rank_feature"] for clause in body["should"]]
    assert all(feature["linear"] == {} for feature in features)
    matching = [f for f in features if f["field"].removeprefix("ot.") in document["ot"]]
    total = np.float32(0)
    for feature in matching:
        total += np.float32(feature["boost"]) * np.float32(document["ot"][feature["field"].removeprefix("ot.")])
    return total if matching else None


def holds(query: Any, docid: str, document: Any) -> bool:
    """Whether a document satisfies a query without a score."""
    ((kind, body),) = query.items()
    if kind == "match_all":
        return True
    if kind == "ids":
        return docid in body["values"]
    if kind == "bool":
        every = all(holds(one, docid, document) for one in body.get("filter", []))
        none = not any(holds(one, docid, document) for one in body.get("must_not", []))
        return every and none and ("should" not in body or any(holds(one, docid, document) for one in body["should"]))
    ((field, wanted),) = body.items()
    parent, _, name = field.partition(".")
    values = document.get(parent, {}).get(name, []) if name else document.get(field, [])
    if kind == "term":
        return wanted in values
    assert kind == "range"
    ((bound, limit),) = wanted.items()
    compare = {"lt": "__lt__", "lte": "__le__", "gt": "__gt__", "gte": "__ge__"}[bound]
    keys = [v.encode() if isinstance(v, str) else float(v) for v in values]
    edge = limit.encode() if isinstance(limit, str) else float(limit)
    return any(getattr(key, compare)(edge) for key in keys)
