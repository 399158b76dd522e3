"""oneDNN layers equal torch's; without oneDNN, torch's run, with the reason."""

from __future__ import annotations

import pytest
import torch

from dupmae_ir.models.inference import cpu_linear


def layer(dtype, seed=0):
    g = torch.Generator().manual_seed(seed)
    weight = torch.randn(48, 32, generator=g) * 0.2
    return (
        weight.to(dtype),
        torch.randn(48, generator=g).to(dtype),
        torch.randn(7, 32, generator=g).to(dtype),
    )


# The sums have another order; bfloat16 results are rounded to eight bits.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("gelu", [False, True])
def test_onednn_equals_torch(dtype, tolerance, gelu):
    weight, bias, x = layer(dtype)
    chosen, _ = cpu_linear.pick_linear(dtype)
    with torch.inference_mode():
        found = chosen(weight, bias, gelu)(x)
        expected = cpu_linear.torch_linear(weight.double(), bias.double(), gelu)(x.double())
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)


def test_gelu_is_the_exact_one():
    """The tanh approximation differs by up to 5e-4, beyond this tolerance."""
    chosen, _ = cpu_linear.pick_linear(torch.float32)
    x = torch.linspace(-4, 4, 64).view(4, 16)
    with torch.inference_mode():
        found = chosen(torch.eye(16), torch.zeros(16), gelu=True)(x)
    torch.testing.assert_close(found, torch.nn.functional.gelu(x), atol=1e-6, rtol=1e-6)


def test_without_onednn_torch_is_used_and_the_reason_given(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert cpu_linear.pick_linear(torch.float32) == (
        cpu_linear.torch_linear,
        "torch's products: this torch has no oneDNN, or it is switched off",
    )


def test_wrong_onednn_results_are_detected(monkeypatch):
    def wrong(weight, bias, gelu=False):
        return lambda x: x + 1

    monkeypatch.setattr(cpu_linear, "onednn_linear", wrong)
    chosen, reason = cpu_linear.pick_linear(torch.float32)
    assert chosen is cpu_linear.torch_linear
    assert "are not supported" in reason


def test_other_dtypes_use_torch():
    assert cpu_linear.pick_linear(torch.float64)[0] is cpu_linear.torch_linear


def test_batches_have_few_sizes_and_little_padding():
    rows = range(1, 4097)
    padded = [len(cpu_linear.pad_rows(torch.ones(n, 1))) for n in rows]
    assert all(n <= p for n, p in zip(rows, padded, strict=True))
    assert (
        len(set(padded)) < 100
    )  # oneDNN keeps a thousand kernels, for about five layers of each size
    assert max(p / n for n, p in zip(rows, padded, strict=True) if n > 64) < 1.25
    assert cpu_linear.pad_rows(torch.ones(5, 2))[5:].tolist() == [[0, 0]] * 3
