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

from dupmae_ir.collections.catalogue import Cache, CollectionCatalogue, Test, TestCollection
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
from dupmae_ir.io.transfer import RemoteFile, download


def convert(sources: SourceFiles) -> Path:
    """Write all files except the manifest into the work folder; returns the corpus.

    Topics and judgements come first, so that errors in them appear before gigabytes are downloaded.
    """
    texts: dict[str, str] = {}
    for test in sources.collection.tests.values():
        if test.answers:
            _convert_answers(sources, test, texts)
        else:
            _convert_judgements(sources, test, texts)
    records = ({"_id": qid, "text": text} for qid, text in texts.items())
    write_records(sources.work / QUERIES, records)
    return _convert_corpus(sources)


def _convert_answers(sources: SourceFiles, test: Test, texts: dict[str, str]) -> None:
    """Write the answer strings of a test, and add its queries to ``texts``."""
    path = sources.path(test.topics)
    queries = [answered_query(line, number, path) for number, line in numbered_lines(path)]
    texts |= {query.qid: query.text for query in queries}
    records = ({"_id": query.qid, "answers": query.answers} for query in queries)
    write_records(sources.work / ANSWERS, records)


def _convert_judgements(sources: SourceFiles, test: Test, texts: dict[str, str]) -> None:
    """Write the judgements of a test, and add its judged queries to ``texts``."""
    topics = sources.path(test.topics)
    qrels = read_qrels(sources.path(test.qrels))
    write_qrels(sources.work, test.name, qrels)
    for query in read_topics(topics):
        if query.qid not in qrels:
            continue
        # All tests of a collection share one file of queries.
        if texts.setdefault(query.qid, query.text) != query.text:
            raise InputError(
                f"{test.topics}: query {query.qid!r} has a different text in another test of the collection"
            )


def _convert_corpus(sources: SourceFiles) -> Path:
    work = sources.work
    shared = sources.shared_corpus()
    if shared:
        return _link(shared, work / shared.name)
    collection = sources.collection
    corpus = sources.path(collection.corpus)
    if collection.quoted:
        return _remove_quotes(corpus, work / "corpus.jsonl.gz", collection, sources.quiet)
    # Only the last suffixes: a name may have other dots.
    suffix_count = 2 if corpus.name.endswith(".gz") else 1
    suffixes = "".join(corpus.suffixes[-suffix_count:])
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
    label = f"{collection.name}: convert"
    with (
        # mtime 0 leaves the time out of the file, so that the same source gives the same bytes.
        gzip.GzipFile(target, "wb", compresslevel=3, mtime=0) as packed,
        progress(label, "documents", total=collection.documents, quiet=quiet) as bar,
    ):
        for number, line in numbered_lines(source):
            cells = next(csv.reader([line], delimiter="\t"))
            if len(cells) != 3:
                raise InputError(
                    f"{source}:{number}: {len(cells)} column(s), expected id, text and title"
                )
            docid, text, title = cells
            if number == 1 and docid == "id":  # the header
                continue
            record = {"_id": docid, "title": title, "text": text}
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
        if not member:
            return file
        return self._unpack(file, role) / member

    def shared_corpus(self) -> Path | None:
        """The same corpus, already prepared for another collection (DPR's collections share one)."""
        url = _corpus_url(self.collection)
        if not url:
            return None
        for other in self.catalogue.collections.values():
            if other.name == self.collection.name:
                continue
            # Two collections may be members of one archive, so the member must be equal too.
            if other.corpus != self.collection.corpus or _corpus_url(other) != url:
                continue
            prepared = find_in_cache(other, self.cache)
            if prepared:
                return prepared.corpus
        return None

    def _unpack(self, archive: Path, role: str) -> Path:
        """The folder with the members of an archive that the collection needs; unpacked by the first call."""
        folder = self.work / UNPACKED / role
        if folder.exists():
            return folder
        members = self._members(role)
        unpack(archive, folder, members.__contains__, quiet=self.quiet)
        missing = sorted(member for member in members if not (folder / member).is_file())
        if missing:
            raise InputError(
                f"{archive}: no {missing[0]} in it; this is not the archive of {self.collection.name}"
            )
        return folder

    def _members(self, role: str) -> set[str]:
        """The members of the archive ``role`` that the collection refers to."""
        references = [self.collection.corpus]
        for test in self.collection.tests.values():
            references += [test.topics, test.qrels]
        members = set()
        for reference in references:
            archive, _, member = reference.partition(":")
            if archive == role:
                members.add(member)
        return members


def discard_download(
    collection: TestCollection, catalogue: CollectionCatalogue, cache: Cache
) -> None:
    """Remove the download of the corpus, unless another collection still has to be prepared from it."""
    source = _corpus_source(collection)
    if source is None:
        return
    for other in catalogue.collections.values():
        # A collection with the same corpus links the prepared file instead (shared_corpus).
        if _corpus_url(other) == source.url and other.corpus != collection.corpus:
            if not find_in_cache(other, cache):
                return
    target = cache.download(source)
    for path in (target, target.with_name(f".{target.name}.json")):
        path.unlink(missing_ok=True)


def licence_message(collection: TestCollection, cache: Cache) -> str:
    """One line with how to obtain a licensed collection and where to put it."""
    return (
        f"{collection.name} cannot be downloaded: {collection.licensed}; then put corpus.jsonl, queries.jsonl and "
        f"qrels/test.tsv (BEIR's layout) into {cache.licensed(collection)}"
    )


def _corpus_url(collection: TestCollection) -> str | None:
    source = _corpus_source(collection)
    return source.url if source else None


def _corpus_source(collection: TestCollection) -> RemoteFile | None:
    """The file or archive from which the corpus is downloaded."""
    role, _, _ = collection.corpus.partition(":")
    return collection.sources.get(role)
