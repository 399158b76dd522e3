"""Questions that people ask about Python's library, with graded answers, for the embedded collection.

Written by hand and worded as in a chat or a search box, not as the docstrings word it: ``lexical`` ones name exact
functions, flags or errors, ``paraphrase`` ones avoid the words of the answer, ``mixed`` ones are in between. Answers
are documents' names: grade 2 answers the question, grade 1 also helps. All names exist in Python 3.11 to 3.14.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import resources
from typing import NamedTuple

from dupmae_ir.types import Document

KINDS = ("lexical", "mixed", "paraphrase")


class Question(NamedTuple):
    """One question; ``answers`` maps a document's name to its grade, 2 or 1."""

    qid: str
    text: str
    kind: str
    answers: dict[str, int]


def load_questions() -> list[Question]:
    """All questions, in the order of their ids."""
    path = resources.files("dupmae_ir.collections.stdlib").joinpath("queries.jsonl")
    return [Question(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def questions_qrels(documents: Iterable[Document]) -> dict[str, dict[str, int]]:
    """Judgements of the answers that the collection holds; a question none of whose answers it holds is left out."""
    there = {d.docid for d in documents}
    graded = {q.qid: {name: g for name, g in q.answers.items() if name in there} for q in load_questions()}
    return {qid: answers for qid, answers in graded.items() if answers}


def missing_answers(documents: Iterable[Document]) -> list[tuple[str, str]]:
    """(qid, name) of every answer that the collection lacks: what :func:`questions_qrels` leaves out."""
    there = {d.docid for d in documents}
    return [(q.qid, name) for q in load_questions() for name in q.answers if name not in there]
