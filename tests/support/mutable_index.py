"""Indexes that change, and the index of the same documents made at once, for tests that compare the two."""

from __future__ import annotations

import inspect
import json
import random
import types
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from dupmae_ir.encode.changes import run_add, run_update
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.encode.sync import run_sync
from dupmae_ir.encode.window_encoding import represent
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.changes.changes import run_compact as compact
from dupmae_ir.index.changes.changes import run_delete as delete
from dupmae_ir.index.config import AddConfig, CompactConfig, DeleteConfig, SyncConfig, UpdateConfig
from dupmae_ir.index.format.rotated import build_rotated
from dupmae_ir.index.format.texts import stored
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings.format import export_postings
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.testing import HashingEncoder
from dupmae_ir.types import Document, Encoder, Query

MODULES = (
    "argparse",
    "calendar",
    "collections",
    "csv",
    "datetime",
    "difflib",
    "heapq",
    "json",
    "logging",
    "random",
)
SCALE = 70.0
"""Impacts of usual texts stay below 255, and those of very repetitive ones are clipped."""
TOPICS = [
    Query("1", "how to sort a list of dates by month"),
    Query("2", "return the smallest elements"),
    Query("3", "sequence matcher junk"),
    Query("4", "parse command line arguments with a default"),
    Query("5", "zyzzyva"),
]
WAYS = [
    ("lucene", "flat", "dense"),
    ("lucene", "flat", "impact"),
    ("lucene", "flat", "hybrid"),
    ("lucene", "rotated", "hybrid"),
    ("postings", "flat", "impact"),
    ("postings", "flat", "hybrid"),
    ("postings", "rotated", "hybrid"),
]


def real_texts() -> list[Document]:
    """The documentation of functions and classes of the standard library, as it is in this Python."""
    found: dict[str, Document] = {}
    for name in MODULES:
        module = import_module(name)
        for member in sorted(vars(module)):
            value = getattr(module, member)
            if isinstance(value, types.FunctionType | type) and value.__module__.startswith(name):
                text = " ".join((inspect.getdoc(value) or "").split())
                found[f"{name}.{member}"] = Document(
                    f"{name}.{member}", text[:600], member, {"module": name}
                )
    return list(found.values())


def write_documents(path: Path, documents: Iterable[Document]) -> str:
    """A collection of these documents; returns its path."""
    lines = [
        {"_id": d.docid, "title": d.title, "text": d.text, "metadata": d.metadata}
        for d in documents
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


class Living:
    """An index that changes, and what it must contain. ``documents``: id -> document."""

    def __init__(
        self, where: Path, documents: Iterable[Document], model: str = "testing:hashing"
    ) -> None:
        self.where = where
        self.index = where / "I"
        self.documents = {document.docid: document for document in documents}
        corpus = write_documents(where / "c.jsonl", self.documents.values())
        given = {"scale": SCALE} if model == "testing:hashing" else {}
        encode(
            EncodeConfig(
                corpus=corpus, index=str(self.index), model=model, window=16, quiet=True, **given
            )
        )
        export_postings(Index.open(self.index).only_segment)
        build_rotated(Index.open(self.index).only_segment)

    def add(self, documents: list[Document]) -> dict[str, Any]:
        self.documents |= {document.docid: document for document in documents}
        return self._run(run_add, AddConfig, documents)

    def update(self, documents: list[Document]) -> dict[str, Any]:
        self.documents |= {document.docid: document for document in documents}
        return self._run(run_update, UpdateConfig, documents)

    def sync(self, documents: list[Document]) -> dict[str, Any]:
        self.documents = {document.docid: document for document in documents}
        return self._run(run_sync, SyncConfig, documents, replace_all=True)

    def delete(self, docids: list[str]) -> dict[str, Any]:
        for docid in docids:
            del self.documents[docid]
        return delete(DeleteConfig(index=str(self.index), ids=tuple(docids), quiet=True))

    def compact(self) -> dict[str, Any]:
        return compact(CompactConfig(index=str(self.index), quiet=True))

    def _run(
        self, run: Callable[[Any], Any], config: type, documents: list[Document], **more: Any
    ) -> dict[str, Any]:
        corpus = write_documents(self.where / "c.jsonl", documents)
        return run(config(index=str(self.index), corpus=corpus, quiet=True, **more))


def step(living: Living, rng: random.Random, pool: list[Document]) -> str:
    """One random change; returns its name."""
    there = sorted(living.documents)
    new = [d for d in pool if d.docid not in living.documents]
    name = rng.choice(["add", "add", "update", "update", "delete", "delete", "sync", "compact"])
    fresh = rng.sample(new, min(len(new), rng.randrange(1, 9)))
    some = rng.sample(there, min(len(there), rng.randrange(1, 12)))
    if name == "delete" and rng.random() < 0.1:
        some = there
    edited = [
        living.documents[docid]._replace(text=f"{rng.choice(pool).text} again {rng.random()}")
        for docid in some
    ]
    if name == "add" and fresh:
        living.add(fresh)
    elif name == "delete" and some:
        living.delete(some)
    elif name == "sync" and (fresh or len(there) > len(some)):
        kept = [living.documents[docid] for docid in there if docid not in some]
        living.sync(kept + edited[::2] + fresh)
    elif name == "update" and (fresh or edited):
        living.update(edited + fresh[:2])
    else:
        living.compact()
    return name


def at_once(
    folder: Path, documents: Iterable[Document], encoder: Encoder, scale: float = SCALE
) -> Path:
    """The index of ``documents``, made at once, in an order of its own."""
    ordered = sorted(documents, key=lambda document: document.docid[::-1])
    found = represent(encoder, ordered, " ")
    with IndexBuilder(
        folder, dim=encoder.dim, terms=encoder.terms, scale=scale, texts=True
    ) as builder:
        builder.add([document.docid for document in ordered], found.cls, found.ot, stored(ordered))
        builder.finish({})
    export_postings(Index.open(folder).only_segment)
    if ordered:
        build_rotated(Index.open(folder).only_segment)
    return folder


def lists(
    index: Any, encoder: Encoder, engine: str, dense: str, mode: str, hits: int, **more: Any
) -> list[Any]:
    """Hits, scores and certificates of all topics."""
    alone = {"batch_size": 1} if dense == "rotated" else {}  # many queries are searched by vectors
    searcher = Searcher.open(
        index, encoder, impact_search=engine, dense_index=dense, threads=1, **alone
    )
    answers = searcher.answers(TOPICS, hits, mode, **more)
    return [(a.query.qid, a.hits, a.report and (a.report.exact, a.report.kth)) for a in answers]


def hashing() -> HashingEncoder:
    return HashingEncoder()
