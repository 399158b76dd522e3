"""A stand-in for Vespa: documents and queries of an application package, with float32 inner products.

It takes types of fields, rank profiles and limits from the package's files, evaluates the subset of YQL that the
backend sends, and refuses what Vespa refuses: fields of the wrong type, illegal characters, undefined types and
profiles, more hits than ``maxHits``, negations without a positive part. A query that does not switch off the
approximations of Vespa's defaults is answered as degraded.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from support.fake_http import Refused

TOKEN = re.compile(r'\s*("[^"]*"|@\w+|-?\d+(?:\.\d+)?|[A-Za-z_]\w*|>=|<=|[(){}:,<>=!*])')


@dataclass
class Schema:
    """A document type: the types of its fields, and the expressions and inputs of its rank profiles."""

    fields: dict[str, str]
    profiles: dict[str, str]
    inputs: dict[str, dict[str, str]]
    searchable: set[str]

    @classmethod
    def read(cls, text: str) -> Schema:
        """The parts of an ``.sd`` file that the stand-in needs."""
        assert text.count("{") == text.count("}")
        body = text[text.index("document ") :]
        found = re.findall(r"^ {8}field (\w+) type ([^ ]+(?: ?\([^)]*\))?) \{\n(.*?)^ {8}\}", body, re.M | re.S)
        rank = re.findall(r"^ {4}rank-profile (\w+) \{\n(.*?)^ {4}\}", body, re.M | re.S)
        inputs = {name: dict(re.findall(r"^ +query\((\w+)\) (.+)$", block, re.M)) for name, block in rank}
        profiles = {name: re.search(r"expression: (.+)", block)[1] for name, block in rank}  # type: ignore[index]
        searchable = {name for name, _, block in found if "attribute" in block}
        return cls({name: kind for name, kind, _ in found}, profiles, inputs, searchable)

    def value(self, name: str, given: Any) -> Any:
        """A value of a field as it is stored. Raises :class:`Refused` for one of another type."""
        kind = self.fields[name]
        if kind == "string":
            return legal(given)
        if kind == "array<string>":
            return [legal(one) for one in given]
        if kind == "array<named_number>":
            assert all(one.keys() == {"named", "number"} and isinstance(one["number"], float) for one in given)
            return given
        if kind == "weightedset<int>":
            if not all(isinstance(weight, int) and re.fullmatch(r"\d+", key) for key, weight in given.items()):
                raise Refused(f"not a weightedset<int>: {name}")
            return given
        ((width,),) = [re.fullmatch(r"tensor<float>\(x\[(\d+)\]\)", kind).groups()]  # type: ignore[union-attr]
        digits = given["values"]
        if len(digits) != 8 * int(width) or not re.fullmatch("[0-9A-F]*", digits):
            raise Refused(f"not the {width} cells of {name}")
        return np.frombuffer(bytes.fromhex(digits), ">f4").astype(np.float32)


def legal(text: Any) -> str:
    """A string that Vespa takes."""
    if not isinstance(text, str) or re.search("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", text):
        raise Refused("the string field value contains an illegal code point")
    return text


class StandIn:
    """An application. The put number ``fail_at`` is answered with ``failure``, once for each of ``failures``."""

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = {}
        self.documents: dict[str, dict[str, dict[str, Any]]] = {}
        self.max_hits = 400
        self.puts = self.fail_at = 0
        self.failures: list[int] = []
        self.queries: list[dict[str, Any]] = []
        self.coverage: dict[str, Any] = {"coverage": 100, "full": True}

    def deploy(self, package: Path) -> None:
        """Take an application package; documents of types that remain are kept."""
        services = (package / "services.xml").read_text()
        for name in re.findall(r'<document type="(\w+)"', services):
            self.schemas[name] = Schema.read((package / "schemas" / f"{name}.sd").read_text())
            self.documents.setdefault(name, {})
        profile = (package / "search" / "query-profiles" / "default.xml").read_text()
        self.max_hits = int(re.search(r'name="maxHits">(\d+)<', profile)[1])  # type: ignore[index]

    def feed(self, operations: list[dict[str, Any]]) -> None:
        """The lines of a feed file."""
        for operation in operations:
            parts = re.fullmatch("id:dupmae_ir:([a-z0-9_]+)::(.+)", operation["put"])
            assert parts
            assert operation.keys() == {"put", "fields"}
            self.put(parts[1], parts[2], operation["fields"])

    def answer(self, method: str, path: str, body: str) -> tuple[Any, ...]:
        """Status, JSON and headers of a request."""
        parts = urlsplit(path)
        if parts.path == "/search/":
            return 200, {"root": self.search(json.loads(body))}
        _, _, version, namespace, kind, docid, *rest = parts.path.split("/")
        assert (version, namespace, docid) == ("v1", "dupmae_ir", "docid")
        if not rest:
            return self.visit(kind, {name: values[0] for name, values in parse_qs(parts.query).items()})
        user = unquote(rest[0])
        known = self.documents.get(kind, {})
        if method == "GET":
            return (200, {"fields": known[user]}) if user in known else (404, {})
        if kind not in self.schemas:
            raise Refused(f"Document type {kind} does not exist")
        if method == "DELETE":
            known.pop(user, None)
            return 200, {}
        self.puts += 1
        if self.failures and self.puts >= self.fail_at:
            return self.failures.pop(0), {"message": "too many inflight feed operations"}
        ignored = self.put(kind, user, json.loads(body)["fields"])
        return 200, {}, *([("X-Vespa-Ignored-Fields", "true")] if ignored else [])

    def put(self, kind: str, user: str, fields: dict[str, Any]) -> bool:
        """Store a document; returns whether it had unknown fields."""
        schema = self.schemas[kind]
        self.documents[kind][user] = {n: schema.value(n, v) for n, v in fields.items() if n in schema.fields}
        return not fields.keys() <= schema.fields.keys()

    def visit(self, kind: str, options: dict[str, str]) -> tuple[int, Any]:
        """A page of at most 50 documents."""
        if kind not in self.schemas:
            raise Refused(f"There is no document type '{kind}' in cluster 'dupmae_ir'")
        names = options["fieldSet"].partition(":")[2].split(",")
        start = int(options.get("continuation", "page-0").partition("-")[2])
        page = list(self.documents[kind].items())[start : start + 50]
        found = [{"id": f"id:dupmae_ir:{kind}::{i}", "fields": {n: d[n] for n in names if n in d}} for i, d in page]
        more = {"continuation": f"page-{start + 50}"} if start + 50 < len(self.documents[kind]) else {}
        return 200, {"documents": found, "documentCount": len(found), **more}

    def search(self, query: dict[str, Any]) -> Any:
        """The root of an answer."""
        self.queries.append(query)
        if query["hits"] > self.max_hits:
            raise Refused(f"{query['hits']} hits requested, configured limit: {self.max_hits}")
        selected = re.fullmatch(r"select \* from (\w+) where (.+)", query["yql"])
        assert selected
        schema, documents = self.schemas[selected[1]], self.documents[selected[1]]
        scored = []
        for document in documents.values():
            clause = Clause(selected[2], query, document, schema)
            if clause.holds():
                scored.append((rank(schema, query, document, clause.raw), document["docid"]))
        best = sorted(scored, key=lambda pair: -pair[0])[: query["hits"]]
        coverage = dict(self.coverage)
        if query.get("ranking.softtimeout.enable") is not False or query.get("dispatch.topKProbability") != 1.0:
            coverage["degraded"] = {"timeout": True}
        children = [{"relevance": float(score), "fields": {"docid": docid}} for score, docid in best]
        return {"fields": {"totalCount": len(scored)}, "coverage": coverage, "children": children}


def rank(schema: Schema, query: dict[str, Any], document: dict[str, Any], raw: float) -> float:
    """The first phase of the query's rank profile."""
    profile = query["ranking.profile"]
    if profile == "unranked":
        return 0.0
    names = re.findall(r"\w+", schema.profiles[profile])
    inputs = schema.inputs[profile]

    def given(name: str) -> Any:
        found = query[f"input.query({name})"]
        return float(found) if inputs[name] == "double" else np.float32(found)

    def product(field: str, name: str) -> float:
        weights = mapping(query[f"ranking.properties.dotProduct.{name}"])
        return float(sum(weight * document.get(field, {}).get(term, 0) for term, weight in weights.items()))

    functions = {
        "query": given,
        "attribute": document.__getitem__,
        "sum": lambda cells: float(np.sum(cells, dtype=np.float32)),
        "dotProduct": product,
        "rawScore": lambda field: raw,
    }
    return eval(schema.profiles[profile], {**{name: name for name in names}, **functions})  # noqa: S307 - our own file


def mapping(text: str) -> dict[str, int]:
    """A weighted set of a request: ``{12:3,15:2}``."""
    assert re.fullmatch(r"\{(\d+:\d+(,\d+:\d+)*)?\}", text)
    return {term: int(weight) for term, weight in re.findall(r"(\d+):(\d+)", text)}


class Clause:
    """The ``where`` of a query, evaluated on one document. ``raw``: the dot product of its impacts."""

    def __init__(self, text: str, query: dict[str, Any], document: dict[str, Any], schema: Schema) -> None:
        self.tokens = TOKEN.findall(text)
        assert "".join(self.tokens) == re.sub(r"\s", "", text), text
        self.query, self.document, self.schema = query, document, schema
        self.raw = 0.0

    def holds(self) -> bool:
        found = self.either()
        assert not self.tokens
        return found

    def take(self, *expected: str) -> str:
        token = self.tokens.pop(0)
        if expected and token not in expected:
            raise Refused(f"could not create query from YQL: {token} instead of {expected}")
        return token

    def either(self) -> bool:
        found = [self.every()]
        while self.tokens and self.tokens[0] == "or":
            self.take()
            found.append(self.every())
        return any(found)

    def every(self) -> bool:
        positive, negative = [], []
        while True:
            inverted = self.tokens[0] == "!"
            if inverted:
                self.take()
            (negative if inverted else positive).append(self.one())
            if not self.tokens or self.tokens[0] != "and":
                break
            self.take()
        if not positive:
            raise Refused("a negation without a positive part")
        return all(positive) and not any(negative)

    def one(self) -> bool:
        first = self.take()
        if first == "(" and self.tokens[0] == "{":
            assert "targetHits" in self.tokens[: self.tokens.index("}")]
            del self.tokens[: self.tokens.index("}") + 1]
            found = self.one()
            self.take(")")
            return found
        if first == "(":
            found = self.either()
            self.take(")")
            return found
        if first in ("true", "false"):
            return first == "true"
        if first in ("dotProduct", "wand"):
            return self.product()
        if first == "nearestNeighbor":
            for token in ("(", "cls", ",", "q", ")"):
                self.take(token)
            return True
        return self.field(first)

    def product(self) -> bool:
        self.take("(")
        field = self.take("ot")
        self.take(",")
        weights = mapping(self.query[self.take().removeprefix("@")])
        self.take(")")
        known = self.document.get(field, {})
        self.raw = float(sum(weight * known.get(term, 0) for term, weight in weights.items()))
        return not weights.keys().isdisjoint(known)

    def field(self, name: str) -> bool:
        assert name in self.schema.searchable, name
        values = self.document.get(name, [])
        if self.take("contains", "in") == "in":
            self.take("(")
            wanted = self.query[self.take().removeprefix("@")].split(",")
            self.take(")")
            return not set(wanted).isdisjoint(values)
        if self.tokens[0] != "sameElement":
            return self.take().strip('"') in values
        tokens = [self.take() for _ in range(10)]
        assert [*tokens[:4], *tokens[5:7], tokens[9]] == ["sameElement", "(", "named", "contains", ",", "number", ")"]
        key, operator, limit = tokens[4].strip('"'), tokens[7], float(tokens[8])
        compare = {"<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}[operator]
        return any(one["named"] == key and getattr(one["number"], compare)(limit) for one in values)
