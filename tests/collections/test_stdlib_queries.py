"""The queries of the embedded collection: enough of each kind, answerable, and not copied from the answers."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from dupmae_ir.collections.stdlib import KINDS, build_qrels, load_queries, stdlib_documents


@pytest.fixture(scope="module")
def queries():
    return load_queries()


def test_enough_of_each_kind(queries):
    kinds = Counter(q.kind for q in queries)
    assert len(queries) >= 200
    assert set(kinds) == set(KINDS)
    assert kinds["lexical"] / len(queries) > 0.3
    assert kinds["paraphrase"] / len(queries) > 0.3


def test_ids_and_texts_are_distinct(queries):
    assert len({q.qid for q in queries}) == len(queries)
    assert len({q.text.lower() for q in queries}) == len(queries)


def test_every_answer_is_in_the_collection_and_each_query_has_a_full_answer(queries):
    documents = stdlib_documents()
    docids = {d.docid for d in documents}
    assert [(q.qid, name) for q in queries for name in q.answers if name not in docids] == []
    assert all(2 in q.answers.values() and set(q.answers.values()) <= {1, 2} for q in queries)
    assert len(build_qrels(documents)) == len(queries)


def words(text):
    return set(re.findall(r"[a-z]{3,}", text.lower()))


def test_lexical_queries_name_their_answer_and_paraphrases_do_not(queries):
    """The last part of the answer's name is among the words of most lexical queries and of few paraphrases."""
    shares = {}
    for kind in ("lexical", "paraphrase"):
        named = [
            any(
                words(name.rpartition(".")[2]) & words(q.text)
                for name, grade in q.answers.items()
                if grade == 2
            )
            for q in queries
            if q.kind == kind
        ]
        shares[kind] = sum(named) / len(named)
    assert shares["lexical"] > 0.8
    assert shares["paraphrase"] < 0.25


def test_queries_without_answers_in_the_collection_are_left_out():
    assert build_qrels([]) == {}
