"""Changing an index: the next generation is prepared beside the current one and becomes it in one step.

A new segment is written into the work folder, moved to ``I/segments/NNNN``, and named by the new ``meta.json``, whose
replacement is the change. Until then the index is what it was; a kill leaves at most files that no manifest names,
which the next change removes. :class:`ChangeJob` is the shell of all these commands; documents are encoded by
:mod:`dupmae_ir.encode.changes`, deletions and compaction need no encoder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from dupmae_ir.console import say
from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.changes.generations import (
    SEGMENTS,
    SegmentRecord,
    generation_of,
    next_generation,
    with_generation,
    write_deleted,
)
from dupmae_ir.index.changes.object_store import need_folder
from dupmae_ir.index.changes.places import remove_retired
from dupmae_ir.index.config import KINDS, Parameters
from dupmae_ir.index.format import dense_kinds, integrity, manifest
from dupmae_ir.index.format.manifest import META
from dupmae_ir.index.format.segments import AnyIndex, folders_of, live_rows, open_index
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings import postings
from dupmae_ir.io.jobs import COMPLETE, STATE, Job
from dupmae_ir.io.locks import exclusive, lock_path
from dupmae_ir.io.publishing import fsync_folder, fsync_tree


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

    def current(self) -> AnyIndex:
        """The index as it is now. Raises :class:`IndexMismatch` for one without records of its files, or a shard."""
        index = open_index(self.target)
        if not index.sealed:
            raise IndexMismatch(
                f"{self.name} was made by an earlier version and cannot be changed; record its files first with: "
                f"dupmae-ir index seal {self.name}"
            )
        if index.meta.get("shard"):
            raise IndexMismatch(
                f"{self.name} is a shard; join the shards with dupmae-ir encode.merge, then change that"
            )
        return index

    def unchanged(self, index: AnyIndex, now: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a change that was made before."""
        say(f"{self.name}: nothing to change", self.quiet)
        return {**self.summary(index), **now, "status": COMPLETE}

    def commit(self, index: AnyIndex, deleted: np.ndarray, made: Path | None, now: Mapping[str, Any]) -> dict[str, Any]:
        """Make the next generation: ``index`` without the rows ``deleted``, and with the segment ``made``, if any."""
        gone = np.union1d(np.flatnonzero(~live_rows(index)), deleted).astype(np.int64)
        with exclusive(lock_path(self.target / META), f"updating {self.target / META}", wait=True):
            meta = manifest.read_meta(self.target)
            before = generation_of(meta)
            segments = list(before.segments)
            (self.target / SEGMENTS).mkdir(exist_ok=True)
            if made is not None:
                segments.append(self._move_segment(made, segments))
            removed = write_deleted(self.target, before.number + 1, gone)
            fsync_folder(self.target / SEGMENTS)
            fsync_folder(self.target)
            rows = len(live_rows(index)) + (segments[-1].documents if made is not None else 0)
            after = next_generation(meta, rows - len(gone), segments, removed)
            meta = manifest.sealed(with_generation(meta, after, f"dupmae-ir {self.command}"), meta["files"])
            manifest.write_meta(self.target, meta)
        self.sweep()
        return {**self.summary(open_index(self.target)), **now, "status": "complete"}

    def _move_segment(self, made: Path, segments: Sequence[SegmentRecord]) -> SegmentRecord:
        number = 1 + max((int(Path(segment.path).name) for segment in segments), default=0)
        name = f"{SEGMENTS}/{number:04d}"
        fsync_tree(made)
        made.rename(self.target / name)
        meta = manifest.read_meta(self.target / name)
        return SegmentRecord(name, meta["documents"], meta["digest"])

    def summary(self, index: AnyIndex) -> dict[str, Any]:
        generation = generation_of(manifest.read_meta(self.target))
        return {
            "index": self.name,
            "documents": index.documents,
            "generation": generation.number,
            "segments": len(folders_of(index)),
        }

    def sweep(self) -> None:
        """Remove what no generation names: segments and deletions of killed changes, and folders that nobody reads."""
        remove_retired(self.target)
        folder = self.target / SEGMENTS
        if not folder.is_dir():
            return
        generation = generation_of(manifest.read_meta(self.target))
        named = {Path(segment.path).name for segment in generation.segments}
        named |= {Path(generation.deleted.path).name} if generation.deleted else set()
        for path in folder.iterdir():
            if path.name not in named:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not named:
            folder.rmdir()


def optional_parts(index: Index) -> set[str]:
    """The optional parts that were built of an index, also where it has no documents to build them of."""
    return {integrity.part_of(name) for name in index.meta["files"]} | set(index.meta.get("optional") or ())


def build_optional(like: Index, made: Path) -> None:
    """Build the optional parts of ``like`` (postings, smaller dense indexes) into the new index folder ``made``."""
    new = Index.open(made)
    recorded = optional_parts(like)
    if "postings" in recorded:
        postings.export_postings(new)
    for kind in KINDS:
        if f"cls/{kind}" in recorded and new.documents:
            settings = dense_kinds.read_meta(like, kind)["parameters"] if like.documents else {}
            dense_kinds.build_kind(new, kind, Parameters(**{k: v for k, v in settings.items() if k != "nlist"}))
