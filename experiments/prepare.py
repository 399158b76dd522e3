"""Prepare what all rows share: text, pairs, test collections and the starting model."""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rows import Budget

from dupmae_ir.console import say
from dupmae_ir.errors import InputError
from dupmae_ir.io.publishing import move_into_place, sha256_file, write_json
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.names import model_folder

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
from pretraining_curves import make_base
from stages import sample

DONE = "data.json"
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


def prepare(data: Path, budget: Budget, base: str, folder: Path) -> dict[str, Any]:
    """Write ``folder``, completely or not at all: ``pretrain.jsonl``, ``pairs.jsonl``, ``dev.jsonl``, ``pool.jsonl``, a
    BEIR folder for each set, ``base`` and ``scratch``. Returns the budget, digests of the inputs, and counts."""
    made_from = {"budget": _amounts(budget), "base": base, "data": digests(data, budget)}
    if (folder / DONE).is_file():
        kept = json.loads((folder / DONE).read_text(encoding="utf-8"))
        if {k: kept[k] for k in made_from} != made_from:
            raise InputError(
                f"{folder}: was made from other data or for another budget; choose another --output"
            )
        return dict(kept)
    say(f"writing text, pairs and query sets to {folder}")
    aside = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    counts = {"texts": write_texts(_texts(data, budget), aside / "pretrain.jsonl", budget.texts)}
    pairs = data / "pairs"
    sample(
        argparse.Namespace(
            pairs=pairs / "train.jsonl.gz",
            dev=pairs / "dev.jsonl.gz",
            pool=pairs / "corpus.jsonl.gz",
            queries=budget.queries,
            dev_queries=budget.dev_queries,
            others=budget.others,
        ),
        aside,
    )
    for name in budget.sets:
        if name == "demo":
            from dupmae_ir.collections.stdlib import write_beir

            write_beir(aside / name)
        elif name != "dev":
            shutil.copytree(data / name, aside / name, copy_function=shutil.copyfile)
    # The package's own model is not the base: all rows start from one head that is calibrated on this text.
    make_base(base, aside / "pretrain.jsonl", aside / "base")
    write_scratch(aside / "base", aside / "scratch")
    write_json(aside / DONE, {**made_from, "counts": counts})
    move_into_place(aside, folder)
    return {**made_from, "counts": counts}


def write_scratch(base: Path, folder: Path, seed: int = 0) -> None:
    """Write a model with the architecture and tokenizer of ``base``, random weights, and no W_cls."""
    import torch

    model, tokenizer, config = load_model(base)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.lm = type(model.lm)(model.lm.config)
        model.projection = None
    save_model(folder, model, tokenizer, config)


def write_texts(files: list[Path], target: Path, most: int, seed: int = 0) -> int:
    """Write the passages of plain-text files as JSON lines, each with one of its sentences as its query.

    ``most`` of them are sampled (0 = all) and shuffled. Returns their number.
    """
    texts: list[str] = []
    for path in files:
        texts += _lines(path)
    chance = random.Random(seed)
    chance.shuffle(texts)
    with open(target, "w", encoding="utf-8") as f:
        for text in texts[: most or None]:
            f.write(
                json.dumps(
                    {"text": text, "queries": [pseudo_query(text, chance)]}, ensure_ascii=False
                )
                + "\n"
            )
    return len(texts[: most or None])


def pseudo_query(text: str, chance: random.Random, words: int = 24) -> str:
    """A random sentence of ``text``, cut to ``words`` words (the query of the inverse cloze task)."""
    sentences = [s for s in _SENTENCE.split(text) if len(s.split()) > 2] or [text]
    return " ".join(chance.choice(sentences).split()[:words])


def digests(data: Path, budget: Budget) -> dict[str, str]:
    """SHA-256 of every input file, by its path relative to ``data``."""
    files = _texts(data, budget) + [
        data / "pairs" / f"{name}.jsonl.gz" for name in ("corpus", "dev", "train")
    ]
    for name in budget.sets:
        if name not in ("dev", "demo"):
            home = data / name
            files += [home / "corpus.jsonl", home / "queries.jsonl", home / "qrels" / "test.tsv"]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise InputError(
            f"{missing[0]}: no such file; see experiments/README.md for the layout of --data"
        )
    return {f.relative_to(data).as_posix(): sha256_file(f) for f in files}


def _texts(data: Path, budget: Budget) -> list[Path]:
    return [data / "pretrain" / f"{name}.txt.gz" for name in sorted(budget.text)]


def base_path(base: str) -> Path:
    """The folder of ``base`` with its original weights."""
    return model_folder(base)


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as f:
        yield from (line.strip() for line in f if line.strip())


def _amounts(budget: Budget) -> dict[str, Any]:
    names = ("name", "sets", "text", "texts", "queries", "dev_queries", "others")
    return {name: getattr(budget, name) for name in names}
