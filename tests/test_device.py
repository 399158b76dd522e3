"""How many threads a command takes, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from dupmae_ir import device
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.finetune.cross_encoder.run import CrossEncoderConfig
from dupmae_ir.finetune.cross_encoder.run import run as train_cross_encoder
from dupmae_ir.finetune.run import FinetuneConfig
from dupmae_ir.finetune.run import run as finetune
from dupmae_ir.finetune.score.run import ScoreConfig
from dupmae_ir.finetune.score.run import run as score
from dupmae_ir.pretrain.run import PretrainConfig
from dupmae_ir.pretrain.run import run as pretrain


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("wanted", "inside"), [(3, 3), (1, 1), (0, 2), (None, 2)])
def test_torch_has_its_threads_back_after_an_error_too(wanted: int | None, inside: int) -> None:
    def fail() -> None:
        with device.torch_threads(wanted):
            assert torch.get_num_threads() == inside
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("run", "config"),
    [
        (encode, EncodeConfig(corpus="c", index="i", threads=3)),
        (pretrain, PretrainConfig(method="mlm", corpus=["c"], output="o", threads=3)),
        (finetune, FinetuneConfig(output="o", threads=3)),
        (score, ScoreConfig(mined="m", model="c", output="o", threads=3)),
        (train_cross_encoder, CrossEncoderConfig(mined="m", model="c", output="o", threads=3)),
    ],
    ids=lambda x: x.__module__.removeprefix("dupmae_ir.") if callable(x) else "",
)
def test_a_command_keeps_to_its_threads(
    run: Callable[[Any], Any], config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Begun(Exception):
        pass

    @contextmanager
    def told(threads: int | None) -> Iterator[None]:
        raise Begun(threads)
        yield

    monkeypatch.setattr(device, "torch_threads", told)
    with pytest.raises(Begun, match="3"):
        run(config)
