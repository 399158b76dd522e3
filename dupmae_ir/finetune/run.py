"""One stage of fine-tuning: from a model and examples to a retriever (DupMAE section 3.4)."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from accelerate import PartialState
from transformers import PreTrainedTokenizerBase, set_seed

from dupmae_ir.console import say
from dupmae_ir.device import with_torch_threads
from dupmae_ir.errors import UsageError
from dupmae_ir.finetune.base import load_base, load_teacher, stored_config
from dupmae_ir.finetune.config import FinetuneConfig
from dupmae_ir.finetune.data.examples import Batches, ExampleCollator, MinedExamples, PairExamples, mined_examples
from dupmae_ir.finetune.data.pairs import Pair, TopicalBatches, cap_kinds, read_pairs
from dupmae_ir.finetune.objective import BiEncoder
from dupmae_ir.finetune.trainer import PairTrainer
from dupmae_ir.io.jobs import Job
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.names import model_folder
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.retriever import Retriever, UntiedRetriever
from dupmae_ir.training.arguments import process_state, training_arguments
from dupmae_ir.training.distributed import DistributedJob
from dupmae_ir.training.log import LOG, read_log
from dupmae_ir.training.plots import keep_log
from dupmae_ir.training.records import RECORD, deciding_settings, input_digests
from dupmae_ir.types import SEPARATORS, Document


class Examples(NamedTuple):
    """The training data of a stage."""

    drawn: PairExamples | MinedExamples
    topical: TopicalBatches
    passages: list[str]  #: texts that a new head may be calibrated on

    def __len__(self) -> int:
        return len(self.drawn)


@with_torch_threads
def run(config: FinetuneConfig) -> dict[str, Any] | None:
    """Train, and write the model folder with its record, ``training.json``.

    Returns the result: queries, updates, share of padding, last losses and dev scores, and seconds where the model was
    trained now; None in the worker processes of a distributed run. Interrupted, the same call continues from the last
    checkpoint to the same weights. See :mod:`dupmae_ir.io.jobs` for what a second run returns.
    """
    state = process_state(config)
    quiet = config.quiet or not state.is_main_process
    settings = deciding_settings(
        config, state.num_processes, ("model", "teacher", "mined", "scores", "collection", "pairs", "dev")
    )
    single = Job(config.output, "finetune", settings, lambda: _inputs(config), record=RECORD, quiet=quiet)
    with DistributedJob(single, state) as job:
        if (result := job.finished()) is not None:
            return result if state.is_main_process else None
        return _train(config, job, state, quiet)


def _train(config: FinetuneConfig, job: DistributedJob, state: PartialState, quiet: bool) -> dict[str, Any] | None:
    started = time.monotonic()
    work = job.begin()
    set_seed(config.seed)
    with state.main_process_first():
        examples = _examples(config, quiet)
        base = model_folder(config.model)
        retriever, tokenizer = load_base(config, base, examples.passages, quiet)
    stored = stored_config(config, base, tokenizer)
    steps = config.steps or _steps(config, len(examples.drawn), state.num_processes)
    trainer = _trainer(config, retriever, tokenizer, stored, examples, steps, work, quiet)
    trainer.train_or_resume()
    if trainer.dev:
        trainer.evaluate()
    state.wait_for_everyone()
    if not state.is_main_process:
        return None
    log, waste = read_log(work / LOG), round(trainer.bi_encoder.waste, 4)
    seconds = round(time.monotonic() - started)
    result = {"queries": len(examples.drawn), "steps": steps, "padding": waste, **_last(log)}
    made = _save(config, retriever, tokenizer, stored, work)
    extra = {"queries": len(examples.drawn), "steps": steps, "seconds": seconds, "padding": waste, "log": log}
    published = job.publish(made, result, extra)
    return None if published is None else published | {"seconds": seconds}


def _last(log: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The last training losses, and the last dev scores, of a log."""
    losses = [row for row in log if "loss" in row]
    scores = [row for row in log if "eval_mrr" in row]
    dev = {k.removeprefix("eval_"): v for k, v in scores[-1].items() if k.startswith("eval_")} if scores else None
    return {"last": losses[-1] if losses else None, "dev": dev}


def _inputs(config: FinetuneConfig) -> dict[str, str]:
    return input_digests(
        {"pairs": config.pairs, "dev": config.dev, "mined": config.mined, "scores": config.scores},
        {"model": model_folder(config.model), "teacher": model_folder(config.teacher) if config.teacher else None},
    )


def _examples(config: FinetuneConfig, quiet: bool) -> Examples:
    rng = random.Random(config.seed)
    separator = SEPARATORS[config.title_separator or "space"]
    if config.mined:
        drawn: PairExamples | MinedExamples = mined_examples(
            config.mined, config.negatives, config.sample_from_top, config.seed, config.scores, config.collection
        )
        assert isinstance(drawn, MinedExamples)
        if config.limit:
            drawn.mined = rng.sample(list(drawn.mined), min(config.limit, len(drawn)))
        passages = [p.joined(separator) for m in drawn.mined for p in m.positives]
        pairs = [Pair(m.query, Document("", "")) for m in drawn.mined]
        left_out = f"; {drawn.left_out:,} more have no negative" if drawn.left_out else ""
    else:
        pairs = [p for path in config.pairs for p in read_pairs(path)]
        pairs = cap_kinds(pairs, _caps(config.cap), config.seed)
        if config.limit:
            pairs = rng.sample(pairs, min(config.limit, len(pairs)))
        drawn = PairExamples(pairs, config.negatives, config.seed)
        passages = [p.positive.joined(separator) for p in pairs]
        left_out = ""
    topical = TopicalBatches(pairs, config.batch_size, 1 if config.mined else config.group_size, config.seed)
    say(f"{len(drawn):,} queries{left_out}", quiet)
    return Examples(drawn, topical, passages)


def _steps(config: FinetuneConfig, queries: int, processes: int) -> int:
    return max(1, int(config.epochs * (queries // config.batch_size) / (config.accumulate * processes)))


def _trainer(
    config: FinetuneConfig,
    retriever: Retriever | UntiedRetriever,
    tokenizer: PreTrainedTokenizerBase,
    stored: ModelConfig,
    examples: Examples,
    steps: int,
    work: Path,
    quiet: bool,
) -> PairTrainer:
    dev = [p for path in config.dev for p in read_pairs(path)]
    arguments = training_arguments(
        config,
        work,
        batch_size=config.batch_size,
        accumulate=config.accumulate,
        learning_rate=config.learning_rate,
        steps=steps,
        evaluate=bool(dev),
        find_unused_parameters=True,
    )
    batches = Batches(examples.topical, steps * config.accumulate * PartialState().num_processes)
    collator = ExampleCollator(tokenizer, config.query_length, config.document_length, stored.title_separator)
    return PairTrainer(
        BiEncoder(retriever, config.uses),
        examples.drawn,
        batches,
        collator,
        arguments,
        config,
        config.head_lr_factor,
        config.grad_cache,
        round(config.regularizer_warmup * steps),
        load_teacher(config, retriever),
        dev,
        quiet,
    )


def _caps(values: tuple[str, ...]) -> dict[str, int]:
    caps = {}
    for value in values:
        kind, _, number = value.rpartition("=")
        if not kind or not number.isdigit():
            raise UsageError(f"--cap {value!r}: expected KIND=N, for example heading=5000")
        caps[kind] = int(number)
    return caps


def _save(
    config: FinetuneConfig,
    retriever: Retriever | UntiedRetriever,
    tokenizer: PreTrainedTokenizerBase,
    stored: ModelConfig,
    work: Path,
) -> Path:
    """Write the model folder inside ``work``, with the log in ``training/``, and return it."""
    made = work / "model"
    shutil.rmtree(made, ignore_errors=True)
    # Trained on short texts for speed; the usual lengths apply when encoding.
    documents, queries = max(256, stored.document_length), max(64, stored.query_length)
    save_model(made, retriever, tokenizer, replace(stored, document_length=documents, query_length=queries))
    keep_log(work, made / "training", Path(config.output).name)
    return made
