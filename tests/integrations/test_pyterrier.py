"""The PyTerrier transformer: in pipelines with its operators, cached, and in an experiment."""

from __future__ import annotations

import warnings

import pytest

from dupmae_ir import evaluate
from dupmae_ir.types import Query

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.filterwarnings("ignore:The inplace keyword"),
]  # PyTerrier's

TOPICS = [("1", "rotate log files"), ("2", "print the time"), ("3", "mail")]


@pytest.fixture
def pyterrier(framework):
    """The module, and frames of the topics and of some judgements."""
    module = framework("pyterrier")
    import pandas as pd

    topics = pd.DataFrame(TOPICS, columns=["qid", "query"])
    qrels = pd.DataFrame(
        [("1", "logs", 1), ("2", "time", 1), ("3", "files", 1)], columns=["qid", "docno", "label"]
    )
    return module, topics, qrels


def test_results_are_the_run(pyterrier, searcher):
    module, topics, _ = pyterrier
    found = module.PyTerrierRetriever(searcher, num_results=3, text=True)(topics)
    run = searcher.search([Query(*t) for t in TOPICS], 3)
    assert [(r.qid, r.docno, r.score) for r in found.itertuples()] == [
        (qid, h.docid, h.score) for qid, hits in run.items() for h in hits
    ]
    assert found["rank"].tolist()[:3] == [0, 1, 2]
    assert found["query"][0] == "rotate log files"
    assert found["title"][0] == "Rotating logs"


def test_operators_and_an_experiment(pyterrier, searcher):
    module, topics, qrels = pyterrier
    import pyterrier as pt

    hybrid = module.PyTerrierRetriever(searcher)
    dense = module.PyTerrierRetriever(searcher, mode="dense")
    assert len((hybrid % 1)(topics)) == 3
    assert set((dense + hybrid)(topics)["docno"]) <= {"logs", "mail", "time", "files"}
    assert len((hybrid >> pt.apply.doc_score(lambda row: -row["rank"]))(topics)) == len(
        hybrid(topics)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = pt.Experiment([hybrid], topics, qrels, ["ndcg_cut_10"], names=["hybrid"])
    own = evaluate(
        {r.qid: {r.docno: r.label} for r in qrels.itertuples()},
        searcher.search([Query(*t) for t in TOPICS]),
        ["nDCG@10"],
    )
    assert table["ndcg_cut_10"][0] == pytest.approx(own.mean["nDCG@10"])


def test_no_topics_give_no_results(pyterrier, searcher):
    module, topics, _ = pyterrier
    found = module.PyTerrierRetriever(searcher)(topics.head(0))
    assert len(found) == 0
    assert {"qid", "docno", "score", "rank"} <= set(found.columns)
