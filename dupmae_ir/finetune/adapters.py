"""Low-rank adapters (LoRA, by peft): trained instead of the encoder's weights, and merged into them at the end."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dupmae_ir.console import one_line
from dupmae_ir.device import need_packages
from dupmae_ir.errors import UsageError
from dupmae_ir.models.checkpoints.layout import SIDES
from dupmae_ir.models.retriever import Retriever, UntiedRetriever

if TYPE_CHECKING:
    from peft import PeftModel

_BERT = ("query", "key", "value", "dense")
TARGETS = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "mpnet": ("q", "k", "v", "o", "dense"),
    "distilbert": ("q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2", "vocab_transform"),
    "modernbert": ("Wqkv", "Wo", "Wi", "dense"),
}
"""Model type -> names of the linear maps that get an adapter: attention, feed-forward part, head transform."""

Adapters = dict[str, "PeftModel"]
"""Name of the folder in which an adapter is kept -> the adapted language model."""


@dataclass(frozen=True)
class LoraSettings:
    """Options of the adapters."""

    rank: int
    alpha: int
    dropout: float
    targets: tuple[str, ...]  #: linear maps; empty = those of the model's family in :data:`TARGETS`
    base_name: str  #: recorded with an adapter as the model that it was trained for
    keep: bool = False  #: keep the adapters in the model folder as well


def add_adapters(model: Retriever | UntiedRetriever, lora: LoraSettings | None) -> Adapters:
    """Put adapters into the encoders of ``model``, whose other weights are frozen; {} without ``--lora-rank``.

    W_cls and a learned head scale stay trainable. Raises :class:`UsageError` for a model that cannot have adapters.
    """
    if lora is None:
        return {}
    need_packages("`lora_rank`", ("peft",), "lora")
    if isinstance(model, Retriever):
        return {"adapter": _add_adapter(model, lora)}
    return {f"{side}_adapter": _add_adapter(model.side(side), lora) for side in SIDES}


def _add_adapter(side: Retriever, lora: LoraSettings) -> PeftModel:
    from peft import LoraConfig, get_peft_model

    model_type = side.lm.config.model_type
    targets = lora.targets or TARGETS.get(model_type)
    if targets is None:
        raise UsageError(
            f"`lora_rank`: no defaults for models of type {model_type}; name linear maps with `lora_targets`"
        )
    peft_config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=list(targets)
    )
    try:
        with warnings.catch_warnings():
            # peft uses names that transformers 5 has deprecated.
            warnings.simplefilter("ignore", FutureWarning)
            adapted = get_peft_model(side.lm, peft_config)
    except ValueError as e:
        raise UsageError(f"`lora_targets` {' '.join(targets)}: {one_line(e, 200)}") from None
    # peft would record the path of the base on this machine.
    peft_config.base_model_name_or_path = lora.base_name
    return adapted


def merge_adapters(adapters: Adapters, output_dir: Path | None) -> None:
    """Add the adapters to the weights, in place; first write them into folders of ``output_dir``, if given."""
    for name, adapted in adapters.items():
        if output_dir is not None:
            # Otherwise peft asks the hub whether the vocabulary has grown.
            adapted.save_pretrained(str(output_dir / name), save_embedding_layers=False)
        adapted.merge_and_unload()
