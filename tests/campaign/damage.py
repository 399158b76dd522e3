"""Damage to an index: single bits, blocks, truncation, swapped parts and edited metadata of every file.

Two small indexes with every part (texts, vectors, impacts, postings, codes) are copied and damaged in one
way: one as it was encoded, and one that was changed since (further segments, deleted rows). A process opens the copy,
searches it in every mode, reads its texts, and verifies it. A variant is *refused* (one line, when the index is opened
or when a part is first used), gives *unchanged* answers, or gives other answers, which is a failure, as are tracebacks
and crashes.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dupmae_ir.__main__ import main as dupmae_ir
from dupmae_ir.errors import DupmaeError
from dupmae_ir.index.__main__ import VERBS
from dupmae_ir.index.format import verification
from dupmae_ir.index.index import Index
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.testing import HashingEncoder
from dupmae_ir.types import Query
from tests.campaign.records import Record, Records, counted, markdown, number_of, sum_of

TITLE = (
    "Damage to an index: copies are damaged in one way each, searched in every mode, and verified"
)
# more documents than a search would score without candidates
DOCUMENTS = 200
QUERIES = 8
HITS = 10
FLIPS = 8
"""Single bits flipped in each file."""
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("dense", {}),
    "impact, Lucene": ("impact", {"impact_search": "lucene"}),
    "impact, postings": ("impact", {"impact_search": "postings"}),
    "hybrid, Lucene": ("hybrid", {"impact_search": "lucene"}),
    "hybrid, postings": ("hybrid", {"impact_search": "postings"}),
    "dense, rotated": ("dense", {"dense_index": "rotated"}),
}
TEXTS = "texts"
VALUES: list[Any] = [None, 0, 1, -5, 2.5, "x", [], {}, ["cls"], True]
"""What each value of a JSON file is replaced by, and nothing: the key is removed."""
VERDICTS = ("refused at open", "refused on use", "unchanged", "other answers", "traceback", "crash")

Damage = Callable[[Path], object]


def run(seconds: float, seed: int, records: Records) -> None:
    """Damage copies until the variants or ``seconds`` are exhausted."""
    done = {(row["index"], row["variant"]) for row in records.all}
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        indexes = {
            kind: (where / kind, where / f"other {kind}")
            for kind in ("whole", "changed")[: 1 + _can_change()]
        }
        for kind, pair in indexes.items():
            for number, folder in enumerate(pair):
                build(folder, number, changed=kind == "changed")
        judges = {kind: Searching(pair[0]) for kind, pair in indexes.items()}
        end = time.monotonic() + seconds
        try:
            for kind, (how, variant, damage) in _alternating(indexes, seed):
                if time.monotonic() > end:
                    break
                if (kind, variant) not in done:
                    copy = where / "damaged"
                    shutil.rmtree(copy, ignore_errors=True)
                    shutil.copytree(indexes[kind][0], copy)
                    damage(copy)
                    verdict, words, verified = judges[kind].judge(copy)
                    found = {"verdict": verdict, "words": words, "verified": int(verified)}
                    records.add(index=kind, damage=how, variant=variant, **found)
        finally:
            for judge_ in judges.values():
                judge_.close()


def table(records: Sequence[Record]) -> str:
    """Verdicts by kind of damage, and by index."""
    verdicts = {name: number_of("verdict", name) for name in VERDICTS}
    counts = {"variants": len, **verdicts, "found by verify": sum_of("verified")}
    files = {
        row["variant"].partition(",")[0] for row in records if row["damage"] == "one bit flipped"
    }
    size = markdown(["", "files with flipped bits"], [["of both indexes", len(files)]])
    return "\n\n".join(
        [
            counted(records, "damage", counts, "damage"),
            counted(records, "index", counts, "index"),
            size,
        ]
    )


def is_wrong(record: Record) -> bool:
    """Whether an index gave other answers, a traceback or a crash."""
    return record["verdict"] not in VERDICTS[:3]


def _can_change() -> bool:
    return {"add", "delete"} <= set(VERBS)


def build(folder: Path, seed: int, changed: bool) -> None:
    """An index with all parts; every seed has the same ids. ``changed``: of two segments, with deleted rows."""
    drawn = random.Random(seed)
    texts = [
        " ".join(f"v{drawn.randrange(200)}" for _ in range(drawn.randrange(2, 30)))
        for _ in range(DOCUMENTS)
    ]
    rows = [
        {"_id": f"d{n * 7 % DOCUMENTS}", "title": f"t{n}", "text": t, "year": n}
        for n, t in enumerate(texts)
    ]
    corpus = folder.with_name(f"{folder.name}.jsonl")
    more = folder.with_name(f"{folder.name} more.jsonl")
    first = DOCUMENTS // 2 if changed else DOCUMENTS
    for path, part in ((corpus, rows[:first]), (more, rows[first:])):
        path.write_text("".join(json.dumps(row) + "\n" for row in part))
    into = ("--index", folder, "--quiet")
    _call("encode", "--model", "testing:hashing", "--corpus", corpus, "--scale", 50, *into)
    _call("index", "postings", *into)
    _call("index", "dense", *into)
    if changed:
        _call("index", "add", "--corpus", more, *into)
        _call("index", "delete", "--ids", rows[3]["_id"], rows[-3]["_id"], *into)


def _call(*words: Any) -> None:
    assert dupmae_ir([*map(str, words)]) == 0, words


def answers(index: Path, name: str) -> list[Any]:
    """The lists of one configuration, with scores and certificates; or the stored texts."""
    if name == TEXTS:
        opened = Index.open(index)
        assert opened.texts is not None
        return [
            (d.docid, d.title, d.text, d.metadata)
            for d in map(opened.texts.get, range(len(opened.texts)))
        ]
    mode, settings = CONFIGURATIONS[name]
    drawn = random.Random(99)
    queries = [
        Query(str(i), " ".join(f"v{drawn.randrange(200)}" for _ in range(8)))
        for i in range(QUERIES)
    ]
    found = Searcher.open(index, HashingEncoder(), **settings).answers(queries, HITS, mode)
    return [([(h.docid, h.score) for h in a.hits], a.report and a.report.exact) for a in found]


def _alternating(
    indexes: dict[str, tuple[Path, Path]], seed: int
) -> Iterator[tuple[str, tuple[str, str, Damage]]]:
    """(index, variant) of all indexes in an order that a shorter run samples evenly."""
    made = [(kind, variant) for kind, pair in indexes.items() for variant in variants(*pair, seed)]
    random.Random(seed).shuffle(made)
    # Every kind of damage is tried often before the metadata, which has most variants, is tried out.
    metadata = [one for one in made if one[1][0] == "metadata edited"]
    others = [one for one in made if one[1][0] != "metadata edited"]
    share = max(1, len(others) // max(1, len(metadata)))
    while metadata or others:
        yield from [others.pop() for _ in range(min(share + 1, len(others)))]
        yield from [metadata.pop() for _ in range(min(1, len(metadata)))]


def variants(whole: Path, other: Path, seed: int) -> Iterator[tuple[str, str, Damage]]:
    """Kind, name and action of every variant."""
    yield from bytes_changed(whole, other, seed, FLIPS)
    yield from _of_metadata(whole)
    yield from _of_parts(whole, other)


def bytes_changed(
    whole: Path, other: Path | None, seed: int, flips: int
) -> Iterator[tuple[str, str, Damage]]:
    """Damage to the bytes of every file below ``whole``; ``other``: a folder whose files are put in their places."""
    drawn = random.Random(seed)
    for path in sorted(p for p in whole.rglob("*") if p.is_file()):
        name = str(path.relative_to(whole))
        size = path.stat().st_size
        for bit in sorted(drawn.sample(range(8 * size), min(flips, 8 * size))):
            yield "one bit flipped", f"{name}, bit {bit}", _rewrite(name, _flipped(bit))
        for length in sorted({0, size // 2, max(0, size - 1)} - {size}):
            yield (
                "truncated",
                f"{name} to {length}",
                _rewrite(name, lambda data, n=length: data[:n]),
            )
        start = drawn.randrange(max(1, size))
        yield "block of zeros", f"{name} from {start}", _rewrite(name, _block(start, b"\0" * 512))
        yield (
            "block of noise",
            f"{name} from {start}",
            _rewrite(name, _block(start, drawn.randbytes(512))),
        )
        yield "byte appended", name, _rewrite(name, lambda data: data + b"\n")
        yield "file removed", name, lambda folder, n=name: (folder / n).unlink()
        if other and (other / name).is_file():
            yield (
                "file of another index",
                f"{name} of another",
                _rewrite(name, lambda _, n=name: (other / n).read_bytes()),
            )


def _of_metadata(whole: Path) -> Iterator[tuple[str, str, Damage]]:
    for path in sorted(whole.rglob("*.json")):
        name = str(path.relative_to(whole))
        record = json.loads(path.read_text())
        for key, value in record.items():
            yield "metadata edited", f"{name} without {key}", _edit(name, key)
            for changed in VALUES:
                if changed != value or type(changed) is not type(value):
                    yield "metadata edited", f"{name}: {key} {changed!r}", _edit(name, key, changed)


def _of_parts(whole: Path, other: Path) -> Iterator[tuple[str, str, Damage]]:
    def swapped(*parts: str) -> Damage:
        def swap(folder: Path) -> None:
            for part in parts:
                shutil.rmtree(folder / part)
                shutil.copytree(other / part, folder / part)

        return swap

    folders = [
        part
        for part in ("cls", "ot", "forward", "postings", "texts", "segments")
        if (whole / part).is_dir()
    ]
    for part in folders:
        yield "part of another index", f"{part} of another", swapped(part)
    yield "part of another index", "ot and forward", swapped("ot", "forward")
    yield "part of another index", "all parts", swapped(*folders)
    for part in folders:
        yield "part removed", f"{part} removed", lambda folder, p=part: shutil.rmtree(folder / p)


def _rewrite(name: str, change: Callable[[bytes], bytes]) -> Damage:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def _flipped(bit: int) -> Callable[[bytes], bytes]:
    return lambda data: (
        data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]
    )


def _block(start: int, block: bytes) -> Callable[[bytes], bytes]:
    return lambda data: (data[:start] + block[: len(data) - start] + data[start + len(block) :])[
        : len(data)
    ]


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
        Index.open(folder)
    except DupmaeError as e:
        return "refused at open", str(e), verified
    except Exception:
        return "traceback", traceback.format_exc(), verified
    return *_searched(folder, expected), verified


def _searched(folder: Path, expected: dict[str, Any]) -> tuple[str, str]:
    """The worst of all configurations; each is searched on its own."""
    refused = ""
    for name in (*CONFIGURATIONS, TEXTS):
        try:
            found = answers(folder, name)
        except DupmaeError as e:
            refused = str(e)
            continue
        except Exception:
            return "traceback", f"{name}: {traceback.format_exc()}"
        if found != expected[name]:
            pairs = zip(found, expected[name], strict=False)
            return (
                "other answers",
                f"{name}: {next((pair for pair in pairs if pair[0] != pair[1]), 'fewer')}",
            )
    return ("refused on use", refused) if refused else ("unchanged", "")


def _work(connection: Connection, whole: Path) -> None:
    expected = {name: answers(whole, name) for name in (*CONFIGURATIONS, TEXTS)}
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
