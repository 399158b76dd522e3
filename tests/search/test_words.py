"""Words instead of index terms, and the best passage of a text with the matching words marked."""

from __future__ import annotations

import json
import random
import re
import sys

import pytest

from dupmae_ir import console
from dupmae_ir.encode import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.models import load_encoder
from dupmae_ir.models.languages import Analyzer
from dupmae_ir.search.__main__ import main
from dupmae_ir.search.query.words import (
    LONGEST_READ,
    LONGEST_SCAN,
    QueryWords,
    SpanEncoder,
    TermShare,
    WordShare,
)
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Document


class Pieces:
    """Word pieces of three letters, as BERT writes them."""

    def term_spans(self, text):
        spans = []
        for word in re.finditer(r"\w+", text.lower()):
            for i in range(0, len(word.group()), 3):
                piece = word.group()[i : i + 3]
                start = word.start() + i
                spans.append(("##" * bool(i) + piece, start, start + len(piece)))
        return spans


def term(name, share):
    return TermShare(name, 1.0, share, share)


def test_pieces_become_words_and_expansions():
    words = QueryWords(Pieces(), "Itertools groupby")
    terms = [
        term("ite", 1.0),
        term("##rto", 0.5),
        term("##upb", 0.25),
        term("sor", 0.125),
        term("zzz", 0.0625),
    ]
    assert isinstance(Pieces(), SpanEncoder)
    found = words.shares(terms, "itertools.groupby needs sorted input")
    assert found == [
        WordShare("itertools", 1.5, False, ("itertools",)),
        WordShare("groupby", 0.25, False, ("groupby",)),
        WordShare("sorted", 0.125, True, ("sorted",)),
        WordShare("zzz", 0.0625, True),
    ]
    assert sum(w.share for w in found) == sum(t.share for t in terms)
    assert [w.word for w in words.shares(terms, "")] == ["itertools", "groupby", "sor", "zzz"]


def test_title_and_text_are_read_as_their_lines_are():
    """One after the other, so that each is read once."""
    words = QueryWords(Pieces(), "Itertools groupby")
    terms = [term("ite", 1.0), term("##rto", 0.5), term("##upb", 0.25), term("sor", 0.125)]
    title = "Sorted groupby"
    text = "itertools, sorted and sort"
    assert words.shares(terms, title, text) == words.shares(terms, f"{title}\n{text}")
    assert words.shares(terms, "", text) == words.shares(terms, text)
    assert words.shares(terms, "", "") == words.shares(terms, "")


def test_words_of_a_text_have_the_shares_of_all_their_terms():
    words = QueryWords(Pieces(), "itertools")
    text = "Sorted, then itertools; unrelated"
    terms = [term("ite", 1.0), term("##rto", 0.5), term("##ted", 0.25), term("the", 0.01)]
    found = words.shaded(terms, text)
    # "the" has less than a tenth of the strongest share; a word carries what all its pieces add.
    assert [(text[m.start : m.end], m.share) for m in found] == [
        ("Sorted", 0.25),
        ("itertools", 1.5),
        ("unrelated", 0.25),
    ]
    assert words.shaded([], text) == ()
    assert words.shaded(terms, "") == ()


def brute_best(words, weights, text, width):
    """The largest sum of different terms in any window of the text."""
    marks = words.marks(weights, text)
    best = 0.0
    for start, _, _ in marks:
        inside = {t for a, b, t in marks if start <= a and b <= start + width}
        best = max(best, sum(weights[t] for t in inside))
    return best


def test_the_snippet_has_the_best_words():
    rng = random.Random(5)
    words = QueryWords(Pieces(), "aaa bbb ccc ddd")
    weights = {"aaa": 1.0, "bbb": 0.7, "ccc": 0.5, "ddd": 0.3}
    for _ in range(200):
        filler = rng.choices(["word", "x", "some.", "text\n\n", "longer"], k=150)
        for name in rng.choices(list(weights), k=rng.randrange(1, 12)):
            filler[rng.randrange(150)] = name
        text = " ".join(filler)
        snippet = words.snippet(weights, text, 80)
        marked = {snippet.text[a:b] for a, b in snippet.marks}
        assert sum(weights[t] for t in marked) >= brute_best(words, weights, text, 80) - 1e-9
        assert " ".join(text[snippet.start : snippet.end].split()) == snippet.text
        assert len(snippet.text) <= 170
        assert snippet.before == bool(text[: snippet.start].strip())


@pytest.mark.parametrize(
    "text",
    ["", " \n ", "no match at all", "aaa", "aaa" * 400, "é aaa\u00a0bbb\t\tccc", "\ufdd0aaa"],
)
def test_snippets_of_strange_texts(text):
    words = QueryWords(Pieces(), "aaa bbb")
    snippet = words.snippet({"aaa": 1.0, "bbb": 1.0}, text)
    assert all(0 <= a < b <= len(snippet.text) for a, b in snippet.marks)
    assert not re.search(r"\s\s|^\s|\s$", snippet.text)


def test_words_without_terms_of_the_encoder_are_compared_by_stem():
    words = QueryWords(None, "rotating the logs")
    snippet = words.snippet(words.weights([]), "A tool that rotates a log file.")
    assert [snippet.text[a:b] for a, b in snippet.marks] == ["rotates", "log"]


def test_faint_matches_are_not_marked():
    words = QueryWords(Pieces(), "aaa bbb")
    assert [t for _, _, t in words.marks({"aaa": 1.0, "bbb": 0.05}, "aaa bbb")] == ["aaa"]


@pytest.fixture(scope="module")
def lexical():
    return None  # the embedded model


def test_spans_of_a_lexical_model_agree_with_its_weights(lexical):
    encoder = load_encoder(lexical, device="cpu", dtype="float32")
    text = "The readers of itertools.groupby are Waiting for HTTPServer files."
    spans = encoder.term_spans(text)
    weighted = {encoder.terms[i] for i in encoder.encode_queries([text]).ot.indices}
    assert weighted <= {name for name, _, _ in spans}
    assert all(0 <= start < end <= len(text) for _, start, end in spans)
    stems = {name: text[start:end] for name, start, end in spans if name.startswith("=")}
    assert "Waiting" in stems.values()


# ---------------------------------------------------------------- of an index


@pytest.fixture(scope="module")
def index(tmp_path_factory, lexical):
    where = tmp_path_factory.mktemp("words")
    texts = [
        "Locks are released by threads. " * 12 + "The waiting readers of a queue.",
        "Nothing of that.",
        "a queue waits",
    ]
    lines = [
        json.dumps({"_id": f"d{i}", "title": f"Title {i}", "text": t, "year": 2000 + i})
        for i, t in enumerate(texts)
    ]
    (where / "corpus.jsonl").write_text("\n".join(lines))
    encode(
        EncodeConfig(
            corpus=str(where / "corpus.jsonl"), index=str(where / "I"), model=lexical, quiet=True
        )
    )
    return where / "I"


@pytest.mark.jvm
def test_described_hits_sum_to_the_explanation(index):
    searcher = Searcher.open(index)
    query = "who waits for the queue"
    docids = [hit.docid for hit in searcher.search(query)]
    for found, explained in zip(
        searcher.describe(query, docids), searcher.explain_all(query, docids), strict=True
    ):
        assert found.explanation == explained
        assert sum(w.share for w in found.words) == pytest.approx(explained.impact, abs=1e-9)
        assert not any(w.expansion for w in found.words)
        assert not any(w.word.startswith(("#", "=")) for w in found.words)
    (first,) = searcher.describe(query, ["d0"])
    assert {"waits", "queue"} <= {w.word for w in first.words}
    assert [first.snippet.text[a:b] for a, b in first.snippet.marks] == ["waiting", "queue"]
    assert first.snippet.before
    assert first.document.metadata == {"year": 2000}


@pytest.mark.jvm
def test_the_command_shows_the_passage_and_bold_words_on_a_terminal_only(
    index, capsys, monkeypatch
):
    command = ["--index", str(index), "--query", "who waits for the queue", "--hits", "1"]
    assert main(command) == 0
    plain = capsys.readouterr().out
    assert "queue" in plain
    assert "words: " in plain
    assert not re.search("[\x1b\ufdd0\ufdd1]", plain)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "\x1b[1mqueue\x1b[0m" in shown
    assert re.sub("\x1b\\[[01]m", "", shown) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(command) == 0
    assert capsys.readouterr().out == plain
    assert main([*command, "--json"]) == 0
    (hit,) = json.loads(capsys.readouterr().out)["hits"]
    assert hit["metadata"]["year"] in (2000, 2001, 2002)
    assert {"text", "marks", "start", "end", "before", "after"} == set(hit["snippet"])


def test_emphasis_of_hostile_text(capsys, monkeypatch):
    assert console.unmarked("a\ufdd0b\ufdd1", " ") == "a b "
    console.show(console.emphasised("abc def", [(0, 3), (4, 7)]))
    assert capsys.readouterr().out == "abc def\n"
    console.show('"\ufdd0"', emphasis=False)
    assert capsys.readouterr().out == '"\ufdd0"\n'


def test_a_long_text_is_read_as_far_as_a_limit():
    """Words beyond it are not looked for, and one endless word is no work of its square."""
    words = QueryWords(object(), "locks")
    for unit in ("lock ", "x"):
        assert len(words.snippet({"lock": 1.0}, unit * 190_000).text) <= 2 * 240
    assert words.marks({"lock": 1.0}, "a " * LONGEST_SCAN + "lock") == []
    assert len(words.marks({"lock": 1.0}, "lock " * 100_000)) <= LONGEST_READ // 5 + 1


def test_a_long_text_is_read_where_most_words_of_the_query_are():
    words = QueryWords(object(), "locked queues")
    text = "lock " + "x " * LONGEST_READ + "lock the queue " + "y " * LONGEST_READ
    start = text.index("lock the queue")
    assert words.marks({"lock": 1.0, "queue": 1.0}, text) == [
        (start, start + 4, "lock"),
        (start + 9, start + 14, "queue"),
    ]
    assert words.snippet({"lock": 1.0, "queue": 1.0}, text).text.count("lock the queue") == 1


def test_a_short_text_is_read_to_its_end():
    words = QueryWords(object(), "locks")
    assert words.marks({"lock": 1.0}, "a " * 10 + "lock") == [(20, 24, "lock")]


SCRIPTS = {
    "ru": (
        "как расторгнуть аренду квартиры",
        "Поезд в Петербург отправляется с третьей платформы. Аренда дорогая.",
    ),
    "de": ("Verteidigung der Stadt", "Die Leistung der Zeitung in den Städten; Ordnung."),
    "zh": ("怎样取消北京的房子", "北京大学的房子很贵。"),
    "ar": ("كيف ألغي عقد الإيجار", "يغادر القطار من الرصيف. الإيجار مرتفع"),
    "hi": ("पाइप में पानी", "पानी नहीं होने पर पाइपों"),
    "emoji": ("🚀 launch the cat 😀", "A launch 🚀 of cats 😀😀"),
}


@pytest.mark.parametrize("indexed", ["auto", "en"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_shares_are_of_words_that_the_text_has(script, indexed, lexical):
    """In every script, and in an index of the wrong language: a word of the query that gets a share is in the text, by
    itself or by its stem; all others are named as expansions, and letters are never credited to words."""
    query, text = SCRIPTS[script]
    language = "en" if indexed == "en" or script == "emoji" else script
    encoder = load_encoder(lexical, device="cpu", dtype="float32", parts=("ot",), language=language)
    q = encoder.encode_queries([query]).ot
    d = encoder.encode_collection([Document("", text)]).ot
    both = q.multiply(d).tocsr()
    terms = [term(encoder.terms[i], float(w)) for i, w in zip(both.indices, both.data, strict=True)]
    words = QueryWords(encoder, query)
    found = words.shares(terms, text)
    assert sum(w.share for w in found) == pytest.approx(sum(t.share for t in terms))
    assert len({w.word for w in found if not w.expansion}) == len(
        [w for w in found if not w.expansion]
    )
    analyzer = Analyzer(language)
    stems = set(analyzer.terms(text))
    for w in found:
        whole = [t for t, a, b in analyzer.spans(query) if query[a:b].lower() == w.word]
        if not w.expansion:
            assert w.word in text.lower() or set(whole) & stems, w
            assert w.word in query.lower()
        assert len(w.word) < 20, "a clause is no word"
    assert any(not w.expansion for w in found) or (script, indexed) == ("ru", "en")
    snippet = words.snippet(words.weights(terms), text)
    marked = {snippet.text[a:b].lower() for a, b in snippet.marks}
    if script == "ru":
        assert marked == ({"аренда"} if indexed == "auto" else set())
        assert [w.word for w in found if not w.expansion] == (
            ["аренду"] if indexed == "auto" else []
        )
