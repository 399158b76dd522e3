"""Indexes with metadata, and the comparison of a server with a search without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dupmae_ir.index.filters import Filter
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.servers.config import LoadConfig
from dupmae_ir.servers.load import run
from dupmae_ir.servers.protocol import Untranslatable
from dupmae_ir.types import Document, Metadata
from support.mutable_index import TOPICS, Living, real_texts

CONDITIONS = [
    "year = 2020",
    "year != 2020",
    "year >= 2019 and year < 2021.5",
    "year > 2018 or lang = 'en'",
    "not year <= 2019",
    "lang in ('en', 'de')",
    "lang not in ('en', 'fr')",
    "lang > 'de'",
    "lang <= 'en'",
    "lang contains 'e'",
    "lang not contains 'n'",
    "tags = 'b'",
    "tags != 'b'",
    "tags contains 'a'",
    "tags not contains 'a'",
    "tags in ('c', 3)",
    "tags >= 2",
    "tags is missing",
    "lang is not missing",
    "open = true",
    "open != true",
    "open in (true, 'en', 2020)",
    "lang = 2020",
    "lang = true",
    "`a \"quoted\" name` = 'it''s'".replace("''", "\\'"),
    "`a \"quoted\" name` contains '%'",
    "not (lang = 'en' or tags is missing) and year in (2018, 2020, 2021)",
]
"""Every operation, on numbers, strings, truth values and lists; mixed kinds and odd names."""


def metadata(number: int) -> Metadata:
    """Some values, of several kinds, and some missing."""
    kinds: list[Metadata] = [
        {"year": 2018 + number % 5, "lang": ("en", "de", "fr", "é", "Z")[number % 5]},
        {"year": 2019.5, "lang": "en", "tags": ["a", "b"]},
        {"lang": 2020, "tags": [1, 2, 3], "open": True},
        {"year": "2020", "tags": "abc", "open": False},
        {"tags": [], 'a "quoted" name': "it's"},
        {"tags": ["c", 2.5, True], "open": True, 'a "quoted" name': "100 % \\ \U0001f600"},
        {},
    ]
    return kinds[number % len(kinds)]


def documents() -> list[Document]:
    """Real texts with metadata."""
    return [
        document._replace(metadata=metadata(number)) for number, document in enumerate(real_texts())
    ]


def small_index(folder: Path, count: int | None = None) -> Living:
    """An index of the first documents, which can change."""
    return Living(folder, documents()[:count])


def load(living: Living, url: str, table: str, **more: object) -> dict[str, object]:
    """Load an index into a server."""
    return run(LoadConfig(index=str(living.index), to=url, table=table, quiet=True, **more))  # type: ignore[arg-type]


def assert_same(
    living: Living,
    url: str,
    table: str,
    modes: Sequence[str] = ("dense", "impact", "hybrid"),
    hits: Sequence[int] = (5, 1000),
    **more: object,
) -> None:
    """Hits, scores and order of all topics are those of a search without a server, and certified."""
    plain = Searcher.open(living.index, impact_search="postings")
    through = Searcher.open(living.index, server=url, table=table)
    for mode in modes:
        for count in hits:
            expected = [answer.hits for answer in plain.answers(TOPICS, count, mode, **more)]  # type: ignore[arg-type]
            answers = list(through.answers(TOPICS, count, mode, **more))  # type: ignore[arg-type]
            assert [answer.hits for answer in answers] == expected, (mode, count)
            assert all(answer.report and answer.report.exact for answer in answers), (mode, count)


def translated(living: Living, url: str, translate: Callable[..., object]) -> int:
    """How many of :data:`CONDITIONS` ``translate`` accepts; each must select the same documents with the server."""
    plain = Searcher.open(living.index, impact_search="postings")
    through = Searcher.open(living.index, server=url, table="mine")
    count = 0
    for condition in CONDITIONS:
        try:
            translate(Filter.parse(condition).tree)
            count += 1
        except Untranslatable:
            pass
        expected = plain.search(TOPICS[0].text, 1000, "hybrid", filter=condition)
        assert through.search(TOPICS[0].text, 1000, "hybrid", filter=condition) == expected, (
            condition
        )
    return count
