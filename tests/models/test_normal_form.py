"""The form in which words are compared: what a query can type finds what a file has."""

from __future__ import annotations

import random

import pytest

from dupmae_ir.models.languages import Analyzer
from dupmae_ir.models.normal_form import aligned, normal_form
from dupmae_ir.search.query.words import QueryWords

TYPED = {
    "e\ufb03cient work\ufb02ow": "efficient workflow",
    "data\u00adbase man\u00adage\u00adment": "database management",
    "zero\u200bwidth": "zerowidth",
    "\uff30\uff39\uff34\uff28\uff2f\uff2e\uff13": "PYTHON3",
    "cafe\u0301": "caf\u00e9",
    "CO\u2082": "CO2",
    "\U0001d400\U0001d401": "AB",
    "\ufeff\u200fword\u202c": "word",
    "\u2126": "\u03a9",
    "\uff76\uff9e\uff97\uff7d": "\u30ac\u30e9\u30b9",
}
"""Text of a file -> what a person types."""


@pytest.mark.parametrize("written", TYPED)
def test_what_is_typed_finds_what_is_written(written: str) -> None:
    assert normal_form(written) == TYPED[written]
    for language in ("en", "de", "ja"):
        analyzer = Analyzer(language)
        assert analyzer.terms(written) == analyzer.terms(TYPED[written])


@pytest.mark.parametrize(
    "text", ["as he said\u00b9 then", "Word\u2122 files", "5\u00bd cups", "\u2460 first"]
)
def test_signs_after_a_word_do_not_become_part_of_it(text: str) -> None:
    assert normal_form(text) == text


def test_places_are_those_of_the_text_as_it_is() -> None:
    text = "An e\ufb03cient data\u00adbase, caf\u0065\u0301 CO\u2082."
    words = ("e\ufb03cient", "data\u00adbase", "cafe\u0301", "CO\u2082")
    spans = Analyzer("en", with_parts=False).spans(text)
    assert [text[start:end] for _, start, end in spans] == list(words)


def test_every_place_of_random_text_leads_back() -> None:
    rng = random.Random(20261127)
    alphabet = "ab \ufb03\u00ad\u200be\u0301\uff21\u2082\u1100\u1161\u00b9\u2122\n"
    for _ in range(300):
        text = "".join(rng.choices(alphabet, k=rng.randint(0, 30)))
        form = aligned(text)
        assert (form is None) == (normal_form(text) == text)
        if form is None:
            continue
        for start in range(len(form.text)):
            begin, end = form.original(start, start + 1)
            assert 0 <= begin < end <= len(text)
            assert form.text[start] in normal_form(text[begin:end])


def test_snippets_have_the_normal_form_and_mark_whole_words() -> None:
    words = QueryWords(None, "database efficient")
    text = "The e\ufb03cient data\u00adbase\u200b, \u5207\u7b26\uff0cok"
    snippet = words.snippet({"databas": 1.0, "effici": 1.0}, text)
    assert snippet.text == "The efficient database, \u5207\u7b26\uff0cok"
