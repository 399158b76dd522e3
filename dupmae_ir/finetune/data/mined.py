"""Mined files: queries with positives and hard negatives, their passages by id, and a teacher's scores."""

from __future__ import annotations

import bisect
import hashlib
import json
import os
import tempfile
import unicodedata
import weakref
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Collection as Ids
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from dupmae_ir.errors import IndexMismatch, InputError
from dupmae_ir.io.collections import Input, LinesCollection
from dupmae_ir.io.jobs import read_record
from dupmae_ir.io.lines import numbered_lines
from dupmae_ir.io.publishing import combined_digest
from dupmae_ir.types import Document

SHOWN = 3
"""Examples named in an error."""


class Mined(NamedTuple):
    """A query, its positives, and the ids of its hard negatives, best first.

    ``scores`` (n,) float32 and ``ranks`` (n,) int32 are those of the search; rank 1 is the first hit, positives
    included.
    """

    qid: str
    query: str
    positives: tuple[Document, ...]
    negatives: tuple[str, ...]
    scores: np.ndarray
    ranks: np.ndarray


def read_mined(path: str | Path) -> list[Mined]:
    """Read the lines of ``dupmae-ir finetune.mine``.

    A line is ``{"qid", "query", "positives": [{"id", "title", "text"}], "negatives": [ids], "scores": [...], "ranks":
    [...]}``. Raises :class:`InputError` with file and line for anything else, and with counts for negatives that are
    positives of their query.
    """
    known: dict[str, str] = {}  # one string per id, shared by all queries
    found: list[Mined] = []
    clashes: list[str] = []
    seen: set[str] = set()
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        mined = _mined(line, where, known)
        if mined.qid in seen:
            raise InputError(f"{where}: query {mined.qid!r} occurs twice")
        seen.add(mined.qid)
        positives = {p.docid for p in mined.positives}
        clashes += [f"{n} of query {mined.qid}, line {number}" for n in mined.negatives if n in positives]
        found.append(mined)
    if clashes:
        raise InputError(f"{path}: {counted(clashes, 'negative is a positive', 'negatives are positives')}; mine again")
    return found


def read_scores(path: str | Path) -> dict[str, dict[str, float]]:
    """Read query id -> docid -> score from lines of ``{"qid", "scores": {docid: score}}``.

    Raises :class:`InputError` with file and line.
    """
    known: dict[str, str] = {}
    scores: dict[str, dict[str, float]] = {}
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        row = _object(line, where)
        qid, values = row.get("qid"), row.get("scores")
        if not isinstance(qid, str) or not isinstance(values, dict):
            raise InputError(f'{where}: expected {{"qid": ..., "scores": {{docid: number}}}}')
        if qid in scores:
            raise InputError(f"{where}: query {qid!r} occurs twice")
        if bad := next((d for d, v in values.items() if not _is_number(v)), None):
            raise InputError(f"{where}: the score of {bad!r} is not a number")
        scores[qid] = {known.setdefault(d, d): float(v) for d, v in values.items()}
    return scores


def require_scores(mined: Iterable[Mined], scores: Mapping[str, Mapping[str, float]], source: str | Path) -> None:
    """Raise :class:`InputError` with counts unless every positive and negative has a score."""
    missing = [
        f"{docid} of query {m.qid}"
        for m in mined
        for docid in (*(p.docid for p in m.positives), *m.negatives)
        if docid not in scores.get(m.qid, {})
    ]
    if missing:
        raise InputError(
            f"{source}: {counted(missing, 'passage has no score', 'passages have no score')}; score the same mined file"
        )


def counted(examples: Sequence[str], one: str, many: str, count: int | None = None) -> str:
    """``5 negatives are positives (a, b, c, ...)``; ``count`` if it is not the number of ``examples``."""
    count = len(examples) if count is None else count
    shown = ", ".join(examples[:SHOWN]) + (", ..." if count > SHOWN else "")
    return f"{count:,} {one if count == 1 else many} ({shown})"


def text_key(document: Document) -> int:
    """A 64-bit digest of the passage's text, equal for texts that differ only in case, white space or Unicode form."""
    text = unicodedata.normalize("NFKC", document.text or document.title).casefold()
    return int.from_bytes(hashlib.blake2b(" ".join(text.split()).encode(), digest_size=8).digest(), "little")


class IdTable:
    """docid -> 64-bit number, at 16 bytes per id; a collision of two ids is vanishingly unlikely."""

    def __init__(self) -> None:
        self._keys, self._values = array("Q"), array("Q")

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, docid: str, value: int) -> None:
        """Add an entry; not allowed after the first :meth:`get`."""
        self._keys.append(_hashed(docid))
        self._values.append(value)

    def get(self, docid: str) -> int | None:
        """The number of ``docid``, or None for an unknown id."""
        keys, values = self._sorted
        wanted = _hashed(docid)
        at = bisect.bisect_left(keys, wanted)
        return values[at] if at < len(keys) and keys[at] == wanted else None

    @cached_property
    def _sorted(self) -> tuple[array[int], array[int]]:
        keys, values = np.array(self._keys, np.uint64), np.array(self._values, np.uint64)
        order = np.argsort(keys)
        # One number at a time is looked up, where Python's bisection beats numpy's.
        self._keys, self._values = array("Q", keys[order].tobytes()), array("Q", values[order].tobytes())
        return self._keys, self._values


class Records:
    """JSON values by id, in a temporary file; memory use is 16 bytes per id.

    Reading is safe from several threads and from forked processes.
    """

    def __init__(self, items: Iterable[tuple[str, Any]]) -> None:
        self._table = IdTable()
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="dupmae-ir-records-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        end = 0
        for key, value in items:
            record = json.dumps(value).encode() + b"\n"
            self._file.write(len(record).to_bytes(4, "little") + record)
            self._table.add(key, end)
            end += 4 + len(record)
        self._file.flush()

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, key: str) -> bool:
        return self._table.get(key) is not None

    def get(self, key: str) -> Any:
        """The value of ``key``, or None for an unknown id."""
        offset = self._table.get(key)
        if offset is None:
            return None
        size = int.from_bytes(os.pread(self._file.fileno(), 4, offset), "little")
        return json.loads(os.pread(self._file.fileno(), size, offset + 4))


class Passages:
    """Passages of a collection by id; with ``ids``, only these."""

    def __init__(self, source: str | Path, ids: Ids[str] | None = None) -> None:
        self.source = str(source)
        collection = LinesCollection(source)
        self._records = Records((d.docid, d) for d in collection if ids is None or d.docid in ids)
        self.inputs: list[Input] = collection.inputs

    def __len__(self) -> int:
        return len(self._records)

    def get(self, docid: str) -> Document | None:
        """The passage, or None for an unknown id."""
        found = self._records.get(docid)
        return None if found is None else Document(*found)

    def __contains__(self, docid: str) -> bool:
        return docid in self._records

    def __getitem__(self, docid: str) -> Document:
        """The passage; :class:`InputError` for an unknown id."""
        document = self.get(docid)
        if document is None:
            raise InputError(f"{self.source}: has no passage {docid!r}")
        return document

    def require(self, mined: Iterable[Mined], source: str | Path) -> None:
        """Raise :class:`InputError` with counts unless the collection has every negative."""
        mined = list(mined)
        missing_ids = {d for d in {d for m in mined for d in m.negatives} if d not in self}
        if missing_ids:
            missing = [f"{d} of query {m.qid}" for m in mined for d in m.negatives if d in missing_ids]
            where = f"not in {self.source}"
            what = counted(missing, f"negative is {where}", f"negatives are {where}")
            raise InputError(f"{source}: {what}; give the collection it was mined from")


def open_passages(path: str | Path, mined: Iterable[Mined], collection: str | Path | None = None) -> Passages:
    """The passages of the negatives of ``path``, a mined file with the contents ``mined``.

    They are read from ``collection`` or from the collection that the file's record names, at that path or beside the
    mined file. Raises :class:`IndexMismatch` where the collection is not the one that was mined.
    """
    mined = list(mined)
    meta = read_record(path)
    source = Path(collection) if collection is not None else _collection_of(Path(path), meta)
    passages = Passages(source, {docid for m in mined for docid in m.negatives})
    if meta.get("collection_digest") != combined_digest(i.sha256 for i in passages.inputs):
        raise IndexMismatch(f"{source} is not the collection that {path} was mined from; restore it, or mine again")
    passages.require(mined, path)
    return passages


def _collection_of(path: Path, meta: dict[str, Any]) -> Path:
    named = Path(meta["collection"])
    places = [path.parent / named.name, named] if meta.get("pool") else [named, path.parent / named.name]
    for place in places:
        if place.exists():
            return place
    raise InputError(
        f"{named}: the collection that {path} was mined from does not exist; restore it, or put it beside {path}"
    )


def _mined(line: str, where: str, known: dict[str, str]) -> Mined:
    row = _object(line, where)
    qid, query = row.get("qid"), row.get("query")
    if not isinstance(qid, str) or not isinstance(query, str):
        raise InputError(f'{where}: expected an object with "qid", "query", "positives" and "negatives"')
    negatives = _list(row, "negatives", str, where)
    scores, ranks = _list(row, "scores", (int, float), where), _list(row, "ranks", int, where)
    if not len(negatives) == len(scores) == len(ranks):
        raise InputError(
            f"{where}: {len(negatives)} negatives, {len(scores)} scores, {len(ranks)} ranks: must be equal"
        )
    positives = tuple(_positive(p, where) for p in _list(row, "positives", dict, where))
    if not positives:
        raise InputError(f"{where}: query {qid!r} has no positive")
    return Mined(
        qid,
        query,
        positives,
        tuple(known.setdefault(d, d) for d in negatives),
        np.array(scores, np.float32),
        np.array(ranks, np.int32),
    )


def _positive(row: dict[str, Any], where: str) -> Document:
    docid, title, text = row.get("id"), row.get("title", ""), row.get("text")
    if not isinstance(docid, str) or not docid or not isinstance(title, str) or not isinstance(text, str):
        raise InputError(f'{where}: a positive must be {{"id", "title", "text"}}')
    return Document(docid, text, title)


def _list(row: dict[str, Any], name: str, kind: Any, where: str) -> list[Any]:
    values = row.get(name)
    if not isinstance(values, list) or not all(isinstance(v, kind) for v in values):
        raise InputError(f"{where}: {name!r} is not a list of the expected type")
    return values


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise InputError(f"{where}: not valid JSON: {e}") from None
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected one JSON object per line")
    return row


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def _hashed(docid: str) -> int:
    return hash(docid) & 0xFFFFFFFFFFFFFFFF


def survey(collection: LinesCollection, on_document: Callable[[Document, int], None]) -> IdTable:
    """Text keys of a collection by docid, in one pass; calls ``on_document(document, key)`` for each passage."""
    keys = IdTable()
    for document in collection:
        key = text_key(document)
        keys.add(document.docid, key)
        on_document(document, key)
    return keys
