"""Measures beyond trec_eval's, which ir_measures has other libraries compute."""

from __future__ import annotations

import math
import shutil

import pytest

from dupmae_ir import compare, evaluate, read_qrels
from dupmae_ir.errors import DupmaeError, UnknownName, UsageError
from dupmae_ir.measures import Measure, parse_measures

QRELS = {"1": {"a": 2, "b": 1}, "2": {"c": 1}}
RUN = {"1": {"x": 3.0, "a": 2.0, "b": 1.0}, "2": {"c": 1.0}}
needs_perl = pytest.mark.skipif(shutil.which("perl") is None, reason="gdeval needs Perl")


@needs_perl
def test_expected_reciprocal_rank():
    # gdeval's probabilities of satisfaction are (2^grade - 1) / 2^4.
    first = 3 / 16
    second = 1 / 16
    expected = first / 2 + (1 - first) * second / 3
    values = evaluate(QRELS, RUN, "ERR@20").per_query
    assert values["1"]["ERR@20"] == pytest.approx(expected, abs=1e-5)
    assert values["2"]["ERR@20"] == pytest.approx(1 / 16, abs=1e-5)


@needs_perl
def test_other_gains():
    value = evaluate(QRELS, RUN, "nDCG(dcg='exp-log2')@10").per_query["1"]
    gain = 3 / math.log2(3) + 1 / math.log2(4)
    ideal = 3 / math.log2(2) + 1 / math.log2(3)
    assert value["nDCG(dcg='exp-log2')@10"] == pytest.approx(gain / ideal, abs=1e-5)


def test_beside_measures_of_trec_eval():
    evaluation = evaluate(QRELS, RUN, ["nDCG@10", "Compat(p=0.95)"])
    assert [str(measure) for measure in evaluation.measures] == ["nDCG@10", "Compat"]
    assert evaluation.mean["nDCG@10"] == evaluate(QRELS, RUN, "nDCG@10").mean["nDCG@10"]
    assert evaluation.per_query["2"]["Compat"] == 1.0
    assert evaluation.measures[1].trec_flags() is None


def test_what_fails_in_another_library_is_one_line():
    # Of version 0.4.3, if every document is relevant.
    with pytest.raises(DupmaeError, match=r"could not compute Accuracy@10: ZeroDivisionError"):
        evaluate({"2": {"c": 1}}, {"2": {"c": 1.0}}, "Accuracy@10")


def test_a_query_without_hits_counts_as_0():
    evaluation = evaluate(QRELS, {"2": RUN["2"]}, ["Compat"])
    assert evaluation.per_query == {"1": {"Compat": 0.0}, "2": {"Compat": 1.0}}


def test_they_are_compared():
    comparison = compare(QRELS, {"one": RUN, "two": {"2": {"c": 1.0}}}, ["Compat"])
    assert comparison.runs["two"]["Compat"].losses == 1


def test_another_spelling_of_a_known_measure_is_the_known_one():
    assert parse_measures(["Recall@10", "NDCG@5", "Precision@3"]) == (
        Measure("R", 10, 1),
        Measure("nDCG", 5),
        Measure("P", 3, 1),
    )


@pytest.mark.parametrize(
    ("text", "package", "module"),
    [("alpha_nDCG@10", "pyndeval", "pyndeval"), ("RBP(p=0.8)", "trectools", "trectools")],
)
def test_what_is_not_installed_has_its_command(text, package, module):
    try:
        __import__(module)
    except ImportError:
        with pytest.raises(UsageError, match=rf"pip install 'ir-measures\[{package}\]'"):
            parse_measures([text])
    else:
        assert str(parse_measures([text])[0]).startswith(text.partition("(")[0].partition("@")[0])


@pytest.mark.parametrize("text", ["nonsense", "nDCG(level=3)@10", "Judged(rel=2)@10"])
def test_what_nobody_knows_is_refused(text):
    with pytest.raises((UnknownName, UsageError)) as e:
        parse_measures([text])
    assert "\n" not in str(e.value)


# ---- Subtopics

DIVERSE = "1 1 a 1\n1 2 a 0\n1 2 b 1\n1 3 c 2\n2 0 d 1\n"


@pytest.fixture
def diverse(tmp_path):
    (tmp_path / "qrels.txt").write_text(DIVERSE)
    return tmp_path / "qrels.txt"


def test_a_document_has_the_highest_grade_of_its_subtopics(diverse):
    qrels = read_qrels(diverse)
    assert qrels == {"1": {"a": 1, "b": 1, "c": 2}, "2": {"d": 1}}
    assert list(qrels.by_subtopic()) == [
        ("1", "1", "a", 1),
        ("1", "2", "a", 0),
        ("1", "2", "b", 1),
        ("1", "3", "c", 2),
        ("2", "0", "d", 1),
    ]


def test_two_grades_of_one_subtopic_are_refused(tmp_path):
    (tmp_path / "qrels.txt").write_text("1 1 a 1\n1 1 a 2\n")
    with pytest.raises(UsageError, match="has grade 2 here and 1 before"):
        read_qrels(tmp_path / "qrels.txt")


def test_diversity(diverse):
    pytest.importorskip("pyndeval")
    run = {"1": {"a": 3.0, "b": 2.0, "c": 1.0}}
    same = {"1": {"a": 3.0, "x": 2.0, "c": 1.0}}
    rows = [tuple(line.split()) for line in DIVERSE.splitlines()]
    typed = [(qid, subtopic, docid, int(grade)) for qid, subtopic, docid, grade in rows]
    for qrels in (diverse, typed):
        values = [evaluate(qrels, r, "alpha_nDCG@3").per_query["1"] for r in (run, same)]
        assert values[0]["alpha_nDCG@3"] == pytest.approx(1)
        assert values[1]["alpha_nDCG@3"] < 0.9
