"""Readers of published training data, row by row; errors name file and line."""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from dupmae_ir.errors import InputError
from dupmae_ir.io.collections import Seen
from dupmae_ir.io.lines import columns, json_record, json_records, numbered_lines
from dupmae_ir.types import Document

BLOCK = 1 << 16  #: characters of a JSON array read at a time
MAX_ITEM = 64 << 20  #: characters; a longer item of an array is taken for broken
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
        positives, negatives = (
            _passages(row, f"{kind}_passages", where) for kind in ("positive", "negative")
        )
        yield PublishedRow(str(row.get("query_id", "")), row["query"], positives, negatives, where)


def _passages(row: Mapping[str, Any], key: str, where: str) -> tuple[Document, ...]:
    passages = row.get(key) or []
    if not isinstance(passages, list) or not all(
        isinstance(p, dict) and isinstance(p.get("text"), str) for p in passages
    ):
        raise InputError(f'{where}: "{key}" must be a list of objects with "text" (and "title")')
    documents = []
    for p in passages:
        ids = (p.get(k) for k in ("docid", "passage_id", "psg_id", "id"))
        docid = next((str(i) for i in ids if i is not None), "")
        documents.append(Document(docid, p["text"], p.get("title") or ""))
    return tuple(documents)


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
    above that of the query's lowest positive minus ``margin``; ``per_system`` keeps the first so many of each system
    that no earlier system has, as BEIR's training script does (0 = all).
    """
    systems_seen: set[str] = set()
    for where, row in json_records(path):
        negatives = row.get("neg")
        if not isinstance(negatives, dict):
            raise InputError(f'{where}: expected "qid", "pos": [ids] and "neg": {{system: [ids]}}')
        systems_seen.update(negatives)
        positives = _scored_ids(row.get("pos"), "pos", where, margin is not None)
        most = math.inf if margin is None else min(positives.values(), default=math.inf) - margin
        lists: list[list[str]] = []
        for system in (s for s in systems or negatives if s in negatives):
            earlier = {i for one in lists for i in one} if per_system else set()
            scores = _scored_ids(negatives[system], system, where, margin is not None)
            lists.append(
                [i for i, s in scores.items() if s <= most and i not in earlier][
                    : per_system or None
                ]
            )
        interleaved = dict.fromkeys(
            i for i in chain.from_iterable(zip_longest(*lists)) if i is not None
        )
        qid = _id(row.get("qid"), "qid", where)
        yield PublishedRow(qid, queries.get(qid), tuple(positives), tuple(interleaved), where)
    if unknown := sorted(set(systems) - systems_seen):
        raise InputError(
            f"{path}: no system {unknown[0]!r}; choose from {', '.join(sorted(systems_seen))}"
        )


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
        scores.setdefault(
            _id(entry.get("pid"), name, where), _score(entry.get("ce-score", 0.0), where)
        )
    return scores


def _id(value: Any, name: str, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise InputError(
            f'{where}: "{name}": an id must be a string or an integer, got {json.dumps(value)[:40]}'
        )
    return str(value)


def id_triples(path: str | Path, queries: Mapping[str, str]) -> Iterator[PublishedRow]:
    """``qid<TAB>positive id<TAB>negative id`` lines; consecutive lines of a query make one row."""
    lines = (
        (f"{path}:{number}", _cells(line, 3, f"{path}:{number}"))
        for number, line in numbered_lines(path)
    )
    for qid, group in groupby(lines, lambda line: line[1][0]):
        positives: dict[str, None] = {}
        negatives: dict[str, None] = {}
        where = ""
        for at, (_, positive, negative) in group:
            where = where or at
            positives[positive] = negatives[negative] = None
        yield PublishedRow(qid, queries.get(qid), tuple(positives), tuple(negatives), where)


def text_triples(path: str | Path) -> Iterator[PublishedRow]:
    """``query<TAB>positive<TAB>negative`` lines of texts."""
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        query, positive, negative = cells = _cells(line, 3, where)
        if all(cell.isdecimal() for cell in cells):
            raise InputError(f"{where}: these are ids; give `queries` and `collection`")
        yield PublishedRow("", query, (Document("", positive),), (Document("", negative),), where)


def text_pairs(path: str | Path) -> Iterator[PublishedRow]:
    """``query<TAB>passage`` lines of texts."""
    for number, line in numbered_lines(path):
        query, positive = _cells(line, 2, f"{path}:{number}")
        yield PublishedRow("", query, (Document("", positive),), (), f"{path}:{number}")


def _cells(line: str, count: int, where: str) -> list[str]:
    cells = [c.strip() for c in line.split("\t")]
    if len(cells) != count or not all(cells):
        names = "query, positive and negative" if count == 3 else "query and passage"
        raise InputError(
            f"{where}: expected {names} separated by tabs, got {sum(map(bool, cells))} of {count}"
        )
    return cells


def judged(
    qrels: Mapping[str, Mapping[str, int]], queries: Mapping[str, str], source: str
) -> Iterator[PublishedRow]:
    """Judgements with a grade above 0 as positives, in their order."""
    for qid, grades in qrels.items():
        positives = tuple(d for d, grade in grades.items() if grade > 0)
        yield PublishedRow(qid, queries.get(qid), positives, (), f"{source}: query {qid}")


def teacher_scores(path: str | Path) -> Iterator[tuple[str, dict[str, float]]]:
    """(query id, docid -> score), from JSON lines of ``{"qid", "scores": {docid: score}}`` or ``{"qid", "pid",
    "score"}``, or from columns of the latter three. Lines of a query follow each other."""
    seen = Seen()
    for qid, group in groupby(_scored(path), lambda line: line[0]):
        merged: dict[str, float] = {}
        for _, where, scores in group:
            if not merged and seen.add(qid):
                raise InputError(f"{where}: query {qid} occurs twice; sort the lines by query")
            merged.update(scores)
        yield qid, merged


def _scored(path: str | Path) -> Iterator[tuple[str, str, dict[str, float]]]:
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        if line.lstrip().startswith("{"):
            row = json_record(line, where)
            qid = row.get("qid")
            scores = (
                row["scores"]
                if "scores" in row
                else {_id(row.get("pid"), "pid", where): row.get("score")}
            )
            if not isinstance(scores, dict):
                raise InputError(f'{where}: "scores" must be an object of docid and score')
        elif len(cells := columns(line)) == 3:
            qid, scores = cells[0], {cells[1]: cells[2]}
        else:
            raise InputError(f"{where}: expected the columns qid, pid and score, got {len(cells)}")
        yield (
            _id(qid, "qid", where),
            where,
            {_id(d, "pid", where): _score(s, where) for d, s in scores.items()},
        )


def _score(value: Any, where: str) -> float:
    try:
        score = float(value)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if isinstance(value, bool) or not math.isfinite(score):
        raise InputError(f"{where}: the score {value!r} is not a number")
    return score


def array_items(path: str | Path) -> Iterator[tuple[int, Any]]:
    """(line, item) of a JSON array, gzipped or not, decoded one at a time: memory use is one item or BLOCK."""
    line = 1
    try:
        with open(path, "rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        opener: Any = gzip.open if zipped else open
        with opener(path, "rt", encoding="utf-8-sig") as f:
            text = f.read(BLOCK)
            at = len(text) - len(text.lstrip())
            if text[at : at + 1] != "[":
                raise InputError(f"{path}: not a JSON array")
            line, at = 1 + text.count("\n", 0, at), at + 1
            while True:
                match = _BETWEEN_ITEMS.match(text, at)
                assert match  # the pattern matches the empty string
                start = match.end()
                line, at = line + text.count("\n", at, start), start
                if text.startswith("]", at):
                    return
                item, end, problem = _decoded(text, at)
                # A number or literal at the end of the buffer may continue in the next block.
                if at < end < len(text):
                    yield line, item
                    line, at = line + text.count("\n", at, end), end
                    continue
                text, at = text[at:], 0
                more = f.read(max(BLOCK, len(text))) if len(text) < MAX_ITEM else ""
                if not more:
                    raise InputError(f"{path}:{line}: invalid or truncated JSON: {problem}")
                text += more
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as e:
        raise InputError(f"{path}: after line {line}: not complete UTF-8 text: {e}") from None


def _decoded(text: str, at: int) -> tuple[Any, int, str]:
    """(item, its end, what to report if it is incomplete), or (None, ``at``, the error)."""
    try:
        item, end = json.JSONDecoder().raw_decode(text, at)
    except json.JSONDecodeError as e:
        return None, at, e.msg
    except RecursionError:
        return None, at, "nested too deeply"
    return item, end, "no end of the array"
