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


class QuantisedLinear:
    """A matrix of 8-bit weights: (n, k) int8 ``codes``, (n, k / 64) float32 ``factors``; n, k are multiples of 64.

    A call multiplies (l, k) float32 by it: (l, n) float32.
    """

    def __init__(self, codes: np.ndarray, factors: np.ndarray) -> None:
        self._codes = codes
        self._factors = np.ascontiguousarray(factors.T)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        groups = x.reshape(len(x), -1, GROUP)
        # The minimum keeps a group of zeros out of a division by 0.
        largest = np.maximum(np.abs(groups).max(2), np.float32(1e-30))
        units = largest / np.float32(MAX_INPUT)
        inputs = np.rint(groups / units[:, :, None]).astype(np.int16)
        if pays(x.size * len(self._codes) >> 8):
            return self._by_loops(inputs, units)
        return self._by_numpy(inputs, units)

    def _by_numpy(self, inputs: np.ndarray, units: np.ndarray) -> np.ndarray:
        """By float32 products of the upper and the lower eight bits of the inputs, of which sums of 64 are exact."""
        upper_and_lower = np.concatenate([inputs >> 8, inputs & 255]).astype(np.float32)
        products = upper_and_lower.transpose(1, 0, 2) @ self._groups
        upper = products[:, : len(inputs)]
        lower = products[:, len(inputs) :]
        sums = upper * np.float32(256) + lower
        sums *= self._factors[:, None] * units.T[:, :, None]
        return sums.sum(0)

    def _by_loops(self, inputs: np.ndarray, units: np.ndarray) -> np.ndarray:
        from dupmae_ir.models.inference.integer_products import ROWS, multiply

        # Four times the size of the codes, and not needed again: once the loops pay, they always do.
        self.__dict__.pop("_groups", None)
        row_count = math.ceil(len(inputs) / ROWS) * ROWS
        padded = np.zeros((row_count, self._codes.shape[1]), np.int16)
        padded[: len(inputs)] = inputs.reshape(len(inputs), -1)
        outputs = np.zeros((len(inputs), len(self._codes)), np.float32)
        multiply(padded, units, self._panels, self._factors, outputs)
        return outputs

    @cached_property
    def _groups(self) -> np.ndarray:
        """(k / 64, 64, n) float32, for numpy."""
        return self._codes.T.astype(np.float32, order="C").reshape(-1, GROUP, len(self._codes))

    @cached_property
    def _panels(self) -> np.ndarray:
        """(n / 64, k / 2, 64, 2) int8, for the loops."""
        panels = self._codes.reshape(-1, GROUP, self._codes.shape[1] // 2, 2).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(panels)
