"""Conditions on metadata: what they select, against an evaluator of its own, and how mistakes are reported."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dupmae_ir.errors import UsageError
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.filters import MAX_DEPTH, Filter
from dupmae_ir.index.format.joined import JoinedTexts
from dupmae_ir.index.format.texts import StoredDocument, TextStore, TextWriter
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings.format import export_postings
from dupmae_ir.search.__main__ import main
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.testing import HashingEncoder

pytestmark = pytest.mark.jvm  # building an index starts one

PREDICATES = 1000
TAGS = ["a", "b", "c d", 'quote " and \\ slash', "", "é"]


def documents(rng: np.random.Generator, count: int) -> list[dict[str, Any]]:
    """Metadata with missing values, several kinds in one column, and lists."""
    drawn = []
    for _ in range(count):
        one: dict[str, Any] = {}
        if rng.random() < 0.9:
            one["year"] = int(rng.integers(1990, 2026))
        if rng.random() < 0.8:
            one["lang"] = str(rng.choice(["en", "de", "fr", "english", ""]))
        if rng.random() < 0.7:
            one["score"] = float(rng.choice([0.5, -1.25, 3.0, 1e9]))
        if rng.random() < 0.5:
            one["open"] = bool(rng.random() < 0.5)
        if rng.random() < 0.6:
            one["tags"] = [str(tag) for tag in rng.choice(TAGS, int(rng.integers(0, 4)))]
        if rng.random() < 0.5:
            one["mixed kind"] = [1, "1", True, 1.0, [1, "x"], [True]][int(rng.integers(6))]
        drawn.append(one)
    return drawn


class Drawn:
    """A random predicate as text and as a Python function, built side by side."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def predicate(self, depth: int = 0) -> tuple[str, Any]:
        chance = self.rng.random()
        if depth > 3 or chance < 0.45:
            return self.condition()
        if chance < 0.6:
            text, holds = self.predicate(depth + 1)
            return f"not ({text})", lambda d: not holds(d)
        parts = [self.predicate(depth + 1) for _ in range(int(self.rng.integers(2, 4)))]
        word = "and" if chance < 0.8 else "or"
        every = all if word == "and" else any
        return f" {word} ".join(f"({text})" for text, _ in parts), lambda d: every(
            h(d) for _, h in parts
        )

    def value(self) -> tuple[str, Any]:
        values: list[Any] = [
            2000,
            2020,
            1990,
            0.5,
            -1.25,
            3,
            1e9,
            1,
            "en",
            "1",
            True,
            False,
            "x",
            "n",
            *TAGS,
        ]
        value = values[int(self.rng.integers(len(values)))]
        return written(value), value

    def condition(self) -> tuple[str, Any]:
        name = str(self.rng.choice(["year", "lang", "score", "open", "tags", "mixed kind"]))
        shown = f"`{name}`" if " " in name else name
        kind = int(self.rng.integers(5))
        text, value = self.value()
        if kind == 0:
            return f"{shown} is missing", lambda d: name not in d
        if kind == 1:
            others = [self.value() for _ in range(3)]
            wanted = [v for _, v in others]
            listed = ", ".join(t for t, _ in others)
            if self.rng.random() < 0.5:
                return (
                    f"{shown} in ({listed})",
                    lambda d: name in d and some(d[name], lambda v: among(v, wanted)),
                )
            return (
                f"{shown} not in ({listed})",
                lambda d: name in d and not some(d[name], lambda v: among(v, wanted)),
            )
        if kind == 2:
            return f"{shown} contains {text}", lambda d: name in d and contains(d[name], value)
        sign = str(
            self.rng.choice(
                ["=", "!="] if isinstance(value, bool) else ["=", "!=", "<", "<=", ">", ">="]
            )
        )
        if sign == "!=":
            return (
                f"{shown} != {text}",
                lambda d: name in d and not some(d[name], lambda v: same(v, value)),
            )
        return (
            f"{shown} {sign} {text}",
            lambda d: name in d and some(d[name], lambda v: ordered(v, sign, value)),
        )


def written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


def some(value: Any, test: Any) -> bool:
    return any(test(v) for v in value) if isinstance(value, list) else test(value)


def kind(value: Any) -> str:
    return "bool" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"


def same(value: Any, wanted: Any) -> bool:
    return kind(value) == kind(wanted) and value == wanted


def among(value: Any, wanted: list[Any]) -> bool:
    return any(same(value, w) for w in wanted)


def contains(value: Any, wanted: Any) -> bool:
    if isinstance(value, list):
        return any(same(v, wanted) for v in value)
    return isinstance(value, str) and isinstance(wanted, str) and value.find(wanted) >= 0


def ordered(value: Any, sign: str, wanted: Any) -> bool:
    if kind(value) != kind(wanted):
        return False
    less = value < wanted
    equal = value == wanted
    return {"=": equal, "<": less, "<=": less or equal, ">": not (less or equal), ">=": not less}[
        sign
    ]


@pytest.fixture(scope="module")
def collection() -> list[dict[str, Any]]:
    return documents(np.random.default_rng(0), 300)


@pytest.fixture(scope="module")
def store(collection: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> TextStore:
    folder = tmp_path_factory.mktemp("texts") / "texts"
    with TextWriter(folder) as writer:
        writer.add(
            StoredDocument(f"d{i}", "", "", metadata) for i, metadata in enumerate(collection)
        )
    return TextStore(folder)


def test_a_thousand_random_predicates_equal_brute_force(
    collection: list[dict[str, Any]], store: TextStore
) -> None:
    drawn = Drawn(np.random.default_rng(1))
    selected = []
    for _ in range(PREDICATES):
        text, holds = drawn.predicate()
        condition = Filter.parse(text)
        wanted = [bool(holds(metadata)) for metadata in collection]
        assert condition.mask(store).tolist() == wanted, text
        assert [condition.holds(metadata) for metadata in collection[:20]] == wanted[:20], text
        selected.append(sum(wanted))
    assert len(set(selected)) > 100  # from none to all


@pytest.mark.parametrize(
    ("text", "metadata", "holds"),
    [
        ('year >= 2020 and lang = "en"', {"year": 2020, "lang": "en"}, True),
        ('year >= 2020 and lang = "en"', {"year": 2020, "lang": "de"}, False),
        ("year = 2020.0", {"year": 2020}, True),
        ("year == 2020", {"year": 2020}, True),
        ("year = 2020", {"year": "2020"}, False),
        ("year != 2020", {}, False),
        ("not year = 2020", {}, True),
        ("NOT year IS MISSING", {"year": 1}, True),
        ("year is not missing", {"year": 1}, True),
        ("a = 1 or b = 1 and c = 1", {"a": 1}, True),
        ("(a = 1 or b = 1) and c = 1", {"a": 1}, False),
        ("not a = 1 and b = 1", {"b": 1}, True),
        ("tags contains 'x'", {"tags": ["y", "x"]}, True),
        ("tags contains 'x'", {"tags": ["xy"]}, False),
        ("title contains 'x'", {"title": "axb"}, True),
        ("path under 'notes'", {"path": "notes/a/b.md"}, True),
        ("path under './notes/'", {"path": "notes"}, True),
        ("path under 'notes'", {"path": "notes2/a.md"}, False),
        ("path not under 'notes'", {"path": "work/a.md"}, True),
        ("path not under 'notes'", {}, False),
        ("path like '*.md'", {"path": "notes/a.md"}, True),
        ("path like '*.md'", {"path": "notes/a.MD"}, False),
        ("path like 'n?tes/[ab].md'", {"path": "notes/a.md"}, True),
        ("path like '*.md'", {"path": 3}, False),
        ("tags like 'x*'", {"tags": ["y", "xz"]}, True),
        ("title not contains 'x'", {"title": "ab"}, True),
        ("title not contains 'x'", {}, False),
        ("n in (1, 2.5, 'x', true)", {"n": True}, True),
        ("n in (1)", {"n": True}, False),
        ("n < -0.5e1", {"n": -6}, True),
        ("`and` = 'it\\'s'", {"and": "it's"}, True),
        ("a.b-c_1 = .5", {"a.b-c_1": 0.5}, True),
        ("jahr_ü > 1", {"jahr_ü": 2}, True),
        ("a = 123456789012345678901", {"a": 123456789012345678901}, True),
        ("tags = 'x'", {"tags": []}, False),
        ("tags != 'x'", {"tags": []}, True),
    ],
)
def test_meaning(text: str, metadata: dict[str, Any], holds: bool) -> None:
    assert Filter.parse(text).holds(metadata) is holds


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("", 1, "expected a condition, such as"),
        (
            "year",
            5,
            "expected =, !=, <, <=, >, >=, in, contains, like, under or is missing after 'year', got the end",
        ),
        ("year >= ", 9, 'expected a value ("text", a number, true or false), got the end'),
        ("year >= 2020 and", 17, "expected the name of a metadata column, got the end"),
        ("lang = en", 8, "got 'en'; write text between quotes: \"en\""),
        ("lang = 'en", 8, "a string without its closing quote"),
        ("2020 < year", 1, "expected the name of a metadata column, got '2020'"),
        ("a = 1 b = 2", 7, "expected and, or, or the end, got 'b'"),
        ("(a = 1", 7, "expected ) to close column 1, got the end"),
        ("a in 1", 6, "expected ( after in, got '1'"),
        ("a in (1 2)", 9, "expected , or ) in a list of values, got '2'"),
        ("a in ()", 7, "expected a value"),
        (
            "path=notes/*",
            11,
            """'/*' is no part of a condition; files of a folder: path under "notes", files by a""",
        ),
        ("path like 3", 11, "expected a text after like, got '3'"),
        ("a not = 1", 7, "expected in, contains, like or under after 'a', got '='"),
        ("a is 1", 6, "expected missing, got '1'"),
        ("a > true", 5, "true has no order; use = or !="),
        ("a ~ 1", 3, "'~ 1' is no part of a condition"),
        ("a = 1x", 5, "is no part of a condition"),
        ("and = 1", 1, "expected the name of a metadata column, got 'and'"),
        ("a = 1)", 6, "expected and, or, or the end, got ')'"),
        (
            "(" * (MAX_DEPTH + 1) + "a = 1" + ")" * (MAX_DEPTH + 1),
            MAX_DEPTH + 1,
            "inside each other",
        ),
    ],
)
def test_mistakes_are_one_line_with_their_place(text: str, column: int, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        Filter.parse(text)
    assert str(caught.value).startswith(f"`filter`, column {column}: ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_text_ends_in_another_error() -> None:
    rng = np.random.default_rng(3)
    pieces = [
        "a",
        "=",
        "1",
        '"',
        "'",
        "(",
        ")",
        "and",
        "or",
        "not",
        "in",
        ",",
        " ",
        "`",
        "\\",
        "\x00",
        "é",
        "<",
        "1e999",
    ]
    for _ in range(2000):
        text = "".join(rng.choice(pieces, int(rng.integers(1, 12))))
        with contextlib.suppress(UsageError):
            Filter.parse(text).holds({"a": 1})


def test_unknown_columns_name_the_known_ones(store: TextStore, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"column 15: the index has no metadata 'lnag'; .* Did you mean 'lang'\?"
    ):
        Filter.parse("year > 1 and (lnag = 'en')").check(store.columns)
    Filter.parse("year > 1").check(store.columns)
    with TextWriter(tmp_path / "texts") as writer:
        writer.add([StoredDocument("d", "", "", {})])
    empty = TextStore(tmp_path / "texts")
    joined = JoinedTexts(tmp_path, [empty, store], np.array([0, 1, 1 + len(store)]))
    Filter.parse("year > 1").check(joined.columns)  # one of several segments has it
    assert Filter.parse("year > 1 or year is missing").mask(empty).tolist() == [True]
    with pytest.raises(UsageError, match="no metadata at all"):
        Filter.parse("year > 1").check(empty.columns)


@pytest.fixture(scope="module")
def folder(collection: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the same documents, with postings."""
    path = tmp_path_factory.mktemp("filtered") / "I"
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{i}" for i in rng.integers(0, 40, 6)) for _ in collection]
    encoder = HashingEncoder()
    both = encoder.encode_documents(texts)
    stored = [
        StoredDocument(f"d{i}", "", text, m)
        for i, (text, m) in enumerate(zip(texts, collection, strict=True))
    ]
    with IndexBuilder(
        path, dim=encoder.dim, terms=encoder.terms, scale=30.0, texts=True
    ) as builder:
        builder.add([f"d{i}" for i in range(len(texts))], both.cls, both.ot, stored)
        builder.finish({"encoder": {"name": encoder.name, "digest": encoder.digest}})
    export_postings(Index.open(path).only_segment)
    return path


def test_a_search_by_text_function_mask_and_ids_is_the_same(
    collection: list[dict[str, Any]], folder: Path
) -> None:
    searcher = Searcher.open(folder, HashingEncoder(), impact_search="postings")
    condition = 'year >= 2005 and (lang = "en" or tags contains "a")'
    ids = [
        f"d{i}" for i, metadata in enumerate(collection) if Filter.parse(condition).holds(metadata)
    ]
    mask = np.isin(searcher.index.docids, ids)
    everything = searcher.search("w1 w2 w3", hits=len(collection))
    wanted = [hit for hit in everything if hit.docid in set(ids)][:10]
    assert 5 < len(ids) < 250
    assert searcher.search("w1 w2 w3", filter=condition) == wanted
    assert searcher.search("w1 w2 w3", filter=mask) == wanted
    assert (
        searcher.search("w1 w2 w3", filter=lambda d: Filter.parse(condition).holds(d.metadata))
        == wanted
    )
    assert searcher.search("w1 w2 w3", within=ids) == wanted
    some = [docid for docid in ids if docid < "d2"]
    both = searcher.selection(some, condition)
    assert both.documents == len(some)
    assert (
        searcher.search("w1 w2 w3", within=both)
        == [hit for hit in everything if hit.docid in set(some)][:10]
    )
    with pytest.raises(UsageError, match="beside its result"):
        searcher.search("w1", within=both, filter=condition)
    with pytest.raises(UsageError, match=r"a mask of shape \(300,\)"):
        searcher.search("w1", filter=mask[:5])


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--index", str(folder), "--query", "w1 w2", "--impact-search", "postings", "--json"]
    assert main([*flags, "--filter", "year > 2010", "--hits", "300"]) == 0
    found = json.loads(capsys.readouterr().out)
    store = Index.open(folder).texts
    assert store is not None
    assert found["within"] == {"documents": len(found["hits"]), "filter": "year > 2010"}
    assert all(store.get(int(hit["docid"][1:])).metadata["year"] > 2010 for hit in found["hits"])
    assert main([*flags, "--filter", "year > 9999"]) == 0
    assert json.loads(capsys.readouterr().out)["hits"] == []
    for wrong, problem in (("year >", "column 7"), ("yaer > 1", "Did you mean 'year'?")):
        assert main([*flags, "--filter", wrong]) == 2
        assert problem in capsys.readouterr().err


def test_an_index_without_metadata_says_so(tmp_path: Path) -> None:
    encoder = HashingEncoder()
    both = encoder.encode_documents(["a"])
    with IndexBuilder(tmp_path / "I", dim=encoder.dim, terms=encoder.terms, scale=30.0) as builder:
        builder.add(["d"], both.cls, both.ot)
        builder.finish({})
    with pytest.raises(
        UsageError, match="stores no metadata to filter by; encode the collection again"
    ):
        Searcher.open(tmp_path / "I", encoder).search("a", filter="year > 1")


def test_every_condition_of_the_documentation_parses() -> None:
    page = (Path(__file__).parents[2] / "docs" / "filters.md").read_text(encoding="utf-8")
    table = page.partition("| condition |")[2].partition("\n\n")[0]
    conditions = [
        c for line in table.splitlines()[2:] for c in re.findall(r"`([^`]+)`", line.split("|")[1])
    ]
    assert len(conditions) >= 13
    for condition in conditions:
        # a and b stand for conditions.
        Filter.parse(re.sub(r"\b[ab]\b", "year = 1", condition))


def test_the_rest_of_a_condition_with_too_many_comparisons_is_not_read() -> None:
    Filter.parse("year = 1 or year = 2", most=2)
    with pytest.raises(UsageError, match="column 25: more than 2 comparisons"):
        Filter.parse("year = 1 or year = 2 or year = 3 ???", most=2)
