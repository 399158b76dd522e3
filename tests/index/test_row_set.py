"""A set of rows in the forms that faiss, Lucene and the kernels take."""

from __future__ import annotations

import numpy as np
import pytest

from dupmae_ir.errors import UsageError
from dupmae_ir.index.format.row_set import RowSet, row_set


@pytest.mark.parametrize("documents", [0, 1, 63, 64, 65, 200])
def test_every_form_has_the_same_rows(documents: int) -> None:
    mask = np.random.default_rng(documents).random(documents) < 0.3
    chosen = RowSet(mask)
    expected = [row for row in range(documents) if mask[row]]
    assert chosen.rows.tolist() == expected
    assert len(chosen) == len(expected)
    assert len(chosen.bits) % 8 == 0
    assert (
        np.unpackbits(chosen.bits, bitorder="little")[:documents].astype(bool).tolist()
        == mask.tolist()
    )
    assert chosen.between(10, 64).tolist() == [row for row in expected if 10 <= row < 64]
    assert [row for block in chosen.blocks(7) for row in block.tolist()] == expected
    assert all(len(block) <= 7 for block in chosen.blocks(7))


def test_a_later_change_of_the_mask_does_not_count() -> None:
    mask = np.array([True, False])
    chosen = RowSet(mask)
    mask[:] = False
    assert chosen.rows.tolist() == [0]
    with pytest.raises(ValueError, match="read-only"):
        chosen.mask[0] = False


def test_all_rows_are_no_restriction_and_other_masks_are_refused() -> None:
    assert row_set(None, 3) is None
    assert row_set(np.ones(3, bool), 3) is None
    some = row_set(np.array([True, False, True]), 3)
    assert some is not None
    assert row_set(some, 3) is some
    for wrong in (np.ones(2, bool), np.ones(3, int), np.ones((3, 1), bool)):
        with pytest.raises(UsageError, match=r"a mask of shape \(3,\) and type bool"):
            row_set(wrong, 3)
    with pytest.raises(UsageError, match="of 3 documents; the index has 4"):
        row_set(some, 4)
