"""Seeds of randomised tests: ten on every push, the others in the nightly run (``-m nightly``)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

PUSH = 10
NIGHTLY = 150
"""Number of seeds on every push, and of all seeds."""


def seeds(push: int = PUSH, nightly: int = NIGHTLY) -> list[Any]:
    """Seeds 0, 1, ... for ``pytest.mark.parametrize("seed", seeds())``, with the mark ``nightly`` from ``push`` on."""
    return sample(range(nightly), push)


def sample(values: Sequence[Any], push: int = PUSH) -> list[Any]:
    """All of ``values`` as parameters, those after the first ``push`` with the mark ``nightly``."""
    return [
        v if i < push else pytest.param(v, marks=pytest.mark.nightly) for i, v in enumerate(values)
    ]


def grid(*axes: Sequence[Any], push: int = 2 * PUSH) -> list[Any]:
    """Every combination of the values of ``axes``, in a fixed random order: the first ``push`` of them, in which every
    value occurs, on every push, the others nightly."""
    combinations = list(itertools.product(*axes))
    rng = random.Random(0)
    while True:
        rng.shuffle(combinations)
        if all(
            set(map(repr, axis)) <= {repr(c[i]) for c in combinations[:push]}
            for i, axis in enumerate(axes)
        ):
            return [
                c if i < push else pytest.param(*c, marks=pytest.mark.nightly)
                for i, c in enumerate(combinations)
            ]
