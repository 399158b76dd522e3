"""The queries to mine for, and their positives."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from dupmae_ir.console import say
from dupmae_ir.errors import InputError
from dupmae_ir.finetune.data.mined import counted
from dupmae_ir.finetune.data.pairs import read_pairs
from dupmae_ir.finetune.mine.config import MineConfig
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.types import Document


@dataclass
class MiningQuery:
    """A query and its positives by id; None for a passage that has not been read yet."""

    qid: str
    text: str
    positives: dict[str, Document | None] = field(default_factory=dict)


def judged_queries(config: MineConfig, counts: dict[str, int]) -> list[MiningQuery]:
    """The topics with judgements. Judged queries without a topic are counted; topics of another split are ignored."""
    assert config.topics
    assert config.qrels
    topics, qrels = read_topics(config.topics), read_qrels(config.qrels, config.split)
    absent = sorted(set(qrels) - {t.qid for t in topics})
    if len(absent) == len(qrels):
        raise InputError(f"{config.qrels}: has judgements for none of the {len(topics):,} topics of {config.topics}")
    if absent:
        where = f"not in {config.topics}"
        what = counted(absent, f"judged query is {where}", f"judged queries are {where}")
        say(f"note: {what}", config.quiet)
    counts["judged_without_topic"] = len(absent)
    return [
        MiningQuery(t.qid, t.text, {d: None for d, grade in qrels[t.qid].items() if grade > 0})
        for t in topics
        if t.qid in qrels
    ]


def paired_queries(config: MineConfig, counts: dict[str, int]) -> list[MiningQuery]:
    """The distinct queries of the pairs, each with an id derived from its text."""
    queries: dict[str, MiningQuery] = {}
    pairs = 0
    for path in config.pairs:
        for pair in read_pairs(path):
            pairs += 1
            query = queries.setdefault(pair.query, MiningQuery(f"q-{_digest(pair.query)}", pair.query))
            query.positives.setdefault(_docid(pair.positive), pair.positive)
    counts["pairs"] = pairs
    return list(queries.values())


def passages_of_pairs(paths: Iterable[str]) -> dict[str, Document]:
    """Every passage of the pairs by id, in order of appearance.

    Raises :class:`InputError` where two passages have the same id.
    """
    passages: dict[str, Document] = {}
    for path in paths:
        for pair in read_pairs(path):
            for document in (pair.positive, *pair.negatives):
                docid = _docid(document)
                if passages.setdefault(docid, document)[1:] != document[1:]:
                    raise InputError(f"{path}: id {docid!r} names two different passages; make the ids unique")
    return passages


def _docid(document: Document) -> str:
    """The passage's own id, or one derived from its title and text."""
    return document.docid or f"p-{_digest(document.title + chr(0) + document.text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
