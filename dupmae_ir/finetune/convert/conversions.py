"""From rows of published formats to lines of the output."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from dupmae_ir.errors import InputError
from dupmae_ir.finetune.convert.config import ConvertConfig
from dupmae_ir.finetune.convert.tally import Tally
from dupmae_ir.finetune.data import formats
from dupmae_ir.finetune.data.formats import Row
from dupmae_ir.finetune.data.mined import IdTable, Passages, Records, survey, text_key
from dupmae_ir.finetune.mine.filter import hard_negatives
from dupmae_ir.io.collections import LinesCollection, Seen, read_collection
from dupmae_ir.io.publishing import combined_digest
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.types import Document, Hit

T = TypeVar("T")


class Conversion(ABC):
    """Converts the rows of the input to lines of the output."""

    teacher_line: Mapping[str, Any]
    """The teacher's scores that belong to the last line."""

    def __init__(self, config: ConvertConfig, tally: Tally) -> None:
        self.config, self.tally = config, tally

    @abstractmethod
    def lines(self) -> Iterator[dict[str, Any]]:
        """The lines of the output, in the order of the input."""

    def record(self) -> dict[str, Any]:
        """What the record of the output says besides settings and inputs."""
        return {}

    def rows(self) -> Iterator[Row]:
        """The rows of the input."""
        config = self.config
        if config.format == "msmarco-triples":
            by_id = config.collection is not None
            return formats.id_triples(config.input, self.queries) if by_id else formats.text_triples(config.input)
        if config.format == "st-hard-negatives":
            return formats.st_hard_negatives(config.input, self.queries, config.systems)
        if config.format in ("msmarco-qrels", "beir"):
            return formats.judged(read_qrels(config.input, config.split), self.queries, config.input)
        whole = {"dpr": formats.dpr, "tevatron": formats.tevatron, "tsv": formats.text_pairs}
        return whole[config.format](config.input)

    @cached_property
    def queries(self) -> dict[str, str]:
        """Query texts by id."""
        return {q.qid: q.text for q in read_topics(Path(self.config.queries or _beir_queries(self.config.input)))}

    @cached_property
    def passages(self) -> Passages:
        """The positives that the input names by id."""
        ids = {p for row in self.rows() for p in row.positives if isinstance(p, str)}
        return Passages(self.config.collection or self.config.input, ids)

    @cached_property
    def titles(self) -> Passages | None:
        """Titles by docid, as texts; None without --titles."""
        return Passages(self.config.titles) if self.config.titles else None

    def answerable(self) -> Iterator[tuple[Row, dict[int, Document]]]:
        """The rows with a query and a positive, each with its positives by text key."""
        for row in self.rows():
            name = f"{row.qid or row.query} at {row.where}"
            if row.query is None:
                self.tally.note("unknown_queries", row.qid)
            elif not row.query.strip():
                self.tally.note("queries_without_text", name)
            elif answers := self._answers(row):
                yield row, answers
            else:
                self.tally.note("queries_without_positive", name)

    def _answers(self, row: Row) -> dict[int, Document]:
        answers: dict[int, Document] = {}
        for positive in row.positives:
            document = positive if isinstance(positive, Document) else self.passages.get(positive)
            if document is None:
                self.tally.note("unknown_positives", f"{positive} of query {row.qid}")
            elif not document.joined().strip():
                self.tally.add("empty_passages")
            elif answers.setdefault(text_key(document), document) is not document:
                self.tally.add("duplicates")
        return answers

    def titled(self, document: Document) -> Document:
        """The passage with its title from --titles, if there is one."""
        found = self.titles.get(document.docid) if self.titles else None
        if found is None or not found.text:
            return document
        self.tally.add("with_title")
        return document._replace(title=found.text)


class _Pairs(Conversion):
    """A line for every positive, each with the negatives of its query."""

    def lines(self) -> Iterator[dict[str, Any]]:
        seen, config = Seen(), self.config
        for row, answers in self.answerable():
            negatives = [_plain(d) for d in _first(self._negatives(row, answers), config.negatives)]
            fresh = 0
            for positive in _first(list(answers.values()), config.positives):
                pair = {"query": row.query, "positive": _plain(self.titled(positive)), "negatives": negatives}
                if seen.add(json.dumps(pair)):
                    self.tally.add("duplicates")
                    continue
                fresh += 1
                yield {"qid": row.qid, **pair, "kind": config.kind}
            self.tally.add("queries", min(fresh, 1))
            self.tally.add("positives", fresh)
            self.tally.add("negatives", len(negatives) if fresh else 0)

    def _negatives(self, row: Row, answers: Mapping[int, Document]) -> list[Document]:
        """The negatives whose text is neither a positive's nor an earlier negative's."""
        ids = {d.docid for d in answers.values() if d.docid}
        kept: dict[int, Document] = {}
        for document in (d for d in row.negatives if isinstance(d, Document)):
            key = text_key(document)
            if not document.joined().strip():
                self.tally.add("empty_passages")
            elif key in answers or document.docid in ids:
                self.tally.add("positives_as_negatives")
            elif kept.setdefault(key, document) is not document:
                self.tally.add("duplicates")
        return list(kept.values())


class _Mined(Conversion):
    """A line for every query in the format of mining, with the teacher's scores if there are any."""

    def lines(self) -> Iterator[dict[str, Any]]:
        seen = Seen()
        for row, answers in self.answerable():
            if seen.add(row.qid):
                raise InputError(f"{row.where}: query {row.qid} occurs twice; sort the lines by query")
            negatives = self._negatives(row, answers)
            positives = list(answers.values())
            if self.teacher is not None:
                scores = self.teacher.get(row.qid) or {}
                positives = [p for p in positives if self._has_score(p.docid, row.qid, scores)]
                negatives = [n for n in negatives if self._has_score(n, row.qid, scores)]
                if not positives:
                    self.tally.note("queries_without_positive", row.qid)
                    continue
            positives, negatives = _first(positives, self.config.positives), _first(negatives, self.config.negatives)
            if self.teacher is not None:
                kept = (*(p.docid for p in positives), *negatives)
                self.teacher_line = {"qid": row.qid, "scores": {d: scores[d] for d in kept}}
            for what, count in (("queries", 1), ("positives", len(positives)), ("negatives", len(negatives))):
                self.tally.add(what, count)
            yield {
                "qid": row.qid,
                "query": row.query,
                "positives": [_plain(p) for p in positives],
                "negatives": negatives,
                "scores": [0.0] * len(negatives),
                "ranks": list(range(1, len(negatives) + 1)),
                "dropped": {},
            }

    def record(self) -> dict[str, Any]:
        """The collection that the negatives belong to, as mining records it."""
        return {
            "collection": self.config.collection,
            "pool": False,
            "collection_digest": combined_digest(i.sha256 for i in self.passages.inputs),
        }

    @cached_property
    def keys(self) -> IdTable:
        """Text keys of the whole collection by docid."""
        return survey(LinesCollection(str(self.config.collection)), lambda *_: None)

    @cached_property
    def teacher(self) -> Records | None:
        """Scores by docid, by query id; None without --scores."""
        return Records(formats.teacher_scores(self.config.scores)) if self.config.scores else None

    def _negatives(self, row: Row, answers: Mapping[int, Document]) -> list[str]:
        """The ids that the collection contains, without positives, their copies and copies of each other."""
        known = [str(n) for n in row.negatives if self._is_known(str(n), row.qid)]
        hits = [Hit(docid, 0.0) for docid in known]
        kept, dropped = hard_negatives(hits, set(map(str, row.positives)), answers.keys(), self.keys.get)
        self.tally.add("positives_as_negatives", dropped["positive_id"] + dropped["positive_text"])
        self.tally.add("duplicates", dropped["duplicate"])
        return [c.docid for c in kept]

    def _is_known(self, docid: str, qid: str) -> bool:
        known = self.keys.get(docid) is not None
        if not known:
            self.tally.note("unknown_negatives", f"{docid} of query {qid}")
        return known

    def _has_score(self, docid: str, qid: str, scores: Mapping[str, float]) -> bool:
        if docid not in scores:
            self.tally.note("without_score", f"{docid} of query {qid}")
        return docid in scores


class _Titled(Conversion):
    """A collection with titles added."""

    def lines(self) -> Iterator[dict[str, Any]]:
        for document in read_collection(self.config.input):
            document = self.titled(document)
            yield {"_id": document.docid, "title": document.title, "text": document.text}


CONVERSIONS: dict[str, type[Conversion]] = {"pairs": _Pairs, "mined": _Mined, "collection": _Titled}


def _beir_queries(folder: str) -> Path:
    plain = Path(folder) / "queries.jsonl"
    zipped = plain.with_suffix(".jsonl.gz")
    return zipped if zipped.is_file() and not plain.is_file() else plain


def _first(values: list[T], count: int) -> list[T]:
    return values[:count] if count else values


def _plain(document: Document) -> dict[str, str]:
    return {"id": document.docid, "title": document.title, "text": document.text}
