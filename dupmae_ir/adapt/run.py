"""``dupmae-ir adapt``: a model for a collection, from its text alone.

Masked auto-encoding on the text (DupMAE, section 4: DupMAE-dagger) and contrastive training on pseudo-queries, both
parts held to those of the start. Held-out pseudo-queries decide between the result and the start.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import scipy.sparse as sp
from transformers import TrainerCallback, set_seed

from dupmae_ir.adapt.config import AdaptConfig, AdaptResult
from dupmae_ir.adapt.model import Start
from dupmae_ir.adapt.queries import PseudoQuery, pseudo_queries
from dupmae_ir.adapt.training import AdaptCollator, AdaptTrainer, NumberedBatches
from dupmae_ir.console import progress, say, waiting
from dupmae_ir.device import with_torch_threads
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.eval.significance import t_test
from dupmae_ir.finetune.examples import ExampleCollator
from dupmae_ir.io.jobs import Job
from dupmae_ir.io.publishing import read_json, write_json
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.models.names import model_folder
from dupmae_ir.pretrain.collate import COLLATORS, Collator
from dupmae_ir.pretrain.recipes import Recipe, resolve
from dupmae_ir.pretrain.tokens import Corpus, Ragged, Vocabulary
from dupmae_ir.training.job import deciding_settings, process_state, training_arguments, training_device
from dupmae_ir.training.report import push, write_report
from dupmae_ir.training.trained import LOG, read_log
from dupmae_ir.types import CollectionStatistics, Document

PARTS = ("dense", "impact", "hybrid")
CUTOFF = 10

Scores = dict[str, list[float]]
"""Part -> nDCG@10 of each held-out pseudo-query."""
FEWEST = 10
"""Held-out pseudo-queries below which nothing can be decided."""


@with_torch_threads
def run(config: AdaptConfig, callbacks: Sequence[TrainerCallback] = ()) -> AdaptResult:
    """Adapt, and write the model folder with its record.

    Returns the result: ``kept`` (``adapted`` or ``start``), nDCG@10 of both on the held-out pseudo-queries by part, the
    p value, and counts. Interrupted, the same call continues from the last checkpoint to the same weights. See
    :mod:`dupmae_ir.io.jobs` for what a second run returns.

    ``callbacks`` are called by the trainer, after its own; they are not recorded.
    """
    process_state(config)
    if "-" in config.sources():
        raise UsageError("`corpus` - (standard input) can be read only once; give a file")
    if not config.query_weight and not config.masked_weight:
        raise UsageError("`query_weight` 0 `masked_weight` 0 leaves nothing to train")
    base = model_folder(config.model)
    start = Start.load(base)
    most = int(start.model.lm.config.max_position_embeddings)
    for name, value in (("length", config.length), ("query_length", config.query_length)):
        if value > most:
            raise UsageError(f"`{name}` {value}: {start.folder} reads at most {most} word pieces")

    settings = deciding_settings(config, 1, ("model", "corpus"))

    def inputs() -> dict[str, str]:
        return {"model": folder_digest(base), **config.digests()}

    with Job(config.output, "adapt", settings, inputs, quiet=config.quiet) as job:
        result = job.finished() or _Adaptation(config, job, start, callbacks).run()
        push(job.target, config.push_to_hub, config.quiet)
        return cast("AdaptResult", result)


class _Adaptation:
    """One run, from the documents to the published folder."""

    def __init__(self, config: AdaptConfig, job: Job, start: Start, callbacks: Sequence[TrainerCallback] = ()) -> None:
        self.config, self.job, self.start, self.callbacks = config, job, start, callbacks
        self.device = str(training_device(config.device))
        self.started = time.monotonic()

    def run(self) -> dict[str, object]:
        """Do what an interrupted run has left, and publish the better model."""
        config, work = self.config, self.job.begin()
        held = self._split()
        before = self._measure(work, "start", self.start.folder, held)
        if not (work / "model" / "dupmae_config.json").is_file():
            trainer = self._trainer(held.training, work)
            trainer.train_or_resume(self.callbacks)
            self.start.save(self.job.fresh("model.new")).rename(work / "model")
        after = self._measure(work, "adapted", work / "model", held)
        decided = decide(before, after, config.level)
        made = work / "model" if decided.better else self.start.copied(self.job.fresh("start"))
        result = {
            "kept": "adapted" if decided.better else "start",
            "start": {part: round(float(np.mean(before[part])), 4) for part in PARTS},
            "adapted": {part: round(float(np.mean(after[part])), 4) for part in PARTS},
            "p": decided.p,
            "documents": len(held.training),
            "held_out": len(held.held_out),
            "pool": len(held.held_out) + len(held.others),
            "kinds": dict(sorted(Counter(q.kind for q in held.held_out).items())),
            "steps": config.steps,
        }
        if decided.better:
            what = "A retriever adapted to a collection from its text alone, without queries or judgements."
            write_report(made, self.job, result, f"{Path(config.model).name}, adapted", what)
        published = self.job.publish(made, result, {"log": read_log(work / LOG)})
        return published | {"seconds": round(time.monotonic() - self.started)}

    def _split(self) -> Split:
        config = self.config
        documents = []
        with progress("read", "documents", quiet=config.quiet) as bar:
            for document in config.collection():
                documents.append(document)
                bar.update()
        if config.limit:
            documents = random.Random(config.seed).sample(documents, min(config.limit, len(documents)))
        held = split(documents, config.held_out, config.pool, config.kinds, config.seed)
        if len(held.held_out) < FEWEST:
            raise InputError(
                f"{', '.join(config.sources())}: {len(documents):,} documents give {len(held.held_out)} held-out "
                f"pseudo-queries, {FEWEST} are needed; give more text, or other `kinds`"
            )
        say(f"{len(held.training):,} documents to train on, {len(held.held_out):,} held out", config.quiet)
        return held

    def _measure(self, work: Path, name: str, folder: Path, held: Split) -> Scores:
        """Scores of a model on the held-out pseudo-queries; an earlier run's are read."""
        path = work / f"{name}.measured.json"
        if path.is_file():
            return cast("Scores", read_json(path))
        with waiting(f"measuring the {name} model on {len(held.held_out):,} pseudo-queries", self.config.quiet):
            measured = scores(folder, held, "float32", self.device)
        write_json(path, measured)
        return measured

    def _trainer(self, documents: Sequence[Document], work: Path) -> AdaptTrainer:
        config, start = self.config, self.start
        set_seed(config.seed)
        recipe = resolve("dupmae", "release", Recipe(length=config.length))
        texts = [document.joined(start.config.title_separator) for document in documents]
        lexical = start.lexical(documents)
        pairs = ExampleCollator(
            start.tokenizer, config.query_length, config.length, start.config.title_separator, lexical
        )
        masked = self._masked(texts, recipe) if config.masked_weight else None
        collator = AdaptCollator(documents, config.kinds, pairs, masked, config.seed)
        model = start.adapting(config, recipe, texts)
        batches = NumberedBatches(min(config.batch_size, len(collator.rows)), config.steps)
        arguments = training_arguments(
            config,
            work,
            batch_size=batches.batch_size,
            accumulate=1,
            learning_rate=config.learning_rate,
            steps=config.steps,
        )
        return AdaptTrainer(model, collator, batches, arguments, config.quiet)

    def _masked(self, texts: list[str], recipe: Recipe) -> Collator:
        """DupMAE's collator over the texts, row by row."""
        tokenizer, most = self.start.tokenizer, self.config.length - 2
        out = tokenizer(texts, add_special_tokens=False, truncation=True, max_length=most, return_attention_mask=False)
        rows = [np.array(ids, np.int64) for ids in out["input_ids"]]
        own = Ragged(np.concatenate(rows), np.cumsum([0, *map(len, rows)], dtype=np.int64))
        nothing, ends = Ragged(np.zeros(0, np.int64), np.zeros(1, np.int64)), np.zeros(len(rows) + 1, np.int64)
        corpus = Corpus("corpus", own, np.arange(len(rows)), nothing, ends, nothing, ends, Path())
        vocabulary = Vocabulary.of(tokenizer, int(self.start.model.lm.config.vocab_size), str(self.start.folder))
        return COLLATORS["dupmae"]([corpus], vocabulary, recipe, self.config.seed)


class Split(NamedTuple):
    """Documents to train on, held-out pseudo-queries, and the other documents of the pool they are searched in."""

    training: list[Document]
    held_out: list[PseudoQuery]
    others: list[Document]


def split(documents: Sequence[Document], held_out: int, pool: int, kinds: Sequence[str], seed: int) -> Split:
    """A random split. At most a fifth of the documents that have a pseudo-query is held out, one query of each.

    The other documents of the pool are also trained on.
    """
    order = list(range(len(documents)))
    random.Random(f"{seed} held out").shuffle(order)
    chosen: dict[int, PseudoQuery] = {}
    most = min(held_out, len(documents) // 5)
    for row in order:
        if len(chosen) == most:
            break
        if found := pseudo_queries(documents[row], kinds):
            first = [q for q in found if q.kind == found[0].kind]
            chosen[row] = random.Random(f"{seed} {row}").choice(first)
    rest = [documents[row] for row in order if row not in chosen]
    return Split(rest, list(chosen.values()), rest[:pool])


def scores(folder: Path, held: Split, dtype: str, device: str) -> Scores:
    """nDCG@10 of a model on the held-out pseudo-queries; the pool has each one's passage without it."""
    encoder = TextEncoder.load(folder, dtype=dtype, device=device)
    pool = [q.passage for q in held.held_out] + held.others
    documents = encoder.encode_collection(pool)
    assert documents.cls is not None
    assert documents.ot is not None
    frequencies = np.bincount(documents.ot.indices, minlength=documents.ot.shape[1])
    encoder = encoder.for_collection(CollectionStatistics(len(pool), frequencies))
    queries = encoder.encode_queries([q.query for q in held.held_out])
    assert queries.cls is not None
    assert queries.ot is not None
    dense = queries.cls.astype(np.float64) @ documents.cls.T.astype(np.float64)
    impact = np.asarray(sp.csr_matrix(queries.ot @ documents.ot.T).todense(), np.float64)
    return {p: gains(s).tolist() for p, s in zip(PARTS, (dense, impact, dense + impact), strict=True)}


def gains(similarities: np.ndarray) -> np.ndarray:
    """(Q, D) similarities -> (Q,) nDCG@10, where query i has one relevant document, i; equal scores in order."""
    own = similarities.diagonal()[: len(similarities), None]
    ahead = np.arange(similarities.shape[1]) < np.arange(len(similarities))[:, None]
    rank = 1 + ((similarities > own) | ((similarities == own) & ahead)).sum(1)
    return np.where(rank <= CUTOFF, 1 / np.log2(1 + rank), 0.0)


class Decision(NamedTuple):
    """Whether the adapted model is better, and the p value of the difference; None where it is undefined."""

    better: bool
    p: float | None


def decide(before: Scores, after: Scores, level: float) -> Decision:
    """The adapted model is better if the sum gains on average, and beyond chance at ``level`` (paired t-test)."""
    differences = np.array(after["hybrid"]) - np.array(before["hybrid"])
    p = t_test(differences)
    return Decision(bool(differences.mean() > 0 and p is not None and p < level), p)
