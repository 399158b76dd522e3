"""Changing an index: the next generation is prepared next to the current one and becomes it in one step.

A new segment is written into the work folder, moved to ``I/segments``, and named by the new ``meta.json``, whose
replacement is the change. Until then the index is what it was; a kill leaves at most files that no manifest names,
which the next change removes. :class:`ChangeJob` is the shell of all these commands; documents are encoded by
:mod:`dupmae_ir.encode.changes`, deletions and compaction need no encoder.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from dupmae_ir.console import say
from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.changes.builder import segment_name
from dupmae_ir.index.changes.object_store import need_folder
from dupmae_ir.index.config import KINDS, Parameters
from dupmae_ir.index.format import dense_kinds, manifest
from dupmae_ir.index.format.integrity import part_of
from dupmae_ir.index.format.manifest import SEGMENTS, DeletedRecord, SegmentRecord, read_manifest
from dupmae_ir.index.format.readers import sweep_segments
from dupmae_ir.index.format.segment import Segment
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings.format import export_postings
from dupmae_ir.io.jobs import COMPLETE, STATE, Job
from dupmae_ir.io.publishing import atomic_write, fsync_folder, fsync_tree, sha256_file


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
        super().__init__(real, command, settings or {}, streamed=True, inputs=dict, restart=restart, quiet=quiet)

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

    def unchanged(self, index: Index, now: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a change that was made before."""
        say(f"{self.name}: nothing to change", self.quiet)
        return {**self._summary(index), **now, "status": COMPLETE}

    def commit(
        self, index: Index, deleted: np.ndarray, new: Path | None, now: Mapping[str, Any], alone: bool = False
    ) -> dict[str, Any]:
        """Make the next generation: ``index`` without the rows ``deleted``, and with the segment of the index folder
        ``new``, if any; ``alone``: instead of all others.
        """
        rows = np.union1d(np.flatnonzero(~index.live), deleted).astype(np.int64)
        with manifest.changing(self.target):
            before = read_manifest(self.target)
            segments, meta, number = list(before.segments), before.meta, before.generation + 1
            (self.target / SEGMENTS).mkdir(exist_ok=True)
            if new is not None:
                added = read_manifest(new)
                record = self._move_segment(new, added.segments[0], segments)
                segments = [record] if alone else [*segments, record]
                meta = {**meta, "inputs": _union(meta.get("inputs"), added.meta.get("inputs"))}
            record_of_deleted = None if alone else self._write_deleted(number, rows)
            for folder in (self.target / SEGMENTS, self.target):
                fsync_folder(folder)
            meta = {**meta, "generation": number, "changed_by": f"dupmae-ir {self.command}"}
            if alone:
                meta["optional"] = sorted({part for segment in index.segments for part in optional_parts(segment)})
            manifest.write_meta(self.target, manifest.with_segments(meta, segments, record_of_deleted))
        if new is not None:
            shutil.rmtree(new, ignore_errors=True)
        self.sweep()
        return {**self._summary(Index.open(self.target)), **now, "status": "complete"}

    def _move_segment(self, new: Path, record: SegmentRecord, segments: list[SegmentRecord]) -> SegmentRecord:
        """Move the segment of a new index into this one, as the next."""
        number = 1 + max(int(Path(segment.path).name.partition("-")[0]) for segment in segments)
        path = f"{SEGMENTS}/{segment_name(number, record.digest)}"
        fsync_tree(new / record.path)
        (new / record.path).rename(self.target / path)
        return dataclasses.replace(record, path=path)

    def _write_deleted(self, number: int, rows: np.ndarray) -> DeletedRecord | None:
        """Write the deleted rows of generation ``number``, ascending; None where there are none."""
        if not len(rows):
            return None
        name = f"{SEGMENTS}/deleted-{number:06d}.npy"
        path = self.target / name
        with atomic_write(path, "wb") as f:
            np.save(f, rows, allow_pickle=False)
        return DeletedRecord(name, len(rows), path.stat().st_size, sha256_file(path))

    def _summary(self, index: Index) -> dict[str, Any]:
        return {
            "index": self.name,
            "documents": index.documents,
            "generation": index.manifest.generation,
            "segments": len(index.segments),
        }

    def sweep(self) -> None:
        """Let stock Pyserini read the first segment, and remove what the manifest does not name and nobody reads."""
        sweep_segments(self.target, read_manifest(self.target))


def _union(inputs: Any, more: Any) -> list[dict[str, Any]]:
    """The input files of an index and of a new segment, each once."""
    return list({(file["path"], file["sha256"]): file for file in [*(inputs or []), *(more or [])]}.values())


def optional_parts(segment: Segment) -> set[str]:
    """The parts of a segment that are built on demand: ``postings``, ``cls/KIND``."""
    return {part for part in map(part_of, segment.record.files) if part == "postings" or part.startswith("cls/")}


def build_optional(index: Index, new: Path) -> None:
    """Build the optional parts of ``index`` into the new index folder ``new``.

    Parts that ``index`` had before it was compacted to no documents are recorded as ``optional``.
    """
    like, segment = index.segments[0], Index.open(new).only_segment
    parts = optional_parts(like) | set(index.meta.get("optional") or ())
    if "postings" in parts and not segment.has_part("postings"):
        export_postings(segment)
    for kind in KINDS:
        if f"cls/{kind}" in parts and segment.documents:
            settings = dense_kinds.read_meta(like, kind)["parameters"] if like.has_part(f"cls/{kind}") else {}
            dense_kinds.build_kind(segment, kind, Parameters(**{k: v for k, v in settings.items() if k != "nlist"}))
