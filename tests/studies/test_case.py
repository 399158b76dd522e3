"""The case study on a small index with the weightless encoder: ranks, shares and verdicts against a plain search."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from case import CaseConfig, main, published
from case import run as study
from case_report import (
    FINDS,
    FORMATS,
    LISTS,
    CaseStudy,
    CaseTally,
    Ranks3,
    ShownDocument,
    _rank_and_id,
)

from dupmae_ir.encode.__main__ import main as encode
from dupmae_ir.errors import UsageError
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.search.query.words import TermShare
from dupmae_ir.search.searcher import Searcher

pytestmark = pytest.mark.jvm

DOCUMENTS = {
    "lock": ("Locks", "acquire a lock and wait for the thread that holds the lock"),
    "join": ("Join", "wait until the thread ends"),
    "fork": ("", "fork a child process & read its <b>output</b>"),
    "pipe": ("Pipes", "a pipe | joins a process with a thread"),
    "empty": ("", ""),
    "path": ("Paths", "open a file by its path"),
}
QUERIES = {"q1": "wait for the thread", "q2": "open file", "q3": "zyzzyva", "blank": " "}
QRELS = [
    ("q1", "join", 2),
    ("q1", "pipe", 1),
    ("q1", "path", 0),
    ("q1", "gone", 1),
    ("q2", "empty", 1),
    ("q3", "x", 1),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("case")
    lines = [
        json.dumps({"_id": d, "title": title, "text": text})
        for d, (title, text) in DOCUMENTS.items()
    ]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    (folder / "topics.tsv").write_text("".join(f"{q}\t{text}\n" for q, text in QUERIES.items()))
    (folder / "q.txt").write_text("".join(f"{q} 0 {d} {g}\n" for q, d, g in QRELS))
    for index, *parts in (["I"], ["D", "--parts", "cls"]):
        arguments = [
            "--model",
            "testing:hashing",
            "--corpus",
            folder / "corpus.jsonl",
            "--index",
            folder / index,
        ]
        assert encode([*map(str, arguments), *parts, "--quiet"]) == 0
    return folder


def run(config: CaseConfig) -> list[CaseStudy]:
    return study(config).cases


def settings(home: Path, **changes: object) -> CaseConfig:
    given = {
        "index": str(home / "I"),
        "topics": str(home / "topics.tsv"),
        "qid": ("q1",),
        "quiet": True,
    }
    return CaseConfig(
        **{**given, "qrels": str(home / "q.txt"), "corpus": str(home / "corpus.jsonl"), **changes}
    )


def test_ranks_and_shares_are_those_of_a_search(home):
    (case,) = run(settings(home))
    searcher = Searcher.open(home / "I")
    for mode in ("dense", "impact", "hybrid"):
        found = [hit.docid for hit in searcher.search(QUERIES["q1"], 1000, mode)]
        assert case.lists[mode][:3] == tuple(found[:3])
        for docid, shown in case.documents.items():
            assert shown.ranks[mode] == (found.index(docid) + 1 if docid in found else None)
    for docid, shown in case.documents.items():
        why = searcher.explain(QUERIES["q1"], docid)
        assert (shown.score, shown.dense, shown.impact, shown.matched) == (
            why.score,
            why.dense,
            why.impact,
            len(why.terms),
        )
        assert shown.score == pytest.approx(
            shown.weights[0] * shown.dense + shown.weights[1] * shown.impact
        )
        assert list(shown.terms) == why.terms[:6]
        assert (shown.title, shown.text) == DOCUMENTS[docid]


def test_answers_best_grade_first_and_the_absent_apart(home):
    (case,) = run(settings(home))
    assert case.answers == ("join", "pipe")
    assert case.absent == ("gone",)
    assert case.documents["join"].grade == 2
    (strict,) = run(settings(home, rel_level=2))
    assert strict.answers == ("join",)


def test_an_answer_found_lower_is_shown_too(home):
    (case,) = run(settings(home, qid=("q2",), hits=1))
    rank = case.documents["empty"].ranks["dense"]
    assert rank > 1
    assert case.lists["dense"][-1] == "empty"
    assert len(case.lists["dense"]) == 2
    assert case.documents["empty"].ranks["impact"] is None
    assert "empty" not in case.lists["impact"]


def a_case(**ranks: int | None) -> CaseStudy:
    shown = ShownDocument(
        "d", 1, {"dense": None, "impact": None, "hybrid": None, **ranks}, 3.0, 1.0, 2.0, 0, ()
    )
    return CaseStudy(
        "q", "words", True, 10, 1000, ("d",), (), dict.fromkeys(shown.ranks, ()), {"d": shown}
    )


def test_the_verdict_is_the_papers_success_within_ten():
    assert a_case(dense=4, impact=11, hybrid=10).verdict == (
        "[CLS] finds an answer at rank 4; OT misses (first answer at rank 11); the sum finds an answer at rank 10"
    )
    assert "OT finds no answer in its first 1,000 hits" in a_case(dense=4).verdict


def test_verdicts_without_answers(home):
    (lost,) = run(settings(home, qid=("q3",)))
    assert lost.verdict == "none of its answers is in the index"
    (free,) = run(settings(home, topics=None, query="wait for the thread", qid=(), qrels=None))
    assert free.verdict.startswith("no judgements")
    assert free.answers == ()


def test_a_query_of_ones_own_may_borrow_judgements(home):
    (case,) = run(settings(home, topics=None, query="thread ends", qid=("q1",)))
    assert case.query == "thread ends"
    assert case.answers == ("join", "pipe")


def test_a_query_that_matches_nothing(home):
    (case,) = run(settings(home, topics=None, query="zyzzyva", qid=(), qrels=None))
    assert case.lists["impact"] == ()
    assert "OT found nothing" in FORMATS["text"]([case])


def test_text(home, capsys):
    arguments = [
        "--index",
        str(home / "I"),
        "--topics",
        str(home / "topics.tsv"),
        "--qid",
        "q1",
        "q2",
        "--qrels",
    ]
    assert (
        main(
            [*arguments, str(home / "q.txt"), "--corpus", str(home / "corpus.jsonl"), "--hits", "2"]
        )
        == 0
    )
    out, err = capsys.readouterr()
    assert err == ""
    assert "q1: wait for the thread\n" in out
    assert "q2: open file\n" in out
    assert "1 of its answers are not in the index" in " ".join(out.split())
    (join,) = [line.split() for line in out.splitlines() if line.startswith("join ")]
    dense, impact, total = map(float, join[-3:])
    assert total == pytest.approx(dense + impact, abs=0.011)
    assert all(line == line.rstrip() and len(line) <= 100 for line in out.splitlines())


class Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.marked: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_data(self, data):
        if self.open[-1:] == ["mark"]:
            self.marked.append(data)

    def handle_endtag(self, tag):
        self.open.pop()


def test_html_escapes_and_marks_the_matched_words():
    term = TermShare("lock", 1.0, 1.0, 1.0)
    piece = TermShare("##s", 1.0, 1.0, 1.0)
    ranks = {"dense": 1, "impact": 2, "hybrid": 1}
    shown = ShownDocument(
        "<i>", 1, ranks, 2.0, 1.0, 1.0, 2, (term, piece), "A Lock", "locks <b>lock</b> s"
    )
    case = CaseStudy(
        "q<", "a & b", True, 10, 1000, ("<i>",), (), dict.fromkeys(ranks, ("<i>",)), {"<i>": shown}
    )
    text = FORMATS["html"]([case])
    words = Words()
    words.feed(text)
    assert {"i", "b"} & set(words.tags) == set()
    assert words.marked.count("Lock") == words.marked.count("lock") == 3
    assert "s" not in words.marked
    assert "a &amp; b" in text


def test_every_format_and_the_file(home, capsys, tmp_path):
    (case,) = run(settings(home))
    markdown = FORMATS["markdown"]([case])
    assert "| join | 2 |" in markdown
    assert r"\[CLS\]" in markdown
    assert "&lt;b&gt;output" in FORMATS["html"](
        run(settings(home, query="fork a process", topics=None, qrels=None))
    )
    found = json.loads(FORMATS["json"]([case]))[0]
    assert found["best_rank"]["dense"] == case.best_rank("dense")
    assert found["documents"]["join"]["terms"][0]["share"] > 0
    file = tmp_path / "new" / "case.html"
    arguments = [
        "--index",
        str(home / "I"),
        "--query",
        "thread",
        "--format",
        "html",
        "--output",
        str(file),
    ]
    assert main(arguments) == 0
    assert capsys.readouterr() == ("", f"case study: {file}\n")
    assert file.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": "x"}, "give only one of `query`, `topics`, `published`"),
        ({"topics": None}, "give one of `query`, `topics`, `published`"),
        ({"topics": None, "query": " "}, "`query` is blank"),
        ({"qid": ()}, "`topics` requires `qid` or `find`"),
        ({"qid": ("blnk",)}, "has no topic 'blnk'. Did you mean 'blank'?"),
        ({"qid": ("blank",), "qrels": None}, "topic 'blank' is blank"),
        ({"qid": ("blank",), "query": "x", "topics": None}, "has no judgements for query 'blank'"),
        ({"qid": ("q1", "q2"), "query": "x", "topics": None}, "at most one `qid`"),
        (
            {"qid": (), "query": "x", "topics": None},
            "`qrels` requires `qid` or `find` or `published`",
        ),
        (
            {"qid": (), "query": "x", "topics": None, "qrels": None, "remove_query": True},
            "`remove_query` requires `qid` or `find` or `published`",
        ),
        ({"depth": 5}, "`depth` 5 is less than"),
        ({"hits": 0}, "`hits` must be at least 1"),
        ({"terms": -1}, "`terms` must be at least 0"),
        ({"index": "D"}, "has only the dense part"),
    ],
)
def test_misuse_is_one_line(home, changes, message):
    if changes.get("index"):
        changes = {"index": str(home / "D")}
    with pytest.raises(UsageError) as caught:
        run(settings(home, **changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_list_of_topics_is_read_once(home):
    """Both queries of one call are the cases of two calls."""
    both = run(settings(home, qid=("q2", "q1")))
    assert [case.qid for case in both] == ["q2", "q1"]
    assert both[1].documents.keys() == run(settings(home))[0].documents.keys()
    assert {t.qid for t in read_topics(home / "topics.tsv")} == set(QUERIES)


@pytest.mark.parametrize("find", FINDS)
def test_found_queries_are_those_of_single_studies(home, find):
    """The tally and its selection against the ranks that each query's own case reports."""
    wanted = dict(zip(LISTS, FINDS[find], strict=True))
    answered = [case for case in run(settings(home, qid=("q1", "q2", "q3"))) if case.answers]
    inside = {c.qid: {m: (c.best_rank(m) or 99) <= 2 for m in LISTS} for c in answered}
    matching = {
        qid for qid, hits in inside.items() if all(wanted[m] in (None, hits[m]) for m in LISTS)
    }
    made = study(settings(home, qid=(), find=find, within=2, most=9))
    assert {case.qid for case in made.cases} == matching
    assert [r.qid for r in made.tally.ranks] == [case.qid for case in answered]
    assert sum(n for *_, n, _ in made.tally.cells()) == len(answered)


def test_the_clearest_case_comes_first():
    ranks = (
        Ranks3("a", 5, None, 2),
        Ranks3("b", 1, None, None),
        Ranks3("c", 1, None, 3),
        Ranks3("d", 1, 1, 1),
    )
    tally = CaseTally("cls-hit-ot-miss", 10, ranks, 2)
    assert [r.qid for r in tally.found] == ["c", "b", "a"]
    assert list(tally.cells()) == [
        (True, True, 1, 1),
        (True, False, 3, 2),
        (False, True, 0, 0),
        (False, False, 0, 0),
    ]
    for format in FORMATS:
        assert "cls-hit-ot-miss" in FORMATS[format]([], tally)


def test_find_prints_counts_and_cases(home, capsys):
    arguments = [
        "--index",
        str(home / "I"),
        "--topics",
        str(home / "topics.tsv"),
        "--qrels",
        str(home / "q.txt"),
    ]
    assert main([*arguments, "--find", "cls-hit-ot-miss", "--within", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["qid"] for row in found["tally"]["found"]] == [
        case["qid"] for case in found["cases"]
    ]
    (home / "other.txt").write_text("q1 0 elsewhere 1\n")
    assert main([*arguments[:-1], str(home / "other.txt"), "--find", "both-hit"]) == 2
    assert "check that the three belong together" in capsys.readouterr().err


def test_the_published_queries_are_ms_marcos(shared_data):
    """Texts and answers against MS MARCO's own topics and judgements."""
    files = shared_data / "topics-and-qrels"
    topics = {t.qid: t.text for t in read_topics(files / "topics.msmarco-passage.dev-subset.txt")}
    judged = read_qrels(files / "qrels.msmarco-passage.dev-subset.txt.gz")
    for query in published().values():
        assert query.text == topics[query.qid]
        assert judged[query.qid] == {query.answer: 1}


def test_published_queries_are_shown_beside_the_papers_ranks(home, capsys):
    assert main(["--index", str(home / "I"), "--published", "--quiet"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("none of its answers is in the index") == 4
    for sentence in ("Table 5: [CLS] rank 4, OT misses", "Table 6: [CLS] misses, OT rank 8"):
        assert sentence in out


ESC = "\x1b[31m"
OSC = "\x1b]52;c;aGk=\x07"
C1 = "\x9b2J"
OVERRIDE = "\u202e"
SEPARATOR = "\u2028"
HOSTILE = f"red{ESC} paste{OSC} clear{C1} turn{OVERRIDE} line{SEPARATOR} end"
CONTROLS = set("\x1b\x07\x9b\u202e\u2028")


def hostile_case() -> CaseStudy:
    shown = ShownDocument(
        "d" + ESC, 1, dict.fromkeys(LISTS, 1), 2.0, 1.0, 1.0, 0, (), HOSTILE, HOSTILE
    )
    lists = dict.fromkeys(LISTS, (shown.docid,))
    return CaseStudy(
        "q" + C1, HOSTILE, True, 10, 100, (shown.docid,), (), lists, {shown.docid: shown}
    )


@pytest.mark.parametrize("kind", ["text", "markdown", "html"])
def test_a_case_study_has_no_control_characters(kind: str) -> None:
    shown = FORMATS[kind]([hostile_case()])
    assert "\\u001b" in shown
    assert not CONTROLS & set(shown)


def test_a_sum_names_the_weights_of_its_parts():
    shown = ShownDocument(
        "d", 1, {"dense": 1, "impact": 2, "hybrid": 3}, 5.0, 0.75, 0.5, 0, (), weights=(6.0, 1.0)
    )
    assert "5.00 = 6 x 0.75 + 0.50 (" in _rank_and_id(shown, "hybrid")
