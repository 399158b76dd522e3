"""The closing words of a fine-tuning: dev scores of the start, the embedded model and the result."""

from __future__ import annotations

import torch

from dupmae_ir.finetune.__main__ import summarize
from dupmae_ir.finetune.config import FinetuneConfig
from dupmae_ir.finetune.trainer import mrr, ranks
from dupmae_ir.training.report import plot_log

RESULT = {
    "steps": 20,
    "padding": 0.1,
    "dev": {"mrr": 0.70},
    "before": {"start": 0.65, "embedded model": 0.74},
}


def test_models_are_named_side_by_side_with_a_warning_where_training_lost():
    config = FinetuneConfig(pairs=("p",), output="o", dev=("d",))
    assert config.model == "default"
    said = summarize(config, RESULT)
    assert "MRR@10 on the dev pairs: start 0.6500, embedded model 0.7400, this model 0.7000" in said
    assert "warning: the training lost against the embedded model;" in said
    assert "warning" not in summarize(config, {**RESULT, "before": {"start": 0.65}})
    assert "give dev pairs (--dev)" in summarize(
        FinetuneConfig(pairs=("p",), output="o"), {"steps": 1, "padding": 0.0}
    )


def test_copies_of_the_own_positive_do_not_count():
    scores = torch.tensor([[1.0, 2.0, 0.0], [3.0, 3.0, 4.0], [0.0, 0.0, 1.0]])
    assert ranks(scores, ["a", "a", "b"]).tolist() == [1, 2, 1]
    assert mrr(torch.tensor([1, 2, 11])) == 0.5


def test_the_picture_has_the_dev_scores_and_the_models_before(tmp_path):
    rows = [
        {"step": 0, "eval_mrr": 0.5},
        {"step": 2, "loss": 1.0},
        {"step": 4, "loss": 0.5, "eval_mrr": 0.6},
    ]
    sizes = []
    for before in ({}, {"start": 0.5, "embedded model": 0.9}):
        plot_log(rows, tmp_path / "a.png", "m", before)
        sizes.append((tmp_path / "a.png").read_bytes())
    assert sizes[0] != sizes[1]


def test_a_training_shorter_than_its_log_has_a_picture_of_its_dev_scores_or_none(tmp_path):
    plot_log(
        [{"step": 0, "eval_mrr": 0.5}, {"step": 4, "eval_mrr": 0.6}], tmp_path / "dev.png", "m"
    )
    plot_log([{"step": 4, "epoch": 1.0}], tmp_path / "none.png", "m")
    assert [path.name for path in tmp_path.iterdir()] == ["dev.png"]
