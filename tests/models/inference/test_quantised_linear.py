"""Products with 8-bit weights: within the bound of float64, and the same bits from numpy and from compiled loops."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from dupmae_ir.models.inference import quantised_linear
from dupmae_ir.models.inference.quantised_linear import MAX_INPUT, QuantisedLinear

SHAPES = [(1, 64, 64), (5, 64, 192), (11, 384, 1536), (12, 1536, 384)]


def drawn(rows: int, n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs with outliers, a row of zeros and a group of one number; codes, the extreme ones among them; factors."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((rows, k)) * 10.0 ** rng.integers(-3, 3, (rows, k))).astype(np.float32)
    x[-1:] *= rows == 1  # zeros
    x[0, :64] = 7.5
    codes = rng.integers(-127, 128, (n, k)).astype(np.int8)
    codes[0], codes[1] = 127, -127
    return x, codes, rng.random((n, k // 64)).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("loops", [False, True])
def test_outputs_are_within_the_bound_of_float64(
    shape: tuple[int, int, int], loops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantised_linear, "pays", lambda _: loops)
    x, codes, factors = drawn(*shape)
    exact = codes * np.repeat(factors, 64, 1).astype(np.float64)
    units = np.abs(x.reshape(len(x), -1, 64)).max(2) / MAX_INPUT
    rounding = 0.5 * np.repeat(units, 64, 1) @ np.abs(exact).T
    # The sums of the groups and their conversion: an ulp for each of at most 24 of them, and one of unit and factor.
    float32 = 32 * 2.0**-23 * (np.abs(x).astype(np.float64) @ np.abs(exact).T)
    error = np.abs(QuantisedLinear(codes, factors)(x) - x.astype(np.float64) @ exact.T)
    assert (error <= rounding * 1.001 + float32).all()
    assert len(x) == 1 or (error > 0).any()
    assert len(x) == 1 or not error[-1].any()


@pytest.mark.parametrize("shape", SHAPES)
def test_loops_return_the_bits_of_numpy(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, codes, factors = drawn(*shape, seed=1)
    linear = QuantisedLinear(codes, factors)
    results = []
    for loops in (False, True, False):
        monkeypatch.setattr(quantised_linear, "pays", lambda _, loops=loops: loops)
        results.append(linear(x))
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.int32), results[0].view(np.int32))


def test_processors_without_vector_instructions_return_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = """
import numpy as np
from tests.models.inference.test_quantised_linear import drawn
from dupmae_ir.models.inference import quantised_linear
quantised_linear.pays = lambda _: True
x, codes, factors = drawn(5, 64, 192)
print(quantised_linear.QuantisedLinear(codes, factors)(x).tobytes().hex())
"""
    plain = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=plain, capture_output=True, text=True, check=True
    )
    monkeypatch.setattr(quantised_linear, "pays", lambda _: False)
    x, codes, factors = drawn(5, 64, 192)
    assert done.stdout.strip() == QuantisedLinear(codes, factors)(x).tobytes().hex()
