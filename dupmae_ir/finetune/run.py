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
from transformers import PreTrainedTokenizerBase, TrainerCallback, set_seed

from dupmae_ir.console import say
from dupmae_ir.device import with_torch_threads
from dupmae_ir.errors import UsageError
from dupmae_ir.finetune.base import lexical_batches, load_base, load_teacher, ot_form, stored_config, with_learned_scale
from dupmae_ir.finetune.config import FinetuneConfig
from dupmae_ir.finetune.data.examples import Batches, ExampleCollator, MinedExamples, PairExamples, mined_examples
from dupmae_ir.finetune.data.pairs import Pair, TopicalBatches, cap_kinds, read_pairs
from dupmae_ir.finetune.lora import add_adapters, merge_adapters
from dupmae_ir.finetune.objective import BiEncoder
from dupmae_ir.finetune.trainer import PairTrainer
from dupmae_ir.io.jobs import Job
from dupmae_ir.models.checkpoints.layout import LEXICON, SIDES
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.checkpoints.transformers_state import recompute_activations
from dupmae_ir.models.names import model_folder
from dupmae_ir.models.retriever import Retriever, UntiedRetriever
from dupmae_ir.training.arguments import process_state, training_arguments
from dupmae_ir.training.card import Card, write_card
from dupmae_ir.training.distributed import DistributedJob
from dupmae_ir.training.log import LOG, read_log
from dupmae_ir.training.plots import keep_log
from dupmae_ir.training.push import push
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
def run(config: FinetuneConfig, callbacks: Sequence[TrainerCallback] = ()) -> dict[str, Any] | None:
    """Train, and write the model folder with its record, ``training.json``.

    Returns the result: queries, updates, share of padding, last losses and dev scores, and seconds where the model was
    trained now; None in the worker processes of a distributed run. Interrupted, the same call continues from the last
    checkpoint to the same weights. See :mod:`dupmae_ir.io.jobs` for what a second run returns.

    ``callbacks`` are called by the trainer, after its own; they are not recorded.
    """
    state = process_state(config)
    quiet = config.quiet or not state.is_main_process
    settings = _settings(config, state.num_processes)
    single = Job(config.output, "finetune", settings, lambda: _inputs(config), record=RECORD, quiet=quiet)
    with DistributedJob(single, state) as job:
        result = job.finished() or _train(config, job, state, callbacks, quiet)
        if not state.is_main_process or result is None:
            return None
        push(job.job.target, config.push_to_hub, quiet)
        return result


def _train(
    config: FinetuneConfig, job: DistributedJob, state: PartialState, callbacks: Sequence[TrainerCallback], quiet: bool
) -> dict[str, Any] | None:
    started = time.monotonic()
    work = job.begin()
    set_seed(config.seed)
    with state.main_process_first():
        examples = _examples(config, quiet)
        base = model_folder(config.model)
        _check_processes(config, base, state.num_processes)
        retriever, tokenizer = load_base(config, base, examples.passages, quiet)
    adapters = add_adapters(retriever, config)
    if config.checkpointing:
        for side in SIDES:
            recompute_activations(retriever.side(side).lm)
    stored = stored_config(config, base, tokenizer)
    steps = config.steps or _steps(config, len(examples.drawn), state.num_processes)
    trainer = _trainer(config, retriever, tokenizer, stored, examples, steps, work, quiet)
    trainer.train_or_resume(callbacks)
    if trainer.dev:
        trainer.evaluate()
    state.wait_for_everyone()
    if not state.is_main_process:
        return None
    log, waste = read_log(work / LOG), round(trainer.bi_encoder.waste, 4)
    seconds = round(time.monotonic() - started)
    stored = with_learned_scale(stored, retriever)
    result = {"queries": len(examples.drawn), "steps": steps, "padding": waste, **_last(log), **_scale(stored)}
    kept = job.job.fresh("adapters") if config.keep_adapter else None
    merge_adapters(adapters, kept)
    made = _save(config, retriever, tokenizer, stored, base, work)
    if kept is not None:
        for name in adapters:
            (kept / name).rename(made / name)
    write_card(made, _card(config), job.job.settings, job.job.inputs, result)
    extra = {"queries": len(examples.drawn), "steps": steps, "seconds": seconds, "padding": waste, "log": log}
    published = job.publish(made, result, extra)
    return None if published is None else published | {"seconds": seconds}


def _card(config: FinetuneConfig) -> Card:
    parts = {"sum": "[CLS] and ordinary tokens", "cls": "[CLS]", "ot": "ordinary tokens"}[config.similarity]
    what = f"A retriever that represents a text by its {parts}, fine-tuned on queries with their passages."
    use = (
        "```sh\ndupmae-ir encode --corpus my-docs --index my-index --model FOLDER\n"
        'dupmae-ir search --index my-index --query "how do I rotate the logs?"\n```'
    )
    return Card("finetune", f"Retriever fine-tuned from {Path(config.model).name}", what, use, "training")


def _scale(stored: ModelConfig) -> dict[str, float]:
    """The learned factor of the head's weights, for a model with lexical ones."""
    return {"head_scale": stored.lexical.head_scale} if stored.lexical and stored.has_head else {}


def _last(log: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The last training losses, and the last dev scores, of a log."""
    losses = [row for row in log if "loss" in row]
    scores = [row for row in log if "eval_mrr" in row]
    dev = {k.removeprefix("eval_"): v for k, v in scores[-1].items() if k.startswith("eval_")} if scores else None
    return {"last": losses[-1] if losses else None, "dev": dev}


def _check_processes(config: FinetuneConfig, base: Path, processes: int) -> None:
    if processes > 1 and ot_form(config, base) != "mlm":
        raise UsageError(f"a lexical OT part is trained by one process, not by {processes}; or give --ot mlm")


def _settings(config: FinetuneConfig, processes: int) -> dict[str, Any]:
    """The settings that decide the weights; those of LoRA only where it is used."""
    paths = ("model", "teacher", "mined", "scores", "collection", "pairs", "dev")
    unused = () if config.lora_rank else ("lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "keep_adapter")
    return {name: v for name, v in deciding_settings(config, processes, paths).items() if name not in unused}


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
    lengths = (config.query_length, config.document_length)
    width = int(retriever.side("document").lm.config.vocab_size)
    lexical = lexical_batches(config, stored, model_folder(config.model), tokenizer, width)
    collator = ExampleCollator(tokenizer, *lengths, stored.title_separator, lexical)
    return PairTrainer(
        BiEncoder(retriever, (config.uses[0], config.uses[1] and stored.has_head)),
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
    base: Path,
    work: Path,
) -> Path:
    """Write the model folder inside ``work``, with the log in ``training/``, and return it."""
    made = work / "model"
    shutil.rmtree(made, ignore_errors=True)
    # Trained on short texts for speed; the usual lengths apply when encoding.
    documents, queries = max(256, stored.document_length), max(64, stored.query_length)
    stored = replace(stored, document_length=documents, query_length=queries)
    lexicon = base / LEXICON if stored.ot == "lexical" else None
    save_model(made, retriever, tokenizer, stored, lexicon=lexicon)
    keep_log(work, made / "training", Path(config.output).name)
    return made
