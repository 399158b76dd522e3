"""Conversion of published files to BEIR's layout: topics, judgements, queries with answer strings, corpora."""

from __future__ import annotations

import ast
import csv
import gzip
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dupmae_ir.collections.catalogue import TestCollection
from dupmae_ir.collections.download import SourceFiles
from dupmae_ir.collections.prepared import ANSWERS, QUERIES, write_qrels, write_records
from dupmae_ir.console import progress
from dupmae_ir.errors import InputError
from dupmae_ir.io.lines import numbered_lines
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics


def convert(sources: SourceFiles) -> Path:
    """Write all files except the manifest into the work folder; returns the corpus.

    Topics and judgements come first, so that errors in them appear before gigabytes are downloaded.
    """
    collection, work = sources.collection, sources.work
    texts: dict[str, str] = {}
    for test in collection.tests.values():
        if test.answers:
            queries = list(_read_answered_queries(sources.path(test.topics)))
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


class _AnsweredQuery(NamedTuple):
    qid: str
    text: str
    answers: list[str]


def _read_answered_queries(path: Path) -> Iterator[_AnsweredQuery]:
    """DPR's ``query<TAB>['answer', ...]``, quoted as csv; the id is the line number from 0, as in Pyserini."""
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        cells = next(csv.reader([line], delimiter="\t"))
        try:
            text, listed = cells
            answers = ast.literal_eval(listed)
        except (ValueError, SyntaxError):
            raise InputError(f"{where}: expected query<TAB>['answer', ...], got {line[:80]!r}") from None
        if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
            raise InputError(f"{where}: the answers are not a list of strings: {listed[:80]!r}")
        yield _AnsweredQuery(str(number - 1), text.strip(), answers)


def _remove_quotes(source: Path, target: Path, collection: TestCollection, quiet: bool) -> Path:
    """DPR's passages (id, text, title; texts quoted as csv) as gzipped JSON lines, without the csv quotes."""
    with (
        gzip.GzipFile(target, "wb", compresslevel=3, mtime=0) as packed,
        progress(f"{collection.name}: convert", "documents", total=collection.documents, quiet=quiet) as bar,
    ):
        for number, line in numbered_lines(source):
            cells = next(csv.reader([line], delimiter="\t"))
            if len(cells) != 3:
                raise InputError(f"{source}:{number}: {len(cells)} column(s), expected id, text and title")
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
