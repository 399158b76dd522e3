"""bfloat16 attention of training on a CPU is computed in float32."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from dupmae_ir.training.layers import Float32Attention, training_attention


def attend(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Output, and gradient of the queries."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, 3, 16, 8, generator=generator).to(torch.bfloat16) for _ in range(3)
    )
    mask = torch.zeros(2, 1, 16, 16, dtype=torch.bfloat16)
    mask[1, :, :, 9:] = float("-inf")
    query = query.to(dtype).requires_grad_()
    found = scaled_dot_product_attention(
        query, key.to(dtype), value.to(dtype), attn_mask=mask.to(dtype)
    )
    found.float().square().sum().backward()
    assert query.grad is not None
    return found.detach(), query.grad


def test_it_is_float32_rounded_once():
    exact, slope = attend(torch.float32)
    with Float32Attention():
        found, rounded = attend(torch.bfloat16)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, exact.to(torch.bfloat16))
    assert torch.allclose(rounded.float(), slope, rtol=0.03, atol=0.02)


def test_autocast_does_not_undo_it():
    exact, _ = attend(torch.float32)
    with Float32Attention(), torch.autocast("cpu", torch.bfloat16):
        found, _ = attend(torch.bfloat16)
    assert torch.equal(found, exact.to(torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_precisions_are_left_alone(dtype: torch.dtype):
    plain, slope = attend(dtype)
    with Float32Attention():
        found, same = attend(dtype)
    assert torch.equal(found, plain)
    assert torch.equal(same, slope)


@pytest.mark.parametrize(
    ("device", "bfloat16", "used"),
    [("cpu", True, True), ("cpu", False, False), ("meta", True, False)],
)
def test_where_it_is_used(device: str, bfloat16: bool, used: bool):
    assert isinstance(training_attention(torch.device(device), bfloat16), Float32Attention) is used


def test_training_uses_it(monkeypatch: pytest.MonkeyPatch, tmp_path):
    from dupmae_ir.training import trainer as module

    seen = []
    monkeypatch.setattr(
        module.Trainer,
        "train",
        lambda *_, **__: seen.append(
            scaled_dot_product_attention(*(torch.ones(1, 1, 2, 4).bfloat16(),) * 3)
        ),
    )
    from transformers import TrainingArguments

    args = TrainingArguments(str(tmp_path), bf16=True, use_cpu=True, report_to="none")
    entered = []
    monkeypatch.setattr(
        module, "training_attention", lambda *a: (entered.append(a), Float32Attention())[1]
    )
    module.CheckedTrainer(quiet=True, model=torch.nn.Linear(2, 2), args=args).train_or_resume()
    assert len(seen) == 1
    assert entered == [(torch.device("cpu"), True)]
