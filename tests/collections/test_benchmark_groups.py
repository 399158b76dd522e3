"""Groups of collections; a mean over a group requires a value for every member."""

from __future__ import annotations

import pytest

from dupmae_ir.collections import GROUPS, expand, find, mean_over, names
from dupmae_ir.errors import UnknownName

FORUMS = GROUPS["cqadupstack"]


def test_group_members():
    assert len(GROUPS["beir-18"]) == 18
    assert len(GROUPS["beir-14"]) == 14
    assert GROUPS["mote-14"] == GROUPS["beir-14"]
    assert set(GROUPS["beir-18"]) == {*GROUPS["beir-14"], *GROUPS["beir-4-licensed"]}
    assert all(find(name).licensed for name in GROUPS["beir-4-licensed"])
    assert len(FORUMS) == 12
    assert len(expand("beir-18")) == 17 + 12
    assert {*expand("beir-18"), *expand("msmarco"), *expand("dpr"), "demo"} == set(names())


def test_a_collection_expands_to_itself():
    assert expand("beir-scifact") == ("beir-scifact",)
    with pytest.raises(UnknownName, match="Did you mean 'beir-14'"):
        expand("bier-14")


def test_cqadupstack_counts_once():
    values = dict.fromkeys(GROUPS["beir-14"], 0.5)
    del values["beir-cqadupstack"]
    values |= {name: 0.1 * i for i, name in enumerate(FORUMS)}
    mean, missing = mean_over("beir-14", values)
    assert missing == ()
    # The forums' own mean is 0.55: (13 x 0.5 + 0.55) / 14.
    assert mean == pytest.approx((13 * 0.5 + 0.55) / 14)
    assert mean_over("beir-cqadupstack", values)[0] == pytest.approx(0.55)
    assert mean_over("beir-14", {**values, "beir-cqadupstack": 0.55})[0] == pytest.approx(mean)


def test_missing_values_are_reported_instead_of_a_mean():
    public = dict.fromkeys(GROUPS["beir-14"], 0.5)
    assert mean_over("beir-14", public) == (0.5, ())
    assert mean_over("beir-18", public) == (None, GROUPS["beir-18"][1:2] + GROUPS["beir-18"][6:9])
    assert mean_over("beir-18", public)[1] == GROUPS["beir-4-licensed"]
    del public["beir-cqadupstack"]
    assert mean_over("beir-14", public) == (None, ("beir-cqadupstack",))
    public |= dict.fromkeys(FORUMS[2:], 0.5)
    assert mean_over("beir-14", public) == (None, FORUMS[:2])
    assert mean_over("beir-14", {}) == (None, GROUPS["beir-14"])


def test_nan_counts_as_missing():
    values = {"dpr-nq": 0.5, "dpr-trivia": float("nan")}
    assert mean_over("dpr", values) == (None, ("dpr-trivia",))


def test_unknown_groups_get_a_suggestion():
    with pytest.raises(UnknownName, match="Did you mean 'mote-14'"):
        mean_over("mote14", {})
