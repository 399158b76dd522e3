"""Published training data as the files that fine-tuning reads."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dupmae_ir.config import to_dict
from dupmae_ir.console import progress
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.finetune.convert.config import ConvertConfig
from dupmae_ir.finetune.convert.conversions import CONVERSIONS
from dupmae_ir.finetune.convert.tally import Tally
from dupmae_ir.io.collections import file_digests
from dupmae_ir.io.jobs import Job
from dupmae_ir.io.lines import json_lines
from dupmae_ir.io.publishing import combined_digest, move_into_place, sha256_file

FILES = ("input", "queries", "collection", "titles", "scores")


def run(config: ConvertConfig) -> dict[str, Any]:
    """Convert, write ``config.output`` and its record, and return the counts.

    Raises :class:`InputError` naming file and line for what cannot be read, and in one line with counts for unknown
    ids; see :mod:`dupmae_ir.io.jobs` for what a second run returns.
    """
    _check_paths(config)
    decisive = to_dict(config)
    settings = {n: v for n, v in decisive.items() if n not in {*FILES, "output", "quiet", "json"}}
    with Job(config.output, "finetune.convert", settings, lambda: _inputs(config), quiet=config.quiet) as job:
        return job.finished() or _convert(config, job)


def scores_path(output: str | Path) -> Path:
    """Where the teacher's scores that belong to ``output`` are written."""
    return Path(f"{output}.scores.jsonl")


def _convert(config: ConvertConfig, job: Job) -> dict[str, Any]:
    work, tally, lines = job.begin(), Tally(), 0
    target = work / Path(config.output).name
    conversion = CONVERSIONS[config.result](config, tally)
    with ExitStack() as files, progress("convert", "lines", quiet=config.quiet) as bar:
        write = files.enter_context(json_lines(target))
        write_scores = files.enter_context(json_lines(scores_path(target))) if config.scores else None
        for line in conversion.lines():
            write(line)
            if write_scores:
                write_scores(conversion.teacher_line)
            lines += 1
            bar.update()
        if config.unknown == "refuse":
            tally.refuse_unknown(config.input)
        if not lines:
            raise InputError(f"{config.input}: nothing in it can be trained on ({tally or 'it is empty'})")
    if config.scores:
        move_into_place(scores_path(target), scores_path(config.output))
    return job.publish(target, {"lines": lines, **tally.counts}, conversion.record())


def _inputs(config: ConvertConfig) -> dict[str, str]:
    """Digests of what is read, by field."""
    digests = {n: sha256_file(path) for n in ("queries", "titles", "scores") if (path := getattr(config, n))}
    digests["input"] = _folder_digest(config.input) if Path(config.input).is_dir() else sha256_file(config.input)
    if config.collection:
        digests["collection"] = combined_digest(file_digests(config.collection))
    return digests


def _folder_digest(folder: str) -> str:
    """A digest of a BEIR folder: documents, queries and judgements."""
    whole = hashlib.sha256()
    for path in sorted([*Path(folder).glob("*.jsonl*"), *Path(folder).glob("qrels/*.tsv")]):
        whole.update(f"{path.name} {sha256_file(path)}\n".encode())
    return whole.hexdigest()


def _check_paths(config: ConvertConfig) -> None:
    if Path(config.output).is_dir():
        raise UsageError(f"--output {config.output} is a folder; name a file to write")
    for path in (config.input, config.scores):
        _check_readable(path, folder=config.format == "beir")


def _check_readable(path: str | None, folder: bool) -> None:
    if path is None:
        return
    if path.removesuffix(".gz").endswith((".pkl", ".pickle")):
        raise UsageError(f"{path}: a pickle may run any code; convert it to lines of qid, pid and score first")
    if not Path(path).exists():
        raise InputError(f"{path}: no such file or folder")
    if Path(path).is_dir() != folder:
        raise InputError(f"{path}: expected a {'BEIR folder' if folder else 'file, not a folder'}")
