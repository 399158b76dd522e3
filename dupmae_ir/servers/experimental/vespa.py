"""Vespa: one document type with a dense tensor, a weighted set of impacts, texts and metadata, over HTTP.

The rank profile ``hybrid`` is the exact sum of Eq. 12 up to float32 rounding of the inner product, so Vespa ranks
hybrid searches by itself. Its lists are those of all content nodes: answers that searched only a part of the documents
are refused. ``dupmae-ir servers files`` writes the application package
(:func:`application`), which is deployed with Vespa's own command.

The requests follow the published references and are tested against a stand-in; they were not run against Vespa.

``vespa://host:8080`` and ``vespa+https://host``, followed by ``/CLUSTER`` where an application has several content
clusters. Credentials are those of the Vespa CLI:
``VESPA_CLI_DATA_PLANE_TOKEN``, or ``VESPA_CLI_DATA_PLANE_CERT_FILE`` and ``VESPA_CLI_DATA_PLANE_KEY_FILE``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import SplitResult, quote, urlencode

import numpy as np
import requests
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dupmae_ir.console import one_line
from dupmae_ir.errors import UsageError
from dupmae_ir.index.conditions import Node
from dupmae_ir.servers.experimental.rest import CONNECTIONS, EXACT, Json, RestTable, kind_of, scalars
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

MAX_ROWS = 100_000
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    keep_trailing_newline=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
"""The application package, and the pages of ``dupmae-ir servers files``."""
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
_ORDER = ("<", "<=", ">", ">=")


class Vespa(RestTable):
    """A document type of an application. There are no locks, and the sizes of types are not known."""

    kind = "vespa"
    noun = "document type"
    sums = True
    max_rows = MAX_ROWS

    def __init__(self, parts: SplitResult, name: str, timeout: float) -> None:
        super().__init__(parts, name, timeout, 443 if parts.scheme.endswith("+https") else 8080)
        self._cluster = parts.path.strip("/")
        self._authorize(parts)
        self._pool = ThreadPoolExecutor(CONNECTIONS)

    def exists(self, name: str) -> bool:
        """Whether the type has documents: one without them is a table that was not loaded."""
        return self._is_deployed(RECORDS) and self._is_deployed(name) and next(self.stored(), None) is not None

    def record_fields(self) -> Mapping[str, object] | None:
        answer = self.send("GET", _path(RECORDS, self.name))
        if answer.ok:
            fields = cast(dict[str, str], answer.json().get("fields", {}))
            return cast(Json, json.loads(fields.get("record", "{}")))
        if answer.status_code != 404 and self._is_deployed(RECORDS) and self._is_deployed(self.name):
            raise self.refusal(answer)
        return None

    def write_record(self, record: Record) -> None:
        self._feed("POST", _path(RECORDS, self.name), {"fields": record_document(record)})

    def create(self, spec: Spec) -> None:
        """Check that the application has the document type: packages are deployed with Vespa's own command."""
        del spec
        for kind in (RECORDS, self.name):
            if not self._is_deployed(kind):
                raise UsageError(
                    f"{self.where}: the application has no document type {kind}; deploy the package that dupmae-ir "
                    "servers files writes for vespa"
                )

    def stored(self) -> Iterator[tuple[str, bytes]]:
        token: str | None = ""
        while token is not None:
            page = self._visit(self.name, f"{self.name}:docid,fingerprint", token)
            if not page.ok:
                raise self.refusal(page)
            found = page.json()
            token = found.get("continuation")
            for document in found.get("documents", []):
                fields = document["fields"]
                if "fingerprint" not in fields:
                    raise UsageError(f"{self.where}: {document['id']} was not fed by dupmae-ir; remove it")
                yield fields["docid"], bytes.fromhex(fields["fingerprint"])

    def upsert(self, rows: Rows) -> None:
        paths = [_path(self.name, user_part(docid)) for docid in rows.docids]
        bodies = [{"fields": fields} for fields in document_fields(rows)]
        for _ in self._pool.map(self._feed, ["POST"] * len(paths), paths, bodies):
            pass

    def delete(self, docids: Sequence[str]) -> None:
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
        found = self._search(count_body(self.name, where))
        return int(str(cast(Json, found["fields"])["totalCount"]))

    def top(
        self, part: str, queries: Sequence[ServerQuery], depth: int, where: Where | None, approximate: bool
    ) -> list[ServerHits]:
        bodies = [query_body(self.name, part, query, depth, where, approximate) for query in queries]
        lists = []
        for root in self._pool.map(self._search, bodies):
            hits = cast(list[Json], root.get("children", []))
            docids = [cast(dict[str, str], hit["fields"])["docid"] for hit in hits]
            lists.append(ServerHits(docids, np.array([hit["relevance"] for hit in hits], np.float64)))
        return lists

    def close(self) -> None:
        self._pool.shutdown()
        super().close()

    def _search(self, body: Json) -> Json:
        """The root of an answer. Raises :class:`ServerFailed` unless all documents were searched."""
        root = cast(Json, self.post("search/", {**body, "timeout": f"{self.timeout:g}s"})["root"])
        if errors := root.get("errors"):
            raise ServerFailed(f"{self.where}: {one_line(json.dumps(errors), 300)}")
        coverage = cast(Json, root.get("coverage", {}))
        if coverage.get("full") is not True or coverage.get("degraded"):
            reason = one_line(json.dumps(coverage.get("degraded", {})), 300)
            raise ServerFailed(
                f"{self.where}: searched {coverage.get('coverage', 'an unknown number of')} % of the documents "
                f"({reason}); raise `timeout`, or wait until all nodes are up"
            )
        return root

    def _is_deployed(self, kind: str) -> bool:
        """Whether the application has a document type; visits of others are answered with 400."""
        answer = self._visit(kind, "[id]")
        unknown = answer.status_code == 400 and "document type" in answer.text
        if not answer.ok and not unknown:
            raise self.refusal(answer)
        return not unknown

    def _visit(self, kind: str, fields: str, token: str = "") -> requests.Response:
        """Some documents of a type, with the token that continues after them."""
        options = {"fieldSet": fields, "wantedDocumentCount": str(_PAGE)}
        options |= {"cluster": self._cluster} if self._cluster else {}
        options |= {"continuation": token} if token else {}
        return self.send("GET", f"document/v1/{NAMESPACE}/{kind}/docid?{urlencode(options)}")

    def _feed(self, method: str, path: str, body: Json | None = None) -> None:
        """One operation, which is repeated while the server is busy."""
        for pause in (*_PAUSES, None):
            answer = self.send(method, path, body)
            if answer.status_code not in _BUSY or pause is None:
                break
            time.sleep(pause)
        if not answer.ok:
            raise self.refusal(answer)
        if answer.headers.get("X-Vespa-Ignored-Fields") == "true":
            raise ServerFailed(
                f"{self.where}: the schema {self.name} lacks fields of this table; deploy the package that "
                "dupmae-ir servers files writes for vespa"
            )

    def _authorize(self, parts: SplitResult) -> None:
        given = {
            name: os.environ.get(f"VESPA_CLI_DATA_PLANE_{name}")
            for name in ("TOKEN", "CERT_FILE", "KEY_FILE", "CA_CERT_FILE")
        }
        session = self.session
        if given["CA_CERT_FILE"]:
            session.verify = given["CA_CERT_FILE"]
        if given["CERT_FILE"] and given["KEY_FILE"]:
            session.cert = (given["CERT_FILE"], given["KEY_FILE"])
        if given["TOKEN"]:
            session.headers["Authorization"] = f"Bearer {given['TOKEN']}"
            check_secret(parts, "credentials", "vespa+https")


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


def record_document(record: Record) -> Json:
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


def _text(text: str) -> str:
    """A text without what Vespa refuses."""
    return _NOT_TEXT.sub("\ufffd", text)


def application(name: str, spec: Spec, approximate: bool) -> dict[str, str]:
    """The files of the application package by their paths. ``approximate``: with an HNSW index of the vectors.

    The schema has the [CLS] vector as a dense tensor, the impacts as a weighted set, and one rank profile for each kind
    of list. The first phase of ``hybrid`` is the sum of DupMAE, Eq. 12, over every document that matches.
    """
    values = {"name": name, "spec": spec, "approximate": approximate, "records": RECORDS, "max_rows": MAX_ROWS}
    templates = {
        "services.xml": "services.xml",
        f"schemas/{name}.sd": "schema.sd",
        f"schemas/{RECORDS}.sd": "records.sd",
        "search/query-profiles/default.xml": "query-profile.xml",
    }
    return {path: TEMPLATES.get_template(template).render(values) for path, template in templates.items()}


def facts(docid: str, metadata: Metadata) -> list[str]:
    """The digests of a document: of its id, of the names that have a value, and of every value."""
    found = [docid_fact(docid), *(_digest("name", name) for name in metadata)]
    return sorted({*found, *(_value(name, one) for name, one in scalars(metadata))})


def numbers(metadata: Metadata) -> list[dict[str, object]]:
    """The numbers of a document, with the digests of their names."""
    pairs = [(name, value) for name, value in scalars(metadata) if kind_of(value) == "num"]
    return [{"named": _digest("name", name), "number": float(cast(float, value))} for name, value in pairs]


def docid_fact(docid: str) -> str:
    """The digest by which a document is selected by its id."""
    return _digest("docid", docid)


def condition_yql(node: Node) -> str:
    """The YQL expression that selects the same documents. Raises :class:`Untranslatable`."""
    return _Yql().write(node)


class _Yql(ConditionWriter[str]):
    """Expressions over the field ``facts``, which has a digest of each value with its name and kind, of each name that
    has a value, and of the document's id. So case, accents, tokens and signs cannot change what an equality selects.
    Numbers are also in ``numbers``, for their order.
    """

    def present(self, name: str) -> str:
        return f'facts contains "{_digest("name", name)}"'

    def test(self, name: str, operation: str, value: MetadataScalar) -> str:
        kind = kind_of(value)
        if kind == "num" and not abs(float(value)) <= EXACT:
            raise Untranslatable("large numbers")
        if operation not in _ORDER:
            return f'facts contains "{_value(name, value)}"'
        limit = format(float(value), ".20f").rstrip("0") + "0" if kind == "num" else ""
        if kind != "num" or float(limit) != float(value):
            raise Untranslatable("the order of strings and truth values, tiny numbers")
        return f'numbers contains sameElement(named contains "{_digest("name", name)}", number {operation} {limit})'

    def negate(self, expression: str) -> str:
        return f"(true and !({expression}))"

    def join(self, expressions: Sequence[str], every: bool) -> str:
        return "(" + (" and " if every else " or ").join(expressions) + ")"


def _value(name: str, value: MetadataScalar) -> str:
    kind = kind_of(value)
    return _digest("value", name, kind, repr(float(value) + 0.0) if kind == "num" else str(value))


def _digest(*parts: str) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=10).hexdigest()
