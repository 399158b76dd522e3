"""The files of fine-tuning but pairs: mined negatives with their passages, and a teacher's scores.

Every command that writes such a file runs :func:`write_file`.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import mmap
import tempfile
import unicodedata
import weakref
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Collection as Ids
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from dupmae_ir.config import applies
from dupmae_ir.errors import IndexMismatch, InputError, UsageError
from dupmae_ir.finetune.formats import teacher_scores
from dupmae_ir.io.collections import Input, LinesCollection, file_digests
from dupmae_ir.io.jobs import Job, read_record
from dupmae_ir.io.lines import json_records
from dupmae_ir.io.publishing import combined_digest, sha256_file
from dupmae_ir.types import Document, Hit

MAX_EXAMPLES = 3
"""Examples named in an error."""
# Fields of a command that do not decide the contents of the file.
_NOT_RECORDED = ("output", "quiet", "json", "threads", "device", "impact_search")


def write_file(
    config: Any,
    command: str,
    inputs: Sequence[str],
    work: Callable[[Job], dict[str, object]],
    digests: Mapping[str, Callable[[str], str]] | None = None,
    **settings: object,
) -> dict[str, object]:
    """The result of ``work(job)``, which publishes ``config.output``, or the result recorded with the complete file.

    Args:
        config: the command's settings; those that apply and decide the contents are recorded.
        command: verb of the command.
        inputs: fields that name files and folders, of which digests are recorded.
        work: writes the file.
        digests: how to digest a field that names neither files nor a collection.
        settings: recorded instead of the fields of the same names; None leaves the field out.

    Raises:
        UsageError: the output is a folder. See :mod:`dupmae_ir.io.jobs` for what a second run returns.
    """
    if Path(config.output).is_dir():
        raise UsageError(f"{config.output} is a folder; name a file to write")
    digests = {"collection": collection_digest, **(digests or {})}
    recorded = {}
    for setting in fields(config):
        name = setting.name
        if name in (*_NOT_RECORDED, *inputs) or name in settings:
            continue
        if applies(config, name):
            recorded[name] = getattr(config, name)
    recorded |= {name: value for name, value in settings.items() if value is not None}

    def digest_inputs() -> dict[str, str]:
        values = {}
        for name in inputs:
            path = getattr(config, name)
            if path:
                values[name] = digests.get(name, files_digest)(path)
        return values

    with Job(config.output, command, recorded, digest_inputs, quiet=config.quiet) as job:
        return job.finished() or work(job)


def files_digest(
    paths: str | Sequence[str], patterns: Sequence[str] = ("*.tsv", "qrels/*.tsv")
) -> str:
    """A digest of files; a folder stands for its files that match ``patterns``, by default its judgements.

    The name of Pyserini's topics stands for their contents.
    """
    digest = hashlib.sha256()
    if isinstance(paths, str):
        paths = [paths]
    for path in map(Path, paths):
        files = [path]
        if path.is_dir():
            files = []
            for pattern in patterns:
                files.extend(path.glob(pattern))
        # A file system lists files in any order.
        for file in sorted(files):
            contents = sha256_file(file) if file.is_file() else ""
            digest.update(f"{file.name} {contents}\n".encode())
    return digest.hexdigest()


def collection_digest(path: str) -> str:
    """A digest of the files of a collection, which are read to the end."""
    return combined_digest(file_digests(path))


def passage_object(document: Document, docid: str | None = None) -> dict[str, str]:
    """A passage as an object of a line of pairs or of mined negatives."""
    return {
        "id": document.docid if docid is None else docid,
        "title": document.title,
        "text": document.text,
    }


class MinedQuery(NamedTuple):
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

    @property
    def docids(self) -> list[str]:
        """The ids of the positives, then of the negatives."""
        return [*(p.docid for p in self.positives), *self.negatives]


def read_mined(path: str | Path) -> list[MinedQuery]:
    """Read the lines of ``dupmae-ir finetune.mine``.

    A line is ``{"qid", "query", "positives": [{"id", "title", "text"}], "negatives": [ids], "scores": [...], "ranks":
    [...]}``. Raises :class:`InputError` with file and line for anything else, and with counts for negatives that are
    positives of their query.
    """
    shared: dict[str, str] = {}  # one string per id, for all queries
    queries: dict[str, MinedQuery] = {}
    clashes: list[str] = []
    for where, row in json_records(path):
        mined = _mined_query(row, where, shared)
        if queries.setdefault(mined.qid, mined) is not mined:
            raise InputError(f"{where}: query {mined.qid!r} occurs twice")
        positives = {positive.docid for positive in mined.positives}
        for docid in mined.negatives:
            if docid in positives:
                _, _, line = where.rpartition(":")
                clashes.append(f"{docid} of query {mined.qid}, line {line}")
    if clashes:
        raise InputError(
            f"{path}: {counted(clashes, 'negative is a positive', 'negatives are positives')}; mine again"
        )
    return list(queries.values())


def _mined_query(row: Mapping[str, Any], where: str, shared: dict[str, str]) -> MinedQuery:
    qid = row.get("qid")
    query = row.get("query")
    if not isinstance(qid, str) or not isinstance(query, str):
        raise InputError(
            f'{where}: expected an object with "qid", "query", "positives" and "negatives"'
        )
    negatives = _list(row, "negatives", str, where)
    scores = _list(row, "scores", (int, float), where)
    ranks = _list(row, "ranks", int, where)
    if not len(negatives) == len(scores) == len(ranks):
        raise InputError(
            f"{where}: {len(negatives)} negatives, {len(scores)} scores, {len(ranks)} ranks: must be equal"
        )
    positives = []
    for passage in _list(row, "positives", dict, where):
        docid = passage.get("id")
        title = passage.get("title", "")
        text = passage.get("text")
        are_texts = all(isinstance(value, str) for value in (docid, title, text))
        if not are_texts or not docid:
            raise InputError(f'{where}: a positive must be {{"id", "title", "text"}}')
        positives.append(Document(docid, text, title))
    if not positives:
        raise InputError(f"{where}: query {qid!r} has no positive")
    return MinedQuery(
        qid,
        query,
        tuple(positives),
        tuple(shared.setdefault(d, d) for d in negatives),
        np.array(scores, np.float32),
        np.array(ranks, np.int32),
    )


def _list(
    row: Mapping[str, Any], name: str, kind: type | tuple[type, ...], where: str
) -> list[Any]:
    values = row.get(name)
    if not isinstance(values, list) or not all(isinstance(v, kind) for v in values):
        raise InputError(f"{where}: {name!r} is not a list of the expected type")
    return values


class HardNegative(NamedTuple):
    """A passage that a search ranked high and that is no positive; rank 1 is the first hit of the search."""

    docid: str
    score: float
    rank: int


def hard_negatives(
    hits: Sequence[Hit],
    positives: Ids[str],
    answers: Ids[int],
    key: Callable[[str], int | None],
    skip_top: int = 0,
) -> tuple[list[HardNegative], dict[str, int]]:
    """The hits below the first ``skip_top`` that are neither a positive nor a copy of an earlier hit.

    Args:
        hits: of one query, best first.
        positives: ids of its positives.
        answers: text keys of its positives.
        key: docid -> text key, or None.
        skip_top: hits to skip.

    Returns:
        The negatives, and the number of dropped hits by reason. Positives among the skipped hits are counted as well.
    """
    dropped = {"positive_id": 0, "positive_text": 0, "duplicate": 0}
    negatives: list[HardNegative] = []
    seen: set[int | None] = set()
    for rank, hit in enumerate(hits, 1):
        text = key(hit.docid)
        if hit.docid in positives:
            dropped["positive_id"] += 1
        elif text in answers:
            dropped["positive_text"] += 1
        # Only now: positives among the skipped hits are counted, too.
        elif rank > skip_top:
            if text in seen:
                dropped["duplicate"] += 1
                continue
            seen.add(text)
            negatives.append(HardNegative(hit.docid, hit.score, rank))
    return negatives, dropped


def mined_line(
    qid: str,
    query: str,
    positives: Mapping[str, Document],
    negatives: Sequence[HardNegative],
    dropped: Mapping[str, int] | None = None,
) -> dict[str, object]:
    """A line of a mined file, as :func:`read_mined` reads it; ``positives`` are passages by id."""
    return {
        "qid": qid,
        "query": query,
        "positives": [passage_object(document, docid) for docid, document in positives.items()],
        "negatives": [n.docid for n in negatives],
        "scores": [float(f"{n.score:.6g}") for n in negatives],
        "ranks": [n.rank for n in negatives],
        "dropped": dropped or {},
    }


def read_scores(path: str | Path) -> dict[str, dict[str, float]]:
    """Query id -> docid -> score, from any form that :func:`~dupmae_ir.finetune.formats.teacher_scores` reads.

    Raises :class:`InputError` with file and line.
    """
    shared: dict[str, str] = {}  # one string per id, for all queries
    scores_by_query = {}
    for qid, scores in teacher_scores(path):
        scores_by_query[qid] = {
            shared.setdefault(docid, docid): score for docid, score in scores.items()
        }
    return scores_by_query


def require_scores(
    mined: Iterable[MinedQuery], scores: Mapping[str, Mapping[str, float]], source: str | Path
) -> None:
    """Raise :class:`InputError` with counts unless every positive and negative has a score."""
    missing = []
    for query in mined:
        query_scores = scores.get(query.qid, {})
        for docid in query.docids:
            if docid not in query_scores:
                missing.append(f"{docid} of query {query.qid}")
    if missing:
        raise InputError(
            f"{source}: {counted(missing, 'passage has no score', 'passages have no score')}; score the same mined file"
        )


def counted(examples: Sequence[str], one: str, many: str, count: int | None = None) -> str:
    """``5 negatives are positives (a, b, c, ...)``; ``count`` if it is not the number of ``examples``."""
    if count is None:
        count = len(examples)
    text = f"{count:,} {one if count == 1 else many}"
    if not examples:
        return text
    names = ", ".join(examples[:MAX_EXAMPLES])
    if count > MAX_EXAMPLES:
        names += ", ..."
    return f"{text} ({names})"


def text_key(document: Document) -> int:
    """A 64-bit digest of the passage's text, equal for texts that differ only in case, white space or Unicode form."""
    text = unicodedata.normalize("NFKC", document.text or document.title).casefold()
    normalized = " ".join(text.split())
    digest = hashlib.blake2b(normalized.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class IdTable:
    """docid -> 64-bit number, at 16 bytes per id; a collision of two ids is vanishingly unlikely."""

    def __init__(self, items: Iterable[tuple[str, int]] = ()) -> None:
        self._keys = array("Q")
        self._values = array("Q")
        for docid, value in items:
            self.add(docid, value)

    def add(self, docid: str, value: int) -> None:
        """Add an entry; not allowed after the first :meth:`get`."""
        self._keys.append(_hash(docid))
        self._values.append(value)

    def get(self, docid: str) -> int | None:
        """The number of ``docid``, or None for an unknown id."""
        keys, values = self._sorted
        key = _hash(docid)
        index = bisect.bisect_left(keys, key)
        if index < len(keys) and keys[index] == key:
            return values[index]
        return None

    @cached_property
    def _sorted(self) -> tuple[array[int], array[int]]:
        keys = np.array(self._keys, np.uint64)
        values = np.array(self._values, np.uint64)
        order = np.argsort(keys)
        # Python arrays again: for one number at a time, Python's bisection is faster than numpy's.
        # In place of the unsorted arrays, whose memory is freed.
        self._keys = array("Q", keys[order].tobytes())
        self._values = array("Q", values[order].tobytes())
        return self._keys, self._values


class Records:
    """JSON values by id, in a temporary file; memory use is 16 bytes per id.

    Reading is safe from several threads and from forked processes.
    """

    def __init__(self, items: Iterable[tuple[str, Any]]) -> None:
        self._table = IdTable()
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="dupmae-ir-records-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        end = self._file.write(b"\n")  # a map cannot be empty
        for key, value in items:
            record = json.dumps(value).encode() + b"\n"
            # Each record follows its length, so that the table needs its offset alone.
            self._file.write(len(record).to_bytes(4, "little") + record)
            self._table.add(key, end)
            end += 4 + len(record)
        self._file.flush()
        # A map has no position in the file, which threads and forked processes would move for each other.
        self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    def __contains__(self, key: str) -> bool:
        return self._table.get(key) is not None

    def get(self, key: str) -> Any:
        """The value of ``key``, or None for an unknown id."""
        offset = self._table.get(key)
        if offset is None:
            return None
        start = offset + 4
        size = int.from_bytes(self._map[offset:start], "little")
        return json.loads(self._map[start : start + size])


class Passages:
    """Passages of a collection by id; with ``ids``, only these."""

    def __init__(self, source: str | Path, ids: Ids[str] | None = None) -> None:
        self.source = str(source)
        collection = LinesCollection(source)
        self._records = Records((d.docid, d) for d in collection if ids is None or d.docid in ids)
        self.inputs: list[Input] = collection.inputs

    def get(self, docid: str) -> Document | None:
        """The passage, or None for an unknown id."""
        record = self._records.get(docid)
        if record is None:
            return None
        return Document(*record)

    def __contains__(self, docid: str) -> bool:
        return docid in self._records

    def __getitem__(self, docid: str) -> Document:
        """The passage; :class:`InputError` for an unknown id."""
        document = self.get(docid)
        if document is None:
            raise InputError(f"{self.source}: has no passage {docid!r}")
        return document

    def require(self, mined: Sequence[MinedQuery], source: str | Path) -> None:
        """Raise :class:`InputError` with counts unless the collection has every negative."""
        # Queries share negatives: each id is looked up once.
        ids = set(itertools.chain.from_iterable(query.negatives for query in mined))
        missing_ids = {docid for docid in ids if docid not in self}
        if missing_ids:
            missing = []
            for query in mined:
                for docid in query.negatives:
                    if docid in missing_ids:
                        missing.append(f"{docid} of query {query.qid}")
            where = f"not in {self.source}"
            what = counted(missing, f"negative is {where}", f"negatives are {where}")
            raise InputError(f"{source}: {what}; give the collection it was mined from")


def open_passages(
    path: str | Path, mined: Sequence[MinedQuery], collection: str | Path | None = None
) -> Passages:
    """The passages of the negatives of ``path``, a mined file with the contents ``mined``.

    They are read from ``collection`` or from the collection that the file's record names, at that path or
    in the folder of the mined file. Raises :class:`IndexMismatch` if another collection was mined.
    """
    meta: Mapping[str, Any] = read_record(path)
    if collection is None:
        named = Path(meta["collection"])
        nearby = Path(path).parent / named.name
        # The passages of pairs were written in the folder of the mined file, and have moved with it.
        candidates = [named, nearby]
        if meta.get("pool"):
            candidates = [nearby, named]
        collection = next((candidate for candidate in candidates if candidate.exists()), None)
        if collection is None:
            raise InputError(
                f"{named}: the collection that {path} was mined from does not exist; restore it, or put it next to "
                f"{path}"
            )
    ids = set(itertools.chain.from_iterable(query.negatives for query in mined))
    passages = Passages(collection, ids)
    if meta.get("collection_digest") != combined_digest(file.sha256 for file in passages.inputs):
        raise IndexMismatch(
            f"{collection} is not the collection that {path} was mined from; restore it, or mine again"
        )
    passages.require(mined, path)
    return passages


def _hash(docid: str) -> int:
    # Python's hash of a string differs between processes, but not in those forked from this one.
    return hash(docid) & 0xFFFFFFFFFFFFFFFF
