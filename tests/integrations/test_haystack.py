"""The Haystack component: in a pipeline, saved and loaded, with Haystack's filters."""

from __future__ import annotations

import warnings

import pytest

from dupmae_ir.errors import UsageError

pytestmark = pytest.mark.jvm


def test_a_pipeline_returns_the_hits_and_can_be_saved(framework, searcher, index):
    module = framework("haystack")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from haystack import Pipeline

        pipeline = Pipeline()
        pipeline.add_component("retriever", module.HaystackRetriever(index, top_k=3))
        again = Pipeline.loads(
            pipeline.dumps(), allowed_modules=["dupmae_ir.integrations.haystack"]
        )
        found = again.run({"retriever": {"query": "rotate log files"}})["retriever"]["documents"]
    hits = searcher.search("rotate log files", 3)
    assert [(d.id, d.score) for d in found] == [(h.docid, h.score) for h in hits]
    assert found[0].content == "rotate the log files every night and compress them"
    assert found[0].meta["number"] == 0


def test_filters_restrict_the_search(framework, index):
    retriever = framework("haystack").HaystackRetriever(index)
    late = {"field": "meta.number", "operator": ">", "value": 1}
    named = {"field": "meta.number", "operator": "in", "value": [0, 3]}
    found = retriever.run("log files", filters={"operator": "AND", "conditions": [late, named]})[
        "documents"
    ]
    assert [d.id for d in found] == ["files"]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"field": "meta.lang", "operator": "==", "value": 'say "x"'}, 'lang = "say \\"x\\""'),
        (
            {"field": "year", "operator": "not in", "value": [1999, 2000]},
            "year not in (1999, 2000)",
        ),
        (
            {"operator": "NOT", "conditions": [{"field": "new", "operator": "==", "value": True}]},
            "not (new = true)",
        ),
    ],
)
def test_conditions_in_the_language_of_the_command(framework, filters, expected):
    assert framework("haystack").condition(filters) == expected


def test_misuse_is_reported(framework, index):
    module = framework("haystack")
    with pytest.raises(UsageError, match="top_k"):
        module.HaystackRetriever(index, top_k=0)
    with pytest.raises(UsageError, match="operator 'near'"):
        module.condition({"field": "a", "operator": "near", "value": 1})
