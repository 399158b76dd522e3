"""``dupmae-ir servers load``: make the table of a server that of an index.

Every stored row has a fingerprint of what was written. A load reads the ids and fingerprints that the server holds,
writes the rows of the index that are new or differ, and deletes the others. The first load, one that continues after a
kill and one after ``index add``, ``update`` or ``delete`` are the same work, so doing it again changes nothing. If
another program changed rows, all are written again.

The load record says ``loading`` from before the first change until after the last; searches refuse such a table.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime

import numpy as np

from dupmae_ir.console import progress, say
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.format.segment import Segment
from dupmae_ir.index.format.texts import StoredDocument
from dupmae_ir.index.format.unread import check_read
from dupmae_ir.index.index import Index
from dupmae_ir.servers.config import DropConfig, LoadConfig, ShowTableConfig, VerifyTableConfig
from dupmae_ir.servers.protocol import (
    COMPLETE,
    FINGERPRINT,
    LOADING,
    TEXTS,
    UNKNOWN,
    Record,
    Row,
    ServerFailed,
    ServerTable,
    Spec,
    default_table,
    digest_of_rows,
    fingerprint_of,
    is_as_loaded,
    open_table,
)


def run(config: LoadConfig) -> dict[str, object]:
    """Load an index and return a summary.

    Raises :class:`IndexMismatch` for a table of another model, scale or width, :class:`ServerFailed` for a
    server that fails; the same command continues then.
    """
    started = time.perf_counter()
    index = Index.open(config.index)
    check_read(index.path, index.meta)
    if index.has_excerpts:
        raise UsageError(
            f"{config.index}: has vectors of excerpts, which a server does not rank by; encode without `excerpts`"
        )
    name = config.table or default_table(config.index)
    with closing(open_table(config.to, name, config.timeout)) as table:
        table.lock()
        counts = _update(config, index, table, name)
        size = table.size()
    return {
        "index": config.index,
        "server": table.kind,
        "table": name,
        "documents": index.documents,
        **counts,
        "bytes": size,
        "seconds": round(time.perf_counter() - started, 3),
    }


def _update(config: LoadConfig, index: Index, table: ServerTable, name: str) -> dict[str, object]:
    """Write the rows that are new or differ and delete the others. Returns counts of rows, and the status."""
    spec = Spec.of(index)
    digest = index.digest
    if config.approximate and table.max_indexed_terms:
        _check_terms(index, table.max_indexed_terms, config.index)
    before = table.read_record()
    if before is not None:
        before.spec.check_index(index, name)
        is_current = (
            before.state == COMPLETE
            and before.digest == digest
            and before.changes == table.changes()
        )
        # The count as well: a server without a count of changes does not notice deleted rows otherwise.
        if is_current and not config.rewrite and table.count() == before.documents:
            if config.approximate:
                table.finish(True)
            say(f"{name}: nothing to change", config.quiet)
            counts = {"written_now": 0, "deleted_now": 0, "unchanged_now": before.documents}
            return {**counts, "status": "already complete"}
    # Rows that another program changed still have their fingerprints. A load that is to write all of them says so in
    # its record, for the one that continues after a kill.
    rewrite = config.rewrite
    if before is not None and before.changes is not None:
        foreign_changes = before.changes == UNKNOWN or before.changes != table.changes()
        rewrite = rewrite or foreign_changes
    table.create(spec)
    # After the table was created, which repairs a trigger that is gone or disabled.
    changes = table.changes()
    recorded_changes = changes
    if rewrite and changes is not None:
        recorded_changes = UNKNOWN
    longest_before = before.longest if before else 0.0
    record = Record(
        spec, LOADING, digest, index.documents, longest_before, changes=recorded_changes
    )
    # Written before the first change of a row, so that searches refuse the table from then on.
    table.write_record(record)

    # docid -> fingerprint of the rows that the server holds. Documents of the index are taken out, and what remains
    # is to be deleted.
    stored: dict[str, bytes] = {}
    for docid, fingerprint in table.stored():
        # Another program can have added a second row of an id; written again, there is one.
        stored[docid] = b"" if docid in stored else fingerprint
    fingerprints = []
    written = 0
    unchanged = 0
    longest = 0.0
    with progress("load", "documents", index.documents, config.quiet) as bar:
        for rows in batches(index, table, config.batch):
            new = []
            for row in rows:
                fingerprints.append(row.fingerprint)
                if row.cls is not None:
                    # In float64, and of every row, because the bounds on rounding rely on it.
                    length = float(np.linalg.norm(row.cls.astype(np.float64)))
                    longest = max(longest, length)
                if stored.pop(row.docid, None) != row.fingerprint or rewrite:
                    new.append(row)
            if new:
                table.upsert(new)
            written += len(new)
            unchanged += len(rows) - len(new)
            bar.update(len(rows))
    obsolete = list(stored)
    for start in range(0, len(obsolete), config.batch):
        table.delete(obsolete[start : start + config.batch])
    table.finish(config.approximate)

    # The table is declared complete only if nobody else changed it since the load began.
    count = table.count()
    if count != record.documents or table.changes() != changes or changes == UNKNOWN:
        raise ServerFailed(
            f"{name}: {count:,} rows after loading {record.documents:,}; another program changes the "
            "table; load it again when that has ended"
        )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    done = dataclasses.replace(
        record,
        longest=longest,
        written=written,
        state=COMPLETE,
        changes=changes,
        loaded=now,
        rows_digest=digest_of_rows(fingerprints),
    )
    table.write_record(done)
    return {
        "written_now": written,
        "deleted_now": len(obsolete),
        "unchanged_now": unchanged,
        "status": "complete",
    }


def _check_terms(index: Index, limit: int, name: str) -> None:
    """Raise :class:`UsageError` for a document with more terms than the approximate index of the server takes."""
    if not index.has_ot:
        return
    for segment, _, live in index.slices():
        # Deleted documents are not loaded, so their terms do not count.
        counts = np.where(live, np.diff(segment.forward.indptr), 0)
        if len(counts) and counts.max() > limit:
            docid = segment.docids[int(counts.argmax())]
            raise UsageError(
                f"{name}: document {docid!r} has {counts.max():,} terms, and the server's approximate index takes at "
                f"most {limit:,}; load without `approximate`, or encode with `top_k` {limit}"
            )


@contextmanager
def _open_loaded(config: ShowTableConfig) -> Iterator[tuple[ServerTable, Record]]:
    """The table of a configuration and its load record. Raises :class:`UsageError` if there is none."""
    with closing(open_table(config.where, config.table, config.timeout)) as table:
        record = table.read_record()
        if record is None:
            raise _not_loaded(config.table)
        yield table, record


def _not_loaded(table: str) -> UsageError:
    return UsageError(f"the server has no table {table!r} that dupmae-ir loaded")


def show(config: ShowTableConfig) -> dict[str, object]:
    """The load record of a table, with the rows and bytes that it has now."""
    with _open_loaded(config) as (table, record):
        values = record.as_dict()
        del values["spec"]
        return {
            "server": table.kind,
            "table": config.table,
            **values,
            **dataclasses.asdict(record.spec),
            "rows": table.count(),
            "bytes": table.size(),
        }


def verify(config: VerifyTableConfig) -> dict[str, object]:
    """Read every row and compare it with what was loaded. Returns counts.

    Raises :class:`IndexMismatch` for a table that is not complete, :class:`ServerFailed` for one with rows that were
    edited, added, removed or replaced.
    """
    started = time.perf_counter()
    again = "load the index again with dupmae-ir servers load --rewrite"
    with _open_loaded(config) as (table, record):
        if record.state != COMPLETE:
            raise IndexMismatch(
                f"table {config.table} is not complete: a load is running or was interrupted; {again}"
            )
        fields = [*record.spec.parts, *TEXTS, FINGERPRINT]
        fingerprints = []
        edited = []
        with progress("verify", "rows", record.documents, config.quiet) as bar:
            stored = table.stored()
            while batch := list(itertools.islice(stored, config.batch)):
                fingerprints += [fingerprint for _, fingerprint in batch]
                docids = [docid for docid, _ in batch]
                rows = table.read(docids, fields)
                edited += [row.docid for row in rows if not is_as_loaded(row, fields)]
                bar.update(len(batch))
        # After the rows: a load that began meanwhile has changed the record, or the count of changes.
        after, changes = table.state()
    if after != record:
        raise ServerFailed(
            f"table {config.table}: it was loaded while it was read; verify it again"
        )
    if len(fingerprints) != record.documents:
        raise ServerFailed(
            f"table {config.table}: {len(fingerprints):,} rows, and {record.documents:,} were loaded; {again}"
        )
    if edited:
        raise ServerFailed(
            f"table {config.table}: {len(edited):,} of {record.documents:,} rows were edited, the first of them "
            f"{edited[0]!r}; {again}"
        )
    if digest_of_rows(fingerprints) != record.rows_digest:
        raise ServerFailed(f"table {config.table}: rows were replaced by others; {again}")
    if changes != record.changes:
        raise ServerFailed(
            f"table {config.table}: another program changed its rows since it was loaded; {again}"
        )
    return {
        "server": table.kind,
        "table": config.table,
        "documents": record.documents,
        "loaded": record.loaded,
        "status": "as loaded",
        "seconds": round(time.perf_counter() - started, 3),
    }


def drop(config: DropConfig) -> dict[str, object]:
    """Remove a table that was loaded, by this version or another one, and nothing else."""
    with closing(open_table(config.where, config.table, config.timeout)) as table:
        fields = table.stored_record()
        if fields is None:
            raise _not_loaded(config.table)
        table.drop()
    return {"table": config.table, "documents": fields.get("documents"), "status": "dropped"}


def batches(index: Index, table: ServerTable, size: int) -> Iterator[list[Row]]:
    """The live rows of all segments as ``table`` can store them, at most ``size`` at a time."""
    for segment, _, live in index.slices():
        numbers = np.flatnonzero(live).tolist()
        for start in range(0, len(numbers), size):
            yield [_read(segment, number, table) for number in numbers[start : start + size]]


def _read(segment: Segment, number: int, table: ServerTable) -> Row:
    """The row of a document, by its number in a segment."""
    docid = segment.docids[number]
    # In a text the character is replaced; in an id, a replacement would make it another document's.
    if "\0" in docid:
        raise IndexMismatch(
            f"the document id {docid!r} contains a NUL character, which servers refuse; rename it"
        )
    vector = None
    if segment.dim is not None:
        vector = np.ascontiguousarray(segment.vectors[number], np.float32)
    impacts = (np.zeros(0), np.zeros(0))
    if segment.has_ot:
        impacts = segment.forward.row(number)
    document = StoredDocument(docid, "", "", {})
    if segment.texts is not None:
        document = segment.texts.get(number)
    row = Row(docid, vector, impacts, table.storable(document))
    return row._replace(fingerprint=fingerprint_of(row))
