"""Random SIGKILLs of every command that makes something; what it makes in the end must be what it makes undisturbed.

A trial is one output: the command is started and killed at a random moment, mostly more than once, and
then run to its end. Every file is compared: those of Lucene without its random ids
(:mod:`~tests.campaign.lucene_files`), records without moments, durations and the names of folders.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from support.making_commands import MAKING, Making, write_inputs
from support.stage_samples import RECIPE

from tests.campaign.contents import contents
from tests.campaign.forked import finished, killed_after, start
from tests.campaign.records import Record, Records, counted, number_of, sum_of

TITLE = "Kills: every command is killed at random moments, then run to its end"
PACKAGE = Path(importlib.import_module("dupmae_ir").__path__[0])

COMPOSED = [
    Making(
        "demo", lambda _, o: ["demo", "--model", "testing:hashing", "--output", o / "made"], "made"
    ),
    Making(
        "collections get",
        lambda _, o: ["collections", "get", "demo", "--cache", o / "made"],
        "made",
    ),
    Making(
        "finetune, three stages",
        lambda i, o: [
            *("finetune", "--recipe", i / "stages.toml", "--output", o / "made"),
            *("--set", f"model={i / 'masked_lm'}", "--set", f"teacher_base={i / 'base'}"),
            *("--set", f"pairs={i / 'pairs.jsonl'}"),
        ],
        "made",
    ),
]
ROUNDS = {"demo": 4, "finetune, three stages": 4, "pretrain": 2, "finetune.cross_encoder": 2}
"""Commands that take long are tried in every n-th round only."""


def run(seconds: float, seed: int, records: Records) -> None:
    """Kill for so long."""
    rng = random.Random(seed)
    for path in PACKAGE.rglob("*.py"):  # imported once, for all children
        if path.name != "__main__.py":
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(
                    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
                )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _inputs(folder / "inputs")
        wanted: dict[str, tuple[dict[str, Any], float]] = {}
        end = time.monotonic() + seconds
        for number, making in enumerate(_endlessly(rng)):
            if time.monotonic() > end:
                break
            if making.name not in wanted:
                wanted[making.name] = _undisturbed(making, folder)
            content, duration = wanted[making.name]
            out = folder / f"trial{number}"
            making.prepare(folder / "inputs", out)
            kills, outcome, words = _trial(making, folder / "inputs", out, content, duration, rng)
            records.add(command=making.name, kills=kills, outcome=outcome, words=words)
            shutil.rmtree(out)


def table(records: Sequence[Record]) -> str:
    """Outputs and kills by command."""
    outcomes = {name: number_of("outcome", name) for name in ("identical", "different", "failed")}
    return counted(
        records, "command", {"outputs": len, "kills": sum_of("kills"), **outcomes}, "command"
    )


def is_wrong(record: Record) -> bool:
    """Whether an output differed or was not made."""
    return record["outcome"] != "identical"


def _endlessly(rng: random.Random) -> Iterator[Making]:
    round_ = 0
    while True:
        round_ += 1
        makings = [m for m in [*MAKING, *COMPOSED] if round_ % ROUNDS.get(m.name, 1) == 0]
        rng.shuffle(makings)
        yield from makings


def _inputs(folder: Path) -> None:
    errors = folder.with_name("inputs.err")

    def written() -> int:
        write_inputs(folder, lambda words: _main(words))
        return 0

    if finished(start(written, errors)):
        raise RuntimeError(errors.read_text())
    stages = RECIPE.format(init="pretrained").replace("length = 32", "length = 32\ndevice = 'cpu'")
    (folder / "stages.toml").write_text(
        stages.replace('command = "finetune"', 'command = "finetune"\ndevice = "cpu"')
    )


def _main(words: list[Any]) -> int:
    import torch

    from dupmae_ir.__main__ import main

    torch.set_num_threads(1)
    return main([*map(str, words)])


def _begun(making: Making, inputs: Path, out: Path) -> int:
    words = [*making.words(inputs, out), *([] if making.name == "collections get" else ["--quiet"])]
    return start(lambda: _main(words), out.with_name(f"{out.name}.err"))


def _undisturbed(making: Making, folder: Path) -> tuple[dict[str, Any], float]:
    out = folder / f"whole-{making.name.replace(' ', '-')}"
    making.prepare(folder / "inputs", out)
    before = time.monotonic()
    status = finished(_begun(making, folder / "inputs", out))
    duration = time.monotonic() - before
    if status:
        raise RuntimeError(f"{making.name}: {out.with_name(f'{out.name}.err').read_text()[-2000:]}")
    print(f"{making.name}: {duration:.1f} s undisturbed", file=sys.stderr)
    return contents(_whole(making, out), out), duration


def _trial(
    making: Making,
    inputs: Path,
    out: Path,
    wanted: dict[str, Any],
    duration: float,
    rng: random.Random,
) -> tuple[int, str, str]:
    """Number of kills, outcome, and what was different or went wrong."""
    kills = 0
    for _ in range(rng.choice((1, 2, 2, 3, 4))):
        kills += killed_after(_begun(making, inputs, out), rng.uniform(0.05, 1.0) * duration)
    if finished(_begun(making, inputs, out)):
        return kills, "failed", out.with_name(f"{out.name}.err").read_text()[-600:]
    found = contents(_whole(making, out), out)
    different = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
    return kills, "different" if different else "identical", ", ".join(different)


def _whole(making: Making, out: Path) -> Path:
    """What is compared: the target, or the index that it is a part of."""
    return out / "index" if making.adds_to_index else out / making.target
