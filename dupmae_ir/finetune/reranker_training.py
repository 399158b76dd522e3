"""The work of ``finetune.cross_encoder``: listwise training of the cross-encoder that stage 3 distils."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from dupmae_ir.console import say
from dupmae_ir.device import with_torch_threads
from dupmae_ir.errors import InputError
from dupmae_ir.finetune.cross_encoder import CrossEncoderConfig
from dupmae_ir.finetune.data import MinedQuery, Passages, counted, open_passages, read_mined
from dupmae_ir.finetune.examples import ExampleKey, example_rows
from dupmae_ir.models.checkpoints.loading import quiet_transformers
from dupmae_ir.models.checkpoints.saving import save_tokenizer
from dupmae_ir.models.names import model_folder
from dupmae_ir.models.reranker import (
    check_length,
    load_reranker,
    pad,
    relevance,
    separator,
    tokenise,
)
from dupmae_ir.training.job import (
    DistributedJob,
    deciding_settings,
    input_digests,
    process_state,
    training_arguments,
    training_job,
)
from dupmae_ir.training.layers import recompute_activations, set_dropout
from dupmae_ir.training.report import write_report
from dupmae_ir.training.trained import LOG, read_log
from dupmae_ir.training.trainer import CheckedTrainer, refuse_broken_weights


@with_torch_threads
def run(
    config: CrossEncoderConfig, callbacks: Sequence[TrainerCallback] = ()
) -> dict[str, object] | None:
    """Train, and write the model folder with its record, ``training.json``.

    Returns the result: queries, updates, last loss and the held-out queries' loss before and after, and seconds if the
    model was trained now; None in the worker processes of a distributed job. See :mod:`dupmae_ir.io.jobs` for what a
    second run returns.

    The trainer calls ``callbacks`` after its standard ones; they are not recorded.
    """
    state = process_state(config)
    settings = deciding_settings(config, state.num_processes, ("mined", "model", "collection"))
    inputs = partial(_input_digests, config)
    with training_job(config, "finetune.cross_encoder", settings, inputs, state) as job:
        result = job.finished() or _train(config, job, callbacks)
        return job.deliver(result, config.push_to_hub)


def _input_digests(config: CrossEncoderConfig) -> dict[str, str]:
    return input_digests({"mined": config.mined}, {"model": model_folder(config.model)})


def _train(
    config: CrossEncoderConfig, job: DistributedJob, callbacks: Sequence[TrainerCallback]
) -> dict[str, object] | None:
    started = time.monotonic()
    work = job.begin()
    queries = _usable_queries(config, job.quiet)
    set_seed(config.seed)
    model, tokenizer = load_reranker(model_folder(config.model), new_head=True)
    check_length(config.length, model, tokenizer)
    passages = open_passages(config.mined, queries, config.collection)
    join = separator(config.title_separator, tokenizer)
    # The order is random, so the last queries are as good a sample as any.
    training_count = len(queries) - config.held_out
    per_judgement = config.examples == "judgement"
    training, held_out = (
        Groups(part, passages, config.group_size, join, config.seed, per_judgement)
        for part in (queries[:training_count], queries[training_count:])
    )
    collator = GroupCollator(tokenizer, config.length)
    trainer = _build_trainer(config, model, collator, training, held_out, job)
    before = None
    if len(held_out):
        before = evaluate(model, held_out, collator)
    # Evaluation draws no random numbers, but loading may have.
    set_seed(config.seed)
    trainer.train_or_resume(callbacks)
    model = cast(PreTrainedModel, trainer.bare)
    after = None
    if len(held_out):
        after = evaluate(model, held_out, collator)
    if not job.state.is_main_process:
        return None
    steps = trainer.state.max_steps
    refuse_broken_weights(model, steps, work)
    log = [row for row in read_log(work / LOG) if "loss" in row]
    held_out_scores = None
    if len(held_out):
        held_out_scores = {"queries": config.held_out, "before": before, "after": after}
    result = {
        "queries": training_count,
        "updates": steps,
        "held_out": held_out_scores,
        "last": log[-1]["loss"] if log else None,
    }
    single_job = job.job
    output_dir = single_job.fresh("model")
    with quiet_transformers():
        model.float().save_pretrained(output_dir, safe_serialization=True)
        save_tokenizer(tokenizer, output_dir)
    # safetensors creates files that only the owner can read.
    for path in output_dir.iterdir():
        path.chmod(0o644)
    title = f"Cross-encoder trained from {Path(config.model).name}"
    what = "A cross-encoder: it reads a query and a passage together and gives one score."
    use = "```sh\ndupmae-ir finetune.score --mined mined.jsonl --model FOLDER --output scores.jsonl\n```"
    write_report(output_dir, single_job, result, title, what, use)
    seconds = round(time.monotonic() - started)
    extra = {"steps": steps, "seconds": seconds, "log": log}
    return single_job.publish(output_dir, result, extra) | {"seconds": seconds}


def _usable_queries(config: CrossEncoderConfig, quiet: bool) -> list[MinedQuery]:
    """The queries with a negative, for training and holding out, in random order."""
    mined = read_mined(config.mined)
    usable = []
    without_negative = []
    for query in mined:
        if query.negatives:
            usable.append(query)
        else:
            without_negative.append(query.qid)
    if without_negative:
        what = counted(
            without_negative,
            "query has no negative and is left out",
            "queries have no negative and are left out",
        )
        say(f"note: {what}", quiet)
    random.Random(config.seed).shuffle(usable)
    if config.limit:
        usable = usable[: config.limit]
    if len(usable) <= config.held_out:
        raise InputError(
            f"{config.mined}: {len(usable)} usable queries, of which `held_out` takes {config.held_out}"
        )
    return usable


def _build_trainer(
    config: CrossEncoderConfig,
    model: PreTrainedModel,
    collator: GroupCollator,
    training: Groups,
    held_out: Groups,
    job: DistributedJob,
) -> RerankerTrainer:
    queries_per_update = config.batch_size * config.accumulate
    updates = round(config.epochs * len(training) / queries_per_update)
    steps = config.steps or max(1, updates)
    share = config.share
    arguments = training_arguments(
        config,
        job.job.work,
        batch_size=share.batch_size,
        accumulate=share.accumulate,
        learning_rate=config.learning_rate,
        steps=steps,
        evaluate=len(held_out) > 0,
    )
    if config.dropout is not None:
        set_dropout(model, config.dropout)
    if config.checkpointing:
        recompute_activations(model)
    batches = ShuffledBatches(
        len(training), config.batch_size, steps * config.accumulate, config.seed
    )
    return RerankerTrainer(model, collator, training, batches, arguments, held_out, job.quiet)


class ShuffledBatches:
    """The ``count`` batches of a training, ``batch_size`` keys each; queries are in a new random order every epoch."""

    def __init__(self, queries: int, batch_size: int, count: int, seed: int) -> None:
        self.queries = queries
        self.batch_size = batch_size
        self.count = count
        self.seed = seed
        # accelerate reads it: a sampler without it has its first batches repeated until all processes have as many.
        self.drop_last = True

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[list[ExampleKey]]:
        keys = self._keys()
        for _ in range(self.count):
            yield [next(keys) for _ in range(self.batch_size)]

    def _keys(self) -> Iterator[ExampleKey]:
        for epoch in itertools.count():
            order = list(range(self.queries))
            random.Random(f"{self.seed} {epoch}").shuffle(order)
            for row in order:
                yield ExampleKey(row, epoch)


def listwise(scores: Tensor, mask: Tensor) -> Tensor:
    """Mean over the queries of -log softmax at column 0, the positive, of (B, n) ``scores`` where ``mask`` is True.

    The localized contrastive estimation loss, with which the papers' teachers are trained.
    """
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    positives = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
    return F.cross_entropy(scores, positives)


class Groups(Dataset):
    """Dataset: an :class:`ExampleKey` -> (query, texts), one positive, then up to ``size`` - 1 distinct negatives."""

    def __init__(
        self,
        mined: Sequence[MinedQuery],
        passages: Passages,
        size: int,
        separator: str,
        seed: int,
        per_judgement: bool = False,
    ) -> None:
        self.rows = example_rows(mined, per_judgement)
        self.passages = passages
        self.size = size
        self.separator = separator
        self.seed = seed

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: ExampleKey) -> tuple[str, list[str]]:
        query, positive = self.rows[key.row]
        stream = query.qid if positive is None else f"{query.qid} {positive.docid}"
        rng = random.Random(f"{self.seed} {key.epoch} {stream}")
        if positive is None:
            positive = query.positives[rng.randrange(len(query.positives))]
        negatives = rng.sample(query.negatives, min(self.size - 1, len(query.negatives)))
        documents = [positive, *(self.passages[docid] for docid in negatives)]
        return query.query, [document.joined(self.separator) for document in documents]


class GroupCollator:
    """Collates groups: padded pairs (sum of the group sizes, L), and ``mask`` (B, largest group size)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, length: int) -> None:
        self.tokenizer = tokenizer
        self.length = length

    def __call__(self, groups: Sequence[tuple[str, list[str]]]) -> dict[str, Tensor]:
        queries: list[str] = []
        texts: list[str] = []
        for query, group in groups:
            queries += [query] * len(group)
            texts += group
        rows = tokenise(self.tokenizer, queries, texts, self.length)
        sizes = torch.tensor([len(group) for _, group in groups])
        mask = torch.arange(int(sizes.max())) < sizes.unsqueeze(1)
        return {**pad(rows, self.tokenizer), "mask": mask}


def group_scores(model: torch.nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(scores, mask) of a collated batch, both (B, n); scores are 0 where the mask is False."""
    mask = batch["mask"]
    inputs = {name: value for name, value in batch.items() if name != "mask"}
    pair_scores = relevance(model(**inputs).logits)
    empty = torch.zeros(mask.shape, dtype=pair_scores.dtype, device=pair_scores.device)
    return empty.masked_scatter(mask, pair_scores), mask


@torch.inference_mode()
def evaluate(model: PreTrainedModel, groups: Groups, collator: GroupCollator) -> dict[str, float]:
    """``loss``: mean listwise loss of the queries; ``positive_first``: fraction whose positive has the best score.

    Every call uses the same negatives.
    """
    was_training = model.training
    model.eval()
    total_loss = 0.0
    positives_first = 0
    for row in range(len(groups)):
        # Training has no epoch -1, so these negatives are not drawn with its random numbers.
        group = groups[ExampleKey(row, -1)]
        batch = {name: value.to(model.device) for name, value in collator([group]).items()}
        scores, mask = group_scores(model, batch)
        total_loss += float(listwise(scores, mask))
        if int(scores[0].argmax()) == 0:
            positives_first += 1
    model.train(was_training)
    count = max(1, len(groups))
    return {
        "loss": round(total_loss / count, 6),
        "positive_first": round(positives_first / count, 4),
    }


class RerankerTrainer(CheckedTrainer):
    """Trainer with the loss :func:`listwise`, evaluated on ``held_out``."""

    def __init__(
        self,
        model: PreTrainedModel,
        collator: GroupCollator,
        groups: Groups,
        batches: ShuffledBatches,
        arguments: TrainingArguments,
        held_out: Groups,
        quiet: bool = False,
    ) -> None:
        self.held_out = held_out
        super().__init__(
            quiet,
            batches,
            model=model,
            args=arguments,
            train_dataset=groups,
            eval_dataset=held_out,
            data_collator=collator,
        )
        # The loss is a mean over the queries of a batch, so the Trainer must divide it by the accumulated batches.
        self.model_accepts_loss_kwargs = False

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Log :func:`evaluate` of the held-out queries with the prefix ``eval_``, once per step."""
        if self.evaluated():
            return {}
        values = evaluate(cast(PreTrainedModel, self.bare), self.held_out, self.data_collator)
        scores = {f"eval_{name}": value for name, value in values.items()}
        self.log(scores)
        return scores

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict[str, Tensor], *_: Any, **__: Any
    ) -> Tensor:
        """The loss of a batch."""
        loss = listwise(*group_scores(model, inputs))
        self.sums.add({"loss": loss})
        return loss
