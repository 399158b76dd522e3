"""Answer accuracy: Pyserini's comparison and DPR's restated plainly, worked examples, every mistake in one line."""

from __future__ import annotations

import ast
import csv
import gzip
import json
import random
import unicodedata

import pytest
import regex

from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.eval.answers import accuracy, first_ranks, main, matcher, read_answers, searchable
from dupmae_ir.types import Hit


def has_answer(answers: list[str], text: str, regex: bool = False) -> bool:
    return matcher(answers, regex)(searchable(text, regex))


def as_dpr_says(answers: list[str], text: str) -> bool:
    """The comparison token by token: quadratic, and hard to get wrong."""
    pattern = regex.compile(
        r"([\p{L}\p{N}\p{M}]+)|([^\p{Z}\p{C}])", regex.IGNORECASE | regex.UNICODE | regex.MULTILINE
    )

    def tokens(words: str) -> list[str]:
        return [m.group().lower() for m in pattern.finditer(unicodedata.normalize("NFD", words))]

    there = tokens(text)
    for answer in map(tokens, answers):
        if any(
            answer and answer == there[i : i + len(answer)]
            for i in range(len(there) - len(answer) + 1)
        ):
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
        (
            ["new york"],
            "New\u00a0York\u200bis",
            True,
        ),  # blanks of any kind, and format characters, part tokens
        ([""], "anything", False),
        ([], "anything", False),
        (["a", "sea"], "by the sea", True),
    ],
)
def test_worked_examples(answers, text, found):
    assert has_answer(answers, text) is found
    assert as_dpr_says(answers, text) is found


@pytest.fixture(scope="module")
def random_texts():
    """(answers, text): pieces of the text and other characters, of all that may part, join or fold tokens."""
    chance = random.Random(5)
    alphabet = "aAbBéÉe\u0301ñßıİΣς1٣½Ⅳ,.-'’\"$ \u00a0\u200b\u0000\x1f\t\n中글\U0001d49c👍"
    drawn = []
    for _ in range(4000):
        text = "".join(chance.choices(alphabet, k=chance.randint(0, 30)))
        start = chance.randint(0, max(0, len(text) - 1))
        other = "".join(chance.choices(alphabet, k=chance.randint(0, 3)))
        drawn.append(([other, text[start : start + chance.randint(0, 5)]], text))
    return drawn


def test_equals_the_plain_restatement_on_random_texts(random_texts):
    found = [has_answer(answers, text) for answers, text in random_texts]
    assert found == [as_dpr_says(answers, text) for answers, text in random_texts]
    assert 1000 < sum(found) < 3500


def test_equals_pyserinis_own_on_random_texts(random_texts):
    from pyserini.eval.evaluate_dpr_retrieval import SimpleTokenizer, has_answers

    tokenizer = SimpleTokenizer()

    def tokens(text: str) -> bool:
        return bool(tokenizer.tokenize(unicodedata.normalize("NFD", text)).words())

    matched = 0
    for given, text in random_texts:
        # Pyserini finds an answer without a token in every text, we in none.
        answers = [a for a in given if tokens(a)]
        wanted = has_answers(text, answers, tokenizer)
        assert has_answer(answers, text) is wanted, (answers, text)
        matched += wanted
    assert 1000 < matched < 3500
    for pattern in (r"1\d", r"^b", r"é.1", "A|中", "b$"):
        found = [has_answer([pattern], text, regex=True) for _, text in random_texts]
        assert found == [
            has_answers(text, [pattern], tokenizer, regex=True) for _, text in random_texts
        ]
        assert any(found)
    # DPR compiles with the package regex, as we do, for which an accent belongs to a word; Pyserini with Python's re.
    assert not has_answer([r"\bb"], "ñb", regex=True)
    assert has_answers("ñb", [r"\bb"], tokenizer, regex=True)


def test_regular_expressions_as_curated_trec_has_them():
    assert has_answer([r"19\d\d"], "born in 1953", regex=True)
    assert has_answer([r"^KING"], "a\nking", regex=True)
    assert not has_answer([r"19\d\d"], "born in 1853", regex=True)
    with pytest.raises(InputError, match=r"the answer '\(' is not a regular expression"):
        has_answer(["("], "x", regex=True)


@pytest.fixture
def files(tmp_path):
    """A run of two questions with answers at ranks 2 and none, the collection, the answers."""
    corpus = tmp_path / "psgs.tsv.gz"
    corpus.write_bytes(
        gzip.compress(
            b"id\ttext\ttitle\n1\tthe red fox\tBlue\n2\ta blue whale\tFish\n3\tnothing\tX\n"
        )
    )
    run = tmp_path / "run.trec"
    run.write_text(
        "".join(
            f"{q} Q0 {d} {r} {9 - r} t\n"
            for q, d, r in [
                ("0", "1", 1),
                ("0", "2", 2),
                ("0", "3", 3),
                ("1", "3", 1),
                ("1", "1", 2),
            ]
        )
    )
    answers = tmp_path / "answers.jsonl"
    rows = [
        {"_id": "0", "answers": ["blue"]},
        {"_id": "1", "answers": ["green"]},
        {"_id": "2", "answers": ["red"]},
    ]
    answers.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return run, answers, corpus


def test_accuracy_by_hand(files):
    from dupmae_ir.io.runs import read_run

    run, answers, corpus = files
    # Question 0: "Blue" in a title does not count, "blue" in the second text does; 1 never; 2 has no hits.
    found = accuracy(read_run(run), answers, corpus, (1, 2, 3))
    assert found == {
        "Acc@1": {"0": 0, "1": 0, "2": 0},
        "Acc@2": {"0": 1, "1": 0, "2": 0},
        "Acc@3": {"0": 1, "1": 0, "2": 0},
    }


def test_the_command(files, capsys):
    run, answers, corpus = files
    words = ["--run", str(run), "--answers", str(answers), "--corpus", str(corpus), "-k", "1", "2"]
    assert main([*words, "--per-query"]) == 0
    printed = capsys.readouterr()
    assert "Acc@1   Acc@2" in printed.out
    assert "0\t2\n1\t-\n2\t-\n" in printed.out
    assert "3 queries; 0 without an answer and 1 without hits" in printed.err
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == {
        "Acc@1": 0.0,
        "Acc@2": pytest.approx(1 / 3),
    }


def test_results_as_a_file(files, tmp_path, capsys):
    run, answers, corpus = files
    words = [
        "--run",
        str(run),
        "--answers",
        str(answers),
        "--corpus",
        str(corpus),
        "-k",
        "2",
        "--quiet",
    ]
    assert main([*words, "--json"]) == 0
    printed = capsys.readouterr().out
    assert main([*words, "--json", "--output", str(tmp_path / "new" / "nq.json")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "new" / "nq.json").read_text() == printed
    assert main([*words, "--per-query", "--output", str(tmp_path / "nq.txt")]) == 0
    assert (tmp_path / "nq.txt").read_text().endswith("0.3333\n0\t2\n1\t-\n2\t-\n")


def test_queries_only_in_the_run_do_not_count(files, capsys):
    run, answers, corpus = files
    run.write_text(run.read_text() + "7 Q0 1 1 9 t\n")
    words = ["--run", str(run), "--answers", str(answers), "--corpus", str(corpus), "-k", "2"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "0.3333" in printed.out
    assert f"1 queries of {run} are not in {answers}" in printed.err


ROWS = [
    ("who asked", ["a", "b's"]),
    ('the "plot"', ['say "x"', "it's"]),
    ("when", ["1990"]),
    ("O'Neill", ["Destiny 's"]),
]


def test_dprs_own_files(tmp_path):
    """As DPR writes them and as DPR reads them: both are Python's csv."""
    path = tmp_path / "nq-test.qa.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows(ROWS)
    assert '"[""Destiny \'s""]"' in path.read_text()
    with open(path, encoding="utf-8", newline="") as file:
        theirs = [ast.literal_eval(row[1]) for row in csv.reader(file, delimiter="\t")]
    assert list(read_answers(path).items()) == [
        (str(n), answers) for n, answers in enumerate(theirs)
    ]
    assert theirs == [answers for _, answers in ROWS]
    path.write_text(
        "when\t['1990']\nwho\tasked\t['a', \"b's\"]\n"
    )  # not quoted, and a tab too many
    assert read_answers(path) == {"0": ["1990"], "1": ["a", "b's"]}


@pytest.mark.parametrize("name", ["psgs_w100.tsv", "psgs_w100.tsv.gz"])
def test_dprs_own_passages(tmp_path, name):
    """psgs_w100.tsv is csv too: a quotation mark in a text is one token, not the two that it is written as."""
    texts = ['he sang "Heroes" there', "plain", '"whole"', '""', 'an inch is 1"']
    with open(tmp_path / "plain.tsv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_ALL)
        file.write("id\ttext\ttitle\n")
        for n, text in enumerate(texts):
            file.write(f"{n}\t")
            writer.writerow([text, "T"])
    content = (tmp_path / "plain.tsv").read_bytes()
    assert b'""Heroes""' in content
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    given = ['sang "heroes" there', '"Heroes"', "heroes", '"whole"', '1"', '""']
    answers = {q: [a] for q, a in zip("abcdef", given, strict=True)}
    run = {q: [Hit(d, 1.0)] for q, d in zip("abcdef", "000243", strict=True)}
    found = first_ranks(run, answers, tmp_path / name, 1)
    with open(tmp_path / "plain.tsv", encoding="utf-8", newline="") as file:
        read = {row[0]: row[1] for row in csv.reader(file, delimiter="\t")}
    assert read["0"] == texts[0]
    for qid, rank in found.items():
        assert (rank == 1) == as_dpr_says(answers[qid], read[run[qid][0].docid])
    assert all(rank == 1 for rank in found.values())


def test_texts_of_other_collections_keep_their_quotation_marks(tmp_path):
    (tmp_path / "c.jsonl").write_text(json.dumps({"_id": "1", "text": '"whole"'}) + "\n")
    assert first_ranks({"q": [Hit("1", 1.0)]}, {"q": ['"whole"']}, tmp_path / "c.jsonl", 1) == {
        "q": 1
    }


def test_a_passage_is_read_no_more_than_once_and_depth_is_kept():
    hits = {"q": [Hit("a", 3.0), Hit("b", 2.0), Hit("c", 1.0)]}
    with pytest.raises(InputError):
        first_ranks(hits, {"q": ["x"]}, "/nowhere.jsonl", 2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("who\n", "the answers are not a list of strings"),
        ("who\t[1]\n", "the answers are not a list of strings"),
        ("who\tno list\n", "expected query<TAB>"),
        ('{"_id": "0"}\n', "'answers' is missing"),
        ('{"_id": "0", \n', "broken JSON"),
        ('{"_id": "0", "answers": []}\n{"_id": "0", "answers": []}\n', "appears twice"),
    ],
)
def test_errors_in_answers_name_the_line(tmp_path, content, words):
    path = tmp_path / "answers"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_answers(path)
    assert words in str(caught.value)
    assert f"{path}:" in str(caught.value)


def test_mistakes_are_one_line(files, tmp_path, capsys):
    run, answers, corpus = files
    other = tmp_path / "other.jsonl"
    other.write_text('{"_id": "9", "text": "x"}\n')
    for words, expected, status in [
        (
            ["--corpus", str(other)],
            "3 passages of the run are missing (1, 2, 3, ...); was another collection searched?",
            2,
        ),
        (["--corpus", str(corpus), "-k", "0"], "-k must be at least 1", 2),
    ]:
        assert main(["--run", str(run), "--answers", str(answers), *words]) == status
        err = capsys.readouterr().err
        assert expected in err
        assert err.count("\n") == 1
    with pytest.raises(UsageError, match="the collection has none"):
        accuracy({}, None, corpus, (1,))
