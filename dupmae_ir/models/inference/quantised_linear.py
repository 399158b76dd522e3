"""Products of a few rows with 8-bit weights: the same bits from numpy and from compiled loops, on every machine.

The input is split into groups of 64 numbers. Each group is rounded to multiples of a unit, which is its largest
absolute value divided by 32,767. Products with the weights' codes are then integer sums, which are exact in any order.
They are converted to float32, multiplied by unit and factor, and added up group by group.

The rounding changes an input by at most half a unit, and an output by at most the sum of that times the absolute
weights, which is 2e-5 of the outputs' length for normally distributed numbers. Weights are not rounded again.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from dupmae_ir.device import pays
from dupmae_ir.models.checkpoints.stored import GROUP

MAX_INPUT = 32_767  #: largest int16, which the largest number of a group is rounded to
SMALLEST = np.float32(1e-30)
"""Least value that counts as the largest of a group: a group of zeros is not divided by 0."""


class QuantisedLinear:
    """A matrix of 8-bit weights: (n, k) int8 ``codes``, (n, k / 64) float32 ``factors``; n, k are multiples of 64.

    A call multiplies (l, k) float32 by it: (l, n) float32.
    """

    def __init__(self, codes: np.ndarray, factors: np.ndarray) -> None:
        self._codes = codes
        self._factors = np.ascontiguousarray(factors.T)
        self._was_called = False

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if pays(x.size * len(self._codes) >> 8):
            return self._by_loops(x)
        return self._by_numpy(x)

    def _by_numpy(self, x: np.ndarray) -> np.ndarray:
        """By float32 products of the upper and the lower eight bits of the inputs, of which sums of 64 are exact."""
        groups = x.reshape(len(x), -1, GROUP)
        largest = np.maximum(np.abs(groups).max(2), SMALLEST)
        units = largest / np.float32(MAX_INPUT)
        inputs = np.rint(groups / units[:, :, None]).astype(np.int16)
        upper_and_lower = np.concatenate([inputs >> 8, inputs & 255]).astype(np.float32)
        products = upper_and_lower.transpose(1, 0, 2) @ self._groups_for_call()
        upper = products[:, : len(inputs)]
        lower = products[:, len(inputs) :]
        sums = upper * np.float32(256) + lower
        sums *= self._factors[:, None] * units.T[:, :, None]
        return sums.sum(0)

    def _by_loops(self, x: np.ndarray) -> np.ndarray:
        from dupmae_ir.models.inference.integer_products import ROWS, multiply
        from dupmae_ir.models.inference.query_loops import round_groups

        # Four times the size of the codes, and not needed again: once the loops pay, they always do.
        self.__dict__.pop("_groups", None)
        row_count = math.ceil(len(x) / ROWS) * ROWS
        inputs = np.zeros((row_count, x.shape[1]), np.int16)
        units = np.empty((len(x), x.shape[1] // GROUP), np.float32)
        round_groups(x, np.float32(MAX_INPUT), SMALLEST, inputs, units)
        outputs = np.zeros((len(x), len(self._codes)), np.float32)
        multiply(inputs, units, self._panels, self._factors, outputs)
        return outputs

    def _groups_for_call(self) -> np.ndarray:
        """(k / 64, 64, n) float32, for numpy. A process that answers one query would wait longer for the copy in this
        order than the products without it take; the sums are the same."""
        if self._was_called:
            return self._groups
        self._was_called = True
        rows = self._codes.astype(np.float32)
        return rows.reshape(len(rows), -1, GROUP).transpose(1, 2, 0)

    @cached_property
    def _groups(self) -> np.ndarray:
        return self._codes.T.astype(np.float32, order="C").reshape(-1, GROUP, len(self._codes))

    @cached_property
    def _panels(self) -> np.ndarray:
        """(n / 64, k / 2, 64, 2) int8, for the loops."""
        panels = self._codes.reshape(-1, GROUP, self._codes.shape[1] // 2, 2).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(panels)
