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
    #: Test -> queries, judgements, topics_digest, qrels_digest, dangling.
    tests: Mapping[str, Mapping[str, Any]]
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
        if ANSWERS not in self.manifest.files:
            return None
        return self.folder / ANSWERS


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
    lines = []
    for qid, grades in qrels.items():
        for docid, grade in grades.items():
            if grade > 0:
                lines.append(f"{qid} {docid} {grade}")
    return _lines_digest(lines)


def _lines_digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in sorted(lines)).encode()).hexdigest()


def collection_files(collection: TestCollection, folder: Path, corpus: Path) -> list[Path]:
    """The files of a prepared collection except the manifest: corpus, queries, judgements, answers."""
    files = [corpus, folder / QUERIES]
    for name, test in collection.tests.items():
        if not test.answers:
            files.append(qrels_path(folder, name))
    answers = folder / ANSWERS
    if answers.is_file():
        files.append(answers)
    return files


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
        for qid, grades in qrels.items():
            for docid, grade in grades.items():
                file.write(f"{qid}\t{docid}\t{grade}\n")


def collect_facts(
    collection: TestCollection, folder: Path, corpus: Path, quiet: bool = False
) -> Facts:
    """Read all files in ``folder`` once, and ``corpus``, and return counts and digests.

    Raises :class:`InputError` for a file that cannot be read, and for a judged query without a text.
    """
    topics = read_topics(folder / QUERIES)
    qids = {query.qid for query in topics}
    tests: dict[str, FactsOfTest] = {}
    relevant: dict[str, set[str]] = {}
    for name, test in collection.tests.items():
        path = qrels_path(folder, name)
        qrels: Qrels = {}
        judged: Collection[str] = qids
        if not test.answers:
            qrels = read_qrels(path)
            judged = qrels
        missing = [qid for qid in judged if qid not in qids]
        if missing:
            raise InputError(
                f"{folder / QUERIES}: no text for query {missing[0]!r} of {path} ({len(missing)} in all)"
            )
        relevant[name] = _relevant_docids(qrels)
        tests[name] = facts_of_test(topics, qrels, judged)

    documents = LinesCollection(corpus)
    absent: set[str] = set().union(*relevant.values())
    with progress(f"{collection.name}: read", "documents", quiet=quiet) as bar:
        for document in documents:
            absent.discard(document.docid)
            bar.update()
    for name, docids in relevant.items():
        tests[name]["dangling"] = len(docids & absent)

    files = {}
    for path in collection_files(collection, folder, corpus):
        # Reading the corpus has computed its digest already.
        sha256 = documents.inputs[0].sha256 if path == corpus else sha256_file(path)
        files[str(path.relative_to(folder))] = {"bytes": path.stat().st_size, "sha256": sha256}
    return Facts(documents.documents, len(qids), tests, files)


def _relevant_docids(qrels: Qrels) -> set[str]:
    docids: set[str] = set()
    for grades in qrels.values():
        docids.update(docid for docid, grade in grades.items() if grade > 0)
    return docids


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
    wrong_counts: list[str] = []
    other_differences: list[str] = []

    def compare_counts(what: str, actual: int, expected: int | None) -> None:
        if expected is not None and expected != actual:
            wrong_counts.append(f"{actual:,} {what}, expected {expected:,}")

    compare_counts("documents", facts.documents, collection.documents)
    for name, test in collection.tests.items():
        facts_of_name = facts.tests.get(name)
        if facts_of_name is None:
            other_differences.append(f"no test {name}")
            continue
        compare_counts(f"judged queries in {name}", facts_of_name["queries"], test.queries)
        compare_counts(f"judgements in {name}", facts_of_name["judgements"], test.judgements)
        for key, what in (("topics_digest", "topics"), ("qrels_digest", "judgements")):
            digest = facts_of_name[key]
            expected = getattr(test, key)
            if expected is not None and expected != digest:
                other_differences.append(
                    f"different {what} in {name} (digest {digest}, expected {expected})"
                )
    return wrong_counts + other_differences


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
    for name, entry in manifest.files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != entry["bytes"]:
            return None
    return open_folder(collection, folder, manifest)
