"""``python -m dupmae_ir.finetune.score``: a teacher's scores for every passage of a mined file, once and for all.

Positives are scored as negatives are: distillation compares them (Eq. 15), and a passage without a score would stop
it in the middle.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dupmae_ir.config import option, parse
from dupmae_ir.console import Parser, guarded, progress, say
from dupmae_ir.device import DTYPES, on_its_threads
from dupmae_ir.errors import CheckpointError, DupmaeError, InputError, UsageError

PURPOSE = """
Score every query of a mined file with each of its positives and negatives by a cross-encoder: one that
finetune.cross_encoder trained, or any sequence classifier of one label or two. Writes a line per query,
{"qid": ..., "scores": {docid: score}}. Interrupted, the same command resumes.
"""
EXAMPLE = """
python -m dupmae_ir.finetune.score --mined mined/stage1.jsonl --model models/teacher --output mined/teacher.jsonl
"""
WINDOW = 64  #: queries scored between two saves, and sorted by length together


@dataclass(frozen=True)
class ScoreConfig:
    """Everything that ``python -m dupmae_ir.finetune.score`` can be told."""

    mined: str = option(help="file of dupmae-ir finetune.mine", group="what", metavar="FILE")
    model: str = option(help="folder of the cross-encoder", group="what", metavar="FOLDER")
    output: str = option(help="JSON lines to write; OUTPUT.meta.json says how", group="what", metavar="FILE")
    collection: str | None = option(
        None, "where the mined collection lies now, if it was moved", group="what", metavar="PATH"
    )
    length: int = option(192, "word pieces kept of query and passage together", group="model")
    title_separator: str = option(
        "space",
        "between title and text: a blank, the model's separator, or a colon",
        group="model",
        choices=("space", "sep", "colon"),
    )
    dtype: str = option("float32", "arithmetic", group="model", choices=DTYPES)
    batch_tokens: int = option(8192, "word pieces per forward pass, padding included", group="running")
    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps", group="running", metavar="NAME")
    threads: int = option(0, "CPU threads; 0 = all", group="running")
    quiet: bool = option(False, "no progress, only errors", group="output")
    json: bool = option(False, "print the summary as JSON on standard output", group="output")


@on_its_threads
def run(config: ScoreConfig) -> dict[str, Any]:
    """Score, write ``config.output`` and its record, and return a summary.

    A finished output with the same settings is left as it is; other settings are refused.
    """
    from dupmae_ir.io.locks import exclusive
    from dupmae_ir.io.resumable_jsonl import finished

    _check(config)
    target = Path(config.output).absolute()
    with exclusive(target.with_name(f".{target.name}.lock"), f"scoring to {target}"):
        settings = _settings(config)
        if meta := finished(target, settings):
            return {"output": config.output, "status": "already complete", **meta["counts"]}
        return _score(config, settings, target)


def _score(config: ScoreConfig, settings: dict[str, Any], target: Path) -> dict[str, Any]:
    from dupmae_ir.finetune.data.mined import open_passages, read_mined
    from dupmae_ir.io.resumable_jsonl import Growing

    mined = read_mined(config.mined)
    teacher = _Teacher(config)
    passages = open_passages(config.mined, mined, config.collection)
    growing = Growing(target, settings, len(mined), WINDOW)
    if growing.done:
        say(f"continuing after {growing.done:,} of {len(mined):,} queries", config.quiet)
    total, done = _pairs(mined), _pairs(mined[: growing.done])
    started = time.monotonic()
    with progress("score", "pairs", total, config.quiet, done) as bar:
        for start in range(growing.done, len(mined), WINDOW):
            window = mined[start : start + WINDOW]
            growing.append(teacher(window, passages))
            bar.update(_pairs(window))
    seconds = time.monotonic() - started
    counts = {"queries": len(mined), "pairs": total}
    growing.finish({"settings": settings, "counts": counts})
    say(f"{config.output}: {total:,} pairs of {len(mined):,} queries in {seconds:,.0f} s", config.quiet)
    return {
        "output": config.output,
        "status": "scored",
        "seconds": round(seconds, 1),
        "pairs_per_second": round((total - done) / max(seconds, 1e-9), 1),
        **counts,
    }


class _Teacher:
    """The cross-encoder on its device."""

    def __init__(self, config: ScoreConfig) -> None:
        from dupmae_ir.device import pick_device, pick_dtype
        from dupmae_ir.finetune.cross_encoder.model import check_length, load_reranker, separator

        self.config = config
        device, _ = pick_device(config.device)
        dtype, _ = pick_dtype(config.dtype, device)
        model, self.tokenizer = load_reranker(config.model)
        check_length(config.length, model, self.tokenizer)
        self.model = model.to(device=device, dtype=dtype)
        self.separator = separator(config.title_separator, self.tokenizer)

    def __call__(self, window: Sequence[Any], passages: Any) -> list[dict[str, Any]]:
        """The lines of some queries, positives first."""
        from dupmae_ir.finetune.cross_encoder.model import score_pairs

        documents = [[*m.positives, *(passages[d] for d in m.negatives)] for m in window]
        queries = [m.query for m, found in zip(window, documents, strict=True) for _ in found]
        texts = [d.joined(self.separator) for found in documents for d in found]
        scores = score_pairs(self.model, self.tokenizer, queries, texts, self.config.length, self.config.batch_tokens)
        if not scores.isfinite().all():
            raise DupmaeError(f"{self.config.model} gives scores that are not finite; try --dtype float32")
        values = iter(scores.tolist())
        return [
            {"qid": m.qid, "scores": {d.docid: float(f"{next(values):.7g}") for d in found}}
            for m, found in zip(window, documents, strict=True)
        ]


def _pairs(mined: Sequence[Any]) -> int:
    return sum(len(m.positives) + len(m.negatives) for m in mined)


def _settings(config: ScoreConfig) -> dict[str, Any]:
    """What decides the scores, files by their content. The collection is the mined file's, whose record names it."""
    from dupmae_ir.device import pick_device, pick_dtype
    from dupmae_ir.io.publishing import sha256_file
    from dupmae_ir.models.checkpoints.folder import folder_digest

    if not Path(config.mined).is_file():
        raise InputError(f"{config.mined}: no such file; make it with dupmae-ir finetune.mine")
    if not Path(config.model).is_dir():
        raise CheckpointError(f"{config.model}: no such model folder; nothing is downloaded")
    dtype, _ = pick_dtype(config.dtype, pick_device(config.device)[0])
    return {
        "mined": sha256_file(config.mined),
        "model": folder_digest(config.model),
        "length": config.length,
        "title_separator": config.title_separator,
        "dtype": str(dtype).removeprefix("torch."),
        "batch_tokens": config.batch_tokens,
    }


def _check(config: ScoreConfig) -> None:
    if config.batch_tokens < 1 or config.threads < 0:
        raise UsageError("--batch-tokens must be at least 1 and --threads 0 or more")
    if Path(config.output).is_dir():
        raise UsageError(f"{config.output} is a folder; name a file to write")


def main(argv: list[str] | None = None) -> int:
    return guarded(lambda: _main(argv), "dupmae-ir finetune.score")


def _main(argv: list[str] | None) -> int:
    config = parse(Parser("finetune.score", PURPOSE, EXAMPLE), ScoreConfig, argv)
    summary = run(config)
    if config.json:
        sys.stdout.write(json.dumps(summary) + "\n")
    return 0
