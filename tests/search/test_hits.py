"""A ranked list as arrays reads as a list of hits."""

from __future__ import annotations

import numpy as np
import pytest

from dupmae_ir.search.exact.hits import RankedHits
from dupmae_ir.types import Hit

NAMES = ["a", "b", "c", "d"]
HITS = [Hit("c", 2.5), Hit("a", 1.0), Hit("d", -0.5)]


@pytest.fixture
def ranked() -> RankedHits:
    return RankedHits(np.array([2, 0, 3]), np.array([2.5, 1.0, -0.5]), NAMES)


def test_it_is_the_sequence_of_its_hits(ranked: RankedHits) -> None:
    assert list(ranked) == HITS
    assert [ranked[place] for place in range(3)] == HITS
    assert (len(ranked), ranked[-1], HITS[1] in ranked, ranked.index(HITS[2])) == (
        3,
        HITS[2],
        True,
        2,
    )
    assert all(type(hit) is Hit and type(hit.score) is float for hit in ranked)
    with pytest.raises(IndexError):
        ranked[3]


def test_a_slice_has_arrays_too(ranked: RankedHits) -> None:
    first = ranked[:2]
    assert first == HITS[:2]
    assert isinstance(first, RankedHits)
    np.testing.assert_array_equal(first.rows, [2, 0])


def test_it_equals_any_list_of_the_same_hits_and_nothing_else(ranked: RankedHits) -> None:
    assert ranked == HITS
    assert ranked == ranked[:]
    assert ranked != HITS[:2]
    assert ranked != "c"
    assert not RankedHits(np.zeros(0, np.int64), np.zeros(0), NAMES)
    assert repr(ranked) == f"RankedHits({HITS!r})"


def test_the_arrays_are_those_it_was_made_of(ranked: RankedHits) -> None:
    assert ranked.docids == ["c", "a", "d"]
    np.testing.assert_array_equal(ranked.rows, [2, 0, 3])
    np.testing.assert_array_equal(ranked.scores, [2.5, 1.0, -0.5])
