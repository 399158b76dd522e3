"""What a stage of fine-tuning decides once, before its model is loaded: :class:`FinetuneSetup`.

The layers below receive this value or a part of it, and decide nothing of it again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from dupmae_ir.config import subset
from dupmae_ir.console import say
from dupmae_ir.errors import UsageError
from dupmae_ir.finetune.adapters import LoraSettings
from dupmae_ir.finetune.base import StartingModel
from dupmae_ir.finetune.config import FinetuneConfig, Objective
from dupmae_ir.finetune.examples import (
    MinedExamples,
    PairExamples,
    TopicalBatches,
    TopicalSchedule,
    mined_examples,
)
from dupmae_ir.finetune.pairs import Pair, cap_kinds, read_dev_pairs, read_pairs
from dupmae_ir.finetune.teacher import Teacher
from dupmae_ir.finetune.trainer import Schedule, TrainingData
from dupmae_ir.models.checkpoints.model_config import ModelConfig, read_config
from dupmae_ir.models.names import model_folder
from dupmae_ir.types import SEPARATORS, Document


@dataclass(frozen=True)
class FinetuneSetup:
    """One stage of fine-tuning: which model is trained, on what, for how long, and towards what."""

    start: StartingModel
    lora: LoraSettings | None
    recompute_activations: bool
    data: TrainingData
    passages: list[str]  #: texts that a new head may be calibrated on
    schedule: Schedule
    objective: Objective  #: with both weights of the sum resolved


def prepare_stage(config: FinetuneConfig, processes: int, quiet: bool) -> FinetuneSetup:
    """Read the examples and decide everything that the options leave open.

    Raises :class:`UsageError` for options that do not fit the base or the data.
    """
    examples = _read_examples(config, quiet)
    start = starting_model(config)
    if processes > 1 and start.config.ot == "lexical":
        raise UsageError(
            f"a lexical OT part is trained by one process, not by {processes}; or give `ot` mlm"
        )
    separator = SEPARATORS[config.title_separator or "space"]
    schedule = _schedule(config, len(examples.rows), quiet)
    data = TrainingData(
        examples.rows,
        TopicalSchedule(examples.batches, schedule.steps * config.accumulate),
        _read_all_dev_pairs(config.dev, quiet),
    )
    lora = None
    if config.lora_rank:
        lora = LoraSettings(
            rank=config.lora_rank,
            alpha=config.lora_alpha or 2 * config.lora_rank,
            dropout=config.lora_dropout,
            targets=config.lora_targets,
            base_name=start.name,
            keep=config.keep_adapter,
        )
    return FinetuneSetup(
        start=start,
        lora=lora,
        recompute_activations=config.checkpointing,
        data=data,
        passages=[passage.joined(separator) for passage in examples.passages],
        schedule=schedule,
        objective=subset(
            config,
            Objective,
            dense_weight=start.config.dense_weight,
            impact_weight=start.config.impact_weight,
        ),
    )


def starting_model(config: FinetuneConfig) -> StartingModel:
    """The model that the stage starts from. Raises :class:`UsageError` for options that do not fit the base."""
    folder = model_folder(config.model)
    model_config = _trained_config(config, folder)
    teacher = None
    if config.teacher is not None:
        teacher = Teacher(config.teacher)
    uses_cls, uses_ot = config.uses
    return StartingModel(
        name=Path(config.model).name,
        folder=folder,
        config=model_config,
        trains_dense=uses_cls,
        trains_ot=uses_ot,
        encoder=config.encoder,
        calibrate=config.calibrate,
        cls_dim=config.cls_dim,
        head_rescale=config.head_rescale,
        dropout=config.dropout,
        teacher=teacher,
        seed=config.seed,
    )


def _trained_config(config: FinetuneConfig, folder: Path) -> ModelConfig:
    """What the trained folder records about the model: the base's settings with those of this stage.

    ``top_k`` 0 stands for all word pieces of the tokenizer, which is not loaded yet.
    """
    base = read_config(folder)
    form = _ot_form(config, base, folder)
    if config.calibrate and form not in ("mlm", "lexical+mlm"):
        raise UsageError(
            f"`calibrate` is for the bias of a masked-LM head, which an OT part of form {form} does not use"
        )
    method = "dupmae"
    if config.encoder == "mote":
        method = "cot-mote"
    lexical = None
    if form.startswith("lexical"):
        assert base.lexical is not None
        # The base's factor of the head's weights, or the one at the start; 0 for no head.
        head_scale = 0.0
        if form == "lexical+mlm":
            head_scale = base.lexical.head_scale or config.head_scale
        lexical = replace(base.lexical, head_scale=head_scale)
    title_separator = base.title_separator
    if config.title_separator:
        title_separator = SEPARATORS[config.title_separator]
    return replace(
        base,
        method=method,
        activation=config.activation,
        top_k=config.top_k,
        query_length=config.query_length,
        document_length=config.document_length,
        impact_scale=None,
        ot=form.removesuffix("+mlm"),
        lexical=lexical,
        title_separator=title_separator,
        dense_weight=config.dense_weight or base.dense_weight,
        impact_weight=config.impact_weight or base.impact_weight,
    )


def _ot_form(config: FinetuneConfig, base: ModelConfig, folder: Path) -> str:
    """Form of the OT part to train: ``mlm``, ``token_weight``, ``lexical`` or ``lexical+mlm``.

    Raises :class:`UsageError` for one that the base does not allow.
    """
    base_form = base.ot
    if base.lexical and base.has_head:
        base_form = "lexical+mlm"
    form = config.ot
    if form == "base":
        form = base_form
    if form.startswith("lexical") and base.lexical is None:
        raise UsageError(
            f"`ot` {form}: {folder} has no lexicon; start from a model with a lexical OT part"
        )
    if form == "lexical" and config.similarity == "ot":
        raise UsageError(
            "`similarity` ot: a lexical OT part in closed form has nothing to train; use `ot` lexical+mlm"
        )
    if form == "lexical+mlm" and base_form != form and config.similarity == "cls":
        raise UsageError("`similarity` cls trains no head; `ot` lexical+mlm needs one")
    return form


def _grad_cache(config: FinetuneConfig, quiet: bool) -> int:
    """Texts that GradCache encodes at a time; 0, so that all are encoded once, if a process has no more of them."""
    texts = config.share.batch_size * (1 + config.negatives)
    if not config.grad_cache or texts <= config.grad_cache:
        return 0
    say(
        f"GradCache: {texts:,} passages of a batch in parts of {config.grad_cache}, which need the memory of one part; "
        "all texts are encoded twice, a third more work",
        quiet,
    )
    return config.grad_cache


def _schedule(config: FinetuneConfig, queries: int, quiet: bool) -> Schedule:
    """The number of updates, and how each is computed."""
    # An epoch leaves out the queries that do not fill a batch.
    updates = config.epochs * (queries // config.batch_size) / config.accumulate
    steps = config.steps or max(1, int(updates))
    return Schedule(
        steps=steps,
        share=config.share,
        learning_rate=config.learning_rate,
        head_learning_rate=config.learning_rate * config.head_lr_factor,
        regularizer_warmup_steps=round(config.regularizer_warmup * steps),
        grad_cache=_grad_cache(config, quiet),
    )


class _Examples(NamedTuple):
    """The examples of a stage, with the batches of an epoch and the passages that answer a query."""

    rows: PairExamples | MinedExamples
    batches: TopicalBatches
    passages: list[Document]


def _read_examples(config: FinetuneConfig, quiet: bool) -> _Examples:
    if config.mined:
        return _read_mined(config, config.mined, quiet)
    pairs = cap_kinds(_read_all_pairs(config.pairs, quiet), _caps(config.cap), config.seed)
    if config.limit:
        pairs = random.Random(config.seed).sample(pairs, min(config.limit, len(pairs)))
    passages = [pair.positive for pair in pairs]
    docids = [passage.docid for passage in passages]
    batches = TopicalBatches(docids, config.batch_size, config.group_size, config.seed)
    say(f"{len(pairs):,} queries", quiet)
    return _Examples(PairExamples(pairs, config.negatives, config.seed), batches, passages)


def _read_mined(config: FinetuneConfig, path: str, quiet: bool) -> _Examples:
    examples = mined_examples(
        path,
        config.negatives,
        config.sample_from_top,
        config.seed,
        config.scores,
        config.collection,
        per_judgement=config.examples == "judgement",
    )
    if config.limit:
        queries = list(examples.mined)
        sample = random.Random(config.seed).sample(queries, min(config.limit, len(queries)))
        examples = replace(examples, mined=sample)
    # Without the ids of their passages, rows have no neighbours: batches are random.
    batches = TopicalBatches([""] * len(examples), config.batch_size, 1, config.seed)
    passages: list[Document] = []
    for query in examples.mined:
        passages.extend(query.positives)
    summary = f"{len(examples.mined):,} queries"
    if config.examples == "judgement":
        summary += f", {len(examples):,} judgements"
    if examples.left_out:
        summary += f"; {examples.left_out:,} more have no negative"
    say(summary, quiet)
    return _Examples(examples, batches, passages)


def _read_all_pairs(paths: Sequence[str], quiet: bool) -> list[Pair]:
    pairs: list[Pair] = []
    for path in paths:
        pairs.extend(read_pairs(path, quiet=quiet))
    return pairs


def _read_all_dev_pairs(paths: Sequence[str], quiet: bool) -> list[Pair]:
    pairs: list[Pair] = []
    for path in paths:
        pairs.extend(read_dev_pairs(path, quiet))
    return pairs


def _caps(values: tuple[str, ...]) -> dict[str, int]:
    """Values of ``--cap``, as ``KIND=N`` -> N by kind."""
    caps = {}
    for value in values:
        kind, _, number = value.rpartition("=")
        if not kind or not number.isdigit():
            raise UsageError(f"`cap` {value!r}: expected KIND=N, for example heading=5000")
        caps[kind] = int(number)
    return caps
