"""Damage to a model: single bits, blocks and truncation of every file of a model folder, and fields of its JSON files.

An index is searched with a damaged copy of the model that made it. The index names its model by the digest of all files
that affect a representation, so a variant is *refused* (when the model is loaded, or because it is not the index's) or
gives *unchanged* answers (a file that has no part in them). Other answers without a word are a failure, as are
tracebacks and crashes.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from support.making_commands import write_inputs

from dupmae_ir.__main__ import main as dupmae_ir
from dupmae_ir.errors import DupmaeError
from dupmae_ir.search.searcher import Searcher
from tests.campaign.damage import Damage, bytes_changed
from tests.campaign.records import Record, Records, counted, number_of

TITLE = "Damage to a model: an index is searched with damaged copies of the model that made it"
VERDICTS = ("refused", "unchanged", "other answers", "traceback")
FLIPS = 12
"""Single bits flipped in each file."""
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**9,
    10**30,
    0.5,
    float("nan"),
    "x",
    "\ud800",
    [],
    {},
    [[]],
    "../x",
)
QUERIES = ["quick brown fox", "the cat on a mat", "list of trees"]


def run(seconds: float, seed: int, records: Records) -> None:
    """Damage copies until the variants or ``seconds`` are exhausted."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder / "inputs", lambda words: dupmae_ir([*map(str, words)]))
        model = folder / "inputs" / "retriever"
        index = folder / "index"
        flags = ["--corpus", folder / "inputs" / "corpus.jsonl", "--model", model, "--index", index]
        assert (
            dupmae_ir(["encode", *map(str, flags), "--device", "cpu", "--threads", "1", "--quiet"])
            == 0
        )
        (model / "README.md").write_text("a card\n")
        wanted = answers(index, model)
        done = {(row["damage"], row["variant"]) for row in records.all}
        end = time.monotonic() + seconds
        for kind, variant, damage in _variants(model, seed):
            if time.monotonic() > end:
                break
            if (kind, variant) not in done:
                damaged = folder / "damaged"
                shutil.rmtree(damaged, ignore_errors=True)
                shutil.copytree(model, damaged)
                damage(damaged)
                verdict, words = judge(index, damaged, wanted)
                records.add(damage=kind, variant=variant, verdict=verdict, words=words)


def table(records: Sequence[Record]) -> str:
    """Verdicts by kind of damage."""
    verdicts = {name: number_of("verdict", name) for name in VERDICTS}
    return counted(records, "damage", {"variants": len, **verdicts}, "damage")


def is_wrong(record: Record) -> bool:
    """Whether a damaged model gave other answers, a traceback or a crash."""
    return record["verdict"] not in VERDICTS[:2]


def answers(index: Path, model: Path) -> list[Any]:
    """Hits and scores of all modes with ``model``."""
    searcher = Searcher.open(index, str(model), device="cpu")
    return [
        [(hit.docid, hit.score) for hit in searcher.search(text, 5, mode)]
        for text in QUERIES
        for mode in ("dense", "impact", "hybrid")
    ]


def judge(index: Path, model: Path, wanted: list[Any]) -> tuple[str, str]:
    """Verdict, and the message."""
    try:
        found = answers(index, model)
    except DupmaeError as e:
        return "refused", str(e)
    except Exception:
        return "traceback", traceback.format_exc()
    return ("unchanged", "") if found == wanted else ("other answers", "")


def _variants(model: Path, seed: int) -> Iterator[tuple[str, str, Damage]]:
    made = [*bytes_changed(model, None, seed, FLIPS), *_fields_changed(model, random.Random(seed))]
    random.Random(seed).shuffle(made)
    yield from made


def _fields_changed(model: Path, rng: random.Random) -> Iterator[tuple[str, str, Damage]]:
    """Each field of the JSON files, at most 40 of a file, without its value and with three others."""
    for path in sorted(model.glob("*.json")):
        value = json.loads(path.read_text())
        places = list(_places(value))
        for place in rng.sample(places, min(40, len(places))):
            for new in (*rng.sample(VALUES, 3), ...):
                what = f"{path.name} {'.'.join(map(str, place))} {'removed' if new is ... else repr(new)}"
                yield "field edited", what, _edit(path.name, value, place, new)


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the fields of a JSON value are, with those in others, except for long lists and objects."""
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for name, inner in [*inside][:60]:
        yield (*place, name)
        yield from _places(inner, (*place, name))


def _edit(name: str, value: Any, place: tuple[Any, ...], new: Any) -> Damage:
    def damage(folder: Path) -> None:
        edited = copy.deepcopy(value)
        holder = edited
        for key in place[:-1]:
            holder = holder[key]
        if new is ...:
            del holder[place[-1]]
        else:
            holder[place[-1]] = new
        (folder / name).write_text(json.dumps(edited))

    return damage
