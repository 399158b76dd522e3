"""The retriever that a stage starts from: loaded, with the parts that it lacks added, and in training mode."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from dupmae_ir.console import say
from dupmae_ir.errors import HeadMissing, UsageError
from dupmae_ir.finetune.teacher import Teacher
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.experts import join_experts, with_experts
from dupmae_ir.models.heads.calibration import (
    calibrate_bias,
    distilled_projection,
    load_with_calibrated_head,
    sample_passages,
)
from dupmae_ir.models.heads.masked_lm import has_head
from dupmae_ir.models.retriever import Retriever, UntiedRetriever
from dupmae_ir.training.layers import set_dropout

BERT_SPREAD = 1.4
"""Spread of the logits of a head like BERT-base's: word embeddings of norm 1.4, and a LayerNorm with gain 1."""
MIN_RESCALED_SPREAD = 4.0
"""Times this spread from which on ``head_rescale`` auto divides; heads below it train as they are."""


@dataclass(frozen=True)
class StartingModel:
    """The model that a stage starts from, and what is added to it or changed before the first update."""

    name: str  #: last part of its path, or the name of a model in a package
    folder: Path
    config: ModelConfig  #: settings of the trained model: the base's with the stage's
    trains_dense: bool  #: whether the similarity or the teacher needs the [CLS] part
    trains_ot: bool  #: whether the similarity needs the OT part
    encoder: str  #: ``tied``, ``untied`` or ``mote``
    calibrate: bool  #: set the bias of the masked-LM head
    cls_dim: int  #: width of a new projection; 0 = none
    head_rescale: str  #: ``auto``, ``none`` or a number
    dropout: float
    teacher: Teacher | None  #: its vectors are what the [CLS] part is fitted to
    seed: int


def load_base(
    start: StartingModel, passages: Sequence[str], quiet: bool
) -> tuple[Retriever | UntiedRetriever, PreTrainedTokenizerBase]:
    """(retriever in training mode, tokenizer), with one or two encoders.

    A base without a masked-LM head gets one calibrated on ``passages`` (see models/heads/calibration.py),
    unless its OT part does not use one.
    """
    model, tokenizer = _load_with_head(start, passages, quiet)
    sides = _encoders_of(model)
    if start.calibrate:
        sample = sample_passages(passages, start.seed)
        for side in sides:
            calibrate_bias(side, tokenizer, sample, start.config.document_length)
    without_projection = [side for side in sides if side.projection is None]
    if without_projection and start.cls_dim:
        # Both sides start from one projection: two random ones would make their vectors unrelated.
        projection = _new_projection(without_projection[-1], tokenizer, start, passages)
        for side in without_projection:
            side.projection = copy.deepcopy(projection)
    for side in sides:
        # A base whose OT part had another form keeps no layer of it.
        if start.config.ot != "token_weight":
            side.token_weight = None
            side.token_vectors = None
        elif side.token_weight is None:
            side.token_weight = torch.nn.Linear(int(side.lm.config.hidden_size), 1)

    model = _with_encoders(model, start.encoder)
    encoders = _encoders_of(model)
    # Both have one learned factor of the head's weights if these are added to lexical ones, and none otherwise.
    head_scale = None
    lexical = start.config.lexical
    if lexical is not None and lexical.head_scale:
        head_scale = encoders[-1].head_scale
        if head_scale is None:
            head_scale = torch.nn.Parameter(torch.tensor(lexical.head_scale))
    for encoder in encoders:
        encoder.head_scale = head_scale

    set_dropout(model, start.dropout)
    model.train().requires_grad_(True)
    for encoder in encoders:
        if encoder.token_vectors is not None:
            encoder.token_vectors.requires_grad_(False)  # no term of the loss reads it
    return model, tokenizer


def _load_with_head(
    start: StartingModel, passages: Sequence[str], quiet: bool
) -> tuple[Retriever | UntiedRetriever, PreTrainedTokenizerBase]:
    """The base as it is stored, with a calibrated head if it needs one and has none."""
    needs_head = start.trains_ot and start.config.needs_lm_head
    activation = start.config.activation
    try:
        model, tokenizer, _ = load_model(start.folder, need_ot=needs_head, activation=activation)
    except HeadMissing:
        model, tokenizer = load_with_calibrated_head(
            start.folder, passages, cls_dim=start.cls_dim or None, seed=start.seed, quiet=quiet
        )
        model.activation = activation
    return model, tokenizer


def _encoders_of(model: Retriever | UntiedRetriever) -> list[Retriever]:
    """The one encoder, or the encoder of queries and the encoder of documents."""
    if isinstance(model, Retriever):
        return [model]
    return [model.query, model.document]


def _new_projection(
    side: Retriever,
    tokenizer: PreTrainedTokenizerBase,
    start: StartingModel,
    passages: Sequence[str],
) -> torch.nn.Linear:
    """W_cls for a base without one: the least-squares fit to the teacher's vectors, or orthogonal without a teacher."""
    width = side.lm.config.hidden_size
    teacher = None
    if start.teacher is not None:
        teacher = start.teacher.for_student(side)
    if teacher is None or start.cls_dim != width:
        projection = torch.nn.Linear(width, start.cls_dim, bias=False)
        torch.nn.init.orthogonal_(projection.weight)
        return projection
    sample = sample_passages(passages, start.seed)
    return distilled_projection(side, tokenizer, sample, teacher, start.config.document_length)


def _with_encoders(model: Retriever | UntiedRetriever, encoder: str) -> Retriever | UntiedRetriever:
    """One retriever for both sides, or two, as --encoder requires. A base with two encoders keeps them."""
    if isinstance(model, UntiedRetriever):
        if encoder == "tied":
            raise UsageError(
                "the base has one encoder for queries and another for documents; use `encoder` untied, or mote for "
                "experts"
            )
        if encoder == "mote":
            # Loaded from two folders, the experts have two copies of the attention; share one again.
            model.query.lm = join_experts(model.document.lm, model.query.lm, "the base").query
        return model
    if encoder == "tied":
        return model
    if encoder == "untied":
        return UntiedRetriever(copy.deepcopy(model), model)
    # A shallow copy, so that both experts have one projection; only the language model is another.
    experts = with_experts(model.lm)
    query = copy.copy(model)
    query._modules = {**model._modules, "lm": experts.query}
    return UntiedRetriever(query, model)


def rescale_head(
    model: Retriever | UntiedRetriever, start: StartingModel, quiet: bool
) -> dict[str, float]:
    """Divide the logits of the base's head as ``head_rescale`` says; what was done, for the record.

    OT weights are logits and similarities their unscaled products, so a head of a large norm makes the first losses,
    and with the usual learning rates the training, collapse (arXiv 2606.18811).
    """
    if not start.trains_ot or start.head_rescale == "none":
        return {}
    # Two encoders may share a head, which is divided once.
    heads_by_norm = {}
    for encoder in _encoders_of(model):
        if has_head(encoder.lm) and encoder.token_weight is None:
            head = encoder.head
            if head.norm is not None:
                heads_by_norm[id(head.norm)] = head
    heads = list(heads_by_norm.values())
    if not heads:
        return {}

    spread = max(head.spread() for head in heads)
    if start.head_rescale != "auto":
        factor = float(start.head_rescale)
    elif spread >= MIN_RESCALED_SPREAD * BERT_SPREAD:
        factor = spread / BERT_SPREAD
    else:
        factor = 1.0
    if factor == 1.0:
        return {}
    for head in heads:
        head.divide(factor)
    say(
        f"logits of the masked-LM head divided by {factor:.3g}: they spread {spread:.3g}, BERT's {BERT_SPREAD}",
        quiet,
    )
    return {"head_rescale": round(factor, 4)}
