"""The objective of a method, built from a recipe, and the files of its encoder and decoders."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dupmae_ir.console import one_line
from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.experts import Experts, save_experts
from dupmae_ir.models.objectives.bottleneck import Bottleneck
from dupmae_ir.models.objectives.cot_mae import CoTMAE
from dupmae_ir.models.objectives.cot_mote import CoTMoTE
from dupmae_ir.models.objectives.dupmae import DupMAE
from dupmae_ir.models.objectives.master import MASTER
from dupmae_ir.models.objectives.plain_mlm import PlainMLM
from dupmae_ir.models.objectives.retromae import RetroMAE
from dupmae_ir.models.retriever import Retriever
from dupmae_ir.pretrain.recipes import Recipe, choices

KEPT = "pretraining"
"""Folder inside the model's: decoders, log, plots, TensorBoard."""
DECODERS = "decoders.safetensors"

ENCODERS = ("lm.", "experts.")
"""Prefixes of the parameters that are not a decoder's."""


def build_objective(method: str, lm: PreTrainedModel | Experts, recipe: Recipe) -> Bottleneck:
    """The objective of ``method`` around ``lm``, with the choices of a resolved recipe."""
    r = choices(recipe)
    if method == "mlm":
        return PlainMLM(lm)
    if method == "retromae":
        return RetroMAE(lm, r["decoding"], r["decoder_layers"], r["query_stream"])
    if method == "dupmae":
        return DupMAE(
            lm,
            r["bow_weight"],
            r["ot_head"],
            r["query_stream"],
            r["decoding"],
            r["decoder_layers"],
            r["decoder_weight"],
        )
    if method == "master":
        return MASTER(lm, tuple(r["tasks"]), r["decoder_layers"], r["encoder_losses"], r["shared_decoder"])
    if method == "cot-mae":
        return CoTMAE(lm, r["decoder_layers"], r["causal_layers"], r["window"])
    names = ("decode", "sparse_head", "spr_to_hidden", "window", "shared_norm", "experts", "switched")
    return CoTMoTE(lm, layers=r["causal_layers"], **{name: r[name] for name in names})


def save_encoder(
    folder: Path, objective: Bottleneck, retriever: Retriever, tokenizer: PreTrainedTokenizerBase, config: ModelConfig
) -> None:
    """Write the trained encoder as a model folder; CoT-MoTE with separate experts has two encoders in it."""
    shutil.rmtree(folder, ignore_errors=True)
    if not isinstance(objective, CoTMoTE):
        save_model(folder, retriever, tokenizer, config)
        return
    config = replace(config, activation="log1p")
    if objective.experts.query is objective.experts.passage:
        save_model(folder, retriever, tokenizer, config)
    else:
        save_experts(folder, objective.experts, tokenizer, config)


def save_decoders(objective: Bottleneck, path: Path) -> None:
    """Write the objective's parameters other than the encoder's."""
    save_file({k: v.contiguous() for k, v in _decoder_state(objective).items()}, path)


def load_decoders(objective: Bottleneck, path: Path) -> str:
    """Load the decoder weights that fit the objective and return a line that reports how many.

    The decoders of another method do not fit; those of ``objective`` then keep their initial weights. Raises
    :class:`CheckpointError` for a file that is not safetensors.
    """
    if not path.is_file():
        return f"{path} does not exist: the decoders are newly initialised"
    try:
        saved = load_file(path)
    except Exception as e:
        raise CheckpointError(f"{path}: not readable as safetensors: {one_line(str(e))[:200]}") from None
    own = _decoder_state(objective)
    fitting = {k: v for k, v in saved.items() if k in own and v.shape == own[k].shape}
    objective.load_state_dict(fitting, strict=False)
    new = len(own) - len(fitting)
    return f"{len(fitting)} decoder weights loaded from {path}" + (f", {new} newly initialised" if new else "")


def _decoder_state(objective: Bottleneck) -> dict[str, Tensor]:
    return {k: v.detach() for k, v in objective.state_dict().items() if not k.startswith(ENCODERS)}
