"""A method's objective from a recipe, and what of it is kept."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from torch import nn

from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.experts import save_experts
from dupmae_ir.models.objectives.bottleneck import Bottleneck
from dupmae_ir.models.objectives.cot_mae import CoTMAE
from dupmae_ir.models.objectives.cot_mote import CoTMoTE
from dupmae_ir.models.objectives.dupmae import DupMAE
from dupmae_ir.models.objectives.master import MASTER
from dupmae_ir.models.objectives.plain_mlm import PlainMLM
from dupmae_ir.models.objectives.retromae import RetroMAE
from dupmae_ir.pretrain.recipes import Recipe

ENCODERS = ("lm.", "experts.")
"""Prefixes of what is not a decoder."""


def build(method: str, lm: nn.Module, recipe: Recipe) -> Bottleneck:
    """The objective of ``method`` around ``lm``, with the choices of a resolved recipe."""
    r: Any = recipe
    if method == "mlm":
        return PlainMLM(lm)
    if method == "retromae":
        return RetroMAE(lm, r.decoding, r.decoder_layers, r.query_stream)
    if method == "dupmae":
        return DupMAE(lm, r.bow_weight, r.ot_head, r.query_stream, r.decoding, r.decoder_layers, r.decoder_weight)
    if method == "master":
        return MASTER(lm, r.tasks, r.decoder_layers, r.encoder_losses, r.shared_decoder)
    if method == "cot-mae":
        return CoTMAE(lm, r.decoder_layers, r.causal_layers, r.window)
    return CoTMoTE(
        lm,
        decode=r.decode,
        sparse_head=r.sparse_head,
        spr_to_hidden=r.spr_to_hidden,
        window=r.window,
        layers=r.causal_layers,
        shared_norm=r.shared_norm,
        experts=r.experts,
        switched=r.switched,
    )


def save_encoder(folder: Path, job: Any, config: Any) -> None:
    """The trained encoder as a model folder (two for CoT-MoTE, unless it was told to have one)."""
    from dataclasses import replace

    from dupmae_ir.models.checkpoints.saving import save_model

    shutil.rmtree(folder, ignore_errors=True)
    if config.method == "cot-mote":
        config = replace(config, activation="log1p")
    if config.method == "cot-mote" and job.objective.experts.query is not job.objective.experts.passage:
        save_experts(folder, job.objective.experts, job.tokenizer, config)
    else:
        save_model(folder, job.retriever, job.tokenizer, config)


def save_decoders(objective: Bottleneck, path: Path) -> None:
    """What an objective has besides its encoder."""
    from safetensors.torch import save_file

    state = {k: v.detach().contiguous() for k, v in objective.state_dict().items() if not k.startswith(ENCODERS)}
    save_file(state, path)


def load_decoders(objective: Bottleneck, path: Path) -> str:
    """Take over decoders that fit and return a line about it. A folder of another method has other decoders: then
    they start anew."""
    from safetensors.torch import load_file

    if not path.is_file():
        return f"{path} is not there: the decoders start anew"
    try:
        kept = load_file(path)
    except Exception as e:
        raise CheckpointError(f"{path}: not readable as safetensors: {' '.join(str(e).split())[:200]}") from None
    own = {k: v for k, v in objective.state_dict().items() if not k.startswith(ENCODERS)}
    fit = {k: v for k, v in kept.items() if k in own and v.shape == own[k].shape}
    objective.load_state_dict(fit, strict=False)
    new = len(own) - len(fit)
    return f"{len(fit)} decoder weights taken over from {path}" + (f", {new} start anew" if new else "")
