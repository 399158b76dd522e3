"""Changing an index: the next generation is prepared next to the current one and replaces it in one step.

A new segment is written into the work folder, moved to ``I/segments``, and named by the new ``meta.json``, whose
replacement is the change. Until then the index does not change; a kill leaves at most files that no manifest names,
which the next change removes. :class:`ChangeJob` is the shell of all these commands; documents are encoded by
:mod:`dupmae_ir.encode.changes`. Deletions and compaction, which are here, need no encoder: :func:`run_delete` marks
rows as deleted, :func:`run_compact` writes one segment from the stored vectors and impacts of the remaining documents.
Readers keep the segments that they opened.
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
from dupmae_ir.index.format.manifest import (
    NO_LOSSES,
    SEGMENTS,
    DeletedRecord,
    Meta,
    SegmentRecord,
    read_manifest,
)
from dupmae_ir.index.format.segment import Segment, sweep_segments
from dupmae_ir.index.format.unread import check_read
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings.format import export_postings
from dupmae_ir.io.collections import FileReport
from dupmae_ir.io.jobs import COMPLETE, STATE, Job
from dupmae_ir.io.publishing import atomic_write, fsync_folder, fsync_tree, sha256_file
from dupmae_ir.registry import suggest

_BLOCK = 4096
"""Documents copied at a time."""


class ChangeJob(Job):
    """A change of the index ``path``, which exists. :meth:`current` opens it; :meth:`commit` makes the change.

    Unfinished work depends on the index's model and scale, not on the command: what a killed ``index add`` encoded is
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
        super().__enter__()  # holds the lock of the index until the job ends
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
        """The index as it is now. Raises :class:`IndexMismatch` for a shard, and for one without its vectors yet."""
        index = Index.open(self.target)
        check_read(index.path, index.meta)
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
        sources: FileReport | None = None,
    ) -> ChangeResult:
        """Make the next generation: ``index`` without the rows ``deleted``, and with the segment of the index folder
        ``new``, if any; ``alone``: instead of all others. ``sources``: what became of the files that it agrees with.
        """
        rows = np.union1d(np.flatnonzero(~index.live), deleted).astype(np.int64)
        # The last moment: from here on the change is made completely.
        self.check_deadline()
        with manifest.changing(self.target):
            # Read again under its lock: an optional part may have been recorded since the index was opened. Segments
            # and deleted rows cannot have changed, since this job holds the lock of the index.
            before = read_manifest(self.target)
            segments = list(before.segments)
            meta = before.meta
            generation = before.generation + 1
            (self.target / SEGMENTS).mkdir(exist_ok=True)
            if new is not None:
                added = read_manifest(new)
                record = self._move_segment(new, added.segments[0], segments)
                segments = [record] if alone else [*segments, record]
                meta = {**meta, "inputs": _join_inputs(meta, added.meta)}
                if added.meta.get("languages"):
                    encoder = meta["encoder"]
                    languages = {**encoder["languages"], **added.meta["languages"]}
                    meta["encoder"] = {**encoder, "languages": languages}
            if sources is not None:
                meta = {**meta, "sources": sources}
            record_of_deleted = None
            if not alone:
                record_of_deleted = self._write_deleted(generation, rows)
            # Everything that the manifest names must be on the disk, names included, before the manifest is: after a
            # crash it would otherwise name files that are not there.
            for folder in (self.target / SEGMENTS, self.target):
                fsync_folder(folder)
            meta = {**meta, "generation": generation, "changed_by": f"dupmae-ir {self.command}"}
            if alone:
                # A later change builds these parts again, even if this one leaves no documents and builds none.
                optional = set[str]()
                for segment in index.segments:
                    optional |= optional_parts(segment)
                meta["optional"] = sorted(optional)
            meta = manifest.with_segments(meta, segments, record_of_deleted)
            manifest.write_meta(self.target, meta)
        # The change is made. A kill from here on leaves files that the next change removes.
        if new is not None:
            shutil.rmtree(new, ignore_errors=True)
        self.sweep()
        return self._result(Index.open(self.target), now, "complete")

    def _move_segment(
        self, new: Path, record: SegmentRecord, segments: Sequence[SegmentRecord]
    ) -> SegmentRecord:
        """Move the segment of the index folder ``new`` into this index; returns its record with its new path."""
        numbers = [int(Path(segment.path).name.partition("-")[0]) for segment in segments]
        path = f"{SEGMENTS}/{segment_name(max(numbers) + 1, record.digest)}"
        # First the contents, then the rename, so that the name never stands for files that are not on the disk.
        fsync_tree(new / record.path)
        (new / record.path).rename(self.target / path)
        return dataclasses.replace(record, path=path)

    def _write_deleted(self, generation: int, rows: np.ndarray) -> DeletedRecord | None:
        """Write the deleted rows of a generation, ascending; None if there are none.

        Under a new name: until the manifest is replaced, the older list still belongs to the index.
        """
        if not len(rows):
            return None
        name = f"{SEGMENTS}/deleted-{generation:06d}.npy"
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
        """Link the first segment for stock Pyserini, and remove what neither the manifest nor a reader needs."""
        sweep_segments(self.target, read_manifest(self.target))


def _join_inputs(meta: Meta, added: Meta) -> list[Any]:
    """The input files of an index and of a new segment, each once."""
    inputs = [*(meta.get("inputs") or []), *(added.get("inputs") or [])]
    return list({(file["path"], file["sha256"]): file for file in inputs}.values())


def optional_parts(segment: Segment) -> set[str]:
    """The parts of a segment that are built on demand: ``postings``, ``cls/rotated``."""
    parts = {part_of(name) for name in segment.record.files}
    return {part for part in parts if part == "postings" or part.startswith("cls/")}


def build_optional(index: Index, new: Path) -> None:
    """Build the optional parts of ``index`` into the new index folder ``new``.

    Parts that ``index`` had before it was compacted to no documents are recorded as ``optional``.
    """
    segment = Index.open(new).only_segment
    # The first segment stands for all: commands build these parts for every segment.
    parts = optional_parts(index.segments[0]) | set(index.meta.get("optional") or ())
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
        if not len(rows):
            return job.unchanged(index, now)
        return job.commit(index, rows, None, now)


def rows_to_delete(
    index: Index, docids: Sequence[str], name: str, ignore_unknown: bool = False
) -> np.ndarray:
    """(m,) int64: the live rows of these ids."""
    requested = set(docids)
    # Deleted rows as well: an id that is deleted already is known.
    rows = [row for row, docid in enumerate(index.docids) if docid in requested]
    if not ignore_unknown:
        unknown = requested - {index.docids[row] for row in rows}
        if unknown:
            first = next(docid for docid in docids if docid in unknown)
            remaining = f" and {len(unknown) - 1:,} more" if len(unknown) > 1 else ""
            advice = "Pass `ignore_unknown` to delete the others"
            if first in index.files:
                advice = "It is a file: name it in `paths`"
            raise UnknownName(
                f"{name} has no document {first!r}{remaining}; nothing was deleted. {advice}"
            )
    return np.array([row for row in rows if index.live[row]], np.int64)


def rows_of_paths(
    index: Index, paths: Sequence[str], name: str, ignore_unknown: bool = False
) -> np.ndarray:
    """(m,) int64: the live rows of files. A path names a file, a folder with all files below it, or a pattern.

    Raises :class:`UnknownName` for a path that fits no file.
    """
    if not index.files:
        raise UnknownName(
            f"{name} was not made of files, so it has no `paths`; name the documents by `ids`"
        )
    rows = []
    for path in paths:
        is_under = Condition("path", "under", (path,)).test
        is_like = Condition("path", "like", (path,)).test
        files = [file for file in index.files if is_under(file) or is_like(file)]
        if not files and not ignore_unknown:
            raise UnknownName(
                f"{name} has no file {path!r}; nothing was deleted.{suggest(path, index.files)}"
            )
        rows += [index.files[file] for file in files]
    if not rows:
        return np.zeros(0, np.int64)
    return np.unique(np.concatenate(rows))


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
        # Not named by a manifest: after a kill, the next change removes it.
        new = job.target / SEGMENTS / "compacted"
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
    with IndexBuilder(
        new, dim=index.dim, terms=terms, scale=index.scale, texts=texts, excerpts=index.has_excerpts
    ) as builder:
        for segment, _, live in index.slices():
            # A segment has one count for all of its rows: added with the first block.
            losses = segment.record.losses
            rows = np.flatnonzero(live)
            for start in range(0, len(rows), _BLOCK):
                block = rows[start : start + _BLOCK]
                docids = [segment.docids[row] for row in block]
                vectors = None
                if segment.dim is not None:
                    vectors = segment.vectors[block]
                impacts = None
                if segment.has_ot:
                    impacts = segment.forward.matrix(block)
                    # Another segment may have terms of additional languages.
                    impacts.resize(len(block), len(index.terms))
                digests = None
                if segment.digests is not None:
                    digests = [segment.digests[row].tobytes() for row in block]
                documents = None
                if texts and segment.texts:
                    documents = segment.texts.get_all(block.tolist())
                excerpts = None
                if segment.excerpts is not None:
                    excerpts = segment.excerpts.of_rows(block)
                builder.add_impacts(docids, vectors, impacts, losses, documents, digests, excerpts)
                losses = NO_LOSSES
                bar.update(len(block))
        builder.finish({"made_by": "dupmae-ir index compact"})
