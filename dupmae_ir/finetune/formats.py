"""Training data as others publish it, read row by row; errors name file and line (or item)."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from dupmae_ir.errors import InputError
from dupmae_ir.io.lines import numbered_lines
from dupmae_ir.types import Document

AT_ONCE = 1 << 16
"""Characters of a JSON array that are read together."""


class Row(NamedTuple):
    """A query with whole passages, or with the ids of passages of a collection."""

    qid: str
    query: str
    positives: tuple[Document | str, ...]
    negatives: tuple[Document | str, ...]
    where: str  #: file and line, for errors


def dpr(path: str | Path) -> Iterator[Row]:
    """DPR's ``biencoder-*.json``: an array of ``question, positive_ctxs, negative_ctxs, hard_negative_ctxs``.

    Hard negatives come first. The array is decoded item by item, whatever its size.
    """
    for number, item in enumerate(array_items(path), 1):
        where = f"{path}: item {number}"
        if not isinstance(item, dict) or not isinstance(item.get("question"), str):
            raise InputError(f"{where}: wants an object with \"question\" and \"positive_ctxs\"")
        positives = _contexts(item, "positive_ctxs", where)
        negatives = (*_contexts(item, "hard_negative_ctxs", where), *_contexts(item, "negative_ctxs", where))
        yield Row(str(number), item["question"], positives, negatives, where)


def _contexts(item: Mapping[str, Any], key: str, where: str) -> tuple[Document, ...]:
    contexts = item.get(key, [])
    if not isinstance(contexts, list):
        raise InputError(f"{where}: \"{key}\" is not a list")
    return tuple(_document(c, ("passage_id", "psg_id", "id"), where) for c in contexts)


def _document(value: Any, ids: tuple[str, ...], where: str) -> Document:
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise InputError(f"{where}: a passage is an object with \"text\" (and \"title\")")
    docid = next((str(value[k]) for k in ids if value.get(k) is not None), "")
    return Document(docid, value["text"], value.get("title") or "")


def tevatron(path: str | Path) -> Iterator[Row]:
    """Tevatron's JSON lines: ``query_id, query, positive_passages, negative_passages``."""
    for where, row in json_lines(path):
        if "query" in row and not isinstance(row["query"], str):
            raise InputError(f"{where}: holds token ids; give Tevatron's data before it was tokenised")
        if not isinstance(row.get("query"), str) or not isinstance(row.get("positive_passages"), list):
            raise InputError(f"{where}: wants \"query\" and \"positive_passages\" (and \"negative_passages\")")
        sides = [
            tuple(_document(p, ("docid", "id"), where) for p in row.get(key) or [])
            for key in ("positive_passages", "negative_passages")
        ]
        yield Row(str(row.get("query_id", "")), row["query"], sides[0], sides[1], where)


def st_hard_negatives(path: str | Path, systems: tuple[str, ...], queries: Mapping[str, str]) -> Iterator[Row]:
    """sentence-transformers' ``msmarco-hard-negatives.jsonl``: ``qid, pos: [ids], neg: {system: [ids]}``.

    ``systems`` are the ones whose negatives are taken, in turn (none: all); ids of several are kept once.
    """
    for where, row in json_lines(path):
        qid, positives, found = str(row.get("qid")), row.get("pos"), row.get("neg")
        if not isinstance(positives, list) or not isinstance(found, dict):
            raise InputError(f"{where}: wants \"qid\", \"pos\": [ids] and \"neg\": {{system: [ids]}}")
        if unknown := set(systems) - found.keys():
            raise InputError(f"{where}: no system {sorted(unknown)[0]!r}; there are {', '.join(sorted(found))}")
        lists = [found[s] for s in systems or found]
        negatives = dict.fromkeys(str(i) for ids in lists for i in ids)
        yield Row(qid, queries.get(qid, ""), tuple(map(str, positives)), tuple(negatives), where)


def id_triples(path: str | Path, queries: Mapping[str, str]) -> Iterator[Row]:
    """``qid<TAB>positive id<TAB>negative id`` lines, those of a query one after the other joined."""
    qid, where = "", ""
    positives: dict[str, None] = {}
    negatives: dict[str, None] = {}
    for number, line in numbered_lines(path):
        cells = line.split("\t")
        if len(cells) != 3:
            raise InputError(f"{path}:{number}: wants qid, positive and negative, got {len(cells)} column(s)")
        if cells[0] != qid and qid:
            yield Row(qid, queries.get(qid, ""), tuple(positives), tuple(negatives), where)
            positives, negatives = {}, {}
        qid, where = cells[0], f"{path}:{number}"
        positives[cells[1]] = negatives[cells[2]] = None
    if qid:
        yield Row(qid, queries.get(qid, ""), tuple(positives), tuple(negatives), where)


def text_triples(path: str | Path) -> Iterator[Row]:
    """``query<TAB>positive<TAB>negative`` lines of texts; without a negative, pairs."""
    for number, line in numbered_lines(path):
        cells = line.split("\t")
        if len(cells) not in (2, 3) or not all(c.strip() for c in cells):
            raise InputError(f"{path}:{number}: wants query, passage and perhaps a negative, tab-separated")
        negatives = tuple(Document("", c) for c in cells[2:])
        yield Row("", cells[0], (Document("", cells[1]),), negatives, f"{path}:{number}")


def judged(qrels: Mapping[str, Mapping[str, int]], queries: Mapping[str, str], source: str) -> Iterator[Row]:
    """Judgements above 0 as positives, in their order."""
    for qid, grades in qrels.items():
        yield Row(qid, queries.get(qid, ""), tuple(d for d, g in grades.items() if g > 0), (), f"{source}: query {qid}")


def json_lines(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file:line, object) of JSON lines, gzipped or not."""
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as e:
            raise InputError(f"{where}: broken JSON: {e}") from None
        if not isinstance(row, dict):
            raise InputError(f"{where}: wants one JSON object a line")
        yield where, row


def array_items(path: str | Path) -> Iterator[Any]:
    """Items of one large JSON array, decoded one at a time; gzipped or not."""
    decoder = json.JSONDecoder()
    try:
        with _opened(Path(path)) as f:
            text = f.read(AT_ONCE).lstrip()
            if not text.startswith("["):
                raise InputError(f"{path}: not a JSON array")
            text = text[1:]
            number = 0
            while True:
                text = text.lstrip(" \t\r\n,")
                if text.startswith("]"):
                    return
                try:
                    item, end = decoder.raw_decode(text)
                    # A number or word at the very end may go on in the next piece.
                    whole = end < len(text)
                except ValueError as e:
                    whole, problem = False, e
                if whole:
                    number += 1
                    yield item
                    text = text[end:]
                    continue
                more = f.read(max(AT_ONCE, len(text)))
                if not more:
                    raise InputError(f"{path}: item {number + 1}: broken JSON, or cut short: {problem}")
                text += more
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as e:
        raise InputError(f"{path}: not readable as UTF-8 text: {e}") from None


def _opened(path: Path) -> IO[str]:
    with open(path, "rb") as f:
        zipped = f.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rt", encoding="utf-8") if zipped else open(path, encoding="utf-8")
