"""Changing an index: the next generation is prepared next to the current one and becomes it in one step.

A new segment is written into the work folder, moved to ``I/segments``, and named by the new ``meta.json``, whose
replacement is the change. Until then the index is what it was; a kill leaves at most files that no manifest names,
which the next change removes. :class:`ChangeJob` is the shell of all these commands; documents are encoded by
:mod:`dupmae_ir.encode.changes`. Deletions and compaction, which are here, need no encoder: :func:`run_delete` marks
rows as deleted, :func:`run_compact` writes one segment from the stored vectors and impacts of the documents that are
left. Readers keep the segments that they opened.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from tqdm import tqdm

from dupmae_ir.console import progress, say
from dupmae_ir.errors import IndexMismatch, InputError, UnknownName
from dupmae_ir.index.changes.builder import IndexBuilder, segment_name
from dupmae_ir.index.changes.object_store import need_folder
from dupmae_ir.index.conditions import Condition
from dupmae_ir.index.config import ChangeResult, CompactConfig, DeleteConfig
from dupmae_ir.index.filters import satisfying
from dupmae_ir.index.format import manifest, rotated
from dupmae_ir.index.format.integrity import part_of
from dupmae_ir.index.format.manifest import SEGMENTS, DeletedRecord, read_manifest
from dupmae_ir.index.format.segment import Segment, sweep_segments
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings.format import export_postings
from dupmae_ir.io.jobs import COMPLETE, STATE, Job
from dupmae_ir.io.publishing import atomic_write, fsync_folder, fsync_tree, sha256_file
from dupmae_ir.registry import suggest

_BLOCK = 4096
"""Documents copied at a time."""


class ChangeJob(Job):
    """A change of the index ``path``, which exists. :meth:`current` opens it; :meth:`commit` makes the change.

    Unfinished work is that of the index's model and scale, not of one command: what a killed ``index add`` encoded is
    used by any later change that encodes the same documents.
    """

    START_OVER = "pass --restart"

    def __init__(
        self,
        path: str | Path,
        command: str,
        settings: Mapping[str, Any] | None = None,
        *,
        restart: bool = False,
        quiet: bool = False,
    ) -> None:
        need_folder(path, f"dupmae-ir {command}")
        self.name = str(path)
        real = os.path.realpath(path)  # the folder that a link names is changed, not the link
        if not Path(real).parent.is_dir():
            manifest.read_meta(path)  # raises: no such index
        super().__init__(
            real, command, settings or {}, streamed=True, inputs=dict, restart=restart, quiet=quiet
        )

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            manifest.sweep_lock(self.target)
            if not (self.work / STATE).is_file():
                self.discard()  # what a kill left of the removal of finished work
            self.sweep()
        except BaseException:
            self._stack.close()
            raise
        return self

    def current(self) -> Index:
        """The index as it is now. Raises :class:`IndexMismatch` for a shard."""
        index = Index.open(self.target)
        if index.meta.get("shard"):
            raise IndexMismatch(
                f"{self.name} is a shard; join the shards with dupmae-ir encode.merge, then change that"
            )
        return index

    def unchanged(self, index: Index, now: Mapping[str, int]) -> ChangeResult:
        """The result of a change that was made before."""
        say(f"{self.name}: nothing to change", self.quiet)
        return self._result(index, now, COMPLETE)

    def commit(
        self,
        index: Index,
        deleted: np.ndarray,
        new: Path | None,
        now: Mapping[str, int],
        alone: bool = False,
    ) -> ChangeResult:
        """Make the next generation: ``index`` without the rows ``deleted``, and with the segment of the index folder
        ``new``, if any; ``alone``: instead of all others.
        """
        rows = np.union1d(np.flatnonzero(~index.live), deleted).astype(np.int64)
        self.check_deadline()
        with manifest.changing(self.target):
            before = read_manifest(self.target)
            segments, meta, number = list(before.segments), before.meta, before.generation + 1
            (self.target / SEGMENTS).mkdir(exist_ok=True)
            if new is not None:
                added = read_manifest(new)
                (record,) = added.segments
                last = max(int(Path(segment.path).name.partition("-")[0]) for segment in segments)
                path = f"{SEGMENTS}/{segment_name(last + 1, record.digest)}"
                fsync_tree(new / record.path)
                (new / record.path).rename(self.target / path)
                record = dataclasses.replace(record, path=path)
                segments = [record] if alone else [*segments, record]
                inputs = [*(meta.get("inputs") or []), *(added.meta.get("inputs") or [])]
                each_once = {(file["path"], file["sha256"]): file for file in inputs}
                meta = {**meta, "inputs": list(each_once.values())}
            record_of_deleted = None if alone else self._write_deleted(number, rows)
            for folder in (self.target / SEGMENTS, self.target):
                fsync_folder(folder)
            meta = {**meta, "generation": number, "changed_by": f"dupmae-ir {self.command}"}
            if alone:
                meta["optional"] = sorted(
                    {part for segment in index.segments for part in optional_parts(segment)}
                )
            manifest.write_meta(
                self.target, manifest.with_segments(meta, segments, record_of_deleted)
            )
        if new is not None:
            shutil.rmtree(new, ignore_errors=True)
        self.sweep()
        return self._result(Index.open(self.target), now, "complete")

    def _write_deleted(self, number: int, rows: np.ndarray) -> DeletedRecord | None:
        """Write the deleted rows of generation ``number``, ascending; None where there are none."""
        if not len(rows):
            return None
        name = f"{SEGMENTS}/deleted-{number:06d}.npy"
        path = self.target / name
        with atomic_write(path, "wb") as f:
            np.save(f, rows, allow_pickle=False)
        return DeletedRecord(name, len(rows), path.stat().st_size, sha256_file(path))

    def _result(self, index: Index, now: Mapping[str, int], status: str) -> ChangeResult:
        result = {
            "index": self.name,
            "documents": index.documents,
            "size": index.size_in_words(),
            "generation": index.manifest.generation,
            "segments": len(index.segments),
            **now,
            "status": status,
        }
        return cast("ChangeResult", result)

    def sweep(self) -> None:
        """Let stock Pyserini read the first segment, and remove what the manifest does not name and nobody reads."""
        sweep_segments(self.target, read_manifest(self.target))


def optional_parts(segment: Segment) -> set[str]:
    """The parts of a segment that are built on demand: ``postings``, ``cls/rotated``."""
    return {
        part
        for part in map(part_of, segment.record.files)
        if part == "postings" or part.startswith("cls/")
    }


def build_optional(index: Index, new: Path) -> None:
    """Build the optional parts of ``index`` into the new index folder ``new``.

    Parts that ``index`` had before it was compacted to no documents are recorded as ``optional``.
    """
    like, segment = index.segments[0], Index.open(new).only_segment
    parts = optional_parts(like) | set(index.meta.get("optional") or ())
    if "postings" in parts and not segment.has_part("postings"):
        export_postings(segment)
    if rotated.PART in parts and segment.documents:
        rotated.build_rotated(segment)


def run_delete(config: DeleteConfig) -> ChangeResult:
    """Delete documents and return a summary. Ids that are deleted already are accepted.

    Raises :class:`UnknownName` for an id that the index does not contain and :class:`UsageError` for a condition that
    is not one of its metadata; nothing is deleted then.
    """
    docids = config.ids if config.ids_file is None else read_ids(config.ids_file)
    with ChangeJob(config.index, "index delete", quiet=config.quiet) as job:
        index = job.current()
        if config.filter is not None:
            rows = np.flatnonzero(satisfying(index, config.filter, index.live) & index.live)
        elif config.paths:
            rows = rows_of_paths(index, config.paths, config.index, config.ignore_unknown)
        else:
            rows = rows_to_delete(index, docids, config.index, config.ignore_unknown)
        now = {"deleted_now": len(rows)}
        if config.dry_run:
            return job._result(index, now, "dry run")
        return job.commit(index, rows, None, now) if len(rows) else job.unchanged(index, now)


def rows_to_delete(
    index: Index, docids: Sequence[str], name: str, ignore_unknown: bool = False
) -> np.ndarray:
    """(m,) int64: the live rows of some ids."""
    asked = set(docids)
    rows = [row for row, docid in enumerate(index.docids) if docid in asked]
    if not ignore_unknown:
        unknown = asked - {index.docids[row] for row in rows}
        if unknown:
            first = next(docid for docid in docids if docid in unknown)
            more = f" and {len(unknown) - 1:,} more" if len(unknown) > 1 else ""
            advice = "Pass `ignore_unknown` to delete the others"
            if first in index.files:
                advice = "It is a file: name it in `paths`"
            raise UnknownName(
                f"{name} has no document {first!r}{more}; nothing was deleted. {advice}"
            )
    return np.array([row for row in rows if index.live[row]], np.int64)


def rows_of_paths(
    index: Index, paths: Sequence[str], name: str, ignore_unknown: bool = False
) -> np.ndarray:
    """(m,) int64: the live rows of files, of the files in folders, and of those that fit patterns. Raises
    :class:`UnknownName` for a path that fits none."""
    if not index.files:
        raise UnknownName(
            f"{name} was not made of files, so it has no `paths`; name the documents by `ids`"
        )
    rows = []
    for path in paths:
        tests = [Condition("path", operation, (path,)).test for operation in ("under", "like")]
        files = [file for file in index.files if any(test(file) for test in tests)]
        if not files and not ignore_unknown:
            raise UnknownName(
                f"{name} has no file {path!r}; nothing was deleted.{suggest(path, index.files)}"
            )
        rows += [index.files[file] for file in files]
    return np.unique(np.concatenate(rows)) if rows else np.zeros(0, np.int64)


def read_ids(source: str) -> list[str]:
    """The ids of a file, one on each line; blank lines are skipped. ``-`` is standard input."""
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"{source}: cannot be read: {e}") from None
    ids = [line.strip() for line in text.splitlines() if line.strip()]
    for number, docid in enumerate(ids, start=1):
        if docid.split() != [docid]:
            raise InputError(
                f"{source}:{number}: {docid!r} contains white space; expected one document id on each line"
            )
    if not ids:
        raise InputError(f"{source}: no document ids in it")
    return ids


def run_compact(config: CompactConfig) -> ChangeResult:
    """Rewrite all segments as one and return a summary; an index in a single piece is left as it is."""
    with ChangeJob(config.index, "index compact", quiet=config.quiet) as job:
        index = job.current()
        if index.manifest.plain:
            return job.unchanged(index, {"removed_now": 0})
        index.verify()  # every byte is about to be copied, and recorded as part of the new segment
        new = (
            job.target / SEGMENTS / "compacted"
        )  # not named by a manifest: after a kill, the next change removes it
        try:
            with progress("compact", "documents", index.documents, config.quiet) as bar:
                _copy(index, new, bar)
            build_optional(index, new)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        removed = index.rows - index.documents
        result = job.commit(index, np.zeros(0, np.int64), new, {"removed_now": removed}, alone=True)
        del index  # it reads the old segments
        job.sweep()
        return result


def _copy(index: Index, new: Path, bar: tqdm[Any]) -> None:
    terms = index.terms if index.has_ot else None
    texts = index.has_texts
    with IndexBuilder(new, dim=index.dim, terms=terms, scale=index.scale, texts=texts) as builder:
        for segment, _, live in index.slices():
            clipped, dropped = segment.record.clipped, segment.record.dropped
            rows = np.flatnonzero(live)
            for start in range(0, len(rows), _BLOCK):
                block = rows[start : start + _BLOCK]
                vectors = segment.vectors[block] if segment.dim is not None else None
                impacts = segment.forward.matrix(block) if segment.has_ot else None
                digests = (
                    None
                    if segment.digests is None
                    else [segment.digests[row].tobytes() for row in block]
                )
                docids = [segment.docids[row] for row in block]
                documents = (
                    segment.texts.get_all(block.tolist()) if texts and segment.texts else None
                )
                builder.add_impacts(docids, vectors, impacts, clipped, dropped, documents, digests)
                clipped = dropped = 0
                bar.update(len(block))
        builder.finish({"made_by": "dupmae-ir index compact"})
