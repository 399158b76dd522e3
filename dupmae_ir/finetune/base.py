"""The retriever that a stage starts from, its low-rank adapters (LoRA, by peft), and the encoder it may learn from."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedTokenizerBase

from dupmae_ir.console import one_line, say
from dupmae_ir.device import need_packages
from dupmae_ir.errors import HeadMissing, UsageError
from dupmae_ir.finetune.config import FinetuneConfig
from dupmae_ir.finetune.lexical import LexicalBatches
from dupmae_ir.finetune.trainer import FrozenTeacher
from dupmae_ir.models.checkpoints.layout import LEXICON
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.model_config import ModelConfig, read_config
from dupmae_ir.models.experts import join_experts, with_experts
from dupmae_ir.models.heads.calibration import (
    calibrate_bias,
    distilled_projection,
    load_with_calibrated_head,
    sample_passages,
)
from dupmae_ir.models.heads.lexical import Lexicon
from dupmae_ir.models.heads.masked_lm import encoder_of, has_head
from dupmae_ir.models.names import model_folder
from dupmae_ir.models.retriever import Retriever, UntiedRetriever
from dupmae_ir.training.layers import set_dropout
from dupmae_ir.types import SEPARATORS

if TYPE_CHECKING:
    from peft import PeftModel


def load_base(
    config: FinetuneConfig, base: Path, passages: Sequence[str], quiet: bool
) -> tuple[Retriever | UntiedRetriever, PreTrainedTokenizerBase]:
    """(retriever in training mode, tokenizer) of the folder ``base``, with one or two encoders as ``config`` says.

    A base without a masked-LM head gets one calibrated on ``passages`` (see models/heads/calibration.py),
    unless its OT part is in closed form alone.
    """
    form = ot_form(config, base)
    learned = form in ("mlm", "lexical+mlm")
    if config.calibrate and not learned:
        raise UsageError(
            f"`calibrate` is for the bias of a masked-LM head, which an OT part of form {form} does not use"
        )
    needed = config.similarity != "cls" and learned
    try:
        model, tokenizer, _ = load_model(base, need_ot=needed, activation=config.activation)
    except HeadMissing:
        model, tokenizer = load_with_calibrated_head(
            base, passages, cls_dim=config.cls_dim or None, seed=config.seed, quiet=quiet
        )
        model.activation = config.activation
    sides = _encoders_of(model)
    if config.calibrate:
        sample = sample_passages(passages, config.seed)
        for side in sides:
            calibrate_bias(side, tokenizer, sample, config.document_length)
    without = [side for side in sides if side.projection is None]
    if without and config.cls_dim:
        # Both sides start from one projection: two random ones would make their vectors unrelated.
        projection = _new_projection(without[-1], tokenizer, config, passages)
        for side in without:
            side.projection = copy.deepcopy(projection)
    for side in sides:
        if form != "token_weight":
            side.token_weight = None
            side.token_vectors = None
        elif side.token_weight is None:
            side.token_weight = torch.nn.Linear(int(side.lm.config.hidden_size), 1)
    model = _with_encoders(model, config.encoder)
    encoders = _encoders_of(model)
    # Both have one learned factor of the head's weights for the form lexical+mlm, and none for the others.
    head_scale = None
    if form == "lexical+mlm":
        head_scale = encoders[-1].head_scale
        if head_scale is None:
            head_scale = torch.nn.Parameter(torch.tensor(config.head_scale))
    for encoder in encoders:
        encoder.head_scale = head_scale
    set_dropout(model, config.dropout)
    model.train().requires_grad_(True)
    for encoder in encoders:
        if encoder.token_vectors is not None:
            encoder.token_vectors.requires_grad_(False)  # no term of the loss reads it
    return model, tokenizer


BERT_SPREAD = 1.4
"""Spread of the logits of a head like BERT-base's: word embeddings of norm 1.4, and a LayerNorm with gain 1."""
MIN_RESCALED_SPREAD = 4.0
"""Times this spread from which on ``head_rescale`` auto divides; heads below it train as they are."""


def _encoders_of(model: Retriever | UntiedRetriever) -> list[Retriever]:
    """The one encoder, or that of queries and that of documents."""
    if isinstance(model, Retriever):
        return [model]
    return [model.query, model.document]


def rescale_head(
    config: FinetuneConfig, model: Retriever | UntiedRetriever, quiet: bool
) -> dict[str, float]:
    """Divide the logits of the base's head as ``head_rescale`` says; what was done, for the record.

    OT weights are logits and similarities their unscaled products, so a head of a large norm makes the first losses,
    and with the usual learning rates the training, collapse (arXiv 2606.18811).
    """
    if config.similarity == "cls" or config.head_rescale == "none":
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
    if config.head_rescale != "auto":
        factor = float(config.head_rescale)
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


def ot_form(config: FinetuneConfig, base: Path) -> str:
    """Form of the OT part to train: ``mlm``, ``token_weight``, ``lexical`` or ``lexical+mlm``.

    Raises :class:`UsageError` for one that the base does not allow.
    """
    stored = read_config(base)
    base_form = stored.ot
    if stored.lexical and stored.has_head:
        base_form = "lexical+mlm"
    form = config.ot
    if form == "base":
        form = base_form
    if form.startswith("lexical") and stored.lexical is None:
        raise UsageError(
            f"`ot` {form}: {base} has no lexicon; start from a model with a lexical OT part"
        )
    if form == "lexical" and config.similarity == "ot":
        raise UsageError(
            "`similarity` ot: a lexical OT part in closed form has nothing to train; use `ot` lexical+mlm"
        )
    if form == "lexical+mlm" and base_form != form and config.similarity == "cls":
        raise UsageError("`similarity` cls trains no head; `ot` lexical+mlm needs one")
    return form


def _new_projection(
    side: Retriever,
    tokenizer: PreTrainedTokenizerBase,
    config: FinetuneConfig,
    passages: Sequence[str],
) -> torch.nn.Linear:
    """W_cls for a base without one: the least-squares fit to --teacher's vectors, or orthogonal without a teacher."""
    width = side.lm.config.hidden_size
    teacher = load_teacher(config, side)
    if teacher is None or config.cls_dim != width:
        projection = torch.nn.Linear(width, config.cls_dim, bias=False)
        torch.nn.init.orthogonal_(projection.weight)
        return projection
    sample = sample_passages(passages, config.seed)
    return distilled_projection(side, tokenizer, sample, teacher, config.document_length)


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
    experts = with_experts(model.lm)
    query = copy.copy(model)
    query._modules = {**model._modules, "lm": experts.query}
    return UntiedRetriever(query, model)


def stored_config(
    config: FinetuneConfig, base: Path, tokenizer: PreTrainedTokenizerBase
) -> ModelConfig:
    """What the trained folder records about the model: the base's settings with those of this stage."""
    stored = read_config(base)
    form = ot_form(config, base)
    settings: dict[str, Any] = {
        "method": "cot-mote" if config.encoder == "mote" else "dupmae",
        "activation": config.activation,
        "top_k": config.top_k or len(tokenizer),
        "query_length": config.query_length,
        "document_length": config.document_length,
        "impact_scale": None,
        "ot": form.removesuffix("+mlm"),
        "lexical": None,
        "dense_weight": config.dense_weight or stored.dense_weight,
        "impact_weight": config.impact_weight or stored.impact_weight,
    }
    if form.startswith("lexical"):
        assert stored.lexical is not None
        # The base's factor of the head's weights, or the one at the start; 0 for no head.
        scale = 0.0
        if form == "lexical+mlm":
            scale = stored.lexical.head_scale or config.head_scale
        settings["lexical"] = replace(stored.lexical, head_scale=scale)
    if config.title_separator:
        settings["title_separator"] = SEPARATORS[config.title_separator]
    return ModelConfig(**{**stored.__dict__, **settings})


def with_learned_scale(stored: ModelConfig, model: Retriever | UntiedRetriever) -> ModelConfig:
    """``stored`` with the factor of the head's weights that ``model`` has learned."""
    scale = model.side("document").head_scale
    if stored.lexical is None or scale is None:
        return stored
    return replace(stored, lexical=replace(stored.lexical, head_scale=float(scale.detach().abs())))


def lexical_batches(
    config: FinetuneConfig, stored: ModelConfig, base: Path, width: int
) -> LexicalBatches | None:
    """The lexical weights of training batches; None for the papers' form.

    Document frequencies are the model's own. ``width`` is the number of word pieces.
    """
    if stored.lexical is None or config.similarity == "cls":
        return None
    lexicon = Lexicon.load(base / LEXICON, stored.lexical, width)
    return LexicalBatches(lexicon)


def load_teacher(
    config: FinetuneConfig, retriever: Retriever | UntiedRetriever
) -> FrozenTeacher | None:
    """The frozen sentence encoder of --teacher, or None.

    Raises :class:`UsageError` where its width or its vocabulary is not the retriever's.
    """
    if config.teacher is None:
        return None
    teacher, _, _ = load_model(model_folder(config.teacher), need_ot=False)
    student = retriever.side("document")
    assert isinstance(teacher, Retriever)  # a sentence encoder, not a pair
    width = teacher.lm.config.hidden_size
    vocabulary = teacher.lm.config.vocab_size
    if width != retriever.dim or vocabulary != student.lm.config.vocab_size:
        raise UsageError(
            f"`teacher` {config.teacher}: its vectors are {width} wide over {vocabulary:,} word pieces, the [CLS] part "
            f"is {retriever.dim} wide over {student.lm.config.vocab_size:,}; they must be equal"
        )
    return FrozenTeacher(encoder_of(teacher.lm))


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
        raise UsageError(
            f"`lora_rank`: no defaults for models of type {kind}; name linear maps with `lora_targets`"
        )
    settings = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha or 2 * config.lora_rank,
        lora_dropout=config.lora_dropout,
        target_modules=list(targets),
    )
    try:
        with warnings.catch_warnings():
            # peft uses names that transformers 5 has deprecated.
            warnings.simplefilter("ignore", FutureWarning)
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
