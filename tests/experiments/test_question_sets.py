"""Collections of questions about one sentence, from the layouts of their sources."""

from __future__ import annotations

import json

import pytest
from question_sets import main, read_covid, read_fairytales, read_stories

from dupmae_ir.io.qrels import read_qrels


@pytest.fixture
def sources(tmp_path):
    """One tale of two sections, two stories, and an article of many sentences."""
    tales = tmp_path / "tales" / "data-by-origin"
    for kind in ("section-stories", "questions"):
        (tales / kind / "grimm").mkdir(parents=True)
    (tales / "section-stories" / "grimm" / "the-fox-story.csv").write_text(
        'section,text\n1,"A fox, red and old,\nlived alone."\n2,He met a cat.\n'
    )
    (tales / "questions" / "grimm" / "the-fox-questions.csv").write_text(
        "question_id,local-or-sum,cor_section,question\n"
        '1,local,2,Whom did he meet?\n2,summary,"1,2",What is it about?\n3,local,1,Who lived alone?\n'
    )
    stories = tmp_path / "stories" / "data" / "MCTest"
    stories.mkdir(parents=True)
    answers = ["a", "b", "c", "d"]
    rows = [
        ["mc.0", "about", "Sue has a dog.\\newlineIt barks.", "one: Who has a dog?", *answers],
        ["mc.1", "about", "Tom ran.", "multiple: Why?", *answers, "one: Who ran?", *answers],
    ]
    lines = ["\t".join(row) for row in rows]
    (stories / "mc1.test.tsv").write_text("\n".join(lines) + "\n")
    sentences = [f"Sentence {number} is about the virus and its host." for number in range(100)]
    text = "A title\n\n" + " ".join(sentences)
    asked = {"question": "Which is last?", "answers": [{"answer_start": text.index("Sentence 99")}]}
    article = {"paragraphs": [{"context": text, "qas": [asked]}]}
    (tmp_path / "covid.json").write_text(json.dumps({"data": [article]}))
    return tmp_path


def test_sections_of_tales_and_questions_that_one_answers(sources):
    found = read_fairytales(sources / "tales")
    assert found.documents == {
        "the-fox#1": ("the fox", "A fox, red and old,\nlived alone."),
        "the-fox#2": ("the fox", "He met a cat."),
    }
    assert sorted(found.questions) == [
        ("Who lived alone?", ["the-fox#1"]),
        ("Whom did he meet?", ["the-fox#2"]),
    ]


def test_stories_and_questions_that_one_sentence_answers(sources):
    found = read_stories(sources / "stories")
    assert found.documents == {"mc.0": ("", "Sue has a dog.\nIt barks."), "mc.1": ("", "Tom ran.")}
    assert found.questions == [("Who has a dog?", ["mc.0"]), ("Who ran?", ["mc.1"])]


def test_passages_of_articles_that_have_the_answer(sources):
    found = read_covid(sources / "covid.json")
    ((question, answering),) = found.questions
    assert question == "Which is last?"
    assert len(found.documents) > 3
    with_answer = [docid for docid, (_, text) in found.documents.items() if "Sentence 99" in text]
    assert answering == with_answer


def test_collections_are_written_once_and_completely(sources, capsys):
    out = sources / "out"
    command = ["--stories", str(sources / "stories"), "--output", str(out)]
    assert main(command) == 0
    assert capsys.readouterr().out == "stories: 2 passages, 2 questions\n"
    assert read_qrels(out / "stories" / "qrels" / "test.tsv") == {
        "0": {"mc.0": 1},
        "1": {"mc.1": 1},
    }
    assert len((out / "stories" / "corpus.jsonl").read_text().splitlines()) == 2
    assert main(command) == 2
    assert "stories: is there already" in capsys.readouterr().err
    (sources / "empty").mkdir()
    assert main(["--fairytales", str(sources / "empty"), "--output", str(out)]) == 2
    assert "fairytales: no questions found" in capsys.readouterr().err
    assert not (out / "fairytales").exists()
    assert main(["--covid", str(sources / "none"), "--output", str(out)]) == 2
    assert "none: no such file or folder" in capsys.readouterr().err
