"""``python -m dupmae_ir.finetune.cross_encoder``: train the teacher of stage 3 on mined negatives."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dupmae_ir.config import check_ranges, differences, option, parse, to_dict
from dupmae_ir.console import Parser, guarded, say
from dupmae_ir.device import with_torch_threads
from dupmae_ir.errors import CheckpointError, EnvironmentProblem, IndexMismatch, InputError, UsageError

PURPOSE = """
Train a cross-encoder, which reads query and passage together: the teacher whose scores stage 3 distils. The loss is
listwise: softmax cross-entropy of one positive against negatives drawn anew every pass from the mined lists.
Interrupted, the same command resumes to the same weights.
"""
EXAMPLE = """
python -m dupmae_ir.finetune.cross_encoder --mined mined/bm25.jsonl --model models/electra-base --output models/teacher
"""
RECORD = "training.json"
NUMBERLESS = ("quiet", "json", "threads", "save_steps", "log_steps", "cpu", "collection", "output")
"""Settings that do not change the weights."""


@dataclass(frozen=True)
class CrossEncoderConfig:
    """Everything that ``python -m dupmae_ir.finetune.cross_encoder`` can be told."""

    mined: str = option(help="file of dupmae-ir finetune.mine", group="input", metavar="FILE")
    model: str = option(
        help="base model folder, or minilm: a sequence classifier of one or two labels goes on from its head, any "
        "other encoder gets a new one",
        group="input",
        metavar="FOLDER",
    )
    output: str = option(help="folder of the trained model; checkpoints lie beside it until it is done", group="output")
    collection: str | None = option(
        None, "where the mined collection lies now, if it was moved", group="input", metavar="PATH"
    )
    limit: int = option(0, "use only so many queries, drawn at random; 0 = all", group="input")
    held_out: int = option(0, "queries kept from training, whose loss is told before and after", group="training")
    group_size: int = option(16, "passages per query: one positive, the others negatives", group="training")
    length: int = option(192, "word pieces kept of query and passage together", group="model")
    title_separator: str = option(
        "space",
        "between title and text: a blank, the model's separator, or a colon",
        group="model",
        choices=("space", "sep", "colon"),
    )
    batch_size: int = option(8, "queries per forward pass", group="training")
    accumulate: int = option(1, "forward passes per update", group="training")
    epochs: float = option(1.0, "passes over the queries", group="training")
    learning_rate: float = option(1e-5, "peak, linear warm-up and decay", group="training")
    warmup: float = option(0.1, "share of the updates", group="training")
    weight_decay: float = option(0.01, "of AdamW", group="training")
    clip: float = option(1.0, "longest gradient", group="training")
    seed: int = option(42, "of the data order, the draws, dropout and a new head", group="training")
    bf16: bool = option(False, "multiply in bfloat16", group="machine")
    checkpointing: bool = option(False, "less memory: compute activations twice", group="machine")
    cpu: bool = option(False, "leave an accelerator unused", group="machine")
    threads: int = option(0, "CPU threads; 0 = all", group="machine")
    log_steps: int = option(10, "updates between log entries", group="output")
    save_steps: int = option(500, "updates between checkpoints, from which the same command resumes", group="output")
    quiet: bool = option(False, "say nothing but errors", group="output")
    json: bool = option(False, "print the summary as JSON on standard output", group="output")


@with_torch_threads
def run(config: CrossEncoderConfig) -> dict[str, Any]:
    """Train, and write the model folder with ``training.json`` in it: settings, digests, losses, seconds.

    Returns the summary: folder, queries, updates, last loss, and the held-out queries' loss before and after. A
    finished folder with the same settings is left as it is; other settings are refused.
    """
    from dupmae_ir.io.locks import exclusive
    from dupmae_ir.models.checkpoints.names import model_folder

    _check(config)
    config = replace(config, model=str(model_folder(config.model)))
    output = Path(config.output).absolute()
    settings = _settings(config)
    if summary := _finished(output, settings):
        return {"output": config.output, "status": "already complete", **summary}
    # Under torchrun every process trains; the first holds the lock for all.
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return _train(config, settings, output)
    with exclusive(output.with_name(f".{output.name}.lock"), f"training {output}"):
        return _train(config, settings, output)


def _train(config: CrossEncoderConfig, settings: dict[str, Any], output: Path) -> dict[str, Any]:
    from transformers import set_seed

    from dupmae_ir.finetune.cross_encoder.model import (
        GroupCollator,
        Groups,
        check_length,
        evaluate,
        load_reranker,
        separator,
    )
    from dupmae_ir.finetune.data.mined import open_passages
    from dupmae_ir.training import last_checkpoint, same_job

    work = output.with_name(f".{output.name}.training")
    same_job(work / "job.json", settings)
    mined = _usable(config)
    set_seed(config.seed)
    model, tokenizer = load_reranker(config.model, new_head=True)
    check_length(config.length, model, tokenizer)
    passages = open_passages(config.mined, mined, config.collection)
    join = separator(config.title_separator, tokenizer)
    # The order was shuffled: the last are as good as any.
    training, held = mined[: len(mined) - config.held_out], mined[len(mined) - config.held_out :]
    trainer = _trainer(config, model, tokenizer, Groups(training, passages, config.group_size, join, config.seed), work)
    aside = Groups(held, passages, config.group_size, join, config.seed)
    collator = GroupCollator(tokenizer, config.length)
    before = evaluate(model, aside, collator, range(len(held))) if held else None
    # Looking at the held-out queries draws no random numbers, but loading may have.
    set_seed(config.seed)
    started = time.time()
    resume = last_checkpoint(work)
    if resume:
        say(f"going on from {resume}", config.quiet)
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    model = trainer.accelerator.unwrap_model(trainer.model)
    after = evaluate(model, aside, collator, range(len(held))) if held else None
    if not trainer.is_world_process_zero():
        return {}
    summary = {
        "queries": len(training),
        "updates": trainer.state.max_steps,
        "seconds": round(time.time() - started),
        "held_out": {"queries": len(held), "before": before, "after": after} if held else None,
    }
    return _finish(config, settings, model, tokenizer, work, output, summary)


def _finish(
    config: CrossEncoderConfig,
    settings: dict[str, Any],
    model: Any,
    tokenizer: Any,
    work: Path,
    output: Path,
    summary: dict[str, Any],
) -> dict[str, Any]:
    """The model folder, whole or not at all; then the checkpoints go."""
    from dupmae_ir.io.publishing import move_into_place, write_json
    from dupmae_ir.models.checkpoints.transformers_state import quiet_transformers
    from dupmae_ir.training import LOG, read_log, refuse_broken_weights

    refuse_broken_weights(model, summary["updates"], work)
    log = [row for row in read_log(work / LOG) if "loss" in row]
    summary["last"] = log[-1]["loss"] if log else None
    aside = work / "done"
    shutil.rmtree(aside, ignore_errors=True)
    with quiet_transformers():
        model.float().save_pretrained(aside, safe_serialization=True)
        tokenizer.save_pretrained(aside)
    for path in aside.iterdir():
        path.chmod(0o644)
    record = {
        "settings": settings,
        "inputs": {"mined": Path(config.mined).name, "model": Path(config.model).name},
        "summary": summary,
        "log": log,
    }
    write_json(aside / RECORD, record)
    move_into_place(aside, output)
    shutil.rmtree(work, ignore_errors=True)
    say(f"cross-encoder written to {config.output} after {summary['seconds']:,} s{_told(summary)}", config.quiet)
    return {"output": config.output, "status": "trained", **summary}


def _told(summary: dict[str, Any]) -> str:
    held = summary["held_out"]
    if not held:
        return ""
    b, a = held["before"], held["after"]
    return (
        f"; held out: loss {b['loss']:.3f} -> {a['loss']:.3f}, positive first in {b['positive_first']:.0%} -> "
        f"{a['positive_first']:.0%} of the groups"
    )


def _trainer(config: CrossEncoderConfig, model: Any, tokenizer: Any, groups: Any, work: Path) -> Any:
    import torch
    from accelerate import PartialState
    from transformers import TrainingArguments

    from dupmae_ir.finetune.cross_encoder.model import Draws, RerankerTrainer

    on_cpu = config.cpu or not torch.cuda.is_available()
    processes = PartialState(cpu=on_cpu).num_processes
    per_update = config.batch_size * config.accumulate * processes
    steps = max(1, round(config.epochs * len(groups) / per_update))
    arguments = TrainingArguments(
        output_dir=str(work),
        per_device_train_batch_size=config.batch_size,
        max_steps=steps,
        gradient_accumulation_steps=config.accumulate,
        learning_rate=config.learning_rate,
        warmup_steps=round(config.warmup * steps),
        lr_scheduler_type="linear",
        weight_decay=config.weight_decay,
        max_grad_norm=config.clip,
        bf16=config.bf16,
        logging_steps=config.log_steps,
        logging_nan_inf_filter=False,
        save_steps=config.save_steps,
        save_total_limit=2,
        remove_unused_columns=False,
        report_to=[],
        seed=config.seed,
        disable_tqdm=True,
        use_cpu=on_cpu,
    )
    if config.checkpointing:
        # The name that transformers 5 has for it, or the one of 4.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    draws = Draws(len(groups), config.batch_size, steps * config.accumulate * processes, config.seed)
    return RerankerTrainer(model, tokenizer, groups, draws, config.length, arguments, config.quiet)


def _usable(config: CrossEncoderConfig) -> list[Any]:
    """The queries to train on and to hold out, in random order; those without a negative teach nothing."""
    from dupmae_ir.finetune.data.mined import counted, read_mined

    mined = read_mined(config.mined)
    bare = [m.qid for m in mined if not m.negatives]
    if bare:
        what = counted(bare, "query has no negative and is left out", "queries have no negative and are left out")
        say(f"note: {what}", config.quiet)
    mined = [m for m in mined if m.negatives]
    random.Random(config.seed).shuffle(mined)
    mined = mined[: config.limit or None]
    if len(mined) <= config.held_out:
        raise InputError(f"{config.mined}: {len(mined)} usable queries, of which --held-out takes {config.held_out}")
    return mined


def _settings(config: CrossEncoderConfig) -> dict[str, Any]:
    """What decides the weights, files by their content."""
    from dupmae_ir.io.publishing import sha256_file
    from dupmae_ir.models.checkpoints.digest import folder_digest

    if not Path(config.mined).is_file():
        raise InputError(f"{config.mined}: no such file; make it with dupmae-ir finetune.mine")
    if not Path(config.model).is_dir():
        raise CheckpointError(f"{config.model}: no such model folder; nothing is downloaded")
    told = {k: v for k, v in to_dict(config).items() if k not in NUMBERLESS}
    return {**told, "mined": sha256_file(config.mined), "model": folder_digest(config.model)}


def _finished(output: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    try:
        record = json.loads((output / RECORD).read_text(encoding="utf-8"))
        before, summary = record["settings"], record["summary"]
    except (OSError, ValueError, KeyError):
        raise UsageError(f"{output}: already there, and not from this command; name another --output") from None
    if changed := differences(before, settings):
        raise IndexMismatch(f"{output}: trained with other settings ({changed}); name another --output, or remove it")
    return summary


def _check(config: CrossEncoderConfig) -> None:
    import importlib.util

    check_ranges(
        config,
        above_zero=("epochs", "learning_rate", "clip", "batch_size", "accumulate", "log_steps", "save_steps"),
        zero_or_more=("limit", "held_out", "weight_decay", "warmup", "threads", "seed"),
    )
    if config.group_size < 2:
        raise UsageError(f"--group-size {config.group_size}: wants one positive and at least one negative")
    if config.warmup > 1:
        raise UsageError(f"--warmup {config.warmup:g}: a share of the updates, at most 1")
    if config.save_steps % config.log_steps:
        raise UsageError("--save-steps must be a multiple of --log-steps, so that a resumed run logs the same means")
    if importlib.util.find_spec("accelerate") is None:
        raise EnvironmentProblem("training needs accelerate: pip install 'dupmae-ir[train]'")


def main(argv: list[str] | None = None) -> int:
    return guarded(lambda: _main(argv), "dupmae-ir finetune.cross_encoder")


def _main(argv: list[str] | None) -> int:
    config = parse(Parser("finetune.cross_encoder", PURPOSE, EXAMPLE), CrossEncoderConfig, argv)
    summary = run(config)
    if config.json and summary:
        sys.stdout.write(json.dumps(summary) + "\n")
    return 0
