"""A collection on disk: its files in BEIR's layout, and the manifest that says what they hold.

``corpus.jsonl`` (or ``.jsonl.gz``, ``.tsv``, ``.tsv.gz``: whatever came, where our readers take it as it is),
``queries.jsonl`` with the judged queries of all tests, ``qrels/TEST.tsv``, and for questions with answer strings
``answers.jsonl`` (``_id``, ``answers``). ``manifest.json`` is written last: without one a folder counts for nothing.
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
from dupmae_ir.collections.catalogue import Catalogue, Collection
from dupmae_ir.collections.digests import qrels_digest, topics_digest
from dupmae_ir.collections.paths import Place
from dupmae_ir.console import progress
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.collections import Collection as Corpus
from dupmae_ir.io.publishing import sha256_file, write_json
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.registry import lookup

MANIFEST = "manifest.json"
QUERIES = "queries.jsonl"
ANSWERS = "answers.jsonl"


@dataclass(frozen=True)
class Facts:
    """What reading all of a collection shows."""

    documents: int
    queries: int  #: judged in one test or another
    tests: Mapping[str, Mapping[str, Any]]  #: queries, judgements, topics_digest, qrels_digest, dangling of each
    files: Mapping[str, Mapping[str, Any]]  #: bytes and sha256 of each


@dataclass(frozen=True)
class Manifest(Facts):
    """``manifest.json``: the facts, and what they were made with."""

    name: str
    title: str
    stand_in: bool  #: made with a catalogue of one's own: no number of it is the real collection's
    catalogue: Mapping[str, str]  #: file and sha256
    corpus: str  #: which of the files
    sources: Mapping[str, str]  #: address of each role
    created: str
    versions: Mapping[str, str]
    states: Mapping[str, list[int]] = field(default_factory=dict)  #: size and time of each file of a local folder

    def write(self, path: Path) -> None:
        """Atomic; what it is comes first, the facts last."""
        values = dataclasses.asdict(self)
        facts = {field.name: values.pop(field.name) for field in dataclasses.fields(Facts)}
        write_json(path, {**values, **facts})


@dataclass(frozen=True)
class Ready:
    """A collection that can be encoded, searched and evaluated."""

    name: str
    folder: Path
    corpus: Path  #: what ``--corpus`` wants
    queries: Path  #: what ``--topics`` wants: the judged queries of all tests
    manifest: Manifest = field(repr=False)

    def qrels(self, test: str = "test") -> Path:
        """The judgements of one test, what ``--qrels`` wants.

        Raises :class:`UnknownName` for another test's name, :class:`UsageError` where answer strings decide.
        """
        lookup(f"test of {self.name}", test, self.manifest.tests)
        if self.answers:
            raise UsageError(f"{self.name} has no judgements: a passage counts by the strings in {self.answers}")
        return self.folder / "qrels" / f"{test}.tsv"

    @property
    def answers(self) -> Path | None:
        """Query id -> answer strings as JSON lines, where these decide instead of judgements."""
        path = self.folder / ANSWERS
        return path if ANSWERS in self.manifest.files else None


@dataclass(frozen=True)
class Layout:
    """Where the parts of a collection lie; ``tests`` maps a test to its judgements, None where there are none."""

    folder: Path
    corpus: Path
    tests: Mapping[str, Path | None]

    @classmethod
    def of(cls, folder: Path, corpus: Path, collection: Collection) -> Layout:
        """BEIR's layout in ``folder``."""
        tests = {
            name: None if test.answers else folder / "qrels" / f"{name}.tsv" for name, test in collection.tests.items()
        }
        return cls(folder, corpus, tests)

    @property
    def queries(self) -> Path:
        """The queries of all tests."""
        return self.folder / QUERIES

    def files(self) -> Iterator[Path]:
        """All but the manifest."""
        yield from (self.corpus, self.queries)
        yield from (path for path in self.tests.values() if path)
        if (self.folder / ANSWERS).is_file():
            yield self.folder / ANSWERS


def measure(layout: Layout, title: str, quiet: bool = False) -> Facts:
    """Read everything once.

    Raises :class:`InputError` for what our readers refuse, and for a judged query without a text.
    """
    texts = {q.qid: q.text for q in read_topics(layout.queries)}
    tests: dict[str, dict[str, Any]] = {}
    relevant: dict[str, set[str]] = {}
    for name, path in layout.tests.items():
        qrels = read_qrels(path) if path else {}
        judged = qrels.keys() if path else texts.keys()
        if lacking := [qid for qid in judged if qid not in texts]:
            raise InputError(f"{layout.queries}: no text for query {lacking[0]!r} of {path} ({len(lacking)} in all)")
        relevant[name] = {docid for found in qrels.values() for docid, grade in found.items() if grade > 0}
        tests[name] = {
            "queries": len(judged),
            "judgements": sum(map(len, qrels.values())),
            "topics_digest": topics_digest({qid: texts[qid] for qid in judged}),
            "qrels_digest": qrels_digest(qrels) if path else None,
        }
    documents, sha256, unseen = _corpus(layout.corpus, set().union(*relevant.values()), title, quiet)
    for name, docids in relevant.items():
        tests[name]["dangling"] = len(docids & unseen)
    digests = {path: sha256_file(path) if path != layout.corpus else sha256 for path in layout.files()}
    files = {
        str(path.relative_to(layout.folder)): {"bytes": path.stat().st_size, "sha256": digest}
        for path, digest in digests.items()
    }
    return Facts(documents, len(texts), tests, files)


def _corpus(path: Path, relevant: set[str], title: str, quiet: bool) -> tuple[int, str, set[str]]:
    """(documents, sha256 of the file, which of ``relevant`` it lacks)."""
    corpus = Corpus(path)
    with progress(f"{title}: read", "documents", quiet=quiet) as bar:
        for document in corpus:
            relevant.discard(document.docid)
            bar.update()
    return corpus.documents, corpus.inputs[0].sha256, relevant


def manifest_of(collection: Collection, catalogue: Catalogue, layout: Layout, facts: Facts) -> Manifest:
    """What ``manifest.json`` says."""
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
    """What was written, or None where nothing (or nothing readable) is."""
    try:
        return Manifest(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def differences(collection: Collection, facts: Facts) -> list[str]:
    """Where the facts are not what the catalogue expects, as far as it knows; one phrase each."""
    found = list(_compared("documents", collection.documents, facts.documents))
    for name, test in collection.tests.items():
        has = facts.tests.get(name)
        if has is None:
            found.append(f"no test {name}")
            continue
        for key, what in (("queries", "judged queries"), ("judgements", "judgements")):
            found += _compared(f"{what} in {name}", getattr(test, key), has[key])
        for key, what in (("topics_digest", "topics"), ("qrels_digest", "judgements")):
            if getattr(test, key) not in (None, has[key]):
                found.append(f"other {what} in {name} (digest {has[key]}, expected {getattr(test, key)})")
    return found


def _compared(what: str, expected: int | None, found: int) -> Iterator[str]:
    if expected not in (None, found):
        yield f"{found:,} {what} where {expected:,} are expected"


def opened(collection: Collection, folder: Path, manifest: Manifest) -> Ready:
    """The :class:`Ready` of a folder and its manifest."""
    return Ready(collection.name, folder, folder / manifest.corpus, folder / QUERIES, manifest)


def whole(folder: Path, manifest: Manifest) -> bool:
    """Every file is there and as long as it was; says nothing of its bytes."""
    paths = {folder / name: entry["bytes"] for name, entry in manifest.files.items()}
    return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())


def on_disk(collection: Collection, place: Place) -> Ready | None:
    """The collection as it lies in its place, if it is whole and what the catalogue expects by now."""
    folder = place.folder(collection)
    manifest = read_manifest(folder / MANIFEST)
    # A newer catalogue may know better what the collection has to be.
    if manifest is None or not whole(folder, manifest) or differences(collection, manifest):
        return None
    return opened(collection, folder, manifest)
