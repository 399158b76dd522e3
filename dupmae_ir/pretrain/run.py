"""``dupmae-ir pretrain``: from text to an encoder that fine-tuning starts from."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
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
from dupmae_ir.pretrain.collate import COLLATORS, Draw, usable
from dupmae_ir.pretrain.config import PretrainConfig, PretrainResult
from dupmae_ir.pretrain.corpus import digest, read_texts
from dupmae_ir.pretrain.initial_embeddings import initialise_embeddings
from dupmae_ir.pretrain.model import (
    DECODERS,
    KEPT,
    build_objective,
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
    run_training,
    training_arguments,
    training_device,
)
from dupmae_ir.training.layers import recompute_activations, set_dropout
from dupmae_ir.training.report import write_report
from dupmae_ir.training.trained import LOG, read_log
from dupmae_ir.training.trainer import refuse_broken_weights
from dupmae_ir.types import SEPARATORS

PATHS = ("model", "init_from", "from_config", "tokenizer", "corpus", "anchor")

SourceDigest = Callable[[str], str]


@with_torch_threads
def run(config: PretrainConfig, callbacks: Sequence[TrainerCallback] = ()) -> PretrainResult | None:
    """Pre-train, and write the model folder with its record, ``training.json``.

    Returns the result: updates, parameters, first and last losses on held-out text, and seconds and tokens per second
    where the model was trained now; None in the worker processes of a distributed run. Interrupted, the same call
    continues from the last checkpoint to the same weights. See :mod:`dupmae_ir.io.jobs` for what a second run returns.

    ``callbacks`` are called by the trainer, after its own; they are not recorded.
    """
    source_digest = functools.cache(digest)
    result = run_training(
        config,
        "pretrain",
        lambda processes: _settings(config, processes),
        lambda: _inputs(config, source_digest),
        lambda job: _train(config, job, source_digest, callbacks),
    )
    return cast("PretrainResult | None", result)


def _settings(config: PretrainConfig, processes: int) -> dict[str, object]:
    """The settings that decide the weights; those of the anchor and of dropout only if they are given."""
    settings = deciding_settings(config, processes, PATHS) | choices(config.recipe)
    unused = [] if config.anchored else ["anchor", "anchor_weight"]
    unset = {"dropout": None, "length_pool": 1, "init_embeddings": None}
    unused += [name for name, value in unset.items() if getattr(config, name) == value]
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
    state, quiet = job.state, job.quiet
    work, recipe = job.begin(), config.recipe
    with state.main_process_first():
        prepared = _prepare(config, source_digest, quiet)
    per_update = int(recipe.batch_size or 1) * int(recipe.accumulate or 1)
    steps = config.steps or max(1, round(float(recipe.epochs or 0) * prepared.texts / per_update))
    _report(config, prepared, steps, quiet)
    trainer = _trainer(config, prepared, steps, work, quiet)
    trainer.train_or_resume(callbacks)
    if trainer.held_out:
        trainer.evaluate()
    state.wait_for_everyone()
    if not state.is_main_process:
        return None
    refuse_broken_weights(prepared.objective, trainer.state.global_step, work)
    made = _save(config, prepared, work)
    log = read_log(work / LOG)
    parameters = sum(p.numel() for p in prepared.objective.parameters())
    losses = {
        "texts": len(prepared.held_out),
        "first": _held_out_losses(log, 0),
        "last": _held_out_losses(log, -1),
    }
    rates = [row["tokens_per_second"] for row in log if "tokens_per_second" in row]
    rate = round(sum(rates) / len(rates), 1) if rates else None
    timing = {"seconds": round(time.monotonic() - started), "tokens_per_second": rate}
    result = {"updates": steps, "parameters": parameters, "held_out": losses}
    what = f"An encoder pre-trained with {config.method}, the starting point of fine-tuning."
    use = (
        "```sh\ndupmae-ir finetune --pairs train.jsonl.gz --model FOLDER --output models/mine\n```"
    )
    write_report(made, job.job, result, f"{config.method} pre-training", what, use, KEPT)
    versions = {name: version(name) for name in ("torch", "transformers", "accelerate", "numba")}
    published = job.publish(made, result, {"steps": steps, **timing, "versions": versions})
    return None if published is None else published | timing


def _prepare(config: PretrainConfig, source_digest: SourceDigest, quiet: bool) -> PretrainingSetup:
    """Load the base model and the corpora, and check that they fit each other."""
    # Decoders and added heads are initialised from the seed, independently of what ran before.
    set_seed(config.seed)
    join = SEPARATORS[config.title_separator or "space"]
    passages = (
        p
        for source in config.corpus
        for t in read_texts(source, config.documents, join)
        for p in t.passages
    )
    retriever, tokenizer = load_base(config, passages, quiet)
    name = str(config.model or config.init_from or config.tokenizer)
    vocabulary = Vocabulary.of(tokenizer, retriever.lm.config.vocab_size, name)
    recipe, most = config.recipe, max_input_length(retriever.lm)
    length = int(recipe.length or 0)
    if length > most:
        raise UsageError(
            f"`length` {length}: {name} has positions for {most} tokens; use `length` {most} or less"
        )
    objective = build_objective(
        config.method, load_continued_experts(config) or retriever.lm, recipe
    )
    if (
        isinstance(objective, DupMAE)
        and objective.ot_projection is not None
        and retriever.ot_projection is not None
    ):
        objective.ot_projection = retriever.ot_projection  # that of an earlier phase
    if config.dropout is not None:
        set_dropout(objective, config.dropout)
    if config.checkpointing:
        recompute_activations(retriever.lm)
    objective.anchor = load_anchor(config, retriever, tokenizer)
    if config.init_from:
        say(load_decoders(objective, Path(config.init_from) / KEPT / DECODERS), quiet)
    cutting = Cutting(
        config.unit, length - 2 if config.unit == "blocks" else most - 2, config.documents, join
    )
    corpora = [
        load_corpus(source, tokenizer, cutting, config.cache, quiet, source_digest(source))
        for source in config.corpus
    ]
    if config.init_embeddings:
        initialise_embeddings(retriever.lm, corpora, config.seed)
    rows = usable_rows(corpora, config.corpus, config.method, recipe)
    held_out, rows = hold_out(corpora, rows, config.held_out, config.seed)
    with_keywords = {"mkp", "npr"} & set(recipe.tasks or ())
    counts = [count_words(c, vocabulary.continues) for c in corpora] if with_keywords else []
    return PretrainingSetup(
        retriever, tokenizer, objective, vocabulary, corpora, rows, held_out, counts
    )


HELD_OUT_NUMBERS = 1 << 40
"""First draw number of held-out texts; training draws never reach it."""


def usable_rows(
    corpora: Sequence[Corpus], sources: Sequence[str], method: str, recipe: Recipe
) -> list[np.ndarray]:
    """Rows of each corpus that the method can train on; ``sources`` are the names for errors.

    Raises :class:`InputError` for a corpus without any, because it would be ignored silently.
    """
    rows = [usable(corpus, method, recipe) for corpus in corpora]
    for corpus, kept, source in zip(corpora, rows, sources, strict=True):
        if not len(kept):
            raise InputError(f"{source}: {_missing(recipe)}")
        if "gpt2" in (recipe.tasks or ()) and not len(corpus.following):
            raise InputError(
                f'{source}: none of its texts has a generated continuation ("next"); add them with dupmae-ir '
                "pretrain.augment (task continuation), or remove gpt2 from `tasks`"
            )
    return rows


def _missing(recipe: Recipe) -> str:
    if recipe.context in ("nearby", "random"):
        return (
            "no document of it has two texts; set `documents` to group lines into documents, split documents with "
            "`unit` blocks, or use `context` overlap"
        )
    advice = ", or remove doc2query from `tasks`" if recipe.tasks else ""
    return (
        f"none of its texts has generated queries; add them with dupmae-ir pretrain.augment{advice}"
    )


def hold_out(
    corpora: Sequence[Corpus], rows: Sequence[np.ndarray], count: int, seed: int
) -> tuple[list[Draw], list[np.ndarray]]:
    """(draws of about ``count`` held-out texts, rows left to train on).

    Whole documents are held out, from each corpus in proportion to its size. Raises :class:`UsageError` if that leaves
    nothing to train on.
    """
    total = sum(map(len, rows))
    if count >= total:
        raise UsageError(f"`held_out` {count}: there are only {total:,} texts; hold out fewer")
    held: list[Draw] = []
    left = []
    for number, (corpus, usable_here) in enumerate(zip(corpora, rows, strict=True)):
        out = _held_out_here(
            corpus.document[usable_here], count * len(usable_here) / total, [seed, 4711, number]
        )
        first = HELD_OUT_NUMBERS + len(held)
        held += [Draw(first + i, number, int(row)) for i, row in enumerate(usable_here[out])]
        left.append(usable_here[~out])
    if any(not len(r) for r in left):
        raise UsageError(
            f"`held_out` {count} leaves a corpus without texts to train on; hold out fewer"
        )
    return held[: 2 * count], left


def _held_out_here(documents: np.ndarray, share: float, seed: list[int]) -> np.ndarray:
    """(texts,) bool: those of random documents that have at least ``share`` texts together."""
    order = np.random.default_rng(seed).permutation(np.unique(documents))
    sizes = np.bincount(documents, minlength=int(documents.max()) + 1)[order]
    chosen = (
        order[: int(np.searchsorted(np.cumsum(sizes), share, "left")) + 1] if share else order[:0]
    )
    out = np.isin(documents, chosen)
    if out.all():
        # A single document (such as a file as a whole): hold out its last texts instead.
        out = np.arange(len(documents)) >= len(documents) - max(1, round(share))
    return out


def _report(config: PretrainConfig, prepared: PretrainingSetup, steps: int, quiet: bool) -> None:
    values = {
        k: " ".join(map(str, v)) if isinstance(v, list) else v
        for k, v in choices(config.recipe).items()
    }
    say(
        f"{config.method}, preset {config.preset}: {', '.join(f'{k} {v}' for k, v in values.items())}",
        quiet,
    )
    for corpus, rows in zip(prepared.corpora, prepared.rows, strict=True):
        say(f"{corpus.name}: {len(corpus):,} texts, {len(rows):,} to train on", quiet)
    tokens = sum(len(corpus.texts.ids) for corpus in prepared.corpora)
    held_out = f"{len(prepared.held_out):,} texts held out"
    say(f"{prepared.texts:,} texts, {tokens:,} tokens, {held_out}, {steps:,} updates", quiet)


def _trainer(
    config: PretrainConfig, prepared: PretrainingSetup, steps: int, work: Path, quiet: bool
) -> PretrainTrainer:
    recipe = config.recipe
    batch_size, accumulate = int(recipe.batch_size or 1), int(recipe.accumulate or 1)
    arguments = training_arguments(
        config,
        work,
        batch_size=config.share.batch_size,
        accumulate=config.share.accumulate,
        learning_rate=float(recipe.learning_rate or 0),
        steps=steps,
        evaluate=bool(prepared.held_out),
        evaluate_first=bool(prepared.held_out),
        find_unused_parameters=False,
    )
    set_seed(config.seed)
    weights = config.weights or [float(len(rows)) for rows in prepared.rows]
    lengths = (
        [np.diff(corpus.texts.offsets) for corpus in prepared.corpora]
        if config.length_pool > 1
        else []
    )
    together, count = accumulate // config.share.accumulate, steps * accumulate
    batches = MixedBatches(
        prepared.rows,
        weights,
        config.seed,
        batch_size,
        count,
        lengths,
        config.length_pool,
        together,
    )
    collator = COLLATORS[config.method](
        prepared.corpora,
        prepared.vocabulary,
        recipe,
        config.seed,
        prepared.counts,
        bits=training_device(config.device).type != "cpu",
    )
    return PretrainTrainer(
        prepared.objective, collator, batches, arguments, prepared.held_out, quiet
    )


def _save(config: PretrainConfig, prepared: PretrainingSetup, work: Path) -> Path:
    """Write the model folder inside ``work``, with decoders, log and plots in ``pretraining/``, and return it."""
    made, length = work / "model", int(config.recipe.length or 0)
    stored = ModelConfig(
        method=config.method,
        document_length=length,
        query_length=min(64, length),
        title_separator=SEPARATORS[config.title_separator or "space"],
        ot_head=config.recipe.ot_head or config.recipe.sparse_head or "mlm",
        include_sep=config.recipe.ot_exclude_sep is False,  # what the bag of words was pooled from
    )
    save_encoder(made, prepared.objective, prepared.retriever, prepared.tokenizer, stored)
    (made / KEPT).mkdir(parents=True, exist_ok=True)
    save_decoders(prepared.objective, made / KEPT / DECODERS)
    return made


def _held_out_losses(log: Sequence[Mapping[str, float]], which: int) -> dict[str, float] | None:
    """Losses by task, and the gaps of the decoders, of an evaluation."""
    rows = [row for row in log if "eval_loss" in row]
    if not rows:
        return None
    return {
        k.removeprefix("eval_"): v
        for k, v in rows[which].items()
        if k.startswith(("eval_loss", "eval_gap"))
    }
