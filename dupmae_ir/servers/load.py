"""``dupmae-ir servers load``: make the collection of a server that of an index.

Every stored row has a fingerprint of its contents. A load reads the ids and fingerprints that the server holds, writes
the rows of the index that are new or differ, and deletes the others. The first load, one that continues after a kill
and one after ``index add``, ``update`` or ``delete`` are the same work, so doing it again changes nothing.

The load record says ``loading`` from before the first change until after the last; searches refuse such a collection.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from dupmae_ir.console import progress, say
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.index import Index
from dupmae_ir.servers.config import DropConfig, LoadConfig, ShowTableConfig
from dupmae_ir.servers.protocol import COMPLETE, LOADING, Record, ServerFailed, ServerTable, Spec
from dupmae_ir.servers.rows import batches, largest_norm, selected, spec_of
from dupmae_ir.servers.urls import connect, default_collection


def run(config: LoadConfig) -> dict[str, object]:
    """Load an index and return a summary.

    Raises :class:`IndexMismatch` for a collection of another model, scale or width, :class:`ServerFailed` for an
    server that fails; the same command continues then.
    """
    started = time.perf_counter()
    index = Index.open(config.index)
    name = config.collection or default_collection(config.index)
    with closing(connect(config.to, name, config.timeout)) as table:
        table.lock()
        load = _Load(config, index, table, name)
        counts = load.run()
        size = table.size()
    return {
        "index": config.index,
        "server": table.kind,
        "collection": name,
        "documents": index.documents,
        **counts,
        "bytes": size,
        "seconds": round(time.perf_counter() - started, 3),
    }


class _Load:
    """One load of an index into an open collection."""

    def __init__(self, config: LoadConfig, index: Index, table: ServerTable, name: str) -> None:
        self.config, self.index, self.table, self.name = config, index, table, name
        self.spec = spec_of(index)

    def run(self) -> dict[str, object]:
        """Push the difference. Returns counts of rows, and the status."""
        before = self.table.read_record()
        if before is not None:
            check_spec(before.spec, self.spec, self.config.index, self.name)
        digest = self.index.digest
        if before and self._is_current(before, digest):
            if self.config.approximate:
                self.table.finish(True)
            say(f"{self.name}: nothing to change", self.config.quiet)
            counts = {"written_now": 0, "deleted_now": 0, "unchanged_now": before.documents}
            return {**counts, "status": "already complete"}
        record = Record(self.spec, LOADING, digest, self.index.documents, before.longest if before else 0.0)
        self.table.create(self.spec)
        self.table.write_record(record)
        return self._push(record)

    def _is_current(self, record: Record, digest: str) -> bool:
        recorded = record.state == COMPLETE and record.digest == digest and not self.config.verify
        return recorded and self.table.count() == record.documents

    def _push(self, record: Record) -> dict[str, object]:
        stored = dict(self.table.stored())
        written = unchanged = 0
        longest = 0.0
        with progress("load", "documents", self.index.documents, self.config.quiet) as bar:
            for rows in batches(self.index, self.config.batch):
                longest = max(longest, largest_norm(rows))
                known = [stored.pop(docid, None) for docid in rows.docids]
                new = [place for place, found in enumerate(known) if found != rows.fingerprints[place]]
                if new:
                    self.table.upsert(selected(rows, new))
                written += len(new)
                unchanged += len(known) - len(new)
                bar.update(len(known))
        gone = list(stored)
        for start in range(0, len(gone), self.config.batch):
            self.table.delete(gone[start : start + self.config.batch])
        self.table.finish(self.config.approximate)
        self._complete(dataclasses.replace(record, longest=longest, written=written))
        return {"written_now": written, "deleted_now": len(gone), "unchanged_now": unchanged, "status": "complete"}

    def _complete(self, record: Record) -> None:
        if (found := self.table.count()) != record.documents:
            raise ServerFailed(
                f"{self.name}: {found:,} rows after loading {record.documents:,}; another program changes the "
                "collection; load it again when that has ended"
            )
        self.table.write_record(dataclasses.replace(record, state=COMPLETE))


def check_spec(stored: Spec, wanted: Spec, index: str, name: str) -> None:
    """Raise :class:`IndexMismatch`, with both values, unless rows of the two can be in one collection."""
    for field in dataclasses.fields(Spec):
        held, own = getattr(stored, field.name), getattr(wanted, field.name)
        if held != own:
            short = (str(value)[:12] if field.name == "model" else value for value in (held, own))
            raise IndexMismatch(
                f"collection {name} holds rows with {field.name} {next(short)}, but {index} has {next(short)}; "
                "load it into another `collection`, or drop this one with dupmae-ir servers drop"
            )


@contextmanager
def _existing(config: ShowTableConfig) -> Iterator[tuple[ServerTable, Record]]:
    with closing(connect(config.where, config.collection, config.timeout)) as table:
        record = table.read_record()
        if record is None:
            raise UsageError(f"the server has no collection {config.collection!r} that dupmae-ir loaded")
        yield table, record


def show(config: ShowTableConfig) -> dict[str, object]:
    """The load record of a collection, with the rows and bytes that it has now."""
    with _existing(config) as (table, record):
        return {
            "server": table.kind,
            "collection": config.collection,
            **{name: value for name, value in record.as_dict().items() if name != "spec"},
            **dataclasses.asdict(record.spec),
            "rows": table.count(),
            "bytes": table.size(),
        }


def drop(config: DropConfig) -> dict[str, object]:
    """Remove a collection that was loaded, and nothing else."""
    with _existing(config) as (table, record):
        table.drop()
    return {"collection": config.collection, "documents": record.documents, "status": "dropped"}
