"""A teacher's scores for every passage of a file of mined negatives: a cross-encoder's, or those of fused lists.

Positives are scored as well: distillation compares the scores within a query (Eq. 15), and one missing score would
stop training half-way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from dupmae_ir.config import applies
from dupmae_ir.console import progress, say
from dupmae_ir.device import pick_device, pick_dtype, with_torch_threads
from dupmae_ir.errors import CheckpointError, DupmaeError, InputError, UsageError
from dupmae_ir.finetune.cross_encoder.model import check_length, load_reranker, score_pairs, separator
from dupmae_ir.finetune.data.mined import Mined, Passages, open_passages, read_mined
from dupmae_ir.finetune.mine.search import model_digest
from dupmae_ir.finetune.score.config import ScoreConfig
from dupmae_ir.finetune.score.fused import FusedTeacher
from dupmae_ir.io.jobs import Job
from dupmae_ir.io.publishing import sha256_file
from dupmae_ir.io.resumable_jsonl import ResumableJsonl
from dupmae_ir.models.checkpoints.layout import folder_digest

WINDOW = 64  #: queries scored between two saves, and sorted by length together


@with_torch_threads
def run(config: ScoreConfig) -> dict[str, Any]:
    """Score all pairs, write ``config.output`` and its record, and return the counts.

    Raises :class:`DupmaeError` subclasses; see :mod:`dupmae_ir.io.jobs` for what a second run answers.
    """
    _check_paths(config)
    # The collection is that of the mined file, whose record identifies it.
    digest = model_digest if config.teacher == "fused" else folder_digest
    inputs = {"mined": sha256_file(config.mined), "model": digest(config.model)}
    with Job(config.output, "finetune.score", _settings(config), inputs, quiet=config.quiet) as job:
        if result := job.finished():
            return result
        lines, counts, timing = _score(config, job.begin())
        return job.publish(lines.path, counts) | timing


def _settings(config: ScoreConfig) -> dict[str, Any]:
    """The settings that decide the scores; those without effect on this teacher's are left out."""
    dtype, _ = pick_dtype(config.dtype or "float32", pick_device(config.device)[0])
    operational = {
        "quiet",
        "json",
        "threads",
        "device",
        "dtype",
        "impact_search",
        "mined",
        "model",
        "collection",
        "output",
    }
    names = [f.name for f in fields(config) if f.name not in operational and applies(config, f.name)]
    return {**{name: getattr(config, name) for name in names}, "dtype": str(dtype).removeprefix("torch.")}


def _score(config: ScoreConfig, work: Path) -> tuple[ResumableJsonl, dict[str, Any], dict[str, float]]:
    mined = read_mined(config.mined)
    teacher = _teacher(config, mined, work)
    lines = ResumableJsonl(work / "lines.jsonl", len(mined), WINDOW)
    if lines.done:
        say(f"resuming after {lines.done:,} of {len(mined):,} queries", config.quiet)
    total, done = _pairs(mined), _pairs(mined[: lines.done])
    started = time.monotonic()
    with progress("score", "pairs", total, config.quiet, done) as bar:
        for start in range(lines.done, len(mined), WINDOW):
            window = mined[start : start + WINDOW]
            lines.append(teacher(window))
            bar.update(_pairs(window))
    seconds = time.monotonic() - started
    pace = (total - done) / max(seconds, 1e-9)
    timing = {"seconds": round(seconds, 1), "pairs_per_second": round(pace, 1)}
    return lines, {"queries": len(mined), "pairs": total}, timing


def _teacher(config: ScoreConfig, mined: list[Mined], work: Path) -> Callable[[Sequence[Mined]], list[dict[str, Any]]]:
    """What scores a window of queries."""
    passages = open_passages(config.mined, mined, config.collection)
    if config.teacher == "fused":
        return FusedTeacher(config, mined, passages.source, work)
    return _CrossEncoder(config, passages)


class _CrossEncoder:
    """The cross-encoder on its device."""

    def __init__(self, config: ScoreConfig, passages: Passages) -> None:
        self.config, self.passages = config, passages
        device, _ = pick_device(config.device)
        dtype, _ = pick_dtype(config.dtype or "float32", device)
        model, self.tokenizer = load_reranker(config.model)
        check_length(config.length, model, self.tokenizer)
        self.model = model.to(device=device, dtype=dtype)
        self.separator = separator(config.title_separator, self.tokenizer)

    def __call__(self, window: Sequence[Mined]) -> list[dict[str, Any]]:
        """One row per query, positives first."""
        documents = [[*m.positives, *(self.passages[d] for d in m.negatives)] for m in window]
        queries = [m.query for m, found in zip(window, documents, strict=True) for _ in found]
        texts = [d.joined(self.separator) for found in documents for d in found]
        scores = score_pairs(self.model, self.tokenizer, queries, texts, self.config.length, self.config.batch_tokens)
        if not scores.isfinite().all():
            raise DupmaeError(f"{self.config.model}: some scores are not finite; try --dtype float32")
        values = iter(scores.tolist())
        return [
            {"qid": m.qid, "scores": {d.docid: float(f"{next(values):.7g}") for d in found}}
            for m, found in zip(window, documents, strict=True)
        ]


def _pairs(mined: Sequence[Mined]) -> int:
    return sum(len(m.positives) + len(m.negatives) for m in mined)


def _check_paths(config: ScoreConfig) -> None:
    if not Path(config.mined).is_file():
        raise InputError(f"{config.mined}: no such file; create it with dupmae-ir finetune.mine")
    if config.teacher == "cross-encoder" and not Path(config.model).is_dir():
        raise CheckpointError(f"{config.model}: no such model folder; nothing is downloaded")
    if Path(config.output).is_dir():
        raise UsageError(f"{config.output} is a folder; name a file to write")
