"""Vespa: one document type with a dense tensor, a weighted set of impacts, texts and metadata, over HTTP.

The rank profile ``hybrid`` is the exact sum of Eq. 12 up to float32 rounding of the inner product, so Vespa ranks
hybrid searches by itself. Its lists are those of all content nodes: answers that searched only a part of the documents
are refused. ``dupmae-ir servers files`` writes the application package
(:mod:`dupmae_ir.servers.experimental.vespa_package`), which is deployed with Vespa's own command.

The requests follow the published references and are tested against a stand-in; they were not run against Vespa.

``vespa://host:8080`` and ``vespa+https://host``, followed by ``/CLUSTER`` where an application has several content
clusters. Credentials are those of the Vespa CLI:
``VESPA_CLI_DATA_PLANE_TOKEN``, or ``VESPA_CLI_DATA_PLANE_CERT_FILE`` and ``VESPA_CLI_DATA_PLANE_KEY_FILE``.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, cast
from urllib.parse import SplitResult, quote, urlencode

import numpy as np
import requests

from dupmae_ir.errors import UsageError
from dupmae_ir.servers.experimental.rest import CONNECTIONS, Json, Rest, line
from dupmae_ir.servers.experimental.vespa_filters import condition_yql, docid_fact, facts, numbers
from dupmae_ir.servers.experimental.vespa_package import DEEPEST, RECORDS
from dupmae_ir.servers.protocol import Record, Rows, ServerFailed, ServerHits, ServerQuery, Spec, Where
from dupmae_ir.servers.urls import shown

NAMESPACE = "dupmae_ir"
_PAGE = 1000
_BUSY = (429, 503)
_PAUSES = (0.1, 0.5, 2.0, 5.0)
"""Seconds before an operation is sent again to a busy server."""
_PLAIN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_NOT_TEXT = re.compile(
    "[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff"
    + "".join(chr(plane << 16 | last) for plane in range(1, 17) for last in (0xFFFE, 0xFFFF))
    + "]"
)
"""Code points that Vespa's strings must not contain."""


def connect(parts: SplitResult, collection: str, timeout: float) -> Vespa:
    """Open a document type of an application."""
    return Vespa(parts, collection, timeout)


class Vespa:
    """A :class:`~dupmae_ir.servers.protocol.ServerTable`."""

    kind = "vespa"
    sums = True
    rounding = 8.0
    max_rows = DEEPEST

    def __init__(self, parts: SplitResult, collection: str, timeout: float) -> None:
        self.name, self._where, self._timeout = collection, shown(parts), timeout
        self._rest = Rest(parts, 443 if parts.scheme.endswith("+https") else 8080, timeout)
        self._cluster = parts.path.strip("/")
        self._authorize()
        self._pool = ThreadPoolExecutor(CONNECTIONS)

    def read_record(self) -> Record | None:
        """See :class:`ServerTable`; a document type of this name with documents but without a record is refused."""
        answer = self._rest.send("GET", _path(RECORDS, self.name))
        if answer.ok:
            fields = cast(dict[str, str], answer.json().get("fields", {}))
            return Record.of(json.loads(fields.get("record", "{}")), f"{self._where}, {self.name}")
        if not self._is_deployed(RECORDS) or not self._is_deployed(self.name):
            return None
        if answer.status_code != 404:
            raise self._rest.refusal(answer)
        if next(self.stored(), None):
            raise UsageError(
                f"{self._where}: the documents of {self.name} were not fed by dupmae-ir; choose another `collection`"
            )
        return None

    def write_record(self, record: Record) -> None:
        """See :class:`ServerTable`; records are documents of a type of their own."""
        self._feed("POST", _path(RECORDS, self.name), {"fields": record_fields(record)})

    def lock(self) -> None:
        """There are no locks; writes of several loaders are the same."""

    def create(self, spec: Spec) -> None:
        """Check that the application has the document type: packages are deployed with Vespa's own command."""
        del spec
        for kind in (RECORDS, self.name):
            if not self._is_deployed(kind):
                raise UsageError(
                    f"{self._where}: the application has no document type {kind}; deploy the package that dupmae-ir "
                    "servers files writes for vespa"
                )

    def stored(self) -> Iterator[tuple[str, bytes]]:
        """See :class:`ServerTable`; read by a visit."""
        token: str | None = ""
        while token is not None:
            page = self._visit(self.name, f"{self.name}:docid,fingerprint", token)
            if not page.ok:
                raise self._rest.refusal(page)
            found = page.json()
            token = found.get("continuation")
            for document in found.get("documents", []):
                fields = document["fields"]
                if "fingerprint" not in fields:
                    raise UsageError(f"{self._where}: {document['id']} was not fed by dupmae-ir; remove it")
                yield fields["docid"], bytes.fromhex(fields["fingerprint"])

    def upsert(self, rows: Rows) -> None:
        """See :class:`ServerTable`; an operation for each document, several at once."""
        paths = [_path(self.name, user_part(docid)) for docid in rows.docids]
        bodies = [{"fields": fields} for fields in document_fields(rows)]
        for _ in self._pool.map(self._feed, ["POST"] * len(paths), paths, bodies):
            pass

    def delete(self, docids: Sequence[str]) -> None:
        """See :class:`ServerTable`."""
        paths = [_path(self.name, user_part(docid)) for docid in docids]
        for _ in self._pool.map(self._feed, ["DELETE"] * len(paths), paths):
            pass

    def finish(self, approximate: bool) -> None:
        """Nothing is left to do: what is acknowledged can be searched, and the schema decides on HNSW."""

    def drop(self) -> None:
        """Delete the documents, and the record last. The document type remains in the application."""
        self.delete([docid for docid, _ in self.stored()])
        self._feed("DELETE", _path(RECORDS, self.name))

    def count(self, where: Where | None = None) -> int:
        """See :class:`ServerTable`."""
        found = self._search(count_body(self.name, where))
        return int(str(cast(Json, found["fields"])["totalCount"]))

    def size(self) -> int | None:
        """Not known: the endpoints of documents and queries do not say."""
        return None

    def top(
        self, part: str, queries: Sequence[ServerQuery], depth: int, where: Where | None, approximate: bool
    ) -> list[ServerHits]:
        """See :class:`ServerTable`."""
        bodies = [query_body(self.name, part, query, depth, where, approximate) for query in queries]
        return [_found(found) for found in self._pool.map(self._search, bodies)]

    def close(self) -> None:
        """Release the connections."""
        self._pool.shutdown()
        self._rest.close()

    def _search(self, body: Json) -> Json:
        """The root of an answer. Raises :class:`ServerFailed` unless all documents were searched."""
        root = cast(Json, self._rest.post("search/", {**body, "timeout": f"{self._timeout:g}s"})["root"])
        if errors := root.get("errors"):
            raise ServerFailed(f"{self._where}: {line(json.dumps(errors))}")
        coverage = cast(Json, root.get("coverage", {}))
        if coverage.get("full") is not True or coverage.get("degraded"):
            raise ServerFailed(
                f"{self._where}: searched {coverage.get('coverage', 'an unknown number of')} % of the documents "
                f"({line(json.dumps(coverage.get('degraded', {})))}); raise `timeout`, or wait until all nodes are up"
            )
        return root

    def _is_deployed(self, kind: str) -> bool:
        """Whether the application has a document type; visits of others are answered with 400."""
        answer = self._visit(kind, "[id]")
        unknown = answer.status_code == 400 and "document type" in answer.text
        if not answer.ok and not unknown:
            raise self._rest.refusal(answer)
        return not unknown

    def _visit(self, kind: str, fields: str, token: str = "") -> requests.Response:
        """Some documents of a type, with the token that continues after them."""
        options = {"fieldSet": fields, "wantedDocumentCount": str(_PAGE)}
        options |= {"cluster": self._cluster} if self._cluster else {}
        options |= {"continuation": token} if token else {}
        return self._rest.send("GET", f"document/v1/{NAMESPACE}/{kind}/docid?{urlencode(options)}")

    def _feed(self, method: str, path: str, body: Json | None = None) -> None:
        """One operation, which is repeated while the server is busy."""
        for pause in (*_PAUSES, None):
            answer = self._rest.send(method, path, body)
            if answer.status_code not in _BUSY or pause is None:
                break
            time.sleep(pause)
        if not answer.ok:
            raise self._rest.refusal(answer)
        if answer.headers.get("X-Vespa-Ignored-Fields") == "true":
            raise ServerFailed(
                f"{self._where}: the schema {self.name} lacks fields of this collection; deploy the package that "
                "dupmae-ir servers files writes for vespa"
            )

    def _authorize(self) -> None:
        given = {
            name: os.environ.get(f"VESPA_CLI_DATA_PLANE_{name}")
            for name in ("TOKEN", "CERT_FILE", "KEY_FILE", "CA_CERT_FILE")
        }
        session = self._rest.session
        if given["CA_CERT_FILE"]:
            session.verify = given["CA_CERT_FILE"]
        if given["CERT_FILE"] and given["KEY_FILE"]:
            session.cert = (given["CERT_FILE"], given["KEY_FILE"])
        if given["TOKEN"]:
            session.headers["Authorization"] = f"Bearer {given['TOKEN']}"
            self._rest.check_secret("vespa+https")


class _Clause(NamedTuple):
    """What selects the documents of a list: YQL, and the request's parameters that it refers to."""

    yql: str
    parameters: Json


def query_body(
    name: str, part: str, query: ServerQuery, depth: int, where: Where | None = None, approximate: bool = False
) -> Json:
    """A request to the search endpoint for the best documents of one kind of list."""
    condition, parameters = _condition(where)
    clause = condition
    if part == "impact":
        operator = f"({{targetHits: {depth}}}wand(ot, @r))" if approximate else "dotProduct(ot, @r)"
        clause = _both(condition, operator)
        parameters["r"] = _weights(query)
    else:
        parameters["input.query(q)"] = query.cls.tolist()
    if part == "dense" and approximate:
        clause = _both(condition, f"({{targetHits: {depth}, approximate: true}}nearestNeighbor(cls, q))")
    if part == "hybrid":
        parameters |= {
            "input.query(dense_weight)": query.dense_weight,
            "input.query(impact_weight)": query.impact_weight,
            "ranking.properties.dotProduct.r": _weights(query),
        }
    return _body(f"select * from {name} where {clause}", depth, part) | parameters


def count_body(name: str, where: Where | None = None) -> Json:
    """A request to the search endpoint that counts documents."""
    clause, parameters = _condition(where)
    return _body(f"select * from {name} where {clause}", 0, "unranked") | parameters


def _body(yql: str, hits: int, profile: str) -> Json:
    """``dispatch.topKProbability`` and the soft timeout would let the answer be an approximation."""
    return {
        "yql": yql,
        "hits": hits,
        "ranking.profile": profile,
        "ranking.softtimeout.enable": False,
        "dispatch.topKProbability": 1.0,
        "presentation.summary": "ids",
    }


def _condition(where: Where | None) -> _Clause:
    if where is None:
        return _Clause("true", {})
    if where.docids is not None:
        listed = ",".join(docid_fact(docid) for docid in where.docids)
        return _Clause("facts in (@ids)" if listed else "false", {"ids": listed} if listed else {})
    assert where.condition is not None
    return _Clause(condition_yql(where.condition), {})


def _both(condition: str, operator: str) -> str:
    return operator if condition == "true" else f"{condition} and {operator}"


def _weights(query: ServerQuery) -> str:
    pairs = zip(query.ids.tolist(), query.impacts.tolist(), strict=True)
    return "{" + ",".join(f"{term}:{impact}" for term, impact in pairs) + "}"


def document_fields(rows: Rows) -> Iterator[Json]:
    """The fields of each row, as in Vespa's document JSON. Vectors are hexadecimal digits of their float32 bits."""
    for place, docid in enumerate(rows.docids):
        if _NOT_TEXT.search(docid):
            raise UsageError(f"the document id {docid!r} contains characters that Vespa refuses; rename it")
        fields: Json = {"docid": docid, "fingerprint": rows.fingerprints[place].hex(), "facts": facts(docid, {})}
        if rows.cls is not None:
            fields["cls"] = {"values": rows.cls[place].astype(">f4").tobytes().hex().upper()}
        if rows.impacts is not None:
            pairs = zip(*(part.tolist() for part in rows.impacts[place]), strict=True)
            fields["ot"] = {str(term): impact for term, impact in pairs}
        if rows.documents is not None:
            document = rows.documents[place]
            metadata = dict(document.metadata)
            fields |= {"title": _text(document.title), "text": _text(document.text)}
            fields |= {"metadata": json.dumps(metadata), "facts": facts(docid, metadata), "numbers": numbers(metadata)}
        yield fields


def record_fields(record: Record) -> Json:
    """The fields of a load record's document."""
    return {"record": json.dumps(record.as_dict())}


def operation(kind: str, user: str, fields: Json) -> Json:
    """A line of a feed file: the put of a document of one type."""
    return {"put": f"id:{NAMESPACE}:{kind}::{user}", "fields": fields}


def user_part(docid: str) -> str:
    """The last part of a document's id in Vespa: the id itself, or a digest where a path cannot carry it."""
    return docid if _PLAIN_ID.fullmatch(docid) else f"={docid_fact(docid)}"


def _path(kind: str, user: str) -> str:
    return f"document/v1/{NAMESPACE}/{kind}/docid/{quote(user, safe='')}"


def _found(root: Json) -> ServerHits:
    hits = cast(list[Json], root.get("children", []))
    docids = [cast(dict[str, str], hit["fields"])["docid"] for hit in hits]
    return ServerHits(docids, np.array([hit["relevance"] for hit in hits], np.float64))


def _text(text: str) -> str:
    """A text without what Vespa refuses."""
    return _NOT_TEXT.sub("\ufffd", text)
