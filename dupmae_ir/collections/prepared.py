"""A prepared collection: files in BEIR's layout, and a manifest with their counts and digests.

The files are ``corpus.jsonl`` (or ``.jsonl.gz``, ``.tsv``, ``.tsv.gz`` if the original can be read as it is),
``queries.jsonl`` with the judged queries of all tests, ``qrels/TEST.tsv``, and for collections with answer strings
``answers.jsonl`` (``_id``, ``answers``). ``manifest.json`` is written last; a folder without it is ignored.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dupmae_ir import __version__
from dupmae_ir.collections.cache import Cache
from dupmae_ir.collections.catalogue import Catalogue, Collection
from dupmae_ir.collections.digests import qrels_digest, topics_digest
from dupmae_ir.console import progress
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.collections import LinesCollection
from dupmae_ir.io.publishing import sha256_file, write_json
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.registry import lookup

MANIFEST = "manifest.json"
QUERIES = "queries.jsonl"
ANSWERS = "answers.jsonl"


@dataclass(frozen=True)
class Facts:
    """Counts and digests obtained by reading a whole collection."""

    documents: int
    queries: int  #: judged in any test
    tests: Mapping[str, Mapping[str, Any]]  #: test -> queries, judgements, topics_digest, qrels_digest, dangling
    files: Mapping[str, Mapping[str, Any]]  #: file -> bytes and sha256


@dataclass(frozen=True)
class Manifest(Facts):
    """The content of ``manifest.json``: the facts, and how the collection was prepared."""

    name: str
    title: str
    stand_in: bool  #: prepared with an overlay catalogue; values measured on it are not the real collection's
    catalogue: Mapping[str, str]  #: ``file`` and ``sha256``
    corpus: str  #: name of the corpus file
    sources: Mapping[str, str]  #: role -> URL
    created: str
    versions: Mapping[str, str]
    states: Mapping[str, list[int]] = field(default_factory=dict)  #: local folders: file -> size and modification time

    def write(self, path: Path) -> None:
        """Write the file atomically, with the facts last."""
        values = dataclasses.asdict(self)
        facts = {field.name: values.pop(field.name) for field in dataclasses.fields(Facts)}
        write_json(path, {**values, **facts})


@dataclass(frozen=True)
class PreparedCollection:
    """A collection that is ready to be encoded, searched and evaluated."""

    name: str
    folder: Path
    corpus: Path  #: for ``--corpus``
    queries: Path  #: for ``--topics``: the judged queries of all tests
    manifest: Manifest = field(repr=False)

    def qrels(self, test: str = "test") -> Path:
        """The file with the judgements of a test, for ``--qrels``.

        Raises :class:`UnknownName` for an unknown test, and :class:`UsageError` if the collection has answer strings
        instead of judgements.
        """
        lookup(f"test of {self.name}", test, self.manifest.tests)
        if self.answers:
            raise UsageError(f"{self.name} has no judgements; evaluate with the answer strings in {self.answers}")
        return self.folder / "qrels" / f"{test}.tsv"

    @property
    def answers(self) -> Path | None:
        """JSON lines with the answer strings of each query; None if the collection has judgements."""
        path = self.folder / ANSWERS
        return path if ANSWERS in self.manifest.files else None


@dataclass(frozen=True)
class Layout:
    """The paths of a collection's files. ``tests`` maps each test to its judgements, None if it has answer strings."""

    folder: Path
    corpus: Path
    tests: Mapping[str, Path | None]

    @classmethod
    def of(cls, folder: Path, corpus: Path, collection: Collection) -> Layout:
        """The layout of ``collection`` in ``folder``."""
        tests = {
            name: None if test.answers else folder / "qrels" / f"{name}.tsv" for name, test in collection.tests.items()
        }
        return cls(folder, corpus, tests)

    @property
    def queries(self) -> Path:
        """The file with the queries of all tests."""
        return self.folder / QUERIES

    def files(self) -> Iterator[Path]:
        """All files except the manifest."""
        yield from (self.corpus, self.queries)
        yield from (path for path in self.tests.values() if path)
        if (self.folder / ANSWERS).is_file():
            yield self.folder / ANSWERS


def collect_facts(layout: Layout, title: str, quiet: bool = False) -> Facts:
    """Read all files once and return counts and digests. ``title`` labels the progress bar.

    Raises :class:`InputError` for a file that cannot be read, and for a judged query without a text.
    """
    texts = {q.qid: q.text for q in read_topics(layout.queries)}
    tests: dict[str, dict[str, Any]] = {}
    relevant: dict[str, set[str]] = {}
    for name, path in layout.tests.items():
        qrels = read_qrels(path) if path else {}
        judged = qrels.keys() if path else texts.keys()
        if missing := [qid for qid in judged if qid not in texts]:
            raise InputError(f"{layout.queries}: no text for query {missing[0]!r} of {path} ({len(missing)} in all)")
        relevant[name] = {docid for grades in qrels.values() for docid, grade in grades.items() if grade > 0}
        tests[name] = {
            "queries": len(judged),
            "judgements": sum(map(len, qrels.values())),
            "topics_digest": topics_digest({qid: texts[qid] for qid in judged}),
            "qrels_digest": qrels_digest(qrels) if path else None,
        }
    documents, sha256, absent = _read_corpus(layout.corpus, set().union(*relevant.values()), title, quiet)
    for name, docids in relevant.items():
        tests[name]["dangling"] = len(docids & absent)
    digests = {path: sha256_file(path) if path != layout.corpus else sha256 for path in layout.files()}
    files = {
        str(path.relative_to(layout.folder)): {"bytes": path.stat().st_size, "sha256": digest}
        for path, digest in digests.items()
    }
    return Facts(documents, len(texts), tests, files)


def _read_corpus(path: Path, relevant: set[str], title: str, quiet: bool) -> tuple[int, str, set[str]]:
    """(number of documents, sha256 of the file, the ids of ``relevant`` that are not in it)."""
    absent = set(relevant)
    corpus = LinesCollection(path)
    with progress(f"{title}: read", "documents", quiet=quiet) as bar:
        for document in corpus:
            absent.discard(document.docid)
            bar.update()
    return corpus.documents, corpus.inputs[0].sha256, absent


def manifest_of(collection: Collection, catalogue: Catalogue, layout: Layout, facts: Facts) -> Manifest:
    """The manifest of a collection with these facts."""
    return Manifest(
        **vars(facts),
        name=collection.name,
        title=collection.title,
        stand_in=catalogue.stand_in,
        catalogue={"file": str(catalogue.overlay or "built in"), "sha256": catalogue.sha256},
        corpus=str(layout.corpus.relative_to(layout.folder)),
        sources={role: source.url for role, source in collection.sources.items()},
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions={"dupmae_ir": __version__, "python": platform.python_version()},
    )


def read_manifest(path: Path) -> Manifest | None:
    """The manifest at ``path``, or None if it is missing or unreadable."""
    try:
        return Manifest(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def differences(collection: Collection, facts: Facts) -> list[str]:
    """Differences between the facts and the catalogue's expectations, one phrase each; unknown values are skipped."""
    phrases = list(_compared("documents", collection.documents, facts.documents))
    for name, test in collection.tests.items():
        counted = facts.tests.get(name)
        if counted is None:
            phrases.append(f"no test {name}")
            continue
        for key, what in (("queries", "judged queries"), ("judgements", "judgements")):
            phrases += _compared(f"{what} in {name}", getattr(test, key), counted[key])
        for key, what in (("topics_digest", "topics"), ("qrels_digest", "judgements")):
            if getattr(test, key) not in (None, counted[key]):
                phrases.append(f"different {what} in {name} (digest {counted[key]}, expected {getattr(test, key)})")
    return phrases


def _compared(what: str, expected: int | None, counted: int) -> Iterator[str]:
    if expected is not None and counted != expected:
        yield f"{counted:,} {what}, expected {expected:,}"


def open_folder(collection: Collection, folder: Path, manifest: Manifest) -> PreparedCollection:
    """The prepared collection in ``folder``."""
    return PreparedCollection(collection.name, folder, folder / manifest.corpus, folder / QUERIES, manifest)


def find_in_cache(collection: Collection, cache: Cache) -> PreparedCollection | None:
    """The collection in the cache; None if it is missing, incomplete, or not as the catalogue expects.

    Sizes of files and the manifest's facts are compared, not the files' contents.
    """
    folder = cache.folder(collection)
    manifest = read_manifest(folder / MANIFEST)
    # The catalogue may have been corrected since the collection was prepared.
    if manifest is None or not _is_complete(folder, manifest) or differences(collection, manifest):
        return None
    return open_folder(collection, folder, manifest)


def _is_complete(folder: Path, manifest: Manifest) -> bool:
    """True if every file exists with its recorded size."""
    sizes = {folder / name: entry["bytes"] for name, entry in manifest.files.items()}
    return all(path.is_file() and path.stat().st_size == size for path, size in sizes.items())
