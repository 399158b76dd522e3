"""Presets, and the flags that override them."""

from __future__ import annotations

import dataclasses

import pytest

from dupmae_ir.errors import UsageError
from dupmae_ir.pretrain.recipes import PRESETS, Recipe, choices, resolve

EVERY = [(m, p) for m in PRESETS for p in PRESETS[m]]


@pytest.mark.parametrize(("method", "preset"), EVERY)
def test_a_preset_is_complete_and_valid(method, preset):
    recipe = resolve(method, preset, Recipe())
    assert set(choices(recipe)) == set(PRESETS[method]["release"])


def test_where_paper_and_release_differ():
    """The differences between the released code and the papers."""
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


def test_a_flag_overrides_the_preset():
    assert resolve("dupmae", "release", Recipe(bow_weight=0.5)).bow_weight == 0.5
    assert resolve("dupmae", "release", Recipe(bow_weight=0.0)).bow_weight == 0.0
    assert resolve("dupmae", "paper", Recipe(ot_exclude_sep=False)).ot_exclude_sep is False


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        (
            "retromae",
            {"bow_weight": 1.0},
            "`bow_weight` applies only with `method` dupmae, not retromae",
        ),
        ("retromae", {"encoder_ratio": 0.0}, "`encoder_ratio` must be greater than 0"),
        ("retromae", {"decoder_ratio": 1.0}, "`decoder_ratio` must be less than 1"),
        ("master", {"complementary_ratio": 1.5}, "`complementary_ratio` must be less than 1"),
        ("retromae", {"mask_replace": (0.5, 0.1)}, "`mask_replace`"),
        ("retromae", {"mask_replace": (0.5, 0.1, 0.1)}, "`mask_replace`"),
        ("retromae", {"decoder_layers": 2}, "`decoding` basic"),
        ("retromae", {"length": 4}, "`length` must be at least 8"),
        ("retromae", {"learning_rate": 0.0}, "`learning_rate` must be greater than 0"),
        ("master", {"tasks": ("mkp", "gtp2")}, "Did you mean 'gpt2'"),
        ("master", {"tasks": ("mkp", "mkp")}, "twice"),
        ("cot-mae", {"decoder_layers": 0}, "`decoder_layers` 0"),
        ("cot-mae", {"window": -1}, "`window` must be at least 0"),
    ],
)
def test_invalid_choices_are_refused(method, changes, message):
    with pytest.raises(UsageError) as e:
        resolve(method, "release", Recipe(**changes))
    assert message in str(e.value)


def test_basic_decoding_may_have_several_layers():
    recipe = resolve(
        "retromae", "release", Recipe(decoding="basic", decoder_layers=3, decoder_ratio=0.9)
    )
    assert recipe.decoder_layers == 3


def test_every_choice_belongs_to_a_method():
    used = {name for m in PRESETS for name in PRESETS[m]["release"]}
    assert used == {f.name for f in dataclasses.fields(Recipe)}
