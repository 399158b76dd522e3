"""Random SIGKILLs of every command that makes something; what it makes in the end must be what it makes undisturbed.

``python -m tests.campaign.kills --seconds 600``. A trial is one output: the command is started and killed at a random
moment, in a third of the trials more than once, and then run to its end.
"""

from __future__ import annotations

import importlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from making_commands import MAKING, Making, write_inputs

from dupmae_ir.io.jobs import record_path
from tests.campaign.forked import finished, killed_after, start

FLEETING = ("seconds", "status", "per_second", "created", "time", "runtime", "date", "log", "resumed")
WORK = ("encode", "encode.merging", "encode.queries", "encode.segment", "index", "finetune", "finetune.convert")
WORK += ("finetune.mine", "finetune.score", "finetune.cross_encoder", "pretrain", "pretrain.augment", "export", "demo")

COMPOSED = [
    Making("demo", lambda _, o: ["demo", "--model", "testing:hashing", "--output", o / "made"], "made"),
    Making(
        "collections get", lambda i, o: ["collections", "get", f"local:{i / 'beir'}", "--cache", o / "made"], "made"
    ),
]


def run(seconds: float, seed: int = 0) -> dict[str, int]:
    """Kill for so long; returns counts: trials, kills, identical, different, failed."""
    counts: Counter[str] = Counter(trials=0, kills=0, identical=0, different=0, failed=0)
    rng = random.Random(seed)
    for module in WORK:  # imported once, for all children
        importlib.import_module(f"dupmae_ir.{module}" if "." in module else f"dupmae_ir.{module}.run")
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
            counts += _trial(making, folder / "inputs", out, content, duration, rng)
            shutil.rmtree(out)
    return {name: counts[name] for name in ("trials", "kills", "identical", "different", "failed")}


def _endlessly(rng: random.Random) -> Iterator[Making]:
    slow = {"demo"}
    round_ = 0
    while True:
        makings = [m for m in [*MAKING, *COMPOSED] if m.name not in slow or round_ % 10 == 9]
        rng.shuffle(makings)
        yield from makings
        round_ += 1


def _inputs(folder: Path) -> None:
    errors = folder.with_name("inputs.err")

    def written() -> int:
        write_inputs(folder, lambda words: _main(words))
        return 0

    if finished(start(written, errors)):
        raise RuntimeError(errors.read_text())
    beir = folder / "beir"
    (beir / "qrels").mkdir(parents=True)
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    (beir / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": r["id"], "title": r["title"], "text": r["text"]}) + "\n" for r in rows)
    )
    (beir / "queries.jsonl").write_text("".join(json.dumps({"_id": f"q{n}", "text": "cat"}) + "\n" for n in range(3)))
    lines = "".join(f"q{n}\t{rows[n]['id']}\t1\n" for n in range(3))
    (beir / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}")


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
    return contents(_whole(making, out), out, folder / "inputs"), duration


def _trial(
    making: Making, inputs: Path, out: Path, wanted: dict[str, Any], duration: float, rng: random.Random
) -> Counter[str]:
    counts: Counter[str] = Counter(trials=1)
    for _ in range(rng.choice((1, 1, 2, 3))):
        counts["kills"] += killed_after(_begun(making, inputs, out), rng.uniform(0.05, 1.05) * duration)
    status = finished(_begun(making, inputs, out))
    if status:
        counts["failed"] += 1
        print(f"FAILED {making.name}: {out.with_name(f'{out.name}.err').read_text()[-600:]}", file=sys.stderr)
        return counts
    found = contents(_whole(making, out), out, inputs)
    same = found == wanted
    counts["identical" if same else "different"] += 1
    if not same:
        names = [n for n in {**found, **wanted} if found.get(n) != wanted.get(n)]
        print(f"DIFFERENT {making.name}: {names}", file=sys.stderr)
    return counts


def _whole(making: Making, out: Path) -> Path:
    """What is compared: the target, or the index that it is a part of."""
    return out / "index" if making.adds_to_index else out / making.target


def contents(target: Path, out: Path, inputs: Path) -> dict[str, Any]:
    """File -> bytes, without what names a moment or a folder; Lucene's files, whose names are random, by their number
    of files; and the hidden files left beside the target."""
    files = [p for p in target.rglob("*") if p.is_file()] if target.is_dir() else [target, record_path(target)]
    found: dict[str, Any] = {}
    for path in filter(Path.is_file, sorted(files)):
        name = str(path.relative_to(target.parent))
        if any(path.parent.glob("segments_*")):
            if path.name == "made.json":
                found[name] = _lasting(json.loads(path.read_text()), out, inputs)
        elif path.suffix == ".json":
            found[name] = _lasting(json.loads(path.read_text()), out, inputs)
        elif path.name == "log.jsonl":
            found[name] = [_lasting(json.loads(line), out, inputs) for line in path.read_text().splitlines()]
        elif ".tfevents" in path.name or path.suffix in (".png", ".svg"):
            continue  # times are part of them, and a resumed run begins another file
        else:
            found[name] = path.read_bytes().replace(str(out).encode(), b"OUT")
    left = [p.name for p in target.parent.iterdir() if p.name.startswith(f".{target.name}.")]
    return {**found, "left behind": left}


def _lasting(value: Any, out: Path, inputs: Path) -> Any:
    if isinstance(value, dict):
        return {k: _lasting(v, out, inputs) for k, v in value.items() if not k.endswith(FLEETING) and k != "work"}
    if isinstance(value, list):
        return [_lasting(v, out, inputs) for v in value]
    return value.replace(str(out), "OUT") if isinstance(value, str) else value


def main() -> int:
    """Print the counts; 1 if an output was different or a command failed."""
    seconds = float(sys.argv[sys.argv.index("--seconds") + 1]) if "--seconds" in sys.argv else 600.0
    counts = run(seconds, int(time.time()))
    print(json.dumps(counts))
    return int(bool(counts["different"] or counts["failed"]))


if __name__ == "__main__":
    sys.exit(main())
