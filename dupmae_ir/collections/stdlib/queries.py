"""Hand-written questions about Python's library with graded answers: the queries of the embedded collection.

The questions are worded as in a chat or a search box, not as in the docstrings. ``lexical`` ones name exact functions,
flags or errors, ``paraphrase`` ones avoid the words of the answer, and ``mixed`` ones are in between. Answers are
document ids: grade 2 answers the question, grade 1 is also useful. All of them exist in Python 3.11 to 3.14.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import resources
from typing import NamedTuple

from dupmae_ir.types import Document

KINDS = ("lexical", "mixed", "paraphrase")


class GradedQuery(NamedTuple):
    """A query with its kind; ``answers`` maps document ids to grades, 2 or 1."""

    qid: str
    text: str
    kind: str
    answers: dict[str, int]


def load_queries() -> list[GradedQuery]:
    """All queries, in order of their ids."""
    path = resources.files("dupmae_ir.collections.stdlib").joinpath("queries.jsonl")
    return [GradedQuery(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def build_qrels(documents: Iterable[Document]) -> dict[str, dict[str, int]]:
    """Judgements restricted to ``documents``; a query without any answer among them is left out."""
    docids = {d.docid for d in documents}
    graded = {q.qid: {docid: grade for docid, grade in q.answers.items() if docid in docids} for q in load_queries()}
    return {qid: answers for qid, answers in graded.items() if answers}
