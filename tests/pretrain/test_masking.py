"""The compiled masks draw what the released rule draws, restated here as it reads."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy import stats

from dupmae_ir.errors import UsageError
from dupmae_ir.pretrain import masking

DRAWS = 20_000


def words_of(continues, length):
    """Places of each word between the specials."""
    words = []
    for i in range(1, length - 1):
        if continues[i] and words:
            words[-1].append(i)
        else:
            words.append([i])
    return words


def restated(continues, length, ratio, count_special, rng):
    """transformers' whole-word collator: shuffle the words, take them while they fit the budget."""
    words = words_of(continues, length)
    rng.shuffle(words)
    budget = min(512, max(1, round((length if count_special else length - 2) * ratio)))
    hidden = []
    for word in words:
        if len(hidden) >= budget:
            break
        if len(hidden) + len(word) <= budget:
            hidden += word
    return hidden


def text(length, share=0.3, seed=0):
    """(1, L) continues and (1,) lengths of a random text."""
    continues = np.random.default_rng(seed).random((1, length)) < share
    continues[:, :2] = continues[:, -1:] = False
    return continues, np.array([length])


def many(continues, lengths, draws=DRAWS, use="x"):
    return np.repeat(continues, draws, 0), np.repeat(lengths, draws), masking.seeds_for(3, np.arange(draws), use)


@pytest.mark.parametrize("count_special", [True, False])
@pytest.mark.parametrize(("length", "ratio"), [(12, 0.3), (20, 0.5), (9, 0.15)])
def test_words_are_hidden_as_the_released_rule_hides_them(length, ratio, count_special):
    continues, lengths = text(length)
    rows, sizes, seeds = many(continues, lengths)
    hidden = masking.word_mask(rows, sizes, ratio, seeds, count_special)
    rng = random.Random(1)
    expected = np.zeros((DRAWS, length), bool)
    for row in expected:
        row[restated(continues[0], length, ratio, count_special, rng)] = True
    # Every place and every pair of places is hidden as often: differences of two binomial shares, 5 sigma.
    sigma = 5 * np.sqrt(0.5 / DRAWS)
    assert np.abs(hidden.mean(0) - expected.mean(0)).max() < sigma
    together = [m.T.astype(float) @ m / DRAWS for m in (hidden, expected)]
    assert np.abs(together[0] - together[1]).max() < sigma
    # The distribution of how many are hidden, too.
    counts = [np.bincount(m.sum(1), minlength=length) for m in (hidden, expected)]
    seen = (counts[0] + counts[1]) > 0
    if seen.sum() > 1:
        assert stats.chi2_contingency(np.stack(counts)[:, seen]).pvalue > 1e-4


def test_whole_words_within_the_budget():
    continues, lengths = text(40, 0.5)
    hidden = masking.word_mask(*many(continues, lengths)[:2], 0.3, masking.seeds_for(0, np.arange(DRAWS), "b"))
    assert hidden.sum(1).max() <= 12
    assert not hidden[:, [0, -1]].any()
    for word in words_of(continues[0], 40):
        inside = hidden[:, word].sum(1)
        assert set(np.unique(inside)) <= {0, len(word)}


def test_the_budget_rounds_half_to_even_and_stops_at_512():
    continues = np.zeros((1, 2000), bool)
    seeds = masking.seeds_for(0, np.arange(1), "x")
    for length, ratio, expected in ((25, 0.1, 2), (35, 0.1, 4), (2000, 0.9, 512), (3, 0.1, 1)):
        hidden = masking.word_mask(continues[:, :length], np.array([length]), ratio, seeds)
        assert hidden.sum() == expected


def test_the_complement_is_the_rest_of_the_ordinary_tokens():
    continues, lengths = np.zeros((2, 9), bool), np.array([9, 5])
    hidden = masking.word_mask(continues, lengths, 0.4, masking.seeds_for(0, np.arange(2), "x"))
    rest = masking.complement(hidden, lengths)
    assert not (hidden & rest).any()
    assert (hidden | rest).sum(1).tolist() == [7, 3]


def test_keywords_are_drawn_by_weight_without_replacement():
    continues = np.array([[0, 0, 1, 0, 0, 0, 1, 0, 0]], bool)
    weights = np.array([[9, 4.0, 9, 1.0, 0.5, 2.0, 9, 3.0, 9]], np.float32)
    words = words_of(continues[0], 9)
    share = np.array([weights[0, w[0]] for w in words], float)
    share /= share.sum()
    rows, sizes, seeds = many(continues, np.array([9]))
    hidden = masking.keyword_mask(rows, sizes, np.repeat(weights, DRAWS, 0), 0.5, seeds)
    rng = np.random.default_rng(0)
    expected = np.zeros((DRAWS, 9), bool)
    for row in expected:
        for word in rng.choice(len(words), len(words), replace=False, p=share):
            if row.sum() >= round(7 * 0.5):
                break
            row[words[word]] = True
    sigma = 5 * np.sqrt(0.5 / DRAWS)
    assert np.abs(hidden.mean(0) - expected.mean(0)).max() < sigma
    # The last word may overshoot, by less than its size.
    assert set(np.unique(hidden.sum(1))) == {4, 5}


def test_a_word_without_weight_comes_last():
    weights = np.array([[0, 0.0, 1.0, 1.0, 0]], np.float32)
    rows, sizes, seeds = many(np.zeros((1, 5), bool), np.array([5]), 500)
    hidden = masking.keyword_mask(rows, sizes, np.repeat(weights, 500, 0), 0.6, seeds)
    assert hidden.sum(0).tolist() == [0, 0, 500, 500, 0]


@pytest.mark.parametrize("length", [2, 3, 12, 64, 65, 130, 300])
def test_what_rows_may_see(length):
    """RetroMAE Eq. 7: column 0 for all but row 0, [SEP] for all but itself, never oneself, and a share of the rest."""
    continues, lengths = text(length)
    padded = np.zeros((1, length + 5), bool)
    padded[:, :length] = continues
    visible = masking.position_masks(padded, lengths, 0.5, masking.seeds_for(0, np.arange(1), "x"))[0]
    assert visible.shape == (length + 5, length + 5)
    assert not visible[length:].any()
    assert not visible[:, length:].any()
    assert not visible.diagonal().any()
    inside = visible[:length, :length]
    assert inside[1:, 0].all()
    assert inside[:-1, -1].all()
    if length > 60:
        hidden = 1 - inside[:, 1:-1].mean()
        assert hidden == pytest.approx(0.5 * length / (length - 2), abs=0.02)


def test_every_row_is_a_whole_word_mask_of_a_shared_pool():
    continues, lengths = text(40, 0.4)
    visible = masking.position_masks(continues, lengths, 0.5, masking.seeds_for(5, np.arange(1), "x"), distinct=4)[0]
    for i, row in enumerate(visible):
        hidden = ~row
        # The diagonal apart, whole words within the budget.
        for word in words_of(continues[0], 40):
            if i not in word:
                assert hidden[word].all() or not hidden[word].any()
        assert np.delete(hidden, i).sum() <= 20
    # Rows that took the same mask agree everywhere but at their own places: at most 4 kinds of row.
    kinds = []
    for i in range(40):
        same = [j for j in kinds if agree(visible, i, j)]
        if not same:
            kinds.append(i)
    assert 2 <= len(kinds) <= 4


def agree(visible, i, j):
    elsewhere = np.setdiff1d(np.arange(visible.shape[1]), [i, j])
    return (visible[i, elsewhere] == visible[j, elsewhere]).all()


def test_rows_draw_masks_and_masks_draw_words_as_restated():
    """Shares of single places, pairs of places in one row, and pairs of rows that took the same mask."""
    length, draws = 8, 20_000
    continues, lengths = np.array([[0, 0, 1, 0, 0, 1, 0, 0]], bool), np.array([8])
    rows, sizes, seeds = many(continues, lengths, draws)
    visible = masking.position_masks(rows, sizes, 0.5, seeds)
    rng = random.Random(3)
    expected = np.ones((draws, length, length), bool)
    for m in expected:
        pool = [restated(continues[0], length, 0.5, True, rng) for _ in range(length)]
        for i in range(length):
            m[i, rng.choice(pool)] = False
            m[i, i] = False
    sigma = 5 * np.sqrt(0.5 / draws)
    flat = [v.reshape(draws, -1).astype(float) for v in (visible, expected)]
    assert np.abs(flat[0].mean(0) - flat[1].mean(0)).max() < sigma
    together = [f.T @ f / draws for f in flat]
    assert np.abs(together[0] - together[1]).max() < sigma


def test_bits_are_the_same_masks():
    for length in (5, 64, 70):
        continues, lengths = text(length)
        seeds = masking.seeds_for(0, np.arange(1), "x")
        visible = masking.position_masks(continues, lengths, 0.5, seeds)
        packed = masking.position_masks(continues, lengths, 0.5, seeds, bits=True)
        assert packed.dtype == np.uint8
        assert packed.shape == (1, length, (length + 7) // 8)
        assert (np.unpackbits(packed, axis=-1, bitorder="little")[..., :length].astype(bool) == visible).all()


def test_bits_unpack_in_the_model_as_here():
    import torch

    from dupmae_ir.models.decoders import unpack

    continues, lengths = text(37)
    seeds = masking.seeds_for(0, np.arange(1), "x")
    packed = torch.from_numpy(masking.position_masks(continues, lengths, 0.5, seeds, bits=True))
    assert (unpack(packed, 37).numpy() == masking.position_masks(continues, lengths, 0.5, seeds)).all()


@pytest.mark.parametrize("size", [65, 100, 200])
def test_a_word_longer_than_a_machine_word(size):
    """A hash of hundreds of pieces is one word, hidden whole or not at all."""
    continues = np.zeros((1, 300), bool)
    continues[0, 31 : 30 + size] = True
    seeds = masking.seeds_for(0, np.arange(1), "x")
    visible = masking.position_masks(continues, np.array([300]), 0.9, seeds)[0]
    word = np.arange(30, 30 + size)
    outside = np.setdiff1d(np.arange(300), word)
    inside = visible[outside][:, word].sum(1)
    assert set(np.unique(inside)) == {0, size}


def test_hidden_tokens_are_replaced_with_the_given_shares():
    ids = np.full((50, 400), 77, np.int64)
    hidden = np.ones(ids.shape, bool)
    hidden[:, 0] = False
    seeds = masking.seeds_for(0, np.arange(50), "x")
    out, labels = masking.corrupt(ids, hidden, seeds, 4, 1000, (0.8, 0.1, 0.1))
    assert (labels[:, 0] == -100).all()
    assert (labels[:, 1:] == 77).all()
    assert (out[:, 0] == 77).all()
    new = out[:, 1:]
    assert (new == 4).mean() == pytest.approx(0.8, abs=0.01)
    random_ones = new[(new != 4) & (new != 77)]
    assert len(random_ones) / new.size == pytest.approx(0.1, abs=0.01)
    assert random_ones.min() >= 0
    assert random_ones.max() < 1000
    assert len(np.unique(random_ones)) > 600
    assert (ids == 77).all()
    always, _ = masking.corrupt(ids, hidden, seeds, 4, 1000, (1, 0, 0))
    assert (always[:, 1:] == 4).all()


def test_a_row_depends_on_its_own_seed_alone():
    continues, lengths = text(30)
    rows, sizes, seeds = many(continues, lengths, 6)
    weights = np.ones(rows.shape, np.float32)
    ids = np.arange(180).reshape(6, 30)
    alone = slice(4, 5)
    for draw in (
        lambda s: masking.word_mask(rows[s], sizes[s], 0.3, seeds[s]),
        lambda s: masking.keyword_mask(rows[s], sizes[s], weights[s], 0.5, seeds[s]),
        lambda s: masking.position_masks(rows[s], sizes[s], 0.5, seeds[s]),
        lambda s: masking.corrupt(ids[s], np.ones_like(rows[s]), seeds[s], 1, 99)[0],
    ):
        together = draw(slice(None))
        assert (together[alone] == draw(alone)).all()
        assert not (together[0] == together[1]).all()


def test_padding_changes_nothing():
    continues, lengths = text(30)
    wide = np.zeros((1, 50), bool)
    wide[:, :30] = continues
    seeds = masking.seeds_for(0, np.arange(1), "x")
    a, b = (masking.word_mask(c, lengths, 0.3, seeds) for c in (wide, continues))
    assert (a[:, :30] == b).all()
    a, b = (masking.position_masks(c, lengths, 0.5, seeds) for c in (wide, continues))
    assert (a[:, :30, :30] == b).all()


def test_texts_of_nothing():
    continues, lengths = np.zeros((2, 3), bool), np.array([2, 3])
    seeds = masking.seeds_for(0, np.arange(2), "x")
    assert masking.word_mask(continues, lengths, 0.3, seeds).tolist() == [[False] * 3, [False, True, False]]
    weights = np.ones((2, 3), np.float32)
    assert masking.keyword_mask(continues, lengths, weights, 0.5, seeds).sum(1).tolist() == [0, 1]


def test_streams_are_apart():
    draws = np.arange(1000)
    streams = [masking.seeds_for(s, draws, u) for s, u in ((0, "a"), (0, "b"), (1, "a"))]
    assert len(np.unique(np.concatenate(streams))) == 3000


@pytest.mark.parametrize("ratio", [0, 1, -0.1, 1.5])
def test_a_share_that_is_none(ratio):
    continues, lengths = text(9)
    seeds = masking.seeds_for(0, np.arange(1), "x")
    for draw in (masking.word_mask, masking.position_masks):
        with pytest.raises(UsageError, match="above 0 and below 1"):
            draw(continues, lengths, ratio, seeds)
    with pytest.raises(UsageError, match="add up to 1"):
        masking.corrupt(np.zeros((1, 9), np.int64), continues, seeds, 1, 9, (0.5, 0.1, 0.1))
