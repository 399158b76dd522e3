"""Rehearse the recipes: less data, fewer updates and a smaller model, and every other setting as it is.

    python tools/rehearse.py dupmae.msmarco-passage/stage3-dev --scale tiny

A rehearsal shows that a recipe runs from download to evaluation before weeks are spent on it. Its values mean nothing;
they are compared with nothing. Options are those of ``dupmae-ir eval.regressions run``; everything is written into
``OUTPUT/scale-SCALE``.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dupmae_ir import collections
from dupmae_ir.command import help_text
from dupmae_ir.config import option, parse, with_flags
from dupmae_ir.console import Parser, guarded
from dupmae_ir.eval.regressions.cases import DOWNLOADS, Model
from dupmae_ir.eval.regressions.config import RunCasesOptions
from dupmae_ir.eval.regressions.run import run
from dupmae_ir.eval.regressions.workspace import LOCAL, TINY, CollectionFiles, Workspace
from dupmae_ir.finetune.config import FinetuneConfig
from dupmae_ir.finetune.cross_encoder import CrossEncoderConfig
from dupmae_ir.finetune.stages import Step
from dupmae_ir.io.lines import numbered_lines
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.pretrain.augment import AugmentConfig
from dupmae_ir.pretrain.config import PretrainConfig

TRAINING = {
    "msmarco-train-judgements": "msmarco-passage",
    "msmarco-hard-negatives": "msmarco-passage",
    "msmarco-doc-train-judgements": "msmarco-doc",
}
"""Files of training judgements or mined negatives -> the collections they refer to, by the beginning of their names."""


@dataclass(frozen=True)
class Rehearsal:
    """The sizes of a rehearsal."""

    updates: int  #: updates of every training
    batch: int  #: effective batches are divided by this, accumulation first
    layers: int  #: layers kept of every downloaded model, from the input
    documents: int  #: documents kept of a collection: those judged, and a sample of the others
    queries: int  #: training queries kept
    generated: int  #: most tokens of a generated text


REHEARSALS = {
    "tiny": Rehearsal(updates=4, batch=16, layers=2, documents=200, queries=100, generated=8),
    "small": Rehearsal(
        updates=100, batch=8, layers=4, documents=50_000, queries=5_000, generated=64
    ),
}
"""``--scale`` -> the sizes. tiny takes minutes on a CPU, small an hour on a GPU."""

_LAYER = re.compile(r"(?:^|\.)(?:encoder\.layer|layers|block|h)\.(\d+)\.")
_LAYER_COUNTS = ("num_hidden_layers", "num_layers", "num_decoder_layers", "n_layer")


@dataclass(frozen=True, kw_only=True)
class RehearseOptions(RunCasesOptions):
    """Rehearse cases with little data, few updates and small models.

    Examples:
        python tools/rehearse.py dupmae.msmarco-passage/stage3-dev --scale tiny
    """

    scale: str = option(
        "tiny",
        "tiny: minutes on a CPU; small: an hour on a GPU",
        group="run",
        choices=tuple(REHEARSALS),
    )


@dataclass(frozen=True)
class RehearsalWorkspace(Workspace):
    """A workspace whose collections, training queries, models and trainings are small."""

    rehearsal: Rehearsal = REHEARSALS["tiny"]

    def adjusted(self, step: Step) -> Step:
        """The step with fewer updates of smaller batches, or shorter generated texts."""
        return super().adjusted(shrink_step(step, self.rehearsal))

    def collection(self, name: str) -> CollectionFiles:
        """The collection's files; of a large one, the documents judged in a test or in training and a sample."""
        files = super().collection(name)
        if name == TINY or name.startswith(LOCAL):
            return files
        files = replace(files, stand_in=True)
        total = collections.find(name, self.catalogue).documents or 0
        if total <= self.rehearsal.documents:
            return files
        target = (
            self.folder
            / "collections"
            / f"{name}{Path(files.corpus.name.removesuffix('.gz')).suffix}"
        )
        if not target.exists():
            judgements = [*files.corpus.parent.glob("qrels/*.tsv")]
            judgements += [
                self.file(key, "", True) for key, of in TRAINING.items() if name.startswith(of)
            ]
            needed: set[str] = set()
            for path in judgements:
                needed.update(judged_documents(path))
            target.parent.mkdir(parents=True, exist_ok=True)
            sample_documents(files.corpus, target, self.rehearsal.documents, total, needed)
        return replace(files, corpus=target, documents=None)

    def model_folder(self, name: str) -> Path | None:
        """The model's folder; of a downloaded one, that of its first layers."""
        folder = super().model_folder(name)
        is_downloaded = self.models[name].files and name not in self.given
        return self.folder / "models" / name if is_downloaded else folder

    def download_model(self, model: Model) -> None:
        """Download the model and keep its first layers."""
        super().download_model(model)
        folder = self.folder / "models" / model.name
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            shrink_model(self.cache_folder / "models" / model.name, folder, self.rehearsal.layers)

    def file(self, name: str, part: str, fetch: bool) -> Path:
        """The download; of training queries, the ones that the rehearsal keeps."""
        path = super().file(name, part, fetch)
        if part or "queries" not in self.toml.get(DOWNLOADS, {}).get(name, {}):
            return path
        ending = next(ending for ending in (".jsonl", ".json", "") if ending in path.name) or ".tsv"
        target = self.folder / "files" / f"{name}{ending}"
        if fetch and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            sample_training(path, target, self.rehearsal.queries)
        return target


def shrink_step(step: Step, rehearsal: Rehearsal) -> Step:
    """The step with fewer updates of smaller batches, or shorter generated texts; other steps are unchanged."""
    config = step.config
    if isinstance(config, AugmentConfig):
        shortened = replace(config, max_new_tokens=min(config.max_new_tokens, rehearsal.generated))
        return replace(step, config=shortened)
    if not isinstance(config, PretrainConfig | FinetuneConfig | CrossEncoderConfig):
        return step
    chosen = config.recipe if isinstance(config, PretrainConfig) else config
    batch, accumulate = _smaller(
        int(chosen.batch_size or 1), int(chosen.accumulate or 1), rehearsal.batch
    )
    changes: dict[str, Any] = {
        "batch_size": batch,
        "accumulate": accumulate,
        "steps": rehearsal.updates,
    }
    if isinstance(config, PretrainConfig):
        changes["held_out"] = min(config.held_out, 16)
    if isinstance(config, FinetuneConfig):
        changes["limit"] = min(config.limit or rehearsal.queries, rehearsal.queries)
    return replace(step, config=replace(config, **changes))


def _smaller(batch: int, accumulate: int, factor: int) -> tuple[int, int]:
    """(batch size, accumulation) with a product divided by ``factor``; a batch keeps at least 4 of its texts."""
    left = max(1, accumulate // factor)
    factor = max(1, factor * left // accumulate)
    return max(min(batch, 4), batch // factor), left


def shrink_model(source: Path, target: Path, layers: int) -> None:
    """Copy a downloaded model with its first ``layers`` layers only. Models that have fewer are copied."""
    import torch
    from safetensors.torch import load_file, save_file

    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    for name in _LAYER_COUNTS:
        if isinstance(config.get(name), int):
            config[name] = min(config[name], layers)
    safe = source / "model.safetensors"
    weights = (
        load_file(safe)
        if safe.is_file()
        else torch.load(source / "pytorch_model.bin", "cpu", weights_only=True)
    )
    kept = {k: v.clone().contiguous() for k, v in weights.items() if _layer_of(k) < layers}
    aside = target.with_name(f".{target.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(source, aside, ignore=shutil.ignore_patterns("*.safetensors", "*.bin"))
    (aside / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_file(kept, aside / "model.safetensors", metadata={"format": "pt"})
    aside.rename(target)


def _layer_of(key: str) -> int:
    found = _LAYER.search(key)
    return int(found[1]) if found else -1


def sample_documents(
    source: Path, target: Path, count: int, total: int, needed: Collection[str]
) -> None:
    """Copy the lines of a collection whose documents are in ``needed``, and of about ``count`` others by their ids.

    The lines stay as they are: JSON with any of the usual keys for the id, or tab-separated.
    """
    share = count / max(total, 1)
    needed = set(needed)
    with atomic_write(target) as f:
        for _, line in numbered_lines(source):
            docid = _docid(line)
            if docid in needed or _uniform(docid) < share:
                f.write(f"{line}\n")


def _docid(line: str) -> str:
    if not line.startswith("{"):
        return line.partition("\t")[0]
    row = json.loads(line)
    return str(next(row[key] for key in ("id", "_id", "docid") if key in row))


def sample_training(source: Path, target: Path, queries: int) -> None:
    """Copy training judgements, mined negatives in JSON lines or DPR's JSON array: the first ``queries`` by digest."""
    if ".json" in source.name and ".jsonl" not in source.name:
        rows = json.loads("".join(line for _, line in numbered_lines(source)))
        chosen = sorted(rows, key=lambda row: _uniform(row["question"]))[:queries]
        text = json.dumps(chosen)
    else:
        lines = [line for _, line in numbered_lines(source)]
        ids = [
            str(json.loads(line)["qid"]) if line.startswith("{") else line.split()[0]
            for line in lines
        ]
        kept = set(sorted(set(ids), key=_uniform)[:queries])
        text = "".join(
            f"{line.rstrip()}\n" for qid, line in zip(ids, lines, strict=True) if qid in kept
        )
    with atomic_write(target) as f:
        f.write(text)


def judged_documents(path: Path) -> set[str]:
    """Ids of the documents in a file of judgements, with columns of TREC's or BEIR's format, or of mined negatives."""
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for _, line in numbered_lines(path)]
        entries = itertools.chain.from_iterable(
            [*row["pos"], *itertools.chain(*row["neg"].values())] for row in rows
        )
        return {str(one["pid"] if isinstance(one, dict) else one) for one in entries}
    rows = [line.split() for _, line in numbered_lines(path)]
    return {row[2] if len(row) > 3 else row[1] for row in rows if len(row) > 2}


def _uniform(text: str) -> float:
    """A number from 0 to 1 that depends on ``text`` only."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def main(argv: list[str] | None = None) -> int:
    """Rehearse the cases and print the results; returns the exit status."""

    def job() -> int:
        parser = Parser("rehearse", *help_text(RehearseOptions))
        parser.prog = "tools/rehearse.py"
        options = parse(parser, RehearseOptions, argv)
        options = replace(options, output=str(Path(options.output, f"scale-{options.scale}")))
        judged = run(options, partial(RehearsalWorkspace, rehearsal=REHEARSALS[options.scale]))
        print(judged.json() if options.json else judged.summary)
        return judged.exit_status

    return guarded(
        job, "tools/rehearse.py", translate=lambda message: with_flags(message, RehearseOptions)
    )


if __name__ == "__main__":
    sys.exit(main())
