"""Low-rank adapters (LoRA) of the encoder, trained instead of its weights and merged into them at the end; by peft."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from dupmae_ir.console import one_line
from dupmae_ir.device import need_packages
from dupmae_ir.errors import UsageError
from dupmae_ir.finetune.config import FinetuneConfig
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


def add_adapters(model: Retriever | UntiedRetriever, config: FinetuneConfig) -> Adapters:
    """Put adapters into the encoders of ``model``, whose other weights are frozen; {} without ``--lora-rank``.

    W_cls and a learned head scale stay trainable. Raises :class:`UsageError` for a model that cannot have adapters.
    """
    if not config.lora_rank:
        return {}
    need_packages("`lora_rank`", ("peft",), "lora")
    if isinstance(model, Retriever):
        return {"adapter": _adapted(model, config)}
    return {f"{side}_adapter": _adapted(model.side(side), config) for side in ("query", "document")}


def _adapted(side: Retriever, config: FinetuneConfig) -> PeftModel:
    from peft import LoraConfig, get_peft_model

    kind = side.lm.config.model_type
    targets = config.lora_targets or TARGETS.get(kind)
    if targets is None:
        raise UsageError(f"`lora_rank`: no defaults for models of type {kind}; name linear maps with `lora_targets`")
    settings = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha or 2 * config.lora_rank,
        lora_dropout=config.lora_dropout,
        target_modules=list(targets),
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft uses names that transformers 5 has deprecated
            adapted = get_peft_model(side.lm, settings)
    except ValueError as e:
        raise UsageError(f"`lora_targets` {' '.join(targets)}: {one_line(e, 200)}") from None
    # Else the folder of this machine.
    settings.base_model_name_or_path = Path(config.model).name
    return adapted


def merge_adapters(adapters: Adapters, made: Path | None) -> None:
    """Add the adapters to the weights, in place; first write them into folders of ``made``, if given."""
    for name, adapted in adapters.items():
        if made is not None:
            # Otherwise peft asks the hub whether the vocabulary has grown.
            adapted.save_pretrained(str(made / name), save_embedding_layers=False)
        adapted.merge_and_unload()
