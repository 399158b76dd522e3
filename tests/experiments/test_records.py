"""What is chosen is chosen by the dev pairs and by nothing else."""

from __future__ import annotations

import copy
import random

import pytest
from records import chosen, dev_means, ranked, read_records
from support.experiment_samples import a_record

from dupmae_ir.errors import InputError


def samples():
    return [
        a_record("good", 0, dev=0.6),
        a_record("good", 1, dev=0.64),
        a_record("fair", 0, dev=0.59),
        a_record("lucky", 0, dev=0.3),
        a_record("bm25", 0, "references", dev=0.9, model=None),
        a_record("cap-32", 0, "caps", dev=0.95, of="good"),
    ]


def test_the_best_on_the_dev_pairs_and_its_best_seed():
    best = chosen(samples())
    assert (best["row"], best["seed"]) == ("good", 1)
    assert ranked(samples()) == ["good", "fair", "lucky"]


@pytest.mark.parametrize("seed", range(5))
def test_only_dev_scores_decide(seed):
    """Other sets at random, reversed or missing; order of the records; halves of the dev pairs."""
    chance = random.Random(seed)
    records = copy.deepcopy(samples())
    for record in records:
        for name, found in record["sets"].items():
            for mode, values in found["scores"].items():
                for measure in values:
                    if (name, mode, measure) != ("dev", "hybrid", "nDCG@10"):
                        values[measure] = chance.random()
        if chance.random() < 0.5:
            del record["sets"]["cacm"]
    chance.shuffle(records)
    assert chosen(records)["row"] == "good"
    assert ranked(records) == ["good", "fair", "lucky"]


def test_the_dev_pairs_decide():
    records = samples()
    records[3]["sets"]["dev"]["scores"]["hybrid"]["nDCG@10"] = 0.99
    assert chosen(records)["row"] == "lucky"


def test_rows_are_compared_over_the_seeds_that_all_have():
    """A kind first seed is no merit of a row that has no other."""
    records = [
        a_record("often", 0, dev=0.6),
        a_record("often", 1, dev=0.5),
        a_record("once", 0, dev=0.59),
    ]
    assert ranked(records) == ["often", "once"]
    assert dev_means(records) == pytest.approx({"often": 0.6, "once": 0.59})
    both = [*records, a_record("once", 1, dev=0.58)]
    assert ranked(both) == ["once", "often"]
    apart = [a_record("one", 0, dev=0.5), a_record("other", 1, dev=0.6)]
    assert ranked(apart) == ["other", "one"]


def test_models_that_are_too_large_are_skipped():
    records = samples()
    for record in records[:2]:
        record["model"]["half_bytes"] = 60_000_000
    assert chosen(records, most_bytes=50e6)["row"] == "fair"
    assert chosen(records)["row"] == "good"


def test_ties_go_to_the_name_and_the_first_seed():
    records = [a_record("b", 0), a_record("a", 1), a_record("a", 0)]
    for record in records:
        record["sets"]["dev"]["scores"]["hybrid"]["nDCG@10"] = 0.5
    assert (chosen(records)["row"], chosen(records)["seed"]) == ("a", 0)


def test_a_half_alone_has_no_hybrid_and_is_not_chosen():
    record = a_record("cls-only", dev=0.9)
    for found in record["sets"].values():
        found["scores"] = {"dense": found["scores"]["dense"]}
    assert chosen([record, a_record("whole", dev=0.1)])["row"] == "whole"
    with pytest.raises(InputError, match="no finished row"):
        chosen([record])


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"run experiments/systems\.py"):
        read_records(tmp_path)
    (tmp_path / "torn.json").write_text("{")
    with pytest.raises(InputError, match=r"torn\.json: not a record"):
        read_records(tmp_path)
