"""One stage of fine-tuning: from a model and examples to a retriever (DupMAE section 3.4)."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase, TrainerCallback, set_seed

from dupmae_ir.console import say, waiting
from dupmae_ir.device import with_torch_threads
from dupmae_ir.errors import UsageError
from dupmae_ir.finetune.base import (
    add_adapters,
    lexical_batches,
    load_base,
    load_teacher,
    merge_adapters,
    ot_form,
    rescale_head,
    stored_config,
    with_learned_scale,
)
from dupmae_ir.finetune.config import FinetuneConfig
from dupmae_ir.finetune.data import Pair, cap_kinds, read_pairs
from dupmae_ir.finetune.examples import (
    ExampleCollator,
    MinedExamples,
    PairExamples,
    TopicalBatches,
    TopicalSchedule,
    mined_examples,
)
from dupmae_ir.finetune.objective import BiEncoder
from dupmae_ir.finetune.trainer import PairTrainer, TrainingData, encoder_mrr
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.layout import LEXICON, SIDES
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.names import model_folder
from dupmae_ir.models.retriever import Retriever, UntiedRetriever
from dupmae_ir.training.job import (
    DistributedJob,
    deciding_settings,
    input_digests,
    run_training,
    training_arguments,
)
from dupmae_ir.training.layers import recompute_activations
from dupmae_ir.training.report import write_report
from dupmae_ir.training.trained import LOG, read_log
from dupmae_ir.types import SEPARATORS, Document


class StageExamples(NamedTuple):
    """The training data of a stage."""

    examples: PairExamples | MinedExamples
    topical: TopicalBatches
    passages: list[Document]  #: passages that a new head may be calibrated on


@with_torch_threads
def run(
    config: FinetuneConfig, callbacks: Sequence[TrainerCallback] = ()
) -> dict[str, object] | None:
    """Train, and write the model folder with its record, ``training.json``.

    Returns the result: queries, updates, share of padding, last losses and dev scores, and seconds if the model was
    trained now; None in the worker processes of a distributed job. Interrupted, the same call continues from the last
    checkpoint to the same weights. See :mod:`dupmae_ir.io.jobs` for what a second run returns.

    ``callbacks`` are called by the trainer, after its own; they are not recorded.
    """
    return run_training(
        config,
        "finetune",
        lambda processes: _settings(config, processes),
        lambda: input_digests(
            {
                "pairs": config.pairs,
                "dev": config.dev,
                "mined": config.mined,
                "scores": config.scores,
            },
            {
                "model": model_folder(config.model),
                "teacher": model_folder(config.teacher) if config.teacher else None,
            },
        ),
        lambda job: _train(config, job, callbacks),
    )


def _settings(config: FinetuneConfig, processes: int) -> dict[str, object]:
    """The settings that decide the weights; LoRA's only if it is used."""
    paths = ("model", "teacher", "mined", "scores", "collection", "pairs", "dev")
    settings = deciding_settings(config, processes, paths)
    if not config.lora_rank:
        for name in ("lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "keep_adapter"):
            settings.pop(name, None)
    return settings


def _train(
    config: FinetuneConfig, job: DistributedJob, callbacks: Sequence[TrainerCallback]
) -> dict[str, object] | None:
    started = time.monotonic()
    state = job.state
    work = job.begin()
    set_seed(config.seed)
    with state.main_process_first():
        data = _read_examples(config, job.quiet)
        base = model_folder(config.model)
        if state.num_processes > 1 and ot_form(config, base).startswith("lexical"):
            raise UsageError(
                f"a lexical OT part is trained by one process, not by {state.num_processes}; or give `ot` mlm"
            )
        separator = SEPARATORS[config.title_separator or "space"]
        passages = [passage.joined(separator) for passage in data.passages]
        retriever, tokenizer = load_base(config, base, passages, job.quiet)
    rescaled = rescale_head(config, retriever, job.quiet)
    adapters = add_adapters(retriever, config)
    if config.checkpointing:
        for side in SIDES:
            recompute_activations(retriever.side(side).lm)
    stored = stored_config(config, base, tokenizer)
    width = int(retriever.side("document").lm.config.vocab_size)
    lexical = lexical_batches(config, stored, base, width)
    collator = ExampleCollator(
        tokenizer, config.query_length, config.document_length, stored.title_separator, lexical
    )
    # A lexical OT part without a head is computed outside of the model.
    uses_cls, uses_ot = config.uses
    model = BiEncoder(retriever, (uses_cls, uses_ot and stored.has_head))
    config = replace(config, dense_weight=stored.dense_weight, impact_weight=stored.impact_weight)
    trainer = _trainer(config, model, data, collator, job)
    trainer.train_or_resume(callbacks)
    if trainer.data.dev:
        with waiting(f"measuring the model on {len(trainer.data.dev):,} dev pairs", job.quiet):
            trainer.evaluate()
    state.wait_for_everyone()
    if not state.is_main_process:
        return None

    log = read_log(work / LOG)
    seconds = round(time.monotonic() - started)
    stored = with_learned_scale(stored, retriever)
    counts = {
        "queries": len(data.examples),
        "steps": trainer.args.max_steps,
        "padding": round(model.waste, 4),
    }
    result: dict[str, object] = {**counts, **_last_scores(log)}
    result |= _scores_before(config, trainer.data.dev, log, job.quiet)
    if stored.lexical and stored.has_head:
        result["head_scale"] = stored.lexical.head_scale
    result |= rescaled
    adapter_folder = job.job.fresh("adapters") if config.keep_adapter else None
    merge_adapters(adapters, adapter_folder)
    made = _save(retriever, tokenizer, stored, base, job.job.fresh("model"))
    if adapter_folder is not None:
        for name in adapters:
            (adapter_folder / name).rename(made / name)
    parts = _PARTS_IN_WORDS[config.similarity]
    what = f"A retriever that represents a text by its {parts}, fine-tuned on queries with their passages."
    title = f"Retriever fine-tuned from {Path(config.model).name}"
    write_report(made, job.job, result, title, what)
    published = job.job.publish(made, result, {**counts, "seconds": seconds, "log": log})
    return published | {"seconds": seconds}


_PARTS_IN_WORDS = {"sum": "[CLS] and ordinary tokens", "cls": "[CLS]", "ot": "ordinary tokens"}
"""Similarity of a stage -> what its model represents a text by."""


def _save(
    retriever: Retriever | UntiedRetriever,
    tokenizer: PreTrainedTokenizerBase,
    stored: ModelConfig,
    base: Path,
    made: Path,
) -> Path:
    # Trained on short texts for speed; the usual lengths apply when encoding.
    stored = replace(
        stored,
        document_length=max(256, stored.document_length),
        query_length=max(64, stored.query_length),
    )
    lexicon = base / LEXICON if stored.lexical else None
    save_model(made, retriever, tokenizer, stored, lexicon=lexicon)
    return made


def _last_scores(log: Sequence[Mapping[str, float]]) -> dict[str, object]:
    """The last training losses, and the last dev scores, of a log."""
    last = None
    dev = None
    for row in log:
        if "loss" in row:
            last = row
        if "eval_mrr" in row:
            dev = {}
            for name, value in row.items():
                if name.startswith("eval_"):
                    dev[name.removeprefix("eval_")] = value
    return {"last": last, "dev": dev}


def _scores_before(
    config: FinetuneConfig, dev: Sequence[Pair], log: Sequence[Mapping[str, float]], quiet: bool
) -> dict[str, object]:
    """``before``: MRR@10 on the dev pairs of the start and of the embedded model; empty without dev pairs."""
    if not dev:
        return {}
    before = {}
    for row in log:
        if row["step"] == 0 and "eval_mrr" in row:
            before["start"] = row["eval_mrr"]
            break
    if model_folder(config.model) != model_folder(None):
        with waiting(f"measuring the embedded model on {len(dev):,} dev pairs", quiet):
            before["embedded model"] = encoder_mrr(load_encoder(None), dev)
    return {"before": before}


def _read_examples(config: FinetuneConfig, quiet: bool) -> StageExamples:
    rng = random.Random(config.seed)
    left_out = 0
    passages: list[Document] = []
    if config.mined:
        mined = mined_examples(
            config.mined,
            config.negatives,
            config.sample_from_top,
            config.seed,
            config.scores,
            config.collection,
        )
        if config.limit:
            mined.mined = rng.sample(list(mined.mined), min(config.limit, len(mined)))
        examples: PairExamples | MinedExamples = mined
        topical = TopicalBatches([""] * len(mined), config.batch_size, 1, config.seed)
        for query in mined.mined:
            passages.extend(query.positives)
        left_out = mined.left_out
    else:
        pairs = cap_kinds(_read_all_pairs(config.pairs), _caps(config.cap), config.seed)
        if config.limit:
            pairs = rng.sample(pairs, min(config.limit, len(pairs)))
        passages = [pair.positive for pair in pairs]
        docids = [passage.docid for passage in passages]
        topical = TopicalBatches(docids, config.batch_size, config.group_size, config.seed)
        examples = PairExamples(pairs, config.negatives, config.seed)
    summary = f"{len(examples):,} queries"
    if left_out:
        summary += f"; {left_out:,} more have no negative"
    say(summary, quiet)
    return StageExamples(examples, topical, passages)


def _trainer(
    config: FinetuneConfig,
    model: BiEncoder,
    data: StageExamples,
    collator: ExampleCollator,
    job: DistributedJob,
) -> PairTrainer:
    updates = config.epochs * (len(data.examples) // config.batch_size) / config.accumulate
    steps = config.steps or max(1, int(updates))
    dev = _read_all_pairs(config.dev)
    arguments = training_arguments(
        config,
        job.job.work,
        batch_size=config.share.batch_size,
        accumulate=config.share.accumulate,
        learning_rate=config.learning_rate,
        steps=steps,
        evaluate=bool(dev),
        evaluate_first=bool(dev),
        find_unused_parameters=True,
    )
    batches = TopicalSchedule(data.topical, steps * config.accumulate)
    teacher = load_teacher(config, model.retriever)
    return PairTrainer(
        model,
        TrainingData(data.examples, batches, collator, dev),
        arguments,
        config,
        teacher,
        job.quiet,
    )


def _read_all_pairs(paths: Sequence[str]) -> list[Pair]:
    pairs: list[Pair] = []
    for path in paths:
        pairs.extend(read_pairs(path))
    return pairs


def _caps(values: tuple[str, ...]) -> dict[str, int]:
    caps = {}
    for value in values:
        kind, _, number = value.rpartition("=")
        if not kind or not number.isdigit():
            raise UsageError(f"`cap` {value!r}: expected KIND=N, for example heading=5000")
        caps[kind] = int(number)
    return caps
