"""Batches of texts of equal length."""

from __future__ import annotations

import numpy as np
import pytest

from dupmae_ir.pretrain.trainer import MixedBatches

ROWS = [np.arange(300), np.arange(100)]
LENGTHS = [
    np.random.default_rng(0).integers(2, 100, 300),
    np.random.default_rng(1).integers(2, 100, 100),
]


def batches(count=40, pool=8, processes=1, size=4):
    return list(MixedBatches(ROWS, [3.0, 1.0], 7, size, count, LENGTHS, pool, processes))


def padding(made):
    lengths = [[LENGTHS[d.corpus][d.row] for d in batch] for batch in made]
    return 1 - sum(map(sum, lengths)) / sum(len(one) * max(one) for one in lengths)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_pool_has_the_same_texts_with_less_padding(processes):
    plain = batches(pool=1)
    pooled = batches(processes=processes)
    assert len(pooled) == 40
    assert all(len(batch) == 4 for batch in pooled)
    assert sorted(d for batch in pooled[:32] for d in batch) == sorted(
        d for batch in plain[:32] for d in batch
    )
    assert padding(pooled) < padding(plain) / 2


def test_the_batches_of_the_processes_have_about_the_same_length():
    pooled = batches(processes=2)
    longest = np.array([max(LENGTHS[d.corpus][d.row] for d in batch) for batch in pooled]).reshape(
        -1, 2
    )
    assert np.abs(np.diff(longest, axis=1)).mean() < np.abs(np.diff(longest[:, 0])).mean() / 2


def test_the_order_depends_on_the_seed_only():
    assert batches() == batches()
    assert batches(count=10) == batches()[:10]
    longest = [max(LENGTHS[d.corpus][d.row] for d in batch) for batch in batches()[:8]]
    assert longest != sorted(longest)
