"""The files of impact postings: a segment's impacts by term, which compiled loops search without Java.

Lucene skips postings that cannot reach the top ten, which pays for a single query and few hits. For a thousand hits of
each of many queries (evaluation, hard negatives) nearly every posting counts, and summing all of them in an accumulator
that fits the processor's cache is much faster. Hits, integer scores and the order of ties are the same as Lucene's.

    postings/meta.json        format, counts, the window, and the id of the segment they were made from
    postings/starts.npy       (w + 1,) int64: where the postings of each window begin
    postings/pointers.npy     (w * (V + 1),) uint32: where the postings of each term begin, from the window's start
    postings/maxima.npy       (w * V,) uint8: the term's highest impact in the window
    postings/rows.npy         (s,) uint16: row within the window
    postings/impacts.npy      (s,) uint8
    postings/columns.npy      (w * V,) uint16: the number of the term's column in the window, from 1; 0 if it has none
    postings/column_starts.npy  (w + 1,) int64: where the columns of each window begin
    postings/dense.npy        (d,) uint8: columns, the impacts of all rows of a window, zeros included

A window is a run of ``window`` rows; its postings are contiguous, sorted by term and then by row. Terms of at least one
row in :data:`DENSE` have a column instead of postings, which the processor adds many rows at a time. A search processes
window by window and skips windows in which even the highest impacts could not lift a document into a query's top k.

A search that is restricted to some rows masks the accumulator, or, for few rows, reads their impacts from the forward
index instead of the postings of all rows.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from dupmae_ir.console import megabytes
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.format.forward import Forward, NpyWriter, mapped, release
from dupmae_ir.index.format.manifest import SegmentRecord, sweep_lock
from dupmae_ir.index.postings.compiling import Files
from dupmae_ir.io.jobs import Job, JobRecord
from dupmae_ir.io.publishing import bytes_of, read_json_object, write_json

FORMAT = 1
FILES: dict[str, type] = {
    "starts": np.int64,
    "pointers": np.uint32,
    "maxima": np.uint8,
    "rows": np.uint16,
    "impacts": np.uint8,
    "columns": np.uint16,
    "column_starts": np.int64,
    "dense": np.uint8,
}
WINDOW = 1 << 16
"""Rows of a window, whose accumulator takes 256 KB. Smaller windows measured slower: each has a cost per term."""
DENSE = 8
"""Terms of at least one row in this many have a column. A column takes as long to add as postings of one row in twenty,
and as much room as postings of one row in three; this value lies between the fastest and the smallest choice."""
MAX_WINDOW = 1 << 16
"""Number of rows that a uint16 can address."""


class ImpactSegment(Protocol):
    """A segment with impacts, as far as postings need one: a :class:`~dupmae_ir.index.format.segment.Segment`."""

    index: Path
    path: Path
    record: SegmentRecord

    @property
    def digest(self) -> str: ...
    @property
    def documents(self) -> int: ...
    @property
    def terms(self) -> Sequence[str]: ...
    @property
    def forward(self) -> Forward: ...
    def check_part(self, part: str, fix: str = ..., everything: bool = ...) -> None: ...
    def part_problem(self, part: str) -> str | None: ...
    def record_part(self, part: str) -> None: ...


class PostingsMeta(NamedTuple):
    """What ``postings/meta.json`` records: counts, rows of a window, and the id of the segment they were made from."""

    format: int
    documents: int
    postings: int
    vocabulary: int
    window: int
    sparse: int  #: entries of ``rows`` and ``impacts``
    dense: int  #: bytes of the columns
    digest: str


def folder_of(segment: str | Path) -> Path:
    """Where the postings of a segment are."""
    return Path(segment) / "postings"


def export_postings(
    segment: ImpactSegment, window: int = WINDOW, tick: Callable[[int], object] | None = None
) -> Path:
    """Write the postings of a segment from its forward index and return their folder. Older postings are replaced.

    Memory does not grow with the collection. ``tick`` is called with the number of rows of each finished window. Raises
    :class:`IndexMismatch` for an index without impacts, :class:`UsageError` while another process writes them.
    """
    with PostingsJob(segment, window, overwrite=True) as job:
        job.build(tick)
    return folder_of(segment.path)


class PostingsJob(Job):
    """Writes the postings of a segment. Their ``meta.json`` is the record; unusable ones are replaced."""

    def __init__(
        self,
        segment: ImpactSegment,
        window: int = WINDOW,
        overwrite: bool = False,
        quiet: bool = True,
    ) -> None:
        self.segment = segment
        self.window = window
        self.forward = segment.forward
        # Damage would be copied into files whose own digests are right.
        segment.check_part("forward", everything=True)
        super().__init__(
            folder_of(segment.path),
            "index postings",
            {"window": window},
            {"index": segment.digest},
            overwrite=overwrite,
            resumable=False,
            quiet=quiet,
        )

    def __enter__(self) -> Self:
        """As :meth:`Job.__enter__`; then, after recovery, decide whether the existing postings are usable."""
        super().__enter__()
        sweep_lock(self.segment.index)
        try:
            open_postings(self.segment)
        except IndexMismatch:
            # Unusable postings are replaced even without `overwrite`; their record may say that they are complete.
            self.overwrite = True
        return self

    def build(self, tick: Callable[[int], object] | None = None) -> Mapping[str, Any]:
        """Write and publish the postings; returns their counts and size in bytes."""
        folder = self.begin() / "postings"
        folder.mkdir()
        write_postings(self.forward, folder, self.segment.digest, self.window, tick)
        # First the folder, then its digests in the manifest. A process killed in between leaves postings that the
        # manifest does not describe, and the next run makes them again.
        result = self.publish(folder, {})
        self.segment.record_part("postings")
        return {**result, **self._counts()}

    def recorded(self) -> JobRecord:
        """The ``meta.json`` of the existing postings as a job's record."""
        meta = _read_meta(self.segment)
        return {
            "made_by": f"dupmae-ir {self.command}",
            "settings": {"window": meta.window},
            "inputs": {"index": meta.digest},
            "result": self._counts(),
        }

    def _counts(self) -> dict[str, int]:
        counts = {"documents": self.segment.documents, "postings": self.segment.record.postings}
        return {**counts, "bytes": bytes_of(folder_of(self.segment.path))}

    def write_record(self, made: Path, record: Mapping[str, Any]) -> None:
        """Add the record to the ``meta.json`` that is already there."""
        path = made / "meta.json"
        write_json(path, {**read_json_object(path), **record})

    def check_replaceable(self) -> None:
        """Accept any existing folder: one of this name in a segment always belongs to this command."""


def postings_problem(segment: ImpactSegment) -> str | None:
    """Why the postings of a segment cannot be used, by their records; None if they can be."""
    try:
        _read_meta(segment)
    except IndexMismatch as e:
        return str(e)
    problem = segment.part_problem("postings")
    if problem:
        return f"{problem}; {_again(segment)}"
    return None


def describe_postings(segment: ImpactSegment) -> dict[str, str]:
    """``{"postings": "12 MB"}``, or why the postings are unusable; empty if there are none."""
    folder = folder_of(segment.path)
    if not folder.is_dir():
        return {}
    problem = postings_problem(segment)
    if problem:
        return {"postings": f"unusable: {problem}"}
    return {"postings": megabytes(bytes_of(folder))}


def _again(segment: ImpactSegment) -> str:
    return f"rebuild them with: dupmae-ir index postings --index {segment.index}"


def write_postings(
    forward: Forward,
    folder: Path,
    digest: str,
    window: int = WINDOW,
    tick: Callable[[int], object] | None = None,
) -> None:
    """Write the files into ``folder``, which exists and is empty, window by window."""
    if not 1 <= window <= MAX_WINDOW:
        raise UsageError(f"a window must have 1 to {MAX_WINDOW} rows, got {window}")
    with contextlib.ExitStack() as files:
        writers = {}
        for name, kind in FILES.items():
            writers[name] = files.enter_context(NpyWriter(folder / f"{name}.npy", kind))
        for name in ("starts", "column_starts"):
            writers[name].add(np.zeros(1))
        for first in range(0, len(forward), window):
            last = min(first + window, len(forward))
            for name, values in _window(forward, first, last).items():
                writers[name].add(values)
            writers["starts"].add(np.array([writers["rows"].count]))
            writers["column_starts"].add(np.array([writers["dense"].count]))
            if tick:
                tick(last - first)
    # Last: a folder without it has no postings.
    meta = PostingsMeta(
        format=FORMAT,
        documents=len(forward),
        postings=len(forward.terms),
        vocabulary=forward.vocabulary,
        window=window,
        sparse=writers["rows"].count,
        dense=writers["dense"].count,
        digest=digest,
    )
    write_json(folder / "meta.json", meta._asdict())


def _window(forward: Forward, first: int, last: int) -> dict[str, np.ndarray]:
    """The postings of the rows from ``first`` to ``last`` (exclusive), by term and then by row."""
    from scipy.sparse import csr_matrix  # takes longer to import than a search of a small index

    row_count = last - first
    indptr = forward.indptr[first : last + 1]
    postings = slice(int(indptr[0]), int(indptr[-1]))
    impacts = forward.impacts[postings]
    terms = forward.terms[postings].astype(np.int32)
    by_row = csr_matrix((impacts, terms, indptr - indptr[0]), (row_count, forward.vocabulary))
    # A term outside the vocabulary would make the transposition write outside its arrays.
    by_row.check_format()
    by_term = by_row.tocsc()
    # The mapped pages of this window are not read again.
    release(forward.terms)
    release(forward.impacts)

    counts = np.diff(by_term.indptr)
    # Columns are numbered from 1 in a uint16; terms beyond that keep their postings.
    common_terms = np.flatnonzero(counts * DENSE >= row_count)[: np.iinfo(np.uint16).max]
    columns = np.zeros(forward.vocabulary, np.uint16)
    columns[common_terms] = np.arange(1, len(common_terms) + 1)
    has_postings = columns == 0
    in_postings = np.repeat(has_postings, counts)
    return {
        "pointers": np.concatenate(([0], np.cumsum(np.where(has_postings, counts, 0)))),
        # Of terms with a column as well: a search bounds a window by them.
        "maxima": by_term.max(axis=0).toarray().ravel(),
        "rows": by_term.indices[in_postings],
        "impacts": by_term.data[in_postings],
        "columns": columns,
        "dense": by_term[:, common_terms].T.toarray().ravel(),
    }


def open_postings(segment: ImpactSegment) -> tuple[PostingsMeta, Files]:
    """The meta and the memory-mapped files of the postings of a segment. Raises :class:`IndexMismatch`."""
    meta = _read_meta(segment)
    folder = folder_of(segment.path)
    again = _again(segment)
    segment.check_part("postings", again)

    window_count = math.ceil(segment.documents / meta.window)
    lengths = {
        "starts": window_count + 1,
        "pointers": window_count * (meta.vocabulary + 1),
        "maxima": window_count * meta.vocabulary,
        "rows": meta.sparse,
        "impacts": meta.sparse,
        "columns": window_count * meta.vocabulary,
        "column_starts": window_count + 1,
        "dense": meta.dense,
    }
    files = {}
    for name, kind in FILES.items():
        path = folder / f"{name}.npy"
        array = mapped(path, again)
        # An empty file is not mapped, so its array would be writable: another signature to compile.
        array.flags.writeable = False
        # The compiled loops check no bounds, so lengths and types must be right before they run.
        if len(array) != lengths[name] or array.dtype != np.dtype(kind):
            raise IndexMismatch(
                f"{path} has {len(array)} numbers of type {array.dtype}, but its meta.json records "
                f"{lengths[name]} of {np.dtype(kind)}; {again}"
            )
        files[name] = array
    files["pointers"] = files["pointers"].reshape(window_count, meta.vocabulary + 1)
    for name in ("maxima", "columns"):
        files[name] = files[name].reshape(window_count, meta.vocabulary)
    return meta, Files(**files)


def _read_meta(segment: ImpactSegment) -> PostingsMeta:
    path = folder_of(segment.path) / "meta.json"
    again = _again(segment)
    record = read_json_object(path)
    if not record:
        command = again.partition(": ")[2]
        raise IndexMismatch(f"{path.parent} has no postings; build them with: {command}")
    if record.get("format") != FORMAT:
        raise IndexMismatch(f"{path.parent}: the postings are not of format {FORMAT}; {again}")
    expected = {
        "documents": segment.documents,
        "postings": segment.record.postings,
        "vocabulary": len(segment.terms),
        "digest": segment.digest,
    }
    differing = [name for name, value in expected.items() if record.get(name) != value]
    if differing:
        raise IndexMismatch(
            f"{path.parent} was made from another index ({', '.join(differing)} differ); {again}"
        )
    numbers = [record.get(name) for name in ("window", "sparse", "dense")]
    all_integers = all(isinstance(number, int) for number in numbers)
    if not all_integers or not 1 <= record["window"] <= MAX_WINDOW:
        raise IndexMismatch(f"{path} lacks numbers; {again}")
    return PostingsMeta(**{name: record[name] for name in PostingsMeta._fields})


def compare_postings(segment: ImpactSegment) -> str | None:
    """Decode the postings of a segment and compare them with the forward index, window by window.

    Returns a message about the first difference; None if both have the same impacts. Raises :class:`IndexMismatch` for
    postings that cannot be opened.
    """
    folder = folder_of(segment.path)
    meta, opened = open_postings(segment)
    files = opened._asdict()
    # Where the window begins in files whose windows differ in length; the other files have a row for each window.
    offsets = {"rows": 0, "impacts": 0, "dense": 0}
    for window, first in enumerate(range(0, segment.documents, meta.window)):
        last = min(first + meta.window, segment.documents)
        starts_agree = files["starts"][window] == offsets["rows"]
        columns_agree = files["column_starts"][window] == offsets["dense"]
        if not (starts_agree and columns_agree):
            return f"{folder}: window {window} begins elsewhere than the files record"
        for name, expected in _window(segment.forward, first, last).items():
            if name in offsets:
                start = offsets[name]
                stored = files[name][start : start + len(expected)]
                offsets[name] += len(expected)
            else:
                stored = files[name][window]
            if not np.array_equal(stored, expected):
                return f"{folder / name}.npy differs from the forward index in rows {first:,} to {last - 1:,}"
    return None
