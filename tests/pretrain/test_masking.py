"""The compiled masks have the distribution of the released rules, which are reimplemented here."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy import stats

from dupmae_ir.errors import UsageError
from dupmae_ir.pretrain import masking

DRAWS = 20_000


def words_of(continues, length):
    """Positions of each word between the special tokens."""
    words = []
    for i in range(1, length - 1):
        if continues[i] and words:
            words[-1].append(i)
        else:
            words.append([i])
    return words


def released_mask(continues, length, ratio, count_special, rng):
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
    return (
        np.repeat(continues, draws, 0),
        np.repeat(lengths, draws),
        masking.seeds_for(3, np.arange(draws), use),
    )


@pytest.mark.parametrize("count_special", [True, False])
@pytest.mark.parametrize(("length", "ratio"), [(12, 0.3), (20, 0.5), (9, 0.15)])
def test_words_are_masked_like_the_released_rule(length, ratio, count_special):
    continues, lengths = text(length)
    rows, sizes, seeds = many(continues, lengths)
    hidden = masking.word_mask(rows, sizes, ratio, seeds, count_special)
    rng = random.Random(1)
    expected = np.zeros((DRAWS, length), bool)
    for row in expected:
        row[released_mask(continues[0], length, ratio, count_special, rng)] = True
    # Each position and each pair of positions is masked equally often: two binomial shares differ by at most 5 sigma.
    sigma = 5 * np.sqrt(0.5 / DRAWS)
    assert np.abs(hidden.mean(0) - expected.mean(0)).max() < sigma
    together = [m.T.astype(float) @ m / DRAWS for m in (hidden, expected)]
    assert np.abs(together[0] - together[1]).max() < sigma
    # The number of masked tokens has the same distribution too.
    counts = [np.bincount(m.sum(1), minlength=length) for m in (hidden, expected)]
    seen = (counts[0] + counts[1]) > 0
    if seen.sum() > 1:
        assert stats.chi2_contingency(np.stack(counts)[:, seen]).pvalue > 1e-4


def test_words_are_masked_together_like_the_released_rule():
    """Chi-square over the sets of words, not only their marginal frequencies."""
    continues = np.array([[0, 0, 1, 0, 0, 1, 1, 0, 0, 0]], bool)
    lengths = np.array([10])
    hidden = masking.word_mask(
        *many(continues, lengths)[:2], 0.4, masking.seeds_for(1, np.arange(DRAWS), "sets")
    )
    rng = random.Random(2)
    expected = [
        sum(1 << i for i in released_mask(continues[0], 10, 0.4, True, rng)) for _ in range(DRAWS)
    ]
    assert same_distribution((hidden @ (1 << np.arange(10))).tolist(), expected) > 1e-4


def same_distribution(ours, theirs):
    """p-value of the hypothesis that both samples have the same distribution."""
    outcomes = sorted(set(ours) | set(theirs))
    assert 1 < len(outcomes) < 100
    table = np.array([[sample.count(o) for o in outcomes] for sample in (ours, theirs)])
    return stats.chi2_contingency(table).pvalue


def test_whole_words_within_the_budget():
    continues, lengths = text(40, 0.5)
    hidden = masking.word_mask(
        *many(continues, lengths)[:2], 0.3, masking.seeds_for(0, np.arange(DRAWS), "b")
    )
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


def test_the_complement_is_the_other_ordinary_tokens():
    continues = np.zeros((2, 9), bool)
    lengths = np.array([9, 5])
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
    outcomes = [(m @ (1 << np.arange(9))).tolist() for m in (hidden, expected)]
    assert same_distribution(*outcomes) > 1e-4
    # The last word may overshoot, by less than its size.
    assert set(np.unique(hidden.sum(1))) == {4, 5}


def test_words_of_weight_zero_are_drawn_last():
    weights = np.array([[0, 0.0, 1.0, 1.0, 0]], np.float32)
    rows, sizes, seeds = many(np.zeros((1, 5), bool), np.array([5]), 500)
    hidden = masking.keyword_mask(rows, sizes, np.repeat(weights, 500, 0), 0.6, seeds)
    assert hidden.sum(0).tolist() == [0, 0, 500, 500, 0]
    none = masking.keyword_mask(rows, sizes, np.zeros(rows.shape, np.float32), 0.34, seeds)
    assert (none.sum(1) == 1).all()
    assert none.sum(0)[1:4].min() > 120  # of 500 / 3 expected: at random, not by position


@pytest.mark.parametrize("length", [2, 3, 12, 64, 65, 130, 300])
def test_visible_positions(length):
    """RetroMAE Eq. 7: column 0 except in row 0, [SEP] except in its row, not the diagonal, and a share of the rest."""
    continues, lengths = text(length)
    padded = np.zeros((1, length + 5), bool)
    padded[:, :length] = continues
    visible = masking.position_masks(padded, lengths, 0.5, masking.seeds_for(0, np.arange(1), "x"))[
        0
    ]
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


def test_all_lengths():
    """Rows of 1 to 512 tokens: special tokens, padding, budget and the diagonal hold for each."""
    lengths = np.arange(1, 513)
    place = np.arange(512)
    continues = np.random.default_rng(0).random((512, 512)) < 0.3
    continues[:, :2] = False
    seeds = masking.seeds_for(0, lengths, "x")
    ordinary = (place > 0) & (place < lengths[:, None] - 1)
    hidden = masking.word_mask(continues, lengths, 0.3, seeds)
    assert not (hidden & ~ordinary).any()
    assert (hidden.sum(1) <= [max(1, round(n * 0.3)) for n in lengths.tolist()]).all()
    assert (hidden.sum(1)[20:] > 0).all()
    keywords = masking.keyword_mask(continues, lengths, np.ones((512, 512), np.float32), 0.5, seeds)
    assert not (keywords & ~ordinary).any()
    assert (
        keywords.sum(1)[2:] >= [max(1, round((n - 2) * 0.5)) for n in lengths[2:].tolist()]
    ).all()
    for first in range(0, 512, 64):
        rows = slice(first, first + 64)
        bits = masking.position_masks(continues[rows], lengths[rows], 0.5, seeds[rows], bits=True)
        for n, mask in zip(
            lengths[rows], np.unpackbits(bits, axis=-1, bitorder="little").astype(bool), strict=True
        ):
            assert not mask.diagonal().any()
            assert mask[1:n, 0].all()
            assert mask[: n - 1, n - 1].all()
            assert not mask[n:].any()
            assert not mask[:, n:].any()
            assert ((~mask[:n, :n]).sum(1) <= max(1, round(n * 0.5)) + 1).all()


def test_an_empty_batch():
    none = np.zeros((0, 9), bool)
    lengths = np.zeros(0, np.int64)
    seeds = np.zeros(0, np.uint64)
    assert masking.word_mask(none, lengths, 0.3, seeds).shape == (0, 9)
    assert masking.position_masks(none, lengths, 0.3, seeds, bits=True).shape == (0, 9, 2)


def test_every_row_is_a_whole_word_mask_of_a_shared_pool():
    continues, lengths = text(40, 0.4)
    visible = masking.position_masks(
        continues, lengths, 0.5, masking.seeds_for(5, np.arange(1), "x"), distinct=4
    )[0]
    for i, row in enumerate(visible):
        hidden = ~row
        # Except for the diagonal: whole words within the budget.
        for word in words_of(continues[0], 40):
            if i not in word:
                assert hidden[word].all() or not hidden[word].any()
        assert np.delete(hidden, i).sum() <= 20
    # Rows with the same mask agree except at their own positions: at most 4 kinds of row.
    kinds = []
    for i in range(40):
        same = [j for j in kinds if agree(visible, i, j)]
        if not same:
            kinds.append(i)
    assert 2 <= len(kinds) <= 4


def test_a_long_text_has_256_masks():
    continues, lengths = text(512)
    visible = masking.position_masks(
        continues, lengths, 0.5, masking.seeds_for(2, np.arange(1), "x")
    )[0].astype(int)
    differing = visible @ (1 - visible.T) + (1 - visible) @ visible.T
    # Row i never sees column i, so there it differs from row j if j sees it.
    same = differing - visible - visible.T == 0
    kinds = 512 - np.tril(same, -1).any(1).sum()
    # 512 draws from 256: an expected 221 distinct ones, with a standard deviation of 6.
    assert 195 < kinds < 247


def agree(visible, i, j):
    elsewhere = np.setdiff1d(np.arange(visible.shape[1]), [i, j])
    return (visible[i, elsewhere] == visible[j, elsewhere]).all()


def test_position_masks_have_the_released_distribution():
    """Frequencies of positions, of pairs of positions in a row, and of pairs of rows with the same mask."""
    length = 8
    draws = 20_000
    continues = np.array([[0, 0, 1, 0, 0, 1, 0, 0]], bool)
    lengths = np.array([8])
    rows, sizes, seeds = many(continues, lengths, draws)
    visible = masking.position_masks(rows, sizes, 0.5, seeds)
    rng = random.Random(3)
    expected = np.ones((draws, length, length), bool)
    for m in expected:
        pool = [released_mask(continues[0], length, 0.5, True, rng) for _ in range(length)]
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
        assert (
            np.unpackbits(packed, axis=-1, bitorder="little")[..., :length].astype(bool) == visible
        ).all()


def test_the_model_unpacks_bits_to_the_same_masks():
    import torch

    from dupmae_ir.models.objectives.decoders import unpack

    continues, lengths = text(37)
    seeds = masking.seeds_for(0, np.arange(1), "x")
    packed = torch.from_numpy(masking.position_masks(continues, lengths, 0.5, seeds, bits=True))
    assert (
        unpack(packed, 37).numpy() == masking.position_masks(continues, lengths, 0.5, seeds)
    ).all()


@pytest.mark.parametrize("size", [65, 100, 200])
def test_a_word_longer_than_a_machine_word(size):
    """Hundreds of pieces can be one word (such as a hash), which is masked completely or not at all."""
    continues = np.zeros((1, 300), bool)
    continues[0, 31 : 30 + size] = True
    seeds = masking.seeds_for(0, np.arange(1), "x")
    visible = masking.position_masks(continues, np.array([300]), 0.9, seeds)[0]
    word = np.arange(30, 30 + size)
    outside = np.setdiff1d(np.arange(300), word)
    inside = visible[outside][:, word].sum(1)
    assert set(np.unique(inside)) == {0, size}


def test_masked_tokens_are_replaced_with_the_given_shares():
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
    others = np.setdiff1d(np.arange(1000), [4, 77])
    assert stats.chisquare(np.bincount(random_ones, minlength=1000)[others]).pvalue > 1e-4
    always, _ = masking.corrupt(ids, hidden, seeds, 4, 1000, (1, 0, 0))
    assert (always[:, 1:] == 4).all()


def test_a_row_depends_only_on_its_own_seed():
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


def test_empty_texts():
    continues = np.zeros((2, 3), bool)
    lengths = np.array([2, 3])
    seeds = masking.seeds_for(0, np.arange(2), "x")
    assert masking.word_mask(continues, lengths, 0.3, seeds).tolist() == [
        [False] * 3,
        [False, True, False],
    ]
    weights = np.ones((2, 3), np.float32)
    assert masking.keyword_mask(continues, lengths, weights, 0.5, seeds).sum(1).tolist() == [0, 1]


def test_streams_differ():
    draws = np.arange(1000)
    streams = [masking.seeds_for(s, draws, u) for s, u in ((0, "a"), (0, "b"), (1, "a"))]
    assert len(np.unique(np.concatenate(streams))) == 3000


def test_masking_and_replacement_are_independent():
    """The random streams of a row's uses are independent."""
    rows, sizes, seeds = many(np.zeros((1, 12), bool), np.array([12]))
    hidden = masking.word_mask(rows, sizes, 0.3, seeds)
    ids = np.full(rows.shape, 5, np.int64)
    out, _ = masking.corrupt(
        ids, np.ones_like(hidden), masking.seeds_for(3, np.arange(DRAWS), "replace"), 1, 4
    )
    centred = [a - a.mean(0) for a in (hidden.astype(float), (out == 1).astype(float))]
    assert np.abs(centred[0].T @ centred[1] / DRAWS).max() < 5 * 0.46 * 0.4 / np.sqrt(DRAWS)


def test_arrays_that_do_not_fit_are_refused():
    """Compiled loops do not check bounds."""
    continues, lengths = text(9)
    seeds = masking.seeds_for(0, np.arange(1), "x")
    for rows in (lengths + 1, np.array([9, 9])):
        with pytest.raises(ValueError, match="rows"):
            masking.word_mask(continues, rows, 0.3, seeds)
        with pytest.raises(ValueError, match="rows"):
            masking.position_masks(continues, rows, 0.3, seeds)
    with pytest.raises(ValueError, match="weights"):
        masking.keyword_mask(continues, lengths, np.ones((1, 8), np.float32), 0.3, seeds)
    with pytest.raises(ValueError, match="masked"):
        masking.corrupt(np.zeros((1, 9), np.int64), continues[:, :8], seeds, 1, 9)
    with pytest.raises(UsageError, match="at least 1"):
        masking.position_masks(continues, lengths, 0.3, seeds, distinct=0)


@pytest.mark.parametrize("ratio", [0, 1, -0.1, 1.5, float("nan")])
def test_invalid_shares_are_refused(ratio):
    continues, lengths = text(9)
    seeds = masking.seeds_for(0, np.arange(1), "x")
    for draw in (masking.word_mask, masking.position_masks):
        with pytest.raises(UsageError, match="above 0 and below 1"):
            draw(continues, lengths, ratio, seeds)
    for shares in ((0.5, 0.1, 0.1), (1.2, -0.1, -0.1), (0.5, 0.5), (float("nan"), 0.1, 0.1)):
        with pytest.raises(UsageError, match="add up to 1"):
            masking.corrupt(np.zeros((1, 9), np.int64), continues, seeds, 1, 9, shares)
