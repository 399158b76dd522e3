"""Readers of published training data, row by row; errors name file and line."""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from dupmae_ir.errors import InputError
from dupmae_ir.io.collections import Seen
from dupmae_ir.io.lines import columns, json_record, json_records, numbered_lines, open_text
from dupmae_ir.types import Document

BLOCK = 1 << 16
"""Characters of a JSON array read at a time."""
MAX_ITEM = 64 << 20
"""Characters of an item of a JSON array; a longer one is taken for broken."""
ID_FIELDS = ("docid", "passage_id", "psg_id", "id")
"""Fields in which published passages have their id; the first that is there counts."""
_BETWEEN_ITEMS = re.compile(r"[\s,]*")


class PublishedRow(NamedTuple):
    """A query with complete passages, or with ids of a collection.

    ``query`` is None for an unknown id. ``where`` is file and line, for errors.
    """

    qid: str
    query: str | None
    positives: tuple[Document | str, ...]
    negatives: tuple[Document | str, ...]
    where: str


def dpr(path: str | Path) -> Iterator[PublishedRow]:
    """DPR's ``biencoder-*.json``: an array of ``question, positive_ctxs, negative_ctxs, hard_negative_ctxs``.

    Hard negatives come first. The array is decoded item by item, so that its size does not matter.
    """
    for number, (line, item) in enumerate(array_items(path), 1):
        where = f"{path}:{line}: item {number}"
        if not isinstance(item, dict) or not isinstance(item.get("question"), str):
            raise InputError(f'{where}: expected an object with "question" and "positive_ctxs"')
        positives = _passages(item, "positive_ctxs", where)
        negatives = (
            *_passages(item, "hard_negative_ctxs", where),
            *_passages(item, "negative_ctxs", where),
        )
        yield PublishedRow(str(number), item["question"], positives, negatives, where)


def tevatron(path: str | Path) -> Iterator[PublishedRow]:
    """Tevatron's JSON lines: ``query_id, query, positive_passages, negative_passages``."""
    for where, row in json_records(path):
        if "positives" in row or isinstance(row.get("query"), list):
            raise InputError(
                f"{where}: contains token ids; use Tevatron's data before tokenisation"
            )
        if not isinstance(row.get("query"), str) or "positive_passages" not in row:
            raise InputError(
                f'{where}: expected "query" and "positive_passages" (and "negative_passages")'
            )
        positives = _passages(row, "positive_passages", where)
        negatives = _passages(row, "negative_passages", where)
        yield PublishedRow(str(row.get("query_id", "")), row["query"], positives, negatives, where)


def _passages(row: Mapping[str, Any], key: str, where: str) -> tuple[Document, ...]:
    passages = row.get(key) or []
    if not isinstance(passages, list) or not all(map(is_passage, passages)):
        raise InputError(f'{where}: "{key}" must be a list of objects with "text" (and "title")')
    return tuple(map(document_of, passages))


def is_passage(value: object) -> bool:
    """Whether a value is an object with a text, as published passages are."""
    return isinstance(value, dict) and isinstance(value.get("text"), str)


def document_of(passage: Mapping[str, Any]) -> Document:
    """The document of a published passage, whose id is "" if it has none."""
    ids = [passage[field] for field in ID_FIELDS if passage.get(field) is not None]
    docid = str(ids[0]) if ids else ""
    return Document(docid, passage["text"], passage.get("title") or "")


def st_hard_negatives(
    path: str | Path,
    queries: Mapping[str, str],
    systems: Sequence[str] = (),
    margin: float | None = None,
    per_system: int = 0,
) -> Iterator[PublishedRow]:
    """sentence-transformers' ``msmarco-hard-negatives.jsonl``: ``{"qid", "pos": [ids], "neg": {system: [ids]}}``, where
    an id may also be ``{"pid": id, "ce-score": score of a cross-encoder}``.

    Negatives of ``systems`` (default: all) are interleaved, so that the best of each come first. A query may lack a
    system; a system that no query has is an :class:`InputError`. ``margin`` leaves out the negatives whose score is
    above the score of the query's lowest positive minus ``margin``; ``per_system`` keeps the first N of each system
    that no earlier system has, as BEIR's training script does (0 = all).
    """
    scored = margin is not None
    systems_seen: set[str] = set()
    for where, row in json_records(path):
        negatives = row.get("neg")
        if not isinstance(negatives, dict):
            raise InputError(f'{where}: expected "qid", "pos": [ids] and "neg": {{system: [ids]}}')
        systems_seen.update(negatives)
        positives = _scored_ids(row.get("pos"), "pos", where, scored)
        max_score = math.inf
        if margin is not None:
            max_score = min(positives.values(), default=math.inf) - margin
        lists: list[list[str]] = []
        taken: set[str] = set()
        for system in systems or negatives:
            if system not in negatives:
                continue
            scores = _scored_ids(negatives[system], system, where, scored)
            ids = [docid for docid, score in scores.items() if score <= max_score]
            if per_system:
                ids = [docid for docid in ids if docid not in taken][:per_system]
                taken.update(ids)
            lists.append(ids)
        qid = _id(row.get("qid"), "qid", where)
        yield PublishedRow(qid, queries.get(qid), tuple(positives), _interleave(lists), where)
    unknown = sorted(set(systems) - systems_seen)
    if unknown:
        raise InputError(
            f"{path}: no system {unknown[0]!r}; choose from {', '.join(sorted(systems_seen))}"
        )


def _interleave(lists: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The first id of every list, then the second of every list, and so on; each id once."""
    ids: dict[str, None] = {}
    for rank in range(max(map(len, lists), default=0)):
        for ranked in lists:
            if rank < len(ranked):
                ids.setdefault(ranked[rank])
    return tuple(ids)


def _scored_ids(values: Any, name: str, where: str, scored: bool) -> dict[str, float]:
    """Score by id, in order; 0 for ids without a score, which is an :class:`InputError` if ``scored``."""
    if not isinstance(values, list):
        raise InputError(f'{where}: "{name}" is not a list of ids')
    scores: dict[str, float] = {}
    for value in values:
        entry = value if isinstance(value, dict) else {"pid": value}
        if scored and "ce-score" not in entry:
            raise InputError(
                f'{where}: "{name}" has an id without "ce-score", which `margin` needs'
            )
        docid = _id(entry.get("pid"), name, where)
        score = _score(entry.get("ce-score", 0.0), where)
        scores.setdefault(docid, score)
    return scores


def _id(value: Any, name: str, where: str) -> str:
    # JSON's true is an int in Python.
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise InputError(
            f'{where}: "{name}": an id must be a string or an integer, got {json.dumps(value)[:40]}'
        )
    return str(value)


def id_triples(path: str | Path, queries: Mapping[str, str]) -> Iterator[PublishedRow]:
    """``qid<TAB>positive id<TAB>negative id`` lines; consecutive lines of a query make one row."""
    for qid, group in groupby(_id_triples(path), lambda triple: triple.qid):
        triples = list(group)
        # Dictionaries, as sets that keep the order.
        positives = dict.fromkeys(triple.positive for triple in triples)
        negatives = dict.fromkeys(triple.negative for triple in triples)
        where = triples[0].where
        yield PublishedRow(qid, queries.get(qid), tuple(positives), tuple(negatives), where)


class _IdTriple(NamedTuple):
    qid: str
    positive: str
    negative: str
    where: str


def _id_triples(path: str | Path) -> Iterator[_IdTriple]:
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        qid, positive, negative = _cells(line, 3, where)
        yield _IdTriple(qid, positive, negative, where)


def text_triples(path: str | Path) -> Iterator[PublishedRow]:
    """``query<TAB>positive<TAB>negative`` lines of texts."""
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        cells = _cells(line, 3, where)
        if all(cell.isdecimal() for cell in cells):
            raise InputError(f"{where}: these are ids; give `queries` and `collection`")
        query, positive, negative = cells
        yield PublishedRow("", query, (Document("", positive),), (Document("", negative),), where)


def text_pairs(path: str | Path) -> Iterator[PublishedRow]:
    """``query<TAB>passage`` lines of texts."""
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        query, positive = _cells(line, 2, where)
        yield PublishedRow("", query, (Document("", positive),), (), where)


def _cells(line: str, count: int, where: str) -> list[str]:
    """The ``count`` cells of a line, none of them empty."""
    cells = [cell.strip() for cell in line.split("\t")]
    if len(cells) != count or not all(cells):
        names = "query, positive and negative" if count == 3 else "query and passage"
        filled_count = sum(map(bool, cells))
        raise InputError(
            f"{where}: expected {names} separated by tabs, got {filled_count} of {count}"
        )
    return cells


def beir_queries(folder: str | Path) -> Path:
    """The file of queries in a folder in BEIR's layout, which may be compressed."""
    path = Path(folder) / "queries.jsonl"
    zipped = path.with_suffix(".jsonl.gz")
    return zipped if zipped.is_file() and not path.is_file() else path


def judged(
    qrels: Mapping[str, Mapping[str, int]], queries: Mapping[str, str], source: str
) -> Iterator[PublishedRow]:
    """Judgements with a grade above 0 as positives, in their order."""
    for qid, grades in qrels.items():
        positives = tuple(docid for docid, grade in grades.items() if grade > 0)
        yield PublishedRow(qid, queries.get(qid), positives, (), f"{source}: query {qid}")


def teacher_scores(path: str | Path) -> Iterator[tuple[str, dict[str, float]]]:
    """(query id, docid -> score), from JSON lines of ``{"qid", "scores": {docid: score}}`` or ``{"qid", "pid",
    "score"}``, or from columns of the latter three. Lines of a query follow each other."""
    seen = Seen()
    for qid, group in groupby(_score_lines(path), lambda line: line.qid):
        merged: dict[str, float] = {}
        for line in group:
            if not merged and seen.add(qid):
                raise InputError(f"{line.where}: query {qid} occurs twice; sort the lines by query")
            merged.update(line.scores)
        yield qid, merged


class _ScoreLine(NamedTuple):
    qid: str
    scores: dict[str, float]  #: by docid
    where: str


def _score_lines(path: str | Path) -> Iterator[_ScoreLine]:
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        if line.lstrip().startswith("{"):
            row = json_record(line, where)
            qid = row.get("qid")
            if "scores" in row:
                values = row["scores"]
            else:
                values = {_id(row.get("pid"), "pid", where): row.get("score")}
            if not isinstance(values, dict):
                raise InputError(f'{where}: "scores" must be an object of docid and score')
        else:
            cells = columns(line)
            if len(cells) != 3:
                raise InputError(
                    f"{where}: expected the columns qid, pid and score, got {len(cells)}"
                )
            qid, docid, score = cells
            values = {docid: score}
        checked_qid = _id(qid, "qid", where)
        scores = {}
        for docid, score in values.items():
            scores[_id(docid, "pid", where)] = _score(score, where)
        yield _ScoreLine(checked_qid, scores, where)


def _score(value: Any, where: str) -> float:
    try:
        score = float(value)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    # float() takes True, and the strings nan and inf.
    if isinstance(value, bool) or not math.isfinite(score):
        raise InputError(f"{where}: the score {value!r} is not a number")
    return score


def array_items(path: str | Path) -> Iterator[tuple[int, Any]]:
    """(line, item) of a JSON array, gzipped or not, decoded one at a time: memory use is one item or BLOCK."""
    line = 1
    try:
        with open_text(path) as f:
            # `text` is the part of the file that is not decoded yet, from `position` on.
            text = f.read(BLOCK)
            position = len(text) - len(text.lstrip())
            if text[position : position + 1] != "[":
                raise InputError(f"{path}: not a JSON array")
            line += text.count("\n", 0, position)
            position += 1
            while True:
                separator = _BETWEEN_ITEMS.match(text, position)
                assert separator  # the pattern matches the empty string
                line += text.count("\n", position, separator.end())
                position = separator.end()
                if text.startswith("]", position):
                    return
                item, end, problem = _decode_item(text, position)
                # A number or literal at the end of the buffer may continue in the next block.
                if position < end < len(text):
                    yield line, item
                    line += text.count("\n", position, end)
                    position = end
                    continue
                text = text[position:]
                position = 0
                # Twice the text each time: an item of n blocks is decoded log n times, not n times.
                more = ""
                if len(text) < MAX_ITEM:
                    more = f.read(max(BLOCK, len(text)))
                if not more:
                    raise InputError(f"{path}:{line}: invalid or truncated JSON: {problem}")
                text += more
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as e:
        raise InputError(f"{path}: after line {line}: not complete UTF-8 text: {e}") from None


def _decode_item(text: str, start: int) -> tuple[Any, int, str]:
    """(item, its end, what to report if it is incomplete), or (None, ``start``, the error)."""
    try:
        item, end = json.JSONDecoder().raw_decode(text, start)
    except json.JSONDecodeError as e:
        return None, start, e.msg
    except RecursionError:
        return None, start, "nested too deeply"
    return item, end, "no end of the array"
