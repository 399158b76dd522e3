"""Training of the cross-encoder that stage 3 distils."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, set_seed

from dupmae_ir.console import say
from dupmae_ir.device import with_torch_threads
from dupmae_ir.errors import InputError
from dupmae_ir.finetune.cross_encoder.config import CrossEncoderConfig
from dupmae_ir.finetune.cross_encoder.model import (
    Draws,
    Groups,
    RerankerTrainer,
    check_length,
    evaluate,
    load_reranker,
    separator,
)
from dupmae_ir.finetune.data.mined import Mined, counted, open_passages, read_mined
from dupmae_ir.io.jobs import Job
from dupmae_ir.models.checkpoints.transformers_state import quiet_transformers, recompute_activations, save_tokenizer
from dupmae_ir.models.names import model_folder
from dupmae_ir.training.arguments import process_state, training_arguments
from dupmae_ir.training.card import Card, write_card
from dupmae_ir.training.checkpoints import refuse_broken_weights
from dupmae_ir.training.distributed import DistributedJob
from dupmae_ir.training.log import LOG, read_log
from dupmae_ir.training.plots import keep_log
from dupmae_ir.training.push import push
from dupmae_ir.training.records import RECORD, deciding_settings, input_digests


@with_torch_threads
def run(config: CrossEncoderConfig, callbacks: Sequence[TrainerCallback] = ()) -> dict[str, Any] | None:
    """Train, and write the model folder with its record, ``training.json``.

    Returns the result: queries, updates, last loss and the held-out queries' loss before and after, and seconds where
    the model was trained now; None in the worker processes of a distributed run. See :mod:`dupmae_ir.io.jobs` for what
    a second run returns.

    ``callbacks`` are called by the trainer, after its own; they are not recorded.
    """
    state = process_state(config)
    quiet = config.quiet or not state.is_main_process
    settings = deciding_settings(config, state.num_processes, ("mined", "model", "collection"))
    single = Job(config.output, "finetune.cross_encoder", settings, lambda: _inputs(config), record=RECORD, quiet=quiet)
    with DistributedJob(single, state) as job:
        result = job.finished() or _train(config, job, state, callbacks, quiet)
        if not state.is_main_process or result is None:
            return None
        push(job.job.target, config.push_to_hub, quiet)
        return result


def _inputs(config: CrossEncoderConfig) -> dict[str, str]:
    return input_digests({"mined": config.mined}, {"model": model_folder(config.model)})


def _train(
    config: CrossEncoderConfig,
    job: DistributedJob,
    state: PartialState,
    callbacks: Sequence[TrainerCallback],
    quiet: bool,
) -> dict[str, Any] | None:
    started = time.monotonic()
    work = job.begin()
    mined = _usable(config, quiet)
    set_seed(config.seed)
    model, tokenizer = load_reranker(model_folder(config.model), new_head=True)
    check_length(config.length, model, tokenizer)
    passages = open_passages(config.mined, mined, config.collection)
    join = separator(config.title_separator, tokenizer)
    # The order is random, so the last queries are as good a sample as any.
    training, held = (
        Groups(part, passages, config.group_size, join, config.seed)
        for part in (mined[: len(mined) - config.held_out], mined[len(mined) - config.held_out :])
    )
    trainer = _trainer(config, model, tokenizer, training, held, work, quiet)
    before = evaluate(model, held, trainer.data_collator) if len(held) else None
    # Evaluation draws no random numbers, but loading may have.
    set_seed(config.seed)
    trainer.train_or_resume(callbacks)
    model = trainer.bare
    after = evaluate(model, held, trainer.data_collator) if len(held) else None
    if not state.is_main_process:
        return None
    refuse_broken_weights(model, trainer.state.max_steps, work)
    log = [row for row in read_log(work / LOG) if "loss" in row]
    result = {
        "queries": len(training),
        "updates": trainer.state.max_steps,
        "held_out": {"queries": len(held), "before": before, "after": after} if len(held) else None,
        "last": log[-1]["loss"] if log else None,
    }
    made = _save(config, model, tokenizer, work)
    write_card(made, _card(config), job.job.settings, job.job.inputs, result)
    seconds = round(time.monotonic() - started)
    published = job.publish(made, result, {"steps": trainer.state.max_steps, "seconds": seconds, "log": log})
    return None if published is None else published | {"seconds": seconds}


def _card(config: CrossEncoderConfig) -> Card:
    what = "A cross-encoder: it reads a query and a passage together and gives one score."
    use = "```sh\ndupmae-ir finetune.score --mined mined.jsonl --model FOLDER --output scores.jsonl\n```"
    title = f"Cross-encoder trained from {Path(config.model).name}"
    return Card("finetune.cross_encoder", title, what, use, "training")


def _save(config: CrossEncoderConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, work: Path) -> Path:
    """Write the model folder inside ``work``, with the log in ``training/``, and return it."""
    made = work / "model"
    shutil.rmtree(made, ignore_errors=True)
    with quiet_transformers():
        model.float().save_pretrained(made, safe_serialization=True)
        save_tokenizer(tokenizer, made)
    for path in made.iterdir():
        path.chmod(0o644)
    keep_log(work, made / "training", Path(config.output).name)
    return made


def _trainer(
    config: CrossEncoderConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    training: Groups,
    held_out: Groups,
    work: Path,
    quiet: bool,
) -> RerankerTrainer:
    processes = PartialState().num_processes
    steps = config.steps or max(
        1, round(config.epochs * len(training) / (config.batch_size * config.accumulate * processes))
    )
    arguments = training_arguments(
        config,
        work,
        batch_size=config.batch_size,
        accumulate=config.accumulate,
        learning_rate=config.learning_rate,
        steps=steps,
        evaluate=len(held_out) > 0,
    )
    if config.checkpointing:
        recompute_activations(model)
    draws = Draws(len(training), config.batch_size, steps * config.accumulate * processes, config.seed)
    return RerankerTrainer(model, tokenizer, training, draws, config.length, arguments, held_out, quiet)


def _usable(config: CrossEncoderConfig, quiet: bool) -> list[Mined]:
    """The queries with a negative, for training and holding out, in random order."""
    mined = read_mined(config.mined)
    bare = [m.qid for m in mined if not m.negatives]
    if bare:
        what = counted(bare, "query has no negative and is left out", "queries have no negative and are left out")
        say(f"note: {what}", quiet)
    mined = [m for m in mined if m.negatives]
    random.Random(config.seed).shuffle(mined)
    mined = mined[: config.limit or None]
    if len(mined) <= config.held_out:
        raise InputError(f"{config.mined}: {len(mined)} usable queries, of which --held-out takes {config.held_out}")
    return mined
