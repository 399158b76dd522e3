"""From what others publish to BEIR's layout: topics, judgements, questions with answers, corpora."""

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
from dupmae_ir.collections.download import Sources
from dupmae_ir.collections.prepared import ANSWERS, QUERIES
from dupmae_ir.console import progress
from dupmae_ir.errors import InputError
from dupmae_ir.io.lines import numbered_lines
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.types import Qrels


def convert(sources: Sources) -> Path:
    """Write all files but the manifest into the folder in the making; returns the corpus.

    The small files come first: what is wrong with them shows before gigabytes are fetched.
    """
    collection, making = sources.collection, sources.place.making(sources.collection)
    texts: dict[str, str] = {}
    for test in collection.tests.values():
        if test.answers:
            questions = list(_questions(sources.path(test.topics)))
            texts |= {question.qid: question.text for question in questions}
            _write_lines(making / ANSWERS, ({"_id": q.qid, "answers": q.answers} for q in questions))
        else:
            _add(texts, _judged(sources, test, making), test.topics)
    _write_lines(making / QUERIES, ({"_id": qid, "text": text} for qid, text in texts.items()))
    if borrowed := sources.borrowed():
        return _linked(borrowed, making / borrowed.name)
    corpus = sources.path(collection.corpus)
    if collection.quoted:
        return _unquoted(corpus, making / "corpus.jsonl.gz", collection, sources.quiet)
    endings = "".join(Path(corpus.name).suffixes[-2 if corpus.name.endswith(".gz") else -1 :])
    return _linked(corpus, making / f"corpus{endings}")


def _judged(sources: Sources, test: Test, making: Path) -> dict[str, str]:
    """Write the judgements of a test; returns the texts of its judged queries, in the order of the topics."""
    topics = sources.path(test.topics)
    qrels = read_qrels(sources.path(test.qrels))
    _write_qrels(making / "qrels" / f"{test.name}.tsv", qrels)
    return {q.qid: q.text for q in read_topics(topics) if q.qid in qrels}


def _add(texts: dict[str, str], more: Mapping[str, str], source: str) -> None:
    for qid, text in more.items():
        if texts.setdefault(qid, text) != text:
            raise InputError(f"{source}: query {qid!r} has another text than in another test of the collection")


class _Question(NamedTuple):
    qid: str
    text: str
    answers: list[str]


def _questions(path: Path) -> Iterator[_Question]:
    """DPR's ``question<TAB>['answer', ...]``, quoted as csv; the id is the line's number from 0, as in Pyserini."""
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        cells = next(csv.reader([line], delimiter="\t"))
        try:
            text, listed = cells
            answers = ast.literal_eval(listed)
        except (ValueError, SyntaxError):
            raise InputError(f"{where}: wanted question<TAB>['answer', ...], got {line[:80]!r}") from None
        if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
            raise InputError(f"{where}: the answers are no list of strings: {listed[:80]!r}")
        yield _Question(str(number - 1), text.strip(), answers)


def _unquoted(source: Path, target: Path, collection: Collection, quiet: bool) -> Path:
    """DPR's passages (id, text, title; texts quoted as csv) as JSON lines, without the quotes that are not theirs."""
    with (
        gzip.GzipFile(target, "wb", compresslevel=3, mtime=0) as packed,
        progress(f"{collection.name}: convert", "documents", total=collection.documents, quiet=quiet) as bar,
    ):
        for number, line in numbered_lines(source):
            cells = next(csv.reader([line], delimiter="\t"))
            if len(cells) != 3:
                raise InputError(f"{source}:{number}: {len(cells)} column(s) where id, text and title are wanted")
            if number == 1 and cells[0] == "id":
                continue
            record = {"_id": cells[0], "title": cells[2], "text": cells[1]}
            packed.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            bar.update()
    return target


def _write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _write_qrels(path: Path, qrels: Qrels) -> None:
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        file.writelines(f"{q}\t{d}\t{grade}\n" for q, found in qrels.items() for d, grade in found.items())


def _linked(source: Path, target: Path) -> Path:
    """The same bytes under another name, copied only where the disk cannot link."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    return target
