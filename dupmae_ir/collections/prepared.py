"""A prepared collection: files in BEIR's layout, and a manifest with their counts and digests.

The files are ``corpus.jsonl`` (or ``.jsonl.gz``, ``.tsv``, ``.tsv.gz`` if the original can be read as it is),
``queries.jsonl`` with the judged queries of all tests, ``qrels/TEST.tsv``, and for collections with answer strings
``answers.jsonl`` (``_id``, ``answers``). ``manifest.json`` is written last; a folder without it is ignored.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import platform
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from dupmae_ir import __version__
from dupmae_ir.collections.catalogue import Cache, CollectionCatalogue, TestCollection
from dupmae_ir.console import progress
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.collections import LinesCollection
from dupmae_ir.io.lines import json_lines
from dupmae_ir.io.publishing import atomic_write, sha256_file, write_json
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.registry import lookup
from dupmae_ir.types import Qrels, Query

MANIFEST = "manifest.json"
QUERIES = "queries.jsonl"
ANSWERS = "answers.jsonl"


@dataclass(frozen=True)
class Facts:
    """Counts and digests obtained by reading a complete collection."""

    documents: int
    queries: int  #: judged in any test
    tests: Mapping[
        str, Mapping[str, Any]
    ]  #: test -> queries, judgements, topics_digest, qrels_digest, dangling
    files: Mapping[str, Mapping[str, Any]]  #: file -> bytes and sha256


@dataclass(frozen=True)
class PreparedManifest(Facts):
    """The content of ``manifest.json``: the facts, and how the collection was prepared."""

    name: str
    title: str
    stand_in: bool  #: prepared with an overlay catalogue; values measured on it are not the real collection's
    catalogue: Mapping[str, str]  #: ``file`` and ``sha256``
    corpus: str  #: name of the corpus file
    sources: Mapping[str, str]  #: role -> URL
    created: str
    versions: Mapping[str, str]

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
    manifest: PreparedManifest = field(repr=False)

    def qrels(self, test: str = "test") -> Path:
        """The file with the judgements of a test, for ``--qrels``.

        Raises :class:`UnknownName` for an unknown test, and :class:`UsageError` if the collection has answer strings
        instead of judgements.
        """
        lookup(f"test of {self.name}", test, self.manifest.tests)
        if self.answers:
            raise UsageError(
                f"{self.name} has no judgements; evaluate with the answer strings in {self.answers}"
            )
        return qrels_path(self.folder, test)

    @property
    def answers(self) -> Path | None:
        """JSON lines with the answer strings of each query; None if the collection has judgements."""
        path = self.folder / ANSWERS
        return path if ANSWERS in self.manifest.files else None


def topics_digest(texts: Mapping[str, str]) -> str:
    """sha256 of the sorted ``qid<TAB>text`` lines (UTF-8, each ended by a newline), white space runs as one space.

    The digest does not depend on the format that the topics were distributed in.
    """
    return _lines_digest(f"{qid}\t{' '.join(text.split())}" for qid, text in texts.items())


def qrels_digest(qrels: Qrels) -> str:
    """sha256 of the sorted ``qid docid grade`` lines with a grade above 0.

    Grades of 0 or less are left out: trec_eval's measures treat such a document like an unjudged one, and Anserini's
    files for TREC-COVID and Touché-2020 lack lines that BEIR's have.
    """
    return _lines_digest(
        f"{q} {d} {grade}"
        for q, judged in qrels.items()
        for d, grade in judged.items()
        if grade > 0
    )


def _lines_digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in sorted(lines)).encode()).hexdigest()


def collection_files(collection: TestCollection, folder: Path, corpus: Path) -> list[Path]:
    """The files of a prepared collection except the manifest: corpus, queries, judgements, answers."""
    qrels = [
        qrels_path(folder, name) for name, test in collection.tests.items() if not test.answers
    ]
    answers = folder / ANSWERS
    return [corpus, folder / QUERIES, *qrels, *([answers] if answers.is_file() else [])]


def qrels_path(folder: Path, test: str) -> Path:
    """The file with the judgements of a test."""
    return folder / "qrels" / f"{test}.tsv"


def write_records(path: Path, records: Iterable[Mapping[str, object]]) -> None:
    """Write JSON lines, for example the queries."""
    with json_lines(path) as write:
        for record in records:
            write(record)


def write_qrels(folder: Path, test: str, qrels: Qrels) -> None:
    """Write the judgements of a test."""
    with atomic_write(qrels_path(folder, test)) as file:
        file.write("query-id\tcorpus-id\tscore\n")
        file.writelines(
            f"{q}\t{d}\t{grade}\n" for q, judged in qrels.items() for d, grade in judged.items()
        )


def collect_facts(
    collection: TestCollection, folder: Path, corpus: Path, quiet: bool = False
) -> Facts:
    """Read all files in ``folder`` once, and ``corpus``, and return counts and digests.

    Raises :class:`InputError` for a file that cannot be read, and for a judged query without a text.
    """
    topics = read_topics(folder / QUERIES)
    texts = {q.qid for q in topics}
    tests: dict[str, FactsOfTest] = {}
    relevant: dict[str, set[str]] = {}
    for name, test in collection.tests.items():
        path = qrels_path(folder, name)
        qrels: Qrels = {} if test.answers else read_qrels(path)
        judged: Collection[str] = texts if test.answers else qrels
        if missing := [qid for qid in judged if qid not in texts]:
            raise InputError(
                f"{folder / QUERIES}: no text for query {missing[0]!r} of {path} ({len(missing)} in all)"
            )
        relevant[name] = {
            docid for grades in qrels.values() for docid, grade in grades.items() if grade > 0
        }
        tests[name] = facts_of_test(topics, qrels, judged)
    documents, absent = LinesCollection(corpus), set().union(*relevant.values())
    with progress(f"{collection.name}: read", "documents", quiet=quiet) as bar:
        for document in documents:
            absent.discard(document.docid)
            bar.update()
    for name, docids in relevant.items():
        tests[name]["dangling"] = len(docids & absent)
    files = {
        str(path.relative_to(folder)): {
            "bytes": path.stat().st_size,
            "sha256": documents.inputs[0].sha256 if path == corpus else sha256_file(path),
        }
        for path in collection_files(collection, folder, corpus)
    }
    return Facts(documents.documents, len(texts), tests, files)


class FactsOfTest(TypedDict):
    """Counts and digests of one test of a collection, as its manifest records them."""

    queries: int
    judgements: int
    topics_digest: str
    qrels_digest: str | None  #: None if the queries have answer strings instead of judgements
    dangling: NotRequired[int]  #: judged documents that the collection lacks


def facts_of_test(topics: Iterable[Query], qrels: Qrels, judged: Collection[str]) -> FactsOfTest:
    """Counts and digests of a test; ``qrels`` are empty if its ``judged`` queries have answer strings instead."""
    judged_texts = {topic.qid: topic.text for topic in topics if topic.qid in judged}
    return {
        "queries": len(judged),
        "judgements": sum(map(len, qrels.values())),
        "topics_digest": topics_digest(judged_texts),
        "qrels_digest": qrels_digest(qrels) if qrels else None,
    }


def manifest_of(
    collection: TestCollection, catalogue: CollectionCatalogue, facts: Facts, corpus: str
) -> PreparedManifest:
    """The manifest of a collection with these facts; ``corpus`` is the name of its corpus file."""
    return PreparedManifest(
        **vars(facts),
        name=collection.name,
        title=collection.title,
        stand_in=catalogue.stand_in,
        catalogue={"file": str(catalogue.overlay or "built in"), "sha256": catalogue.sha256},
        corpus=corpus,
        sources={role: source.url for role, source in collection.sources.items()},
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions={"dupmae_ir": __version__, "python": platform.python_version()},
    )


def read_manifest(path: Path) -> PreparedManifest | None:
    """The manifest at ``path``, or None if it is missing or unreadable."""
    try:
        return PreparedManifest(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def differences(collection: TestCollection, facts: Facts) -> list[str]:
    """Differences between the facts and the catalogue's expectations, one phrase each; unknown values are skipped."""
    counts = [("documents", collection.documents, facts.documents)]
    phrases = []
    for name, test in collection.tests.items():
        actual = facts.tests.get(name)
        if actual is None:
            phrases.append(f"no test {name}")
            continue
        counts.append((f"judged queries in {name}", test.queries, actual["queries"]))
        counts.append((f"judgements in {name}", test.judgements, actual["judgements"]))
        for key, what in (("topics_digest", "topics"), ("qrels_digest", "judgements")):
            expected = getattr(test, key)
            if expected not in (None, actual[key]):
                phrases.append(
                    f"different {what} in {name} (digest {actual[key]}, expected {expected})"
                )
    wrong = [
        f"{n:,} {what}, expected {expected:,}"
        for what, expected, n in counts
        if expected not in (None, n)
    ]
    return wrong + phrases


def open_folder(
    collection: TestCollection, folder: Path, manifest: PreparedManifest
) -> PreparedCollection:
    """The prepared collection in ``folder``."""
    return PreparedCollection(
        collection.name, folder, folder / manifest.corpus, folder / QUERIES, manifest
    )


def find_in_cache(collection: TestCollection, cache: Cache) -> PreparedCollection | None:
    """The collection in the cache; None if it is missing, incomplete, or not as the catalogue expects.

    Sizes of files and the manifest's facts are compared, not the files' contents.
    """
    folder = cache.folder(collection)
    manifest = read_manifest(folder / MANIFEST)
    # The catalogue may have been corrected since the collection was prepared.
    if manifest is None or differences(collection, manifest):
        return None
    sizes = {folder / name: entry["bytes"] for name, entry in manifest.files.items()}
    complete = all(path.is_file() and path.stat().st_size == size for path, size in sizes.items())
    return open_folder(collection, folder, manifest) if complete else None
