"""The source files of a collection, downloaded and unpacked on demand, and their conversion to BEIR's layout."""

from __future__ import annotations

import ast
import csv
import gzip
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dupmae_ir.collections.catalogue import Cache, CollectionCatalogue, TestCollection
from dupmae_ir.collections.prepared import (
    ANSWERS,
    QUERIES,
    find_in_cache,
    write_qrels,
    write_records,
)
from dupmae_ir.console import progress
from dupmae_ir.errors import InputError, Licensed
from dupmae_ir.io.archives import unpack
from dupmae_ir.io.lines import numbered_lines
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.io.transfer import download


def convert(sources: SourceFiles) -> Path:
    """Write all files except the manifest into the work folder; returns the corpus.

    Topics and judgements come first, so that errors in them appear before gigabytes are downloaded.
    """
    collection, work = sources.collection, sources.work
    texts: dict[str, str] = {}
    for test in collection.tests.values():
        if test.answers:
            path = sources.path(test.topics)
            queries = [answered_query(line, number, path) for number, line in numbered_lines(path)]
            texts |= {query.qid: query.text for query in queries}
            write_records(work / ANSWERS, ({"_id": q.qid, "answers": q.answers} for q in queries))
            continue
        topics, qrels = sources.path(test.topics), read_qrels(sources.path(test.qrels))
        write_qrels(work, test.name, qrels)
        for query in read_topics(topics):
            if query.qid in qrels and texts.setdefault(query.qid, query.text) != query.text:
                raise InputError(
                    f"{test.topics}: query {query.qid!r} has a different text in another test of the collection"
                )
    write_records(work / QUERIES, ({"_id": qid, "text": text} for qid, text in texts.items()))
    if shared := sources.shared_corpus():
        return _link(shared, work / shared.name)
    corpus = sources.path(collection.corpus)
    if collection.quoted:
        return _remove_quotes(corpus, work / "corpus.jsonl.gz", collection, sources.quiet)
    suffixes = "".join(Path(corpus.name).suffixes[-2 if corpus.name.endswith(".gz") else -1 :])
    return _link(corpus, work / f"corpus{suffixes}")


class AnsweredQuery(NamedTuple):
    """A query with the strings that answer it."""

    qid: str
    text: str
    answers: list[str]


def answered_query(line: str, number: int, path: str | Path) -> AnsweredQuery:
    """DPR's ``query<TAB>['answer', ...]``, quoted as csv; the id is the line number from 0, as in Pyserini."""
    where = f"{path}:{number}"
    try:
        text, *cells = next(csv.reader([line], delimiter="\t"))
        answers = ast.literal_eval(cells[-1].strip()) if cells else None
    except (ValueError, SyntaxError, csv.Error):
        raise InputError(
            f"{where}: expected query<TAB>['answer', ...], got {line[:80]!r}"
        ) from None
    return AnsweredQuery(str(number - 1), text.strip(), checked_answers(answers, where))


def checked_answers(answers: object, where: str) -> list[str]:
    """``answers``; :class:`InputError` if it is not a list of strings."""
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise InputError(f"{where}: the answers are not a list of strings")
    return answers


def _remove_quotes(source: Path, target: Path, collection: TestCollection, quiet: bool) -> Path:
    """DPR's passages (id, text, title; texts quoted as csv) as gzipped JSON lines, without the csv quotes."""
    with (
        gzip.GzipFile(target, "wb", compresslevel=3, mtime=0) as packed,
        progress(
            f"{collection.name}: convert", "documents", total=collection.documents, quiet=quiet
        ) as bar,
    ):
        for number, line in numbered_lines(source):
            cells = next(csv.reader([line], delimiter="\t"))
            if len(cells) != 3:
                raise InputError(
                    f"{source}:{number}: {len(cells)} column(s), expected id, text and title"
                )
            if number == 1 and cells[0] == "id":
                continue
            record = {"_id": cells[0], "title": cells[2], "text": cells[1]}
            packed.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            bar.update()
    return target


def _link(source: Path, target: Path) -> Path:
    """Make ``target`` a hard link to ``source``, or a copy where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    return target


UNPACKED = ".unpacked"  #: folder for archive members, inside the work folder


@dataclass(frozen=True)
class SourceFiles:
    """The files of a collection by reference, "ROLE" or "ROLE:MEMBER"; downloaded and unpacked on first use."""

    collection: TestCollection
    catalogue: CollectionCatalogue
    cache: Cache
    mirror: str | None
    quiet: bool

    @property
    def work(self) -> Path:
        """The folder in which the collection is prepared."""
        return self.cache.work(self.collection)

    def path(self, reference: str) -> Path:
        """The file of a reference: a download, a member of a downloaded archive, or a licensed file.

        Raises :class:`EnvironmentProblem` if it cannot be downloaded, :class:`Licensed` if the user has to obtain it,
        and :class:`InputError` for an archive without the member.
        """
        role, _, member = reference.partition(":")
        if self.collection.licensed:
            folder = self.cache.licensed(self.collection)
            if not folder.is_dir():
                raise Licensed(licence_message(self.collection, self.cache))
            for path in (folder / member, folder / f"{member}.gz"):
                if path.is_file():
                    return path
            raise Licensed(f"{folder / member}: no such file; the folder must have BEIR's layout")
        source = self.collection.sources[role]
        file = download(source, self.cache.download(source), mirror=self.mirror, quiet=self.quiet)
        return self._unpacked(file, role) / member if member else file

    def shared_corpus(self) -> Path | None:
        """The same corpus, already prepared for another collection (DPR's collections share one)."""
        mine = (self.collection.corpus, _corpus_url(self.collection))
        others = (
            c
            for c in self.catalogue.collections.values()
            if c.name != self.collection.name and mine[1]
        )
        prepared = (
            find_in_cache(c, self.cache) for c in others if (c.corpus, _corpus_url(c)) == mine
        )
        return next((other.corpus for other in prepared if other), None)

    def _unpacked(self, archive: Path, role: str) -> Path:
        folder = self.work / UNPACKED / role
        if not folder.exists():
            tests = self.collection.tests.values()
            references = (self.collection.corpus, *(r for t in tests for r in (t.topics, t.qrels)))
            members = {r.partition(":")[2] for r in references if r.partition(":")[0] == role}
            unpack(archive, folder, members.__contains__, quiet=self.quiet)
            if missing := sorted(member for member in members if not (folder / member).is_file()):
                raise InputError(
                    f"{archive}: no {missing[0]} in it; this is not the archive of {self.collection.name}"
                )
        return folder


def discard_download(
    collection: TestCollection, catalogue: CollectionCatalogue, cache: Cache
) -> None:
    """Remove the download of the corpus, unless another collection still has to be prepared from it."""
    url = _corpus_url(collection)
    waiting = (
        _corpus_url(other) == url
        and other.corpus != collection.corpus
        and not find_in_cache(other, cache)
        for other in catalogue.collections.values()
    )
    if url is not None and not any(waiting):
        target = cache.download(collection.sources[collection.corpus.partition(":")[0]])
        for path in (target, target.with_name(f".{target.name}.json")):
            path.unlink(missing_ok=True)


def licence_message(collection: TestCollection, cache: Cache) -> str:
    """One line with how to obtain a licensed collection and where to put it."""
    return (
        f"{collection.name} cannot be downloaded: {collection.licensed}; then put corpus.jsonl, queries.jsonl and "
        f"qrels/test.tsv (BEIR's layout) into {cache.licensed(collection)}"
    )


def _corpus_url(collection: TestCollection) -> str | None:
    """The URL from which the corpus is downloaded."""
    source = collection.sources.get(collection.corpus.partition(":")[0])
    return source.url if source else None
