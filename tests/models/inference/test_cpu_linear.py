"""Packed products equal plain ones; without oneDNN the plain ones run, and say why."""

from __future__ import annotations

import pytest
import torch

from dupmae_ir.models.inference import cpu_linear


def layer(dtype, seed=0):
    g = torch.Generator().manual_seed(seed)
    weight = torch.randn(48, 32, generator=g) * 0.2
    return weight.to(dtype), torch.randn(48, generator=g).to(dtype), torch.randn(7, 32, generator=g).to(dtype)


# Another order of 32 products; bfloat16 results are rounded to eight bits.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("gelu", [False, True])
def test_packed_equals_plain(dtype, tolerance, gelu):
    weight, bias, x = layer(dtype)
    chosen, _ = cpu_linear.pick_products(dtype)
    with torch.inference_mode():
        found, wanted = (
            chosen(weight, bias, gelu)(x),
            cpu_linear.plain(weight.double(), bias.double(), gelu)(x.double()),
        )
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, atol=tolerance, rtol=tolerance)


def test_gelu_is_the_exact_one():
    """tanh's approximation is off by up to 5e-4, which this would show."""
    chosen, _ = cpu_linear.pick_products(torch.float32)
    x = torch.linspace(-4, 4, 64).view(4, 16)
    with torch.inference_mode():
        found = chosen(torch.eye(16), torch.zeros(16), gelu=True)(x)
    torch.testing.assert_close(found, torch.nn.functional.gelu(x), atol=1e-6, rtol=1e-6)


def test_without_onednn_plain_products_run_and_say_why(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert cpu_linear.pick_products(torch.float32) == (
        cpu_linear.plain,
        "torch's products: this torch has no oneDNN, or it is switched off",
    )


def test_operators_of_another_torch_are_not_trusted(monkeypatch):
    def wrong(weight, bias, gelu=False):
        return lambda x: x + 1

    monkeypatch.setattr(cpu_linear, "packed", wrong)
    chosen, reason = cpu_linear.pick_products(torch.float32)
    assert chosen is cpu_linear.plain
    assert "not the ones known here" in reason


def test_other_dtypes_run_plain():
    assert cpu_linear.pick_products(torch.float64)[0] is cpu_linear.plain
