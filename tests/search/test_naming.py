"""What a person reads of a hit: its place, its text without markup, and its numbers."""

from __future__ import annotations

import pytest

from dupmae_ir.search.query.words import QueryWords
from dupmae_ir.search.view.naming import LONGEST_MARKUP, Place, digits, hidden_markup, without
from dupmae_ir.search.view.results import Explanation, describe
from dupmae_ir.types import Document

MARKDOWN = (
    "## Pets\n\nThe **cat** stays with `Anna` ([her page](https://a.example/x)).\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n"
)
UNDERLINED = (
    "Boiler manual\n=============\n\nError codes\n-----------\nE4: the pressure is too low.\n"
)


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        ({"path": "a/b.pdf", "page": 41, "heading": "Annex"}, "a/b.pdf, page 41"),
        ({"path": "Bob's plan.md", "heading": "Plan > Pets"}, "Bob's plan.md, Pets"),
        ({"path": "a.txt"}, "a.txt"),
        ({"year": 2020}, "None"),
    ],
)
def test_the_place_of_a_passage(metadata, name):
    assert str(Place.of(metadata)) == name


@pytest.mark.parametrize(
    ("text", "metadata", "seen"),
    [
        (
            MARKDOWN,
            {"type": "md", "path": "a.md", "heading": "Plan > Pets"},
            "The cat stays with Anna (her page). | a | b | | 1 | 2 |",
        ),
        (UNDERLINED, {"type": "text"}, "Boiler manual Error codes E4: the pressure is too low."),
        ("def f(**kwargs):\n    return `x`\n", {"type": "code"}, "def f(**kwargs): return `x`"),
        ("A # B ** C\n-----\n", {}, "A # B ** C -----"),
    ],
)
def test_markup_is_hidden_by_the_kind_of_the_file(text, metadata, seen):
    hidden = hidden_markup(text, metadata)
    assert " ".join(without(text, 0, len(text), hidden).split()) == seen
    described = describe(
        QueryWords(None, "cat pressure"),
        Explanation("d", 0, None, None, []),
        Document("d", text, "", metadata),
    )
    assert described.snippet.text == seen
    marked = [described.snippet.text[a:b] for a, b in described.snippet.marks]
    assert marked == [word for word in ("cat", "pressure") if word in seen]
    assert described.has_query_word == bool(marked)


def test_markup_is_looked_for_at_the_beginning_of_a_text():
    heading = "# Heading\n"
    assert hidden_markup("x" * (LONGEST_MARKUP - 20) + "\n" + heading, {"type": "md"})
    assert not hidden_markup("x" * LONGEST_MARKUP + "\n" + heading, {"type": "md"})


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (5.81777, "5.82"),
        (0.0123456, "0.0123"),
        (215613.0, "215,613"),
        (-3.5, "-3.5"),
        (47.31, "47.3"),
    ],
)
def test_three_digits(number, text):
    assert digits(number) == text
