"""The questions: enough of each kind, answerable, and not copied from the answers."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from dupmae_ir.collections.stdlib.documentation import stdlib_documents
from dupmae_ir.collections.stdlib.queries import KINDS, load_questions, missing_answers, questions_qrels


@pytest.fixture(scope="module")
def questions():
    return load_questions()


def test_enough_of_each_kind(questions):
    kinds = Counter(q.kind for q in questions)
    assert len(questions) >= 200
    assert set(kinds) == set(KINDS)
    assert kinds["lexical"] / len(questions) > 0.3
    assert kinds["paraphrase"] / len(questions) > 0.3


def test_ids_and_texts_are_distinct(questions):
    assert len({q.qid for q in questions}) == len(questions)
    assert len({q.text.lower() for q in questions}) == len(questions)


def test_every_answer_is_in_the_collection_and_one_of_them_answers(questions):
    documents = stdlib_documents()
    assert missing_answers(documents) == []
    assert all(2 in q.answers.values() and set(q.answers.values()) <= {1, 2} for q in questions)
    assert len(questions_qrels(documents)) == len(questions)


def words(text):
    return set(re.findall(r"[a-z]{3,}", text.lower()))


def test_lexical_questions_name_their_answer_and_paraphrases_do_not(questions):
    """The last part of the answer's name among the question's words: usual for one kind, rare for the other."""
    shares = {}
    for kind in ("lexical", "paraphrase"):
        named = [
            any(words(name.rpartition(".")[2]) & words(q.text) for name, grade in q.answers.items() if grade == 2)
            for q in questions
            if q.kind == kind
        ]
        shares[kind] = sum(named) / len(named)
    assert shares["lexical"] > 0.8
    assert shares["paraphrase"] < 0.25


def test_answers_outside_the_collection_are_left_out(questions):
    assert questions_qrels([]) == {}
    assert len(missing_answers([])) == sum(len(q.answers) for q in questions)
