"""``dupmae-ir servers files``: what a server's own tools load, as files.

For OpenSearch and Elasticsearch: the settings and mappings of the index, and documents for ``_bulk``. For Vespa: the
application package, and documents for ``vespa feed``. Besides, the load record that ``search --server`` asks for,
the bodies of example queries, and a page with the commands.

Documents are in parts of a limited size. A part appears whole, so a run that was killed continues after the last one,
and its files are those of an undisturbed run.
"""

from __future__ import annotations

import gzip
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from dupmae_ir.console import progress
from dupmae_ir.errors import UsageError
from dupmae_ir.index.index import Index
from dupmae_ir.io.jobs import Job
from dupmae_ir.io.publishing import atomic_write, write_json
from dupmae_ir.servers.config import FilesConfig
from dupmae_ir.servers.experimental.opensearch import RECORDS_BODY, bulk_lines, dense_body, impact_body, index_body
from dupmae_ir.servers.experimental.rest import Json
from dupmae_ir.servers.experimental.vespa import (
    TEMPLATES,
    application,
    document_fields,
    operation,
    query_body,
    record_document,
    user_part,
)
from dupmae_ir.servers.load import batches, largest_norm, spec_of
from dupmae_ir.servers.protocol import COMPLETE, RECORDS, Record, Rows, ServerQuery, check_table, default_table

PROGRESS = "progress.json"
_BATCH = 500
_HITS = 10  #: of the example queries


def run(config: FilesConfig) -> dict[str, object]:
    """Write the files of an index for a server and return a summary."""
    index = Index.open(config.index)
    if not index.documents:
        raise UsageError(f"{config.index}: the index has no documents")
    name = check_table(config.table or default_table(config.index))
    layout: Layout = Feed(name, config.approximate) if config.kind == "vespa" else Bulk(config.kind, name)
    settings = {
        "kind": config.kind,
        "table": name,
        "megabytes": config.megabytes,
        "gzip": config.gzip,
        "approximate": config.approximate,
    }
    with Job(config.output, "servers files", settings, {"index": index.digest}, quiet=config.quiet) as job:
        if result := job.finished():
            return result
        work = job.begin()
        target = work / "files"
        target.mkdir(exist_ok=True)
        parts = _Parts(config, index, layout, target, work / PROGRESS)
        parts.write()
        record = Record(spec_of(index), COMPLETE, index.digest, index.documents, parts.done.longest)
        for path, text in layout.around(record, _example(index), config).items():
            with atomic_write(target / path) as f:
                f.write(text)
        counts = {"documents": index.documents, "parts": len(parts.done.files), "bytes": parts.done.bytes}
        return job.publish(target, {"server": config.kind, "table": name, **counts})


class Layout(Protocol):
    """The files of one server. ``part``: pattern of the names of the files with documents."""

    part: str

    def lines(self, rows: Rows) -> Iterator[str]:
        """The lines of each document, with their newlines."""

    def around(self, record: Record, example: ServerQuery, config: FilesConfig) -> dict[str, str]:
        """All other files, by path. ``example``: the query of the example requests."""


class Bulk:
    """Files for the REST interface of OpenSearch and Elasticsearch."""

    part = "bulk-{:05}.ndjson"

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name

    def lines(self, rows: Rows) -> Iterator[str]:
        """An action and a source for each document."""
        for action, source in bulk_lines(rows):
            yield f"{json.dumps(action)}\n{json.dumps(source)}\n"

    def around(self, record: Record, example: ServerQuery, config: FilesConfig) -> dict[str, str]:
        """Settings and mappings, the record, queries, and the commands."""
        spec = record.spec
        files: dict[str, Json] = {
            "index.json": index_body(self.kind, spec),
            "records-index.json": RECORDS_BODY,
            "record.json": record.as_dict(),
        }
        files |= {"query-dense.json": dense_body(self.kind, example, _HITS, record.longest)} if spec.dim else {}
        files |= {"query-impact.json": impact_body(example, _HITS)} if spec.terms else {}
        title = {"opensearch": "OpenSearch", "elasticsearch": "Elasticsearch"}[self.kind]
        guide = _guide("bulk.md", self.name, config, kind=self.kind, title=title)
        return {path: _indented(body) for path, body in files.items()} | {"README.md": guide}


class Feed:
    """Files for Vespa: an application package and operations in its document JSON."""

    part = "feed-{:05}.jsonl"

    def __init__(self, name: str, approximate: bool) -> None:
        self.name, self.approximate = name, approximate

    def lines(self, rows: Rows) -> Iterator[str]:
        """A put operation for each document."""
        for docid, fields in zip(rows.docids, document_fields(rows), strict=True):
            yield json.dumps(operation(self.name, user_part(docid), fields)) + "\n"

    def around(self, record: Record, example: ServerQuery, config: FilesConfig) -> dict[str, str]:
        """The package, the record, queries, and the commands."""
        spec = record.spec
        files = {f"application/{path}": text for path, text in application(self.name, spec, self.approximate).items()}
        files["record.jsonl"] = json.dumps(operation(RECORDS, self.name, record_document(record))) + "\n"
        sides = {"dense": spec.dim, "impact": spec.terms, "hybrid": spec.dim and spec.terms}
        for part in (part for part, present in sides.items() if present):
            files[f"query-{part}.json"] = _indented(query_body(self.name, part, example, _HITS))
        return files | {"README.md": _guide("feed.md", self.name, config)}


class _Done(NamedTuple):
    """Which parts are on the disk. ``bytes``: of their contents, uncompressed. ``longest``: as in :class:`Record`."""

    files: list[str]
    documents: int
    bytes: int
    longest: float


class _Parts:
    """The files with documents of one run."""

    def __init__(self, config: FilesConfig, index: Index, layout: Layout, target: Path, state: Path) -> None:
        self.config, self.index, self.layout = config, index, layout
        self.target, self.state = target, state
        found = json.loads(state.read_text(encoding="utf-8")) if state.is_file() else None
        self.done = _Done(**found) if found else _Done([], 0, 0, 0.0)

    def write(self) -> None:
        """Write the parts that are not there."""
        limit = self.config.megabytes * 1e6
        lines: list[bytes] = []
        size, longest = 0, self.done.longest
        with progress("write", "documents", self.index.documents, self.config.quiet) as bar:
            bar.update(self.done.documents)
            for rows in batches(self.index, _BATCH, self.done.documents):
                # Before the rows are split into parts: a bound that is too large for a part is still a bound.
                longest = max(longest, largest_norm(rows))
                for line in self.layout.lines(rows):
                    data = line.encode()
                    if lines and size + len(data) > limit:
                        self._close(lines, size, longest)
                        lines, size = [], 0
                    lines.append(data)
                    size += len(data)
                bar.update(len(rows.docids))
        if lines:
            self._close(lines, size, longest)

    def _close(self, lines: list[bytes], size: int, longest: float) -> None:
        """Put a part on the disk, and then into the state."""
        name = self.layout.part.format(len(self.done.files)) + (".gz" if self.config.gzip else "")
        data = b"".join(lines)
        with atomic_write(self.target / name, "wb") as f:
            f.write(gzip.compress(data, mtime=0) if self.config.gzip else data)
        files = [*self.done.files, name]
        self.done = _Done(files, self.done.documents + len(lines), self.done.bytes + size, longest)
        write_json(self.state, self.done._asdict())


def _example(index: Index) -> ServerQuery:
    """The first document as a query: no model is needed for it."""
    rows = next(batches(index, 1))
    spec = spec_of(index)
    none = np.zeros(0, np.int64)
    ids, impacts = rows.impacts[0] if rows.impacts is not None else (none, none)
    cls = rows.cls[0] if rows.cls is not None else np.zeros(0, np.float32)
    return ServerQuery(cls, ids.astype(np.int64), impacts.astype(np.int64), 1.0, 1.0 / spec.scale**2)


def _guide(template: str, name: str, config: FilesConfig, **values: str) -> str:
    """The page with the commands that load the files."""
    index = {"index": config.index, "path": shlex.quote(config.index)}
    return TEMPLATES.get_template(template).render(name=name, gzip=config.gzip, **index, **values)


def _indented(body: Json) -> str:
    return json.dumps(body, indent=2) + "\n"
