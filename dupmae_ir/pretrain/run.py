"""``dupmae-ir pretrain``: from text to an encoder that fine-tuning starts from."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import cast

import numpy as np
from transformers import PreTrainedTokenizerBase, TrainerCallback, set_seed

from dupmae_ir.console import say
from dupmae_ir.device import with_torch_threads
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.publishing import combined_digest, sha256_file
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.heads.masked_lm import max_input_length
from dupmae_ir.models.names import model_folder
from dupmae_ir.models.objectives.bottleneck import Bottleneck
from dupmae_ir.models.objectives.dupmae import DupMAE
from dupmae_ir.models.retriever import Retriever
from dupmae_ir.pretrain.collate import COLLATORS, NEEDS_NEIGHBOURS, Draw, usable
from dupmae_ir.pretrain.config import PretrainConfig, PretrainResult
from dupmae_ir.pretrain.corpus import digest, read_texts
from dupmae_ir.pretrain.initial_embeddings import initialise_embeddings
from dupmae_ir.pretrain.model import (
    DECODERS,
    KEPT,
    build_objective,
    lexical_base,
    load_anchor,
    load_base,
    load_continued_experts,
    load_decoders,
    save_decoders,
    save_encoder,
)
from dupmae_ir.pretrain.recipes import Recipe, choices
from dupmae_ir.pretrain.tokens import (
    Corpus,
    Cutting,
    Vocabulary,
    WordCounts,
    count_words,
    load_corpus,
)
from dupmae_ir.pretrain.trainer import MixedBatches, PretrainTrainer
from dupmae_ir.training.job import (
    DistributedJob,
    deciding_settings,
    input_digests,
    process_state,
    training_arguments,
    training_device,
    training_job,
)
from dupmae_ir.training.layers import recompute_activations, set_dropout
from dupmae_ir.training.report import write_report
from dupmae_ir.training.trained import LOG, read_log
from dupmae_ir.training.trainer import refuse_broken_weights
from dupmae_ir.types import SEPARATORS

PATHS = ("model", "init_from", "from_config", "tokenizer", "corpus", "anchor")
"""Options that name files or folders, of which the record has the last part of the name and a digest."""

SourceDigest = Callable[[str], str]
KEYWORD_TASKS = {"mkp", "npr"}
"""MASTER's tasks with keyword masks, which need counts of words."""


@with_torch_threads
def run(config: PretrainConfig, callbacks: Sequence[TrainerCallback] = ()) -> PretrainResult | None:
    """Pre-train, and write the model folder with its record, ``training.json``.

    Returns updates, parameters, and first and last losses on held-out text; if this call trained the model, also
    seconds and tokens per second. Returns None in the worker processes of a distributed run. After an interruption,
    the same call continues from the last checkpoint to the same weights. See :mod:`dupmae_ir.io.jobs` for what a
    second run returns.

    ``callbacks`` are called by the trainer, after its own; they are not recorded.
    """
    source_digest = functools.cache(digest)
    state = process_state(config)
    settings = _settings(config, state.num_processes)
    inputs = functools.partial(_inputs, config, source_digest)
    with training_job(config, "pretrain", settings, inputs, state) as job:
        made = job.finished() or _train(config, job, source_digest, callbacks)
        result = job.deliver(made, config.push_to_hub)
    return cast("PretrainResult | None", result)


def _settings(config: PretrainConfig, processes: int) -> dict[str, object]:
    """The settings that decide the weights; settings without an effect are left out."""
    settings = deciding_settings(config, processes, PATHS) | choices(config.recipe)
    unused = []
    if not config.anchored:
        unused += ["anchor", "anchor_weight"]
    values_without_effect = {
        "dropout": None,
        "length_pool": 1,
        "init_embeddings": None,
        "stop_when": None,
    }
    for name, value in values_without_effect.items():
        if getattr(config, name) == value:
            unused.append(name)
    return {name: value for name, value in settings.items() if name not in unused}


def _inputs(config: PretrainConfig, source_digest: SourceDigest) -> dict[str, str]:
    """Digests of the corpora, and of the files that training starts from."""
    base = model_folder(config.model) if config.model else None
    anchor = model_folder(config.anchor) if config.anchored else None
    digests = input_digests(
        {"from_config": config.from_config},
        {
            "model": base,
            "init_from": config.init_from,
            "tokenizer": config.tokenizer,
            "anchor": anchor,
        },
    )
    # The digest of a model folder does not cover the decoders.
    decoders = Path(config.init_from or "") / KEPT / DECODERS
    if config.init_from and decoders.is_file():
        digests["init_from"] = combined_digest([digests["init_from"], sha256_file(decoders)])
    return {"corpus": combined_digest(map(source_digest, config.corpus)), **digests}


@dataclass(frozen=True)
class PretrainingSetup:
    """The model, the objective and the texts of a run."""

    retriever: Retriever  #: the base model, trained in place
    tokenizer: PreTrainedTokenizerBase
    objective: Bottleneck
    vocabulary: Vocabulary
    corpora: Sequence[Corpus]
    rows: Sequence[np.ndarray]  #: rows of each corpus to train on
    held_out: Sequence[Draw]
    counts: Sequence[WordCounts]  #: of each corpus; empty unless keyword masks need them

    @property
    def texts(self) -> int:
        """Number of texts to train on."""
        return sum(map(len, self.rows))


def _train(
    config: PretrainConfig,
    job: DistributedJob,
    source_digest: SourceDigest,
    callbacks: Sequence[TrainerCallback],
) -> dict[str, object] | None:
    started = time.monotonic()
    state = job.state
    quiet = job.quiet
    work = job.begin()
    # The main process tokenises the corpora, and the others read its cache.
    with state.main_process_first():
        setup = _prepare(config, source_digest, quiet)
    steps = config.steps or _steps_of_epochs(config.recipe, setup.texts)
    _report(config, setup, steps, quiet)

    trainer = _trainer(config, setup, steps, work, quiet)
    trainer.train_or_resume(callbacks)
    if trainer.held_out:
        trainer.evaluate()
    state.wait_for_everyone()
    if not state.is_main_process:
        return None

    refuse_broken_weights(setup.objective, trainer.state.global_step, work)
    model_dir = _save(config, setup, work)
    log = read_log(work / LOG)
    updates = trainer.state.global_step
    if updates < steps:
        say(f"stopped after {updates:,} of {steps:,} updates: the gaps have stopped growing", quiet)
    result = {
        "updates": updates,
        "parameters": sum(parameter.numel() for parameter in setup.objective.parameters()),
        "held_out": {
            "texts": len(setup.held_out),
            "first": _held_out_losses(log, 0),
            "last": _held_out_losses(log, -1),
        },
    }
    timing = {"seconds": round(time.monotonic() - started), "tokens_per_second": _mean_rate(log)}
    _write_report(config, job, model_dir, result)
    versions = {name: version(name) for name in ("torch", "transformers", "accelerate", "numba")}
    published = job.publish(model_dir, result, {"steps": updates, **timing, "versions": versions})
    return None if published is None else published | timing


def _steps_of_epochs(recipe: Recipe, texts: int) -> int:
    """The number of updates in the recipe's epochs over ``texts`` texts, at least 1."""
    texts_per_update = int(recipe.batch_size or 1) * int(recipe.accumulate or 1)
    return max(1, round(float(recipe.epochs or 0) * texts / texts_per_update))


def _mean_rate(log: Sequence[Mapping[str, float]]) -> float | None:
    """The mean of the logged tokens per second; None if none were logged."""
    rates = [row["tokens_per_second"] for row in log if "tokens_per_second" in row]
    if not rates:
        return None
    return round(sum(rates) / len(rates), 1)


def _write_report(
    config: PretrainConfig, job: DistributedJob, model_dir: Path, result: dict[str, object]
) -> None:
    title = f"{config.method} pre-training"
    what = f"An encoder pre-trained with {config.method}, the starting point of fine-tuning."
    use = (
        "```sh\ndupmae-ir finetune --pairs train.jsonl.gz --model FOLDER --output models/mine\n```"
    )
    write_report(model_dir, job.job, result, title, what, use, KEPT)


def _prepare(config: PretrainConfig, source_digest: SourceDigest, quiet: bool) -> PretrainingSetup:
    """Load the base model and the corpora, and check that they fit each other."""
    # Decoders and added heads are initialised from the seed, independently of what ran before.
    set_seed(config.seed)
    recipe = config.recipe
    retriever, tokenizer = load_base(config, _passages(config), quiet)
    name = str(config.model or config.init_from or config.tokenizer)
    vocabulary = Vocabulary.of(tokenizer, retriever.lm.config.vocab_size, name)
    max_length = max_input_length(retriever.lm)
    length = int(recipe.length or 0)
    if length > max_length:
        raise UsageError(
            f"`length` {length}: {name} has positions for {max_length} tokens; use `length` {max_length} or less"
        )

    objective = _prepare_objective(config, retriever)
    objective.anchor = load_anchor(config, retriever, tokenizer)
    if config.init_from:
        say(load_decoders(objective, Path(config.init_from) / KEPT / DECODERS), quiet)

    # Passages are truncated again when they are batched, so that one cache serves all lengths; blocks are packed here.
    # Two ids fewer: [CLS] and [SEP] are added to them. Spans go beyond the length.
    text_length = {"passages": max_length - 2, "blocks": length - 2, "spans": length}[config.unit]
    cutting = Cutting(config.unit, text_length, config.documents, _title_separator(config))
    corpora = [
        load_corpus(source, tokenizer, cutting, config.cache, quiet, source_digest(source))
        for source in config.corpus
    ]
    if config.init_embeddings:
        initialise_embeddings(retriever.lm, corpora, config.seed)
    rows = usable_rows(corpora, config.corpus, config.method, recipe)
    held_out, training_rows = hold_out(corpora, rows, config.held_out, config.seed)

    counts = []
    if KEYWORD_TASKS & set(recipe.tasks or ()):
        counts = [count_words(corpus, vocabulary.continues) for corpus in corpora]
    return PretrainingSetup(
        retriever, tokenizer, objective, vocabulary, corpora, training_rows, held_out, counts
    )


def _title_separator(config: PretrainConfig) -> str:
    return SEPARATORS[config.title_separator or "space"]


def _passages(config: PretrainConfig) -> Iterator[str]:
    """All passages of the corpora, in reading order."""
    for source in config.corpus:
        for text in read_texts(source, config.documents, _title_separator(config)):
            yield from text.passages


def _prepare_objective(config: PretrainConfig, retriever: Retriever) -> Bottleneck:
    """The objective around the base model, or around the experts that --init-from continues."""
    model = load_continued_experts(config) or retriever.lm
    objective = build_objective(config.method, model, config.recipe)
    if (
        isinstance(objective, DupMAE)
        and objective.ot_projection is not None
        and retriever.ot_projection is not None
    ):
        # An earlier run has trained the projection.
        objective.ot_projection = retriever.ot_projection
    if config.dropout is not None:
        set_dropout(objective, config.dropout)
    if config.checkpointing:
        recompute_activations(retriever.lm)
    return objective


HELD_OUT_NUMBERS = 1 << 40
"""First draw number of held-out texts; training draws never reach it."""
_HOLD_OUT_STREAM = 4711
"""Part of the seed of held-out documents, which keeps them independent of the draws."""


def usable_rows(
    corpora: Sequence[Corpus], sources: Sequence[str], method: str, recipe: Recipe
) -> list[np.ndarray]:
    """Rows of each corpus that the method can train on; ``sources`` are the names for errors.

    Raises :class:`InputError` for a corpus without any, because it would be ignored silently.
    """
    rows = [usable(corpus, method, recipe) for corpus in corpora]
    for corpus, corpus_rows, source in zip(corpora, rows, sources, strict=True):
        if not len(corpus_rows):
            raise InputError(f"{source}: {_why_unusable(recipe)}")
        if "gpt2" in (recipe.tasks or ()) and not len(corpus.following):
            raise InputError(
                f'{source}: none of its texts has a generated continuation ("next"); add them with dupmae-ir '
                "pretrain.augment (task continuation), or remove gpt2 from `tasks`"
            )
    return rows


def _why_unusable(recipe: Recipe) -> str:
    if recipe.context in NEEDS_NEIGHBOURS:
        return (
            "no document of it has two texts; set `documents` to group lines into documents, split documents with "
            "`unit` spans, or use `context` overlap"
        )
    advice = ", or remove doc2query from `tasks`" if recipe.tasks else ""
    return (
        f"none of its texts has generated queries; add them with dupmae-ir pretrain.augment{advice}"
    )


def hold_out(
    corpora: Sequence[Corpus], rows: Sequence[np.ndarray], count: int, seed: int
) -> tuple[list[Draw], list[np.ndarray]]:
    """(draws of about ``count`` held-out texts, rows to train on of each corpus).

    Complete documents are held out, from each corpus in proportion to its size. Raises :class:`UsageError` if a corpus
    has no texts to train on then.
    """
    total = sum(map(len, rows))
    if count >= total:
        raise UsageError(f"`held_out` {count}: there are only {total:,} texts; hold out fewer")
    held_out: list[Draw] = []
    training_rows = []
    for number, (corpus, corpus_rows) in enumerate(zip(corpora, rows, strict=True)):
        share = count * len(corpus_rows) / total
        documents = corpus.document[corpus_rows]
        is_held_out = _held_out_texts(documents, share, [seed, _HOLD_OUT_STREAM, number])
        for row in corpus_rows[is_held_out].tolist():
            held_out.append(Draw(HELD_OUT_NUMBERS + len(held_out), number, row))
        training_rows.append(corpus_rows[~is_held_out])
    if not all(map(len, training_rows)):
        raise UsageError(
            f"`held_out` {count} leaves a corpus without texts to train on; hold out fewer"
        )
    # A long document would take evaluation far above `count` texts.
    return held_out[: 2 * count], training_rows


def _held_out_texts(documents: np.ndarray, share: float, seed: list[int]) -> np.ndarray:
    """(texts,) bool: the texts of random documents that have at least ``share`` texts together.

    ``documents`` (texts,) int64 are the numbers of the texts' documents.
    """
    order = np.random.default_rng(seed).permutation(np.unique(documents))
    sizes = np.bincount(documents, minlength=int(documents.max()) + 1)[order]
    selection = order[:0]
    if share:
        # The last document is the one with which the share is reached.
        last = int(np.searchsorted(np.cumsum(sizes), share, "left"))
        selection = order[: last + 1]
    is_held_out = np.isin(documents, selection)
    if is_held_out.all():
        # A single document, such as a file: hold out its last texts instead.
        position = np.arange(len(documents))
        is_held_out = position >= len(documents) - max(1, round(share))
    return is_held_out


def _report(config: PretrainConfig, setup: PretrainingSetup, steps: int, quiet: bool) -> None:
    settings = []
    for name, value in choices(config.recipe).items():
        text = " ".join(map(str, value)) if isinstance(value, list) else value
        settings.append(f"{name} {text}")
    say(f"{config.method}, preset {config.preset}: {', '.join(settings)}", quiet)
    for corpus, rows in zip(setup.corpora, setup.rows, strict=True):
        say(f"{corpus.name}: {len(corpus):,} texts, {len(rows):,} to train on", quiet)
    tokens = sum(len(corpus.texts.ids) for corpus in setup.corpora)
    held_out = f"{len(setup.held_out):,} texts held out"
    say(f"{setup.texts:,} texts, {tokens:,} tokens, {held_out}, {steps:,} updates", quiet)
    recipe = config.recipe
    if config.method == "cot-mae" and recipe.context != "query":
        texts = int(recipe.batch_size or 1) * int(recipe.accumulate or 1)
        say(
            f"an update reads {texts:,} texts as {2 * texts:,} spans: each text and its context, decoded both ways",
            quiet,
        )


def _trainer(
    config: PretrainConfig, setup: PretrainingSetup, steps: int, work: Path, quiet: bool
) -> PretrainTrainer:
    recipe = config.recipe
    batch_size = int(recipe.batch_size or 1)
    accumulate = int(recipe.accumulate or 1)
    arguments = training_arguments(
        config,
        work,
        batch_size=config.share.batch_size,
        accumulate=config.share.accumulate,
        learning_rate=float(recipe.learning_rate or 0),
        steps=steps,
        evaluate=bool(setup.held_out),
        evaluate_first=bool(setup.held_out),
        find_unused_parameters=False,
    )
    set_seed(config.seed)
    lengths = []
    if config.length_pool > 1:
        lengths = [np.diff(corpus.texts.offsets) for corpus in setup.corpora]
    batches = MixedBatches(
        setup.rows,
        config.weights or [float(len(rows)) for rows in setup.rows],
        config.seed,
        batch_size,
        count=steps * accumulate,
        lengths=lengths,
        pool=config.length_pool,
        together=accumulate // config.share.accumulate,
    )
    collator = COLLATORS[config.method](
        setup.corpora,
        setup.vocabulary,
        recipe,
        config.seed,
        setup.counts,
        bits=training_device(config.device).type != "cpu",
    )
    return PretrainTrainer(
        setup.objective,
        collator,
        batches,
        arguments,
        held_out=setup.held_out,
        stop_when=config.stop_when,
        quiet=quiet,
    )


def _save(config: PretrainConfig, setup: PretrainingSetup, work: Path) -> Path:
    """Write the model folder, with decoders in ``pretraining/``, inside ``work`` and return it."""
    model_dir = work / "model"
    length = int(config.recipe.length or 0)
    stored = ModelConfig(
        method=config.method,
        document_length=length,
        query_length=min(64, length),
        title_separator=SEPARATORS[config.title_separator or "space"],
        ot_head=config.recipe.ot_head or config.recipe.sparse_head or "mlm",
        # Encoding pools the same tokens as training did.
        include_sep=config.recipe.ot_exclude_sep is False,
    )
    lexicon = None
    base = lexical_base(config)
    if base is not None:
        words, lexicon = base
        # Vectors keep their length, which is their weight in the sum.
        stored = dataclasses.replace(
            stored, ot="lexical", lexical=words.lexical, normalize=words.normalize
        )
    save_encoder(model_dir, setup.objective, setup.retriever, setup.tokenizer, stored, lexicon)
    (model_dir / KEPT).mkdir(parents=True, exist_ok=True)
    save_decoders(setup.objective, model_dir / KEPT / DECODERS)
    return model_dir


def _held_out_losses(log: Sequence[Mapping[str, float]], number: int) -> dict[str, float] | None:
    """Losses by task, and the gaps of the decoders, of evaluation ``number``; None if there was no evaluation."""
    evaluations = [row for row in log if "eval_loss" in row]
    if not evaluations:
        return None
    losses = {}
    for name, value in evaluations[number].items():
        if name.startswith(("eval_loss", "eval_gap")):
            losses[name.removeprefix("eval_")] = value
    return losses
