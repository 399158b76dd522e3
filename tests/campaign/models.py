"""Damage to a model: single bits, blocks and truncation of every file of a model folder.

An index is searched with a damaged copy of the model that made it. The index names its model by the digest of all files
that affect a representation, so a variant is *refused* (when the model is loaded, or because it is not the index's) or
gives *unchanged* answers (a file that has no part in them). Other answers without a word are a failure, as are
tracebacks and crashes.
"""

from __future__ import annotations

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
QUERIES = ["quick brown fox", "the cat on a mat", "list of trees"]


def run(seconds: float, seed: int, records: Records) -> None:
    """Damage copies until the variants or ``seconds`` are exhausted."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder / "inputs", lambda words: dupmae_ir([*map(str, words)]))
        model, index = folder / "inputs" / "retriever", folder / "index"
        flags = ["--corpus", folder / "inputs" / "corpus.jsonl", "--model", model, "--index", index]
        assert dupmae_ir(["encode", *map(str, flags), "--device", "cpu", "--threads", "1", "--quiet"]) == 0
        (model / "README.md").write_text("a card\n")
        wanted = answers(index, model)
        done = {(row["damage"], row["variant"]) for row in records.all}
        end = time.monotonic() + seconds
        for kind, variant, damage in _variants(model, seed):
            if time.monotonic() > end:
                break
            if (kind, variant) not in done:
                copy = folder / "damaged"
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(model, copy)
                damage(copy)
                verdict, words = judge(index, copy, wanted)
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
    made = list(bytes_changed(model, None, seed, FLIPS))
    random.Random(seed).shuffle(made)
    yield from made
