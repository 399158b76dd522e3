"""Attention and dropout of training on a CPU give what torch's own functions give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dupmae_ir.training.cpu_functions import CpuFunctions, ProductAttention, cpu_functions

KEYS = 19
MASKS: dict[str, Tensor | None] = {
    "no mask": None,
    "true for keys seen": torch.arange(KEYS).expand(2, 1, 1, KEYS)
    < torch.tensor([9, KEYS]).view(2, 1, 1, 1),
    "added to scores": torch.zeros(2, 1, 1, KEYS).index_fill_(3, torch.arange(3), -torch.inf),
}


def inputs(dtype: torch.dtype = torch.bfloat16, queries: int = 11) -> list[Tensor]:
    """Queries, keys and values of 2 texts and 3 heads, of the same numbers in each dtype."""
    generator = torch.Generator().manual_seed(0)
    tensors = []
    for length in (queries, KEYS, KEYS):
        drawn = torch.randn(2, length, 3, 8, generator=generator).bfloat16()
        tensors.append(drawn.transpose(1, 2).to(dtype).requires_grad_())
    return tensors


def with_gradients(qkv: list[Tensor], **options: object) -> list[Tensor]:
    """The output of torch's function, or what replaces it, and the gradients of its inputs."""
    out = F.scaled_dot_product_attention(*qkv, **options)  # type: ignore[arg-type]
    gradients = torch.autograd.grad(out.double().square().sum(), qkv)
    return [out.detach(), *gradients]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("scale", [None, 0.5])
@pytest.mark.parametrize("name", MASKS)
def test_attention_and_its_gradients(name: str, scale: float | None, autocast: bool):
    mask = MASKS[name]
    exact_mask = mask.double() if mask is not None and mask.is_floating_point() else mask
    exact = with_gradients(inputs(torch.float64), attn_mask=exact_mask, scale=scale)
    with CpuFunctions(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = with_gradients(inputs(), attn_mask=mask, scale=scale)
    for ours, theirs in zip(found, exact, strict=True):
        assert ours.dtype == torch.bfloat16
        assert ours.shape == theirs.shape
        assert (ours.double() - theirs).abs().max() < 0.03 * theirs.abs().max()


def test_gradients_are_those_of_finite_differences():
    qkv = inputs(torch.float64)
    mask = MASKS["true for keys seen"]
    assert torch.autograd.gradcheck(
        lambda *x: ProductAttention.apply(*x, mask, 0.5, 0.0), qkv, fast_mode=True
    )

    def with_dropout(*x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return ProductAttention.apply(*x, None, 0.5, 0.3)

    assert torch.autograd.gradcheck(with_dropout, qkv, fast_mode=True)


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True},
        {"enable_gqa": True},
        {"dtype": torch.float32},
        {"queries": 600},
        {"attn_mask": torch.zeros(11, KEYS, dtype=torch.bfloat16, requires_grad=True)},
    ],
    ids=["causal", "groups of heads", "float32", "long", "a mask with a gradient"],
)
def test_the_rest_is_left_to_torch(options: dict[str, object], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "dupmae_ir.training.cpu_functions.LONGEST_KEYS", 18 if "queries" in options else 512
    )
    made = inputs(options.pop("dtype", torch.bfloat16), options.pop("queries", 11))  # type: ignore[arg-type]
    plain = with_gradients(made, **options)
    monkeypatch.setattr(ProductAttention, "apply", None)
    with CpuFunctions():
        same = with_gradients(made, **options)
    assert all(map(torch.equal, same, plain))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout(rate: float, dtype: torch.dtype):
    x = torch.full((301, 333), 2.0, dtype=dtype, requires_grad=True)
    torch.manual_seed(1)
    with CpuFunctions():
        found = torch.nn.Dropout(rate)(x)
        torch.manual_seed(1)
        again = F.dropout(x, rate)
    assert torch.equal(found, again)
    dropped = found == 0
    # Five standard deviations.
    assert abs(dropped.double().mean() - rate) < 5 * (rate * (1 - rate) / x.numel()) ** 0.5
    torch.testing.assert_close(found[~dropped], torch.full_like(found[~dropped], 2 / (1 - rate)))
    (gradient,) = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(gradient, found.detach() / 2)
    # Each element is drawn for itself: the rows and columns differ.
    assert len(torch.unique(dropped, dim=0)) == 301
    assert len(torch.unique(dropped.T, dim=0)) == 333


@pytest.mark.parametrize("options", [{"training": False}, {"p": 0.0}, {"p": 1.0}])
def test_dropout_that_draws_nothing_is_left_to_torch(
    options: dict[str, float], monkeypatch: pytest.MonkeyPatch
):
    x = torch.ones(3, 4)
    plain = F.dropout(x, **options)
    monkeypatch.setattr("dupmae_ir.training.cpu_functions.dropout", None)
    with CpuFunctions():
        assert torch.equal(F.dropout(x, **options), plain)


def test_dropout_of_attention_leaves_weights_out():
    qkv = inputs(queries=50)
    torch.manual_seed(2)
    with CpuFunctions():
        runs = [F.scaled_dot_product_attention(*qkv, dropout_p=0.3).double() for _ in range(400)]
    plain = F.scaled_dot_product_attention(*qkv).double()
    assert not torch.equal(runs[0], runs[1])
    # The mean is that without dropout.
    assert (sum(runs) / len(runs) - plain).abs().max() < 0.15


def test_where_it_is_used():
    assert isinstance(cpu_functions(torch.device("cpu")), CpuFunctions)
    assert not isinstance(cpu_functions(torch.device("meta")), CpuFunctions)


def test_training_uses_it(monkeypatch: pytest.MonkeyPatch, tmp_path):
    from transformers import TrainingArguments

    from dupmae_ir.training import trainer as module

    used = []

    def train(*_: object, **__: object) -> None:
        monkeypatch.setattr(
            ProductAttention, "apply", lambda *inputs: used.append(inputs) or inputs[0]
        )
        F.scaled_dot_product_attention(*inputs())

    monkeypatch.setattr(module.Trainer, "train", train)
    args = TrainingArguments(str(tmp_path), bf16=True, use_cpu=True, report_to="none")
    module.CheckedTrainer(quiet=True, model=torch.nn.Linear(2, 2), args=args).train_or_resume()
    assert len(used) == 1
