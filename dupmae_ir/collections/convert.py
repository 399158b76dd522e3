"""Conversion of published files to BEIR's layout: topics, judgements, queries with answer strings, corpora."""

from __future__ import annotations

import ast
import csv
import gzip
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dupmae_ir.collections.catalogue import Collection, Test
from dupmae_ir.collections.download import SourceFiles
from dupmae_ir.collections.prepared import ANSWERS, QUERIES
from dupmae_ir.console import progress
from dupmae_ir.errors import InputError
from dupmae_ir.io.lines import numbered_lines
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.types import Qrels


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
            _write_jsonl(work / ANSWERS, ({"_id": q.qid, "answers": q.answers} for q in queries))
        else:
            _merge(texts, _convert_judgements(sources, test, work), test.topics)
    _write_jsonl(work / QUERIES, ({"_id": qid, "text": text} for qid, text in texts.items()))
    if shared := sources.shared_corpus():
        return _link(shared, work / shared.name)
    corpus = sources.path(collection.corpus)
    if collection.quoted:
        return _remove_quotes(corpus, work / "corpus.jsonl.gz", collection, sources.quiet)
    suffixes = "".join(Path(corpus.name).suffixes[-2 if corpus.name.endswith(".gz") else -1 :])
    return _link(corpus, work / f"corpus{suffixes}")


def _convert_judgements(sources: SourceFiles, test: Test, work: Path) -> dict[str, str]:
    """Write the judgements of a test; returns the texts of its judged queries, in the order of the topics."""
    topics = sources.path(test.topics)
    qrels = read_qrels(sources.path(test.qrels))
    _write_qrels(work / "qrels" / f"{test.name}.tsv", qrels)
    return {q.qid: q.text for q in read_topics(topics) if q.qid in qrels}


def _merge(texts: dict[str, str], more: Mapping[str, str], source: str) -> None:
    for qid, text in more.items():
        if texts.setdefault(qid, text) != text:
            raise InputError(f"{source}: query {qid!r} has a different text in another test of the collection")


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


def _remove_quotes(source: Path, target: Path, collection: Collection, quiet: bool) -> Path:
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


def _write_jsonl(path: Path, records: Iterable[dict[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _write_qrels(path: Path, qrels: Qrels) -> None:
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        file.writelines(f"{q}\t{d}\t{grade}\n" for q, judged in qrels.items() for d, grade in judged.items())


def _link(source: Path, target: Path) -> Path:
    """Make ``target`` a hard link to ``source``, or a copy where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    return target
