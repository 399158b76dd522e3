"""Damage to an index: single bits, blocks, truncation, swapped parts and edited metadata of every file.

A tiny index with every part (vectors, impacts, postings, three dense kinds) is copied and damaged in one way; a process
opens the copy, searches it in every mode, and verifies it. A variant is *refused* (one line, when the index is opened
or when a part is first used), gives *unchanged* answers, or gives other answers, which is a failure, as are tracebacks
and crashes.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dupmae_ir.encode.run import encoder_record
from dupmae_ir.errors import DupmaeError
from dupmae_ir.index import verification
from dupmae_ir.index.builder import IndexBuilder
from dupmae_ir.index.config import KINDS
from dupmae_ir.index.dense_kinds import build_kind
from dupmae_ir.index.folder import IndexFolder
from dupmae_ir.index.postings import export_postings
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.testing import HashingEncoder
from dupmae_ir.types import Query

DOCUMENTS, TERMS, QUERIES, HITS = 200, 64, 8, 10  # more documents than a search would score without candidates
FLIPS = 8
"""Single bits flipped in each file."""
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("dense", {}),
    "impact, Lucene": ("impact", {"engine": "lucene"}),
    "impact, postings": ("impact", {"engine": "postings"}),
    "hybrid, Lucene": ("hybrid", {"engine": "lucene"}),
    "hybrid, postings": ("hybrid", {"engine": "postings"}),
    **{f"dense, {kind}": ("dense", {"dense_index": kind}) for kind in KINDS},
}
VALUES: list[Any] = [None, 0, 1, -5, 2.5, "x", [], {}, ["cls"], True]
"""What each value of a JSON file is replaced by, and nothing: the key is removed."""
VERDICTS = ("refused at open", "refused on use", "unchanged", "other answers", "traceback", "crash")

Damage = Callable[[Path], object]


@dataclass(frozen=True)
class Result:
    """What became of one variant; ``verified``: whether ``index verify`` found the damage."""

    kind: str
    variant: str
    verdict: str
    words: str
    verified: bool


def build(folder: Path, seed: int) -> None:
    """An index with all parts; every seed has the same ids."""
    drawn, encoder = random.Random(seed), HashingEncoder(vocabulary=TERMS)
    texts = [" ".join(f"v{drawn.randrange(200)}" for _ in range(drawn.randrange(2, 30))) for _ in range(DOCUMENTS)]
    made = encoder.encode_documents(texts)
    with IndexBuilder(folder, dim=encoder.dim, terms=encoder.terms, scale=50.0) as builder:
        builder.add([f"d{row * 7 % DOCUMENTS}" for row in range(DOCUMENTS)], made.cls, made.ot)
        builder.finish({"encoder": encoder_record(encoder, " ")})
    index = IndexFolder.open(folder)
    export_postings(index)
    for kind in KINDS:
        build_kind(index, kind)


def answers(index: Path, name: str) -> list[Any]:
    """The lists of one configuration, with scores and certificates."""
    mode, settings = CONFIGURATIONS[name]
    drawn = random.Random(99)
    queries = [Query(str(i), " ".join(f"v{drawn.randrange(200)}" for _ in range(8))) for i in range(QUERIES)]
    found = Searcher.open(index, HashingEncoder(vocabulary=TERMS), **settings).answers(queries, HITS, mode)
    return [([(h.docid, h.score) for h in a.hits], a.report and a.report.exact) for a in found]


def variants(whole: Path, other: Path, seed: int) -> Iterator[tuple[str, str, Damage]]:
    """Kind, name and action of every variant, in an order that a shorter run samples evenly."""
    made = [*_of_bytes(whole, other, seed), *_of_metadata(whole), *_of_parts(other)]
    random.Random(seed).shuffle(made)
    yield from made


def _of_bytes(whole: Path, other: Path, seed: int) -> Iterator[tuple[str, str, Damage]]:
    drawn = random.Random(seed)
    for path in sorted(p for p in whole.rglob("*") if p.is_file()):
        name, size = str(path.relative_to(whole)), path.stat().st_size
        for bit in sorted(drawn.sample(range(8 * size), min(FLIPS, 8 * size))):
            yield "one bit flipped", f"{name}, bit {bit}", _rewrite(name, _flipped(bit))
        for length in sorted({0, size // 2, size - 1}):
            yield "truncated", f"{name} to {length}", _rewrite(name, lambda data, n=length: data[:n])
        start = drawn.randrange(size)
        yield "block of zeros", f"{name} from {start}", _rewrite(name, _block(start, b"\0" * 512))
        yield "block of noise", f"{name} from {start}", _rewrite(name, _block(start, drawn.randbytes(512)))
        yield "byte appended", name, _rewrite(name, lambda data: data + b"\n")
        yield "file removed", name, lambda folder, n=name: (folder / n).unlink()
        if (other / name).is_file():
            yield "file of another index", name, _rewrite(name, lambda _, n=name: (other / n).read_bytes())


def _of_metadata(whole: Path) -> Iterator[tuple[str, str, Damage]]:
    names = ["meta.json", "postings/meta.json", *(f"cls/{kind}.json" for kind in KINDS)]
    for name in names:
        for key, value in json.loads((whole / name).read_text()).items():
            yield "metadata edited", f"{name} without {key}", _edit(name, key)
            for changed in VALUES:
                if changed != value or type(changed) is not type(value):
                    yield "metadata edited", f"{name}: {key} {changed!r}", _edit(name, key, changed)


def _of_parts(other: Path) -> Iterator[tuple[str, str, Damage]]:
    def swapped(*parts: str) -> Damage:
        def swap(folder: Path) -> None:
            for part in parts:
                shutil.rmtree(folder / part)
                shutil.copytree(other / part, folder / part)

        return swap

    folders = ("cls", "ot", "forward", "postings")
    for part in folders:
        yield "part of another index", part, swapped(part)
    yield "part of another index", "ot and forward", swapped("ot", "forward")
    yield "part of another index", "all parts", swapped(*folders)
    for part in folders:
        yield "part removed", part, lambda folder, p=part: shutil.rmtree(folder / p)


def _rewrite(name: str, change: Callable[[bytes], bytes]) -> Damage:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def _flipped(bit: int) -> Callable[[bytes], bytes]:
    return lambda data: data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def _block(start: int, block: bytes) -> Callable[[bytes], bytes]:
    return lambda data: (data[:start] + block[: len(data) - start] + data[start + len(block) :])[: len(data)]


def _edit(name: str, key: str, *value: Any) -> Damage:
    def edit(folder: Path) -> None:
        record = json.loads((folder / name).read_text())
        record.pop(key)
        record |= {key: value[0]} if value else {}
        (folder / name).write_text(json.dumps(record, indent=2) + "\n")

    return edit


# ---------------------------------------------------------------- the process that searches


def judge(folder: Path, expected: dict[str, Any]) -> tuple[str, str, bool]:
    """Verdict, message, and whether ``index verify`` finds the damage."""
    try:
        verified = bool(verification.problems(folder))
    except DupmaeError:
        verified = True
    except Exception:
        return "traceback", f"verify: {traceback.format_exc()}", False
    try:
        IndexFolder.open(folder)
    except DupmaeError as e:
        return "refused at open", str(e), verified
    except Exception:
        return "traceback", traceback.format_exc(), verified
    return *_searched(folder, expected), verified


def _searched(folder: Path, expected: dict[str, Any]) -> tuple[str, str]:
    """The worst of all configurations; each is searched on its own."""
    refused = ""
    for name in CONFIGURATIONS:
        try:
            found = answers(folder, name)
        except DupmaeError as e:
            refused = str(e)
            continue
        except Exception:
            return "traceback", f"{name}: {traceback.format_exc()}"
        if found != expected[name]:
            return "other answers", name
    return ("refused on use", refused) if refused else ("unchanged", "")


def _work(connection: Connection, whole: Path) -> None:
    expected = {name: answers(whole, name) for name in CONFIGURATIONS}
    connection.send("ready")
    while True:
        connection.send(judge(connection.recv(), expected))


class Searching:
    """A process that judges variants, started again after a crash."""

    def __init__(self, whole: Path) -> None:
        self.whole = whole
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, self.whole), daemon=True)
        self._process.start()
        theirs.close()
        assert self._connection.recv() == "ready"

    def judge(self, folder: Path) -> tuple[str, str, bool]:
        """The verdict on one variant."""
        try:
            self._connection.send(folder)
            return self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            self._start()
            return "crash", f"exit status {code}", False

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()


def run_damage(where: Path, seconds: float, seed: int = 0, most: int | None = None) -> list[Result]:
    """Damage copies of an index in ``where`` until the variants, ``seconds`` or ``most`` are exhausted."""
    whole, other, copy = where / "I", where / "J", where / "damaged"
    build(whole, 1)
    build(other, 2)
    searching, results, began = Searching(whole), [], time.monotonic()
    try:
        for kind, name, damage in variants(whole, other, seed):
            if time.monotonic() - began > seconds or len(results) == most:
                break
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(whole, copy)
            damage(copy)
            results.append(Result(kind, name, *searching.judge(copy)))
    finally:
        searching.close()
    return results


def table(results: list[Result]) -> str:
    """The counts by kind of damage, as a Markdown table."""
    heads = ("damage", "variants", *VERDICTS, "found by verify")
    rows = [_row(kind, [r for r in results if r.kind == kind]) for kind in sorted({r.kind for r in results})]
    rows.append(_row("**all**", results))
    lines = [heads, ("--", *["--:"] * (len(heads) - 1)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(name: str, results: list[Result]) -> tuple[str, ...]:
    counts = Counter(result.verdict for result in results)
    found = sum(result.verified for result in results)
    return (name, str(len(results)), *(str(counts[verdict]) for verdict in VERDICTS), str(found))
