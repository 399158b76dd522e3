"""What a notebook and a prompt show: hits, explanations, evaluations, comparisons; lists of texts; unknown ids."""

from __future__ import annotations

import pytest

import dupmae_ir
from dupmae_ir import Document, Hit, Query, Searcher, build_index, compare, evaluate
from dupmae_ir.errors import UsageError

pytestmark = pytest.mark.jvm


@pytest.fixture(scope="module")
def searcher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook")
    texts = ["a <b>lock</b> of the thread", "a queue of threads", "cats sleep"]
    build_index(
        [Document(f"d{i}", text, f"Title {i}") for i, text in enumerate(texts)],
        folder / "I",
        model="testing:hashing",
    )
    return Searcher.open(folder / "I")


def test_texts_are_searched_like_each_alone(searcher):
    texts = ["lock of a thread", "cats", "lock of a thread"]
    found = searcher.search(texts, 2)
    assert found == [searcher.search(text, 2) for text in texts]
    assert [len(hits) for hits in found] == [2, 2, 2]
    assert searcher.search([]) == []
    assert searcher.search({}) == {}
    with pytest.raises(UsageError, match="not both"):
        searcher.search(["cats", Query("1", "cats")])


def test_hits_and_explanations_as_html(searcher):
    hits = searcher.search("lock of a thread", 2)
    assert hits == [Hit(*hit) for hit in hits]
    html = hits._repr_html_()
    assert "<td>Title 0</td>" in html
    assert "<b>" not in html
    assert "&lt;b&gt;lock" in html
    why = searcher.explain("lock of a thread", "d0")
    assert "<td>meaning</td>" in why._repr_html_()


def test_representations_are_short(searcher):
    assert repr(searcher).endswith("/I': 3 documents, hybrid, testing:hashing)")
    assert repr(searcher.index).endswith("/I': 3 documents, cls + ot)")
    qrels = {f"q{i}": {"d0": 1} for i in range(9)}
    runs = {}
    for name, order in (("a", ("d0", "d1")), ("b", ("d1", "d0"))):
        runs[name] = {qid: [Hit(d, float(-rank)) for rank, d in enumerate(order)] for qid in qrels}
    assert repr(evaluate(qrels, runs["b"], ["MRR@10"])) == "Evaluation(MRR@10 0.5000; 9 queries)"
    found = compare(qrels, runs, ["MRR@10"])
    assert repr(found).startswith("Comparison(with a: b MRR@10 -0.5000")
    assert "<td>-0.5000" in found._repr_html_()
    assert set(dir(dupmae_ir)) == {*dupmae_ir.__all__, "__version__"}


def test_ids_that_are_not_in_the_index_are_warned_about(searcher):
    with pytest.warns(UserWarning, match="`within`: .* has no document 'qq' and 1 more"):
        assert [hit.docid for hit in searcher.search("cats", within=["d2", "qq", "rr"])] == ["d2"]
