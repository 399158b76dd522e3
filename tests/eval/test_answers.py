"""Answer accuracy: DPR's comparison restated plainly, worked examples, and every mistake in one line."""

from __future__ import annotations

import gzip
import json
import random
import unicodedata

import pytest
import regex

from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.eval.answers import accuracy, first_ranks, has_answer, main, read_answers
from dupmae_ir.types import Hit


def as_dpr_says(answers: list[str], text: str) -> bool:
    """The comparison token by token: quadratic, and hard to get wrong."""
    pattern = regex.compile(r"([\p{L}\p{N}\p{M}]+)|([^\p{Z}\p{C}])", regex.IGNORECASE | regex.UNICODE | regex.MULTILINE)

    def tokens(words: str) -> list[str]:
        return [m.group().lower() for m in pattern.finditer(unicodedata.normalize("NFD", words))]

    there = tokens(text)
    for answer in map(tokens, answers):
        if any(answer and answer == there[i : i + len(answer)] for i in range(len(there) - len(answer) + 1)):
            return True
    return False


@pytest.mark.parametrize(
    ("answers", "text", "found"),
    [
        (["Tom Hanks"], "It was tom hanks, of course.", True),
        (["Hank"], "It was Tom Hanks.", False),  # whole tokens
        (["U.S."], "the U.S. army", True),
        (["US"], "the U.S. army", False),
        (["Beyoncé"], "BEYONCE\u0301 sang", True),  # composed and decomposed
        (["Beyonce"], "Beyoncé sang", False),
        (["1,000"], "some 1,000 men", True),
        (["1000"], "some 1,000 men", False),
        (["new york"], "New\u00a0York\u200bis", True),  # blanks of any kind, and format characters, part tokens
        ([""], "anything", False),
        ([], "anything", False),
        (["a", "sea"], "by the sea", True),
    ],
)
def test_worked_examples(answers, text, found):
    assert has_answer(answers, text) is found
    assert as_dpr_says(answers, text) is found


def test_equals_the_plain_restatement_on_random_texts():
    chance = random.Random(5)
    alphabet = "aAbBéÉe\u0301ñßıİ1٣,.-'’ \u00a0\u200b\u0000\x1f\t中"
    matched = 0
    for _ in range(4000):
        text = "".join(chance.choices(alphabet, k=chance.randint(0, 30)))
        start = chance.randint(0, max(0, len(text) - 1))
        other = "".join(chance.choices(alphabet, k=chance.randint(0, 3)))
        answers = [other, text[start : start + chance.randint(0, 5)]]
        wanted = as_dpr_says(answers, text)
        assert has_answer(answers, text) is wanted, (answers, text)
        matched += wanted
    assert 1000 < matched < 3500


def test_regular_expressions_as_curated_trec_has_them():
    assert has_answer([r"19\d\d"], "born in 1953", regex=True)
    assert has_answer([r"^KING"], "a\nking", regex=True)
    assert not has_answer([r"19\d\d"], "born in 1853", regex=True)
    with pytest.raises(InputError, match="no regular expression"):
        has_answer(["("], "x", regex=True)


@pytest.fixture
def files(tmp_path):
    """A run of two questions with answers at ranks 2 and none, the collection, the answers."""
    corpus = tmp_path / "psgs.tsv.gz"
    corpus.write_bytes(gzip.compress(b"id\ttext\ttitle\n1\tthe red fox\tBlue\n2\ta blue whale\tFish\n3\tnothing\tX\n"))
    run = tmp_path / "run.trec"
    run.write_text("".join(f"{q} Q0 {d} {r} {9 - r} t\n" for q, d, r in
                           [("0", "1", 1), ("0", "2", 2), ("0", "3", 3), ("1", "3", 1), ("1", "1", 2)]))  # fmt: skip
    answers = tmp_path / "answers.jsonl"
    rows = [{"_id": "0", "answers": ["blue"]}, {"_id": "1", "answers": ["green"]}, {"_id": "2", "answers": ["red"]}]
    answers.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return run, answers, corpus


def test_accuracy_by_hand(files):
    from dupmae_ir.io.runs import read_run

    run, answers, corpus = files
    # Question 0: "Blue" in a title does not count, "blue" in the second text does; 1 never; 2 has no hits.
    found = accuracy(read_run(run), answers, corpus, (1, 2, 3))
    assert found == {"Acc@1": {"0": 0, "1": 0, "2": 0}, "Acc@2": {"0": 1, "1": 0, "2": 0},
                     "Acc@3": {"0": 1, "1": 0, "2": 0}}  # fmt: skip


def test_the_command(files, capsys):
    run, answers, corpus = files
    words = ["--run", str(run), "--answers", str(answers), "--corpus", str(corpus), "-k", "1", "2"]
    assert main([*words, "--per-query"]) == 0
    told = capsys.readouterr()
    assert "Acc@1   Acc@2" in told.out
    assert "0\t2\n1\t-\n2\t-\n" in told.out
    assert "3 questions; 0 without an answer and 1 without hits" in told.err
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == {"Acc@1": 0.0, "Acc@2": pytest.approx(1 / 3)}


def test_dprs_own_files(tmp_path):
    path = tmp_path / "nq-test.qa.csv"
    path.write_text("who\tasked\t['a', \"b's\"]\nwhen\t['1990']\n")
    assert read_answers(path) == {"0": ["a", "b's"], "1": ["1990"]}


def test_a_passage_is_read_no_more_than_once_and_depth_is_kept():
    hits = {"q": [Hit("a", 3.0), Hit("b", 2.0), Hit("c", 1.0)]}
    with pytest.raises(InputError):
        first_ranks(hits, {"q": ["x"]}, "/nowhere.jsonl", 2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("who\n", "the answers are no list of texts"),
        ("who\t[1]\n", "the answers are no list of texts"),
        ("who\tno list\n", "wants question<tab>"),
        ('{"_id": "0"}\n', "no 'answers' in it"),
        ('{"_id": "0", \n', "not valid JSON"),
        ('{"_id": "0", "answers": []}\n{"_id": "0", "answers": []}\n', "stands twice"),
    ],
)
def test_wrong_answers_are_told_by_line(tmp_path, content, words):
    path = tmp_path / "answers"
    path.write_text(content)
    with pytest.raises(InputError) as told:
        read_answers(path)
    assert words in str(told.value)
    assert f"{path}:" in str(told.value)


def test_mistakes_are_one_line(files, tmp_path, capsys):
    run, answers, corpus = files
    other = tmp_path / "other.jsonl"
    other.write_text('{"_id": "9", "text": "x"}\n')
    for words, expected, status in [
        (["--corpus", str(other)], "lacks 3 passages of the run (1, 2, 3, ...); is it what was searched?", 2),
        (["--corpus", str(corpus), "-k", "0"], "depths are at least 1", 2),
    ]:
        assert main(["--run", str(run), "--answers", str(answers), *words]) == status
        told = capsys.readouterr().err
        assert expected in told
        assert told.count("\n") == 1
    with pytest.raises(UsageError, match="the collection has none"):
        accuracy({}, None, corpus, (1,))
