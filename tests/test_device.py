"""Device and precision choices, and thread limits that are restored afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from dupmae_ir import device
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.errors import UsageError
from dupmae_ir.finetune.config import FinetuneConfig
from dupmae_ir.finetune.cross_encoder import CrossEncoderConfig
from dupmae_ir.finetune.reranker_training import run as train_cross_encoder
from dupmae_ir.finetune.run import run as finetune
from dupmae_ir.finetune.scoring import ScoreConfig
from dupmae_ir.finetune.scoring import run as score
from dupmae_ir.pretrain.config import PretrainConfig
from dupmae_ir.pretrain.run import run as pretrain


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("threads", "inside"), [(3, 3), (1, 1), (0, 2), (None, 2)])
def test_torch_threads_are_restored_even_after_an_error(threads: int | None, inside: int) -> None:
    def fail() -> None:
        with device.torch_threads(threads):
            assert torch.get_num_threads() == inside
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("run", "config"),
    [
        (encode, EncodeConfig(corpus="c", index="i", threads=3)),
        (pretrain, PretrainConfig(method="mlm", model="m", corpus=("c",), output="o", threads=3)),
        (finetune, FinetuneConfig(pairs=("p",), output="o", threads=3)),
        (score, ScoreConfig(mined="m", model="c", output="o", threads=3)),
        (train_cross_encoder, CrossEncoderConfig(mined="m", model="c", output="o", threads=3)),
    ],
    ids=lambda x: x.__module__.removeprefix("dupmae_ir.") if callable(x) else "",
)
def test_commands_respect_threads(
    run: Callable[[Any], Any], config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started(Exception):
        pass

    @contextmanager
    def stop(threads: int | None) -> Iterator[None]:
        raise Started(threads)
        yield

    monkeypatch.setattr(device, "torch_threads", stop)
    with pytest.raises(Started, match="3"):
        run(config)


@pytest.mark.parametrize(("native", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_is_bfloat16_only_on_gpus_that_do_not_emulate_it(
    monkeypatch: pytest.MonkeyPatch, native: bool, expected: torch.dtype
) -> None:
    """torch emulates bfloat16 on GPUs before Ampere and reports it as supported by default."""
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation=True: including_emulation or native,
    )
    dtype, reason = device.pick_dtype("auto", torch.device("cuda"))
    assert dtype is expected
    assert "the GPU" in reason


@pytest.mark.parametrize(("native", "products"), [(True, torch.bfloat16), (False, torch.float32)])
def test_mixed_has_the_products_that_the_cpu_has(
    monkeypatch: pytest.MonkeyPatch, native: bool, products: torch.dtype
) -> None:
    monkeypatch.setattr(device, "cpu_supports_bf16", lambda: native)
    assert device.pick_encoding("mixed", torch.device("cpu")) == ("mixed", torch.float32, products)
    assert device.pick_encoding("mixed", torch.device("cuda")) == (
        "mixed",
        torch.float32,
        torch.float32,
    )
    assert device.pick_encoding("bfloat16", torch.device("cpu")) == (
        "bfloat16",
        torch.bfloat16,
        torch.bfloat16,
    )
    with pytest.raises(
        UsageError, match="`dtype` mixed is for encoding alone; use one of auto, float32"
    ):
        device.pick_dtype("mixed", torch.device("cpu"))


def test_gpu_batches_are_powers_of_two() -> None:
    """Small differences of the free memory must not change the batches, and with them the last bits of vectors."""
    assert {device.gpu_batch(free << 20) for free in range(9_000, 10_000, 50)} == {32768}
    assert device.gpu_batch(1 << 20) == 4096
    assert device.gpu_batch(139 << 30) == 1 << 16
