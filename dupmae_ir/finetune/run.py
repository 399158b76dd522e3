"""One stage of fine-tuning: from a model and examples to a retriever (DupMAE section 3.4)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from transformers import PreTrainedTokenizerBase, TrainerCallback, set_seed

from dupmae_ir.console import waiting
from dupmae_ir.device import with_torch_threads
from dupmae_ir.finetune.adapters import add_adapters, merge_adapters
from dupmae_ir.finetune.base import load_base, rescale_head
from dupmae_ir.finetune.config import FinetuneConfig
from dupmae_ir.finetune.examples import ExampleCollator
from dupmae_ir.finetune.lexical import LexicalBatches
from dupmae_ir.finetune.objective import BiEncoder
from dupmae_ir.finetune.pairs import Pair
from dupmae_ir.finetune.setup import FinetuneSetup, prepare_stage
from dupmae_ir.finetune.trainer import PairTrainer, encoder_mrr
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.layout import SIDES
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.heads.lexical import Lexicon
from dupmae_ir.models.names import lexicon_path, model_folder
from dupmae_ir.models.retriever import Retriever, UntiedRetriever
from dupmae_ir.training.job import (
    DistributedJob,
    deciding_settings,
    input_digests,
    process_state,
    training_arguments,
    training_job,
)
from dupmae_ir.training.layers import recompute_activations
from dupmae_ir.training.report import write_report
from dupmae_ir.training.trained import LOG, read_log

PATHS = ("model", "teacher", "mined", "scores", "collection", "pairs", "dev")
"""Options with files and folders, recorded by their last name."""
LORA_OPTIONS = ("lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "keep_adapter")
# Stages train on short texts for speed; the usual lengths apply when encoding.
MIN_STORED_DOCUMENT_LENGTH = 256
MIN_STORED_QUERY_LENGTH = 64
PARTS_BY_SIMILARITY = {"sum": "[CLS] and ordinary tokens", "cls": "[CLS]", "ot": "ordinary tokens"}
"""Similarity of a stage -> what its model represents a text by, for the model card."""


@with_torch_threads
def run(
    config: FinetuneConfig, callbacks: Sequence[TrainerCallback] = ()
) -> dict[str, object] | None:
    """Train, and write the model folder with its record, ``training.json``.

    Returns the result: queries, updates, share of padding, last losses and dev scores, and seconds if the model was
    trained now; None in the worker processes of a distributed job. Interrupted, the same call continues from the last
    checkpoint to the same weights. See :mod:`dupmae_ir.io.jobs` for what a second run returns.

    The trainer calls ``callbacks`` after its standard ones; they are not recorded.
    """
    state = process_state(config)
    settings = _settings(config, state.num_processes)
    inputs = partial(_input_digests, config)
    with training_job(config, "finetune", settings, inputs, state) as job:
        result = job.finished() or _train(config, job, callbacks)
        return job.deliver(result, config.push_to_hub)


def _settings(config: FinetuneConfig, processes: int) -> dict[str, object]:
    """The settings that decide the weights; LoRA's only if it is used."""
    settings = deciding_settings(config, processes, PATHS)
    if not config.lora_rank:
        for name in LORA_OPTIONS:
            settings.pop(name, None)
    return settings


def _input_digests(config: FinetuneConfig) -> dict[str, str]:
    files = {
        "pairs": config.pairs,
        "dev": config.dev,
        "mined": config.mined,
        "scores": config.scores,
    }
    folders = {"model": model_folder(config.model)}
    if config.teacher:
        folders["teacher"] = model_folder(config.teacher)
    return input_digests(files, folders)


def _train(
    config: FinetuneConfig, job: DistributedJob, callbacks: Sequence[TrainerCallback]
) -> dict[str, object] | None:
    started = time.monotonic()
    state = job.state
    work = job.begin()
    # A new projection, token weights and adapters are initialised from the seed, whatever ran before.
    set_seed(config.seed)
    with state.main_process_first():
        setup = prepare_stage(config, state.num_processes, job.quiet)
        retriever, tokenizer = load_base(setup.start, setup.passages, job.quiet)
    rescaled = rescale_head(retriever, setup.start, job.quiet)
    adapters = add_adapters(retriever, setup.lora)
    if setup.recompute_activations:
        for side in SIDES:
            recompute_activations(retriever.side(side).lm)

    trainer = _build_trainer(config, setup, retriever, tokenizer, job)
    trainer.train_or_resume(callbacks)
    dev = setup.data.dev
    if dev:
        with waiting(f"measuring the model on {len(dev):,} dev pairs", job.quiet):
            trainer.evaluate()
    state.wait_for_everyone()
    if not state.is_main_process:
        return None

    log = read_log(work / LOG)
    seconds = round(time.monotonic() - started)
    model_config = _stored_config(setup.start.config, retriever, tokenizer)
    counts = {
        "queries": len(setup.data.examples),
        "steps": setup.schedule.steps,
        "padding": round(trainer.bi_encoder.waste, 4),
    }
    result: dict[str, object] = {**counts, **_last_scores(log)}
    result |= _scores_before(setup.start.folder, dev, log, job.quiet)
    if model_config.lexical and model_config.has_head:
        result["head_scale"] = model_config.lexical.head_scale
    result |= rescaled

    single_job = job.job
    # Adapters are kept in their format before they are merged; the model folder is written afterwards.
    adapter_folder = None
    if setup.lora is not None and setup.lora.keep:
        adapter_folder = single_job.fresh("adapters")
    merge_adapters(adapters, adapter_folder)
    output_dir = single_job.fresh("model")
    lexicon = None
    if model_config.lexical is not None:
        lexicon = lexicon_path(setup.start.folder, model_config.embedded_lexicon)
    save_model(output_dir, retriever, tokenizer, model_config, lexicon=lexicon)
    if adapter_folder is not None:
        for name in adapters:
            (adapter_folder / name).rename(output_dir / name)
    parts = PARTS_BY_SIMILARITY[setup.objective.similarity]
    what = f"A retriever that represents a text by its {parts}, fine-tuned on queries with their passages."
    title = f"Retriever fine-tuned from {setup.start.name}"
    write_report(output_dir, single_job, result, title, what)
    extra = {**counts, "seconds": seconds, "log": log}
    published = single_job.publish(output_dir, result, extra)
    return published | {"seconds": seconds}


def _build_trainer(
    config: FinetuneConfig,
    setup: FinetuneSetup,
    retriever: Retriever | UntiedRetriever,
    tokenizer: PreTrainedTokenizerBase,
    job: DistributedJob,
) -> PairTrainer:
    start = setup.start
    schedule = setup.schedule
    lexical = None
    if start.trains_ot and start.config.lexical is not None:
        vocabulary = int(retriever.side("document").lm.config.vocab_size)
        path = lexicon_path(start.folder, start.config.embedded_lexicon)
        lexical = LexicalBatches(Lexicon.load(path, start.config.lexical, vocabulary))
    collator = ExampleCollator(
        tokenizer,
        start.config.query_length,
        start.config.document_length,
        start.config.title_separator,
        lexical,
    )
    # A lexical OT part without a head is computed outside of the model.
    trained_parts = (start.trains_dense, start.trains_ot and start.config.has_head)
    arguments = training_arguments(
        config,
        job.job.work,
        batch_size=schedule.share.batch_size,
        accumulate=schedule.share.accumulate,
        learning_rate=schedule.learning_rate,
        steps=schedule.steps,
        evaluate=bool(setup.data.dev),
        evaluate_first=bool(setup.data.dev),
        # The head has no gradient in a stage that trains [CLS] alone, the projection none in one for OT.
        find_unused_parameters=True,
    )
    teacher = None
    if start.teacher is not None:
        teacher = start.teacher.for_student(retriever)
    return PairTrainer(
        BiEncoder(retriever, trained_parts),
        setup.data,
        collator,
        arguments,
        schedule,
        setup.objective,
        teacher,
        job.quiet,
    )


def _stored_config(
    config: ModelConfig, retriever: Retriever | UntiedRetriever, tokenizer: PreTrainedTokenizerBase
) -> ModelConfig:
    """The settings that the model folder records, with what the tokenizer and the training have determined."""
    lexical = config.lexical
    head_scale = retriever.side("document").head_scale
    if lexical is not None and head_scale is not None:
        lexical = replace(lexical, head_scale=float(head_scale.detach().abs()))
    return replace(
        config,
        top_k=config.top_k or len(tokenizer),
        document_length=max(MIN_STORED_DOCUMENT_LENGTH, config.document_length),
        query_length=max(MIN_STORED_QUERY_LENGTH, config.query_length),
        lexical=lexical,
    )


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
    base: Path, dev: Sequence[Pair], log: Sequence[Mapping[str, float]], quiet: bool
) -> dict[str, object]:
    """``before``: MRR@10 on the dev pairs of the start and of the embedded model; empty without dev pairs."""
    if not dev:
        return {}
    before = {}
    for row in log:
        if row["step"] == 0 and "eval_mrr" in row:
            before["start"] = row["eval_mrr"]
            break
    # A start that is the embedded model has this score as `start` already.
    if base != model_folder(None):
        with waiting(f"measuring the embedded model on {len(dev):,} dev pairs", quiet):
            before["embedded model"] = encoder_mrr(load_encoder(None), dev)
    return {"before": before}
