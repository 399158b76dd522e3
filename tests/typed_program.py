"""What type checkers know of the public functions; checked by mypy with the package, and never run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

from dupmae_ir import (
    Document,
    Hit,
    Index,
    Query,
    Searcher,
    build_index,
    compare,
    evaluate,
    fine_tune,
    load_encoder,
    pre_train,
    read_collection,
    read_qrels,
    read_run,
    read_topics,
    write_run,
)
from dupmae_ir.eval.compare import Comparison
from dupmae_ir.eval.evaluate import Evaluation
from dupmae_ir.io.qrels import Judgements
from dupmae_ir.io.runs import Rankings
from dupmae_ir.search.view.notebook import HitList
from dupmae_ir.training.trained import Trained
from dupmae_ir.types import Encoder, Progress


def searches(searcher: Searcher, topics: list[Query]) -> None:
    assert_type(searcher.search("one"), HitList)
    assert_type(searcher.search(["one", "two"]), list[HitList])
    assert_type(searcher.search(text for text in ("one", "two")), list[HitList])
    assert_type(searcher.search(topics), Rankings)
    assert_type(searcher.search({"1": "one"}), Rankings)
    assert_type(searcher.search("one")[0], Hit)
    searcher.search("one", 5, "dense", within=["a"], filter="year > 2020")
    with searcher as opened:
        assert_type(opened, Searcher)


def makes() -> Iterator[Document]:
    def show(progress: Progress) -> None:
        print(progress.step, progress.done, progress.total)

    documents = [Document("a", "text")]
    assert_type(build_index(documents, "index", progress=show), Index)
    build_index([{"id": "a", "text": "x"}], "index")
    build_index({"a": "x"}, "index")
    build_index(texts=["x"], index="index")
    assert_type(pre_train(["text"], steps=2), Trained)
    assert_type(fine_tune([("query", "passage")], steps=2, learning_rate=1e-4), Trained)
    assert_type(load_encoder(dtype="mixed"), Encoder)
    return read_collection("corpus.jsonl")


def evaluations() -> None:
    qrels = read_qrels("qrels.tsv")
    assert_type(qrels, Judgements)
    run = read_run("run.trec")
    assert_type(run, Rankings)
    assert_type(read_topics("topics.tsv"), list[Query])
    assert_type(evaluate(qrels, run, "nDCG@10"), Evaluation)
    assert_type(compare(qrels, {"a": run, "b": {"1": {"a": 1.0}}}), Comparison)
    write_run("run.trec", run)
