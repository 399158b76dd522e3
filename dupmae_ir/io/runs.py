"""Run files in TREC's six columns and MS MARCO's three.

trec_eval ignores line order and the rank column: it stores scores as 32-bit floats, sorts by them, and breaks
ties by docid *descending*. A run reads back in our order (score descending, docid ascending) only if its
scores are strictly decreasing as float32, so that is what is written.
"""

from __future__ import annotations

import heapq
import itertools
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import numpy as np

from dupmae_ir.arguments import checked, is_path
from dupmae_ir.console import say
from dupmae_ir.errors import InputError, OutputError, UsageError
from dupmae_ir.io import in_memory
from dupmae_ir.io.in_memory import Table
from dupmae_ir.io.lines import columns, numbered_lines
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.registry import lookup
from dupmae_ir.tables import data_frame
from dupmae_ir.types import AnyRun, Hit, best_first

if TYPE_CHECKING:
    import pandas

_SIGN = np.int64(0x80000000)
LARGEST_SCORE = float(np.finfo(np.float32).max)  #: trec_eval stores scores as float32
_LARGEST_KEY = int(np.float32(LARGEST_SCORE).view(np.int32))


def strictly_decreasing(scores: np.ndarray) -> np.ndarray:
    """(n,) non-increasing finite scores -> (n,) float32, strictly decreasing, each lowered as little as possible.

    Floats of one sign order like their bit patterns, so "one float below its predecessor" is "one less" on
    integers: the answer is a running minimum of ``key + position``. Raises ValueError for increasing,
    non-finite or float32-overflowing scores.
    """
    wide = np.asarray(scores, np.float64)
    # Compared before the cast, where two scores of a query may fall on one float32.
    if (
        not np.isfinite(wide).all()
        or (wide[1:] > wide[:-1]).any()
        or np.abs(wide).max(initial=0) > LARGEST_SCORE
    ):
        raise ValueError("scores must be finite in float32 and must not increase")
    bits = wide.astype(np.float32).view(np.int32).astype(np.int64)
    keys = np.where(bits >= 0, bits, -(bits + _SIGN))
    position = np.arange(len(keys))
    keys = np.minimum.accumulate(keys + position) - position
    if len(keys) and keys[-1] < -_LARGEST_KEY:
        raise ValueError("no float32 is left below the lowest score")
    return np.where(keys >= 0, keys, -keys - _SIGN).astype(np.int32).view(np.float32)


class Rankings(dict[str, list[Hit]]):
    """A run: query id -> hits, best first."""

    def to_frame(self) -> pandas.DataFrame:
        """A row for each hit, with the columns ``qid``, ``docid``, ``rank`` (from 1) and ``score``."""
        rows = []
        for qid, hits in self.items():
            for rank, hit in enumerate(hits, 1):
                rows.append((qid, hit.docid, rank, hit.score))
        return data_frame(rows, ("qid", "docid", "rank", "score"))


class RunWriter:
    """Writes one query at a time to an open text file; see :func:`open_run`."""

    def __init__(self, file: IO[str], tag: str, format: str = "trec") -> None:
        if columns(tag) != [tag]:
            raise UsageError(
                f"run tag {tag!r}: one word without white space, for the last column of the run"
            )
        self._file = file
        self._tag = tag
        self._lines = lookup("run format", format, {"trec": self._trec, "msmarco": self._msmarco})
        self._written: set[str] = set()

    def add(self, qid: str, hits: Iterable[Hit]) -> None:
        """Write the hits of one query, best first. A query without hits has no line in either format.

        Raises :class:`OutputError` for a query written before, a document listed twice, an id with white space
        (which separates columns) and a score that is not a finite float32.
        """
        ranked = best_first(hits)
        docids = [h.docid for h in ranked]
        if qid in self._written:
            raise OutputError(f"query {qid!r} occurs twice in this run; query ids must be unique")
        for identifier in (qid, *docids):
            if columns(identifier) != [identifier]:
                raise OutputError(
                    f"query {qid!r}: id {identifier!r} is empty or contains white space; runs cannot represent it"
                )
        if len(set(docids)) < len(docids):
            twice, _ = Counter(docids).most_common(1)[0]
            raise OutputError(f"query {qid!r}: document {twice!r} is listed twice")
        for hit in ranked:
            if not math.isfinite(hit.score):
                raise OutputError(
                    f"query {qid!r}, document {hit.docid!r}: score {hit.score} is not finite"
                )
        try:
            scores = strictly_decreasing(np.array([h.score for h in ranked], np.float64))
        except ValueError as e:
            raise OutputError(f"query {qid!r}: {e}") from None
        self._written.add(qid)
        self._file.writelines(self._lines(qid, docids, scores))

    def _trec(self, qid: str, docids: list[str], scores: np.ndarray) -> Iterator[str]:
        # Nine significant digits identify every float32.
        for rank, (docid, score) in enumerate(zip(docids, scores.tolist(), strict=True), 1):
            yield f"{qid} Q0 {docid} {rank} {score:.9g} {self._tag}\n"

    def _msmarco(self, qid: str, docids: list[str], scores: np.ndarray) -> Iterator[str]:  # noqa: ARG002
        for rank, docid in enumerate(docids, 1):
            yield f"{qid}\t{docid}\t{rank}\n"


@contextmanager
def open_run(path: str | Path, tag: str, format: str = "trec") -> Iterator[RunWriter]:
    """A streaming writer: memory does not grow with the run, and ``path`` appears whole or not at all."""
    with atomic_write(path) as file:
        yield RunWriter(file, tag, format)


@checked
def write_run(
    path: str | Path, run: AnyRun | Table, tag: str = "dupmae_ir", format: str = "trec"
) -> None:
    """Write a whole run, queries in the order given: hits by query id, or rows (query id, docid, score), for example a
    DataFrame. ``format`` is ``trec`` or ``msmarco`` (ranks only)."""
    if not isinstance(run, Mapping):
        run = in_memory.run_of(run)
    with open_run(path, tag, format) as writer:
        for qid, hits in run.items():
            pairs = in_memory.hits_of(hits, f"`run`, query {qid!r}")
            writer.add(qid, itertools.starmap(Hit, pairs))


@checked
def read_run(path: str | Path, warn: Callable[[str], None] | None = say) -> Rankings:
    """Query id -> hits in our order, whatever the order of the lines.

    Reads six columns (``qid Q0 docid rank score tag``) or three (``qid docid rank``; the score is then 1/rank,
    as in Pyserini), gzipped or not. ``warn`` is called with one line for each kind of disagreement between the rank
    column and trec_eval; None suppresses them. Raises :class:`InputError` with file and line for a wrong column count,
    a score or rank that is no number, NaN or infinity, and a document listed twice for one query.
    """
    found: dict[str, dict[str, float]] = {}
    ranks: dict[str, array[int]] = {}
    width = 0
    for number, line in numbered_lines(path):
        fields = columns(line)
        if len(fields) != width:
            width = _width(fields, width, f"{path}:{number}")
        if width == 6:
            qid, _, docid, rank, score, _ = fields
            value = _number(score, path, number)
            ranks.setdefault(qid, array("q")).append(
                int(rank) if rank.isascii() and rank.isdigit() else 0
            )
        else:
            qid, docid, rank = fields
            if not rank.isascii() or not rank.isdigit() or int(rank) < 1:
                raise InputError(
                    f"{path}:{number}: rank {rank!r} is not a whole number from 1 upwards"
                )
            value = 1 / int(rank)
        scores = found.setdefault(qid, {})
        if docid in scores:
            raise InputError(
                f"{path}:{number}: document {docid!r} is listed twice for query {qid!r}"
            )
        scores[docid] = value
    if warn is not None:
        for message in _disagreements(found, ranks):
            warn(f"{path}: {message}")
    # Popped, so that a large run is never in memory twice.
    run = Rankings()
    for qid in list(found):
        run[qid] = best_first(itertools.starmap(Hit, found.pop(qid).items()))
    return run


def any_run(run: object, name: str = "run") -> dict[str, dict[str, float]]:
    """Query id -> docid -> score, of a file or of what :func:`~dupmae_ir.io.in_memory.run_of` reads; ``name``: of the
    parameter, for errors."""
    if is_path(run):
        run = read_run(cast("str", run))
    return in_memory.run_of(run, name)


def trec_order(scores: Mapping[str, float], depth: int | None = None) -> list[str]:
    """The first ``depth`` (default: all) docids as trec_eval ranks them: float32 score, then docid, both descending."""
    held = np.fromiter(scores.values(), np.float32, len(scores)).tolist()
    # Python orders strings by code point, which is also the order of their UTF-8 bytes, as strcmp sees them.
    pairs = zip(held, scores, strict=True)
    ranked = sorted(pairs, reverse=True) if depth is None else heapq.nlargest(depth, pairs)
    return [docid for _, docid in ranked]


def _width(fields: list[str], before: int, where: str) -> int:
    """6 or 3, according to the first line; all others must agree."""
    if not before and len(fields) in (3, 6):
        return len(fields)
    either = "6 columns (qid Q0 docid rank score tag) or 3 (qid docid rank)"
    expected = f"{before} columns as before" if before else either
    raise InputError(f"{where}: expected {expected}, got {len(fields)}")


def _number(text: str, path: str | Path, number: int) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{path}:{number}: score {text!r} is not a number") from None
    if not -LARGEST_SCORE <= value <= LARGEST_SCORE or "_" in text:
        raise InputError(f"{path}:{number}: score {text!r} is not a finite 32-bit number")
    return value


def _disagreements(
    found: Mapping[str, Mapping[str, float]], ranks: Mapping[str, array[int]]
) -> Iterator[str]:
    """Messages about the rank column, which trec_eval ignores, where it contradicts the scores."""
    contradicted = 0
    tied = 0
    for qid, listed in ranks.items():
        scores = found[qid]
        rank = dict(zip(scores, listed, strict=True))
        inversions = [
            (a, b) for a, b in itertools.pairwise(trec_order(scores)) if rank[a] >= rank[b]
        ]
        if all(np.float32(scores[a]) == np.float32(scores[b]) for a, b in inversions):
            tied += bool(inversions)
        else:
            contradicted += 1
    if contradicted:
        yield f"ranks contradict scores in {contradicted} of {len(found)} queries; scores decide, as in trec_eval"
    if tied:
        yield f"equal scores in {tied} of {len(found)} queries, which trec_eval ranks otherwise: by docid, descending"
