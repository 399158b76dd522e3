"""Presets, and what may be laid over them."""

from __future__ import annotations

import dataclasses

import pytest

from dupmae_ir.errors import UsageError
from dupmae_ir.pretrain.recipes import PRESETS, Recipe, made, resolve

EVERY = [(m, p) for m in PRESETS for p in PRESETS[m]]


@pytest.mark.parametrize(("method", "preset"), EVERY)
def test_a_preset_is_whole_and_valid(method, preset):
    recipe = resolve(method, preset, Recipe())
    assert set(made(recipe)) == set(PRESETS[method]["release"])


def test_where_text_and_code_differ():
    """The table of discrepancies: release as the code has it, paper as printed."""
    release, paper = (resolve("dupmae", p, Recipe()) for p in ("release", "paper"))
    assert (release.bow_weight, paper.bow_weight) == (0.1, 1.0)
    assert (release.bow_norm, paper.bow_norm) == ("length", "sum")
    assert (release.ot_exclude_masked, paper.ot_exclude_masked) == (False, True)
    assert (release.ot_head, paper.ot_head) == ("mlm", "linear")
    assert (release.query_stream, paper.query_stream) == ("embedded", "raw")
    assert (release.mask_replace, paper.mask_replace) == ((0.8, 0.1, 0.1), (1.0, 0.0, 0.0))
    release, paper = (resolve("master", p, Recipe()) for p in ("release", "paper"))
    assert (release.npr_source, paper.npr_source) == ("halves", "neighbours")
    assert (release.keyword, paper.keyword) == ("invfreq", "tfidf")
    assert (release.encoder_losses, paper.encoder_losses) == ("all", "passage")


def test_a_flag_wins_over_the_preset():
    assert resolve("dupmae", "release", Recipe(bow_weight=0.5)).bow_weight == 0.5
    assert resolve("dupmae", "release", Recipe(bow_weight=0.0)).bow_weight == 0.0
    assert resolve("dupmae", "paper", Recipe(ot_exclude_sep=False)).ot_exclude_sep is False


@pytest.mark.parametrize(
    ("method", "told", "message"),
    [
        ("retromae", {"bow_weight": 1.0}, "--bow-weight says nothing to retromae; it belongs to dupmae"),
        ("retromae", {"encoder_ratio": 0.0}, "--encoder-ratio 0"),
        ("retromae", {"decoder_ratio": 1.0}, "--decoder-ratio 1"),
        ("master", {"complementary_ratio": 1.5}, "--complementary-ratio 1.5"),
        ("retromae", {"mask_replace": (0.5, 0.1)}, "--mask-replace"),
        ("retromae", {"mask_replace": (0.5, 0.1, 0.1)}, "--mask-replace"),
        ("retromae", {"decoder_layers": 2}, "--decoding basic"),
        ("retromae", {"length": 4}, "--length 4"),
        ("retromae", {"learning_rate": 0.0}, "--learning-rate 0"),
        ("master", {"tasks": ("mkp", "gtp2")}, "Did you mean 'gpt2'"),
        ("master", {"tasks": ("mkp", "mkp")}, "twice"),
        ("cot-mae", {"decoder_layers": 0}, "--decoder-layers 0"),
        ("cot-mae", {"window": -1}, "--window -1"),
    ],
)
def test_what_cannot_be_is_refused(method, told, message):
    with pytest.raises(UsageError) as e:
        resolve(method, "release", Recipe(**told))
    assert message in str(e.value)


def test_basic_decoding_may_have_layers():
    recipe = resolve("retromae", "release", Recipe(decoding="basic", decoder_layers=3, decoder_ratio=0.9))
    assert recipe.decoder_layers == 3


def test_every_choice_belongs_to_a_method():
    used = {name for m in PRESETS for name in PRESETS[m]["release"]}
    assert used == {f.name for f in dataclasses.fields(Recipe)}
