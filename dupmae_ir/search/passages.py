"""Documents by their best passage (MaxP): a list of passages in, a list of documents out.

Why the documents are exact when the passages are. Let the list hold the first n passages of the collection, s the last
one's score, and let it name at least k different documents.

* A passage outside scores s at most. So the best passage of every named document is in the list (one outside scores no
  more than the one inside), and its score is the document's true maximum.
* A document that is not named has all its passages outside, hence s at most; the named ones have s at least. So the k
  best named documents are k best of all.
* A tie at s: the passage outside has the larger id, for that is the order of equal scores, and DOCUMENT#NUMBER is in
  the order of DOCUMENT. (Unless one document's id is another's with more behind it that begins with ``!`` or ``"``, the
  only visible characters before ``#``; then two documents of equal score may change places.)

With fewer than k documents those named are still the first ones, but others are missing: ``Answer.short``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dupmae_ir.errors import UsageError
from dupmae_ir.search.ordering import best_first, without
from dupmae_ir.types import Hit

if TYPE_CHECKING:
    from dupmae_ir.search.searcher import Answer

DELIMITER = "#"
"""Between a document's id and its passage's number, as in Anserini and Pyserini."""


def by_document(answer: Answer, hits: int, depth: int, remove_query: bool = False) -> Answer:
    """The first ``hits`` documents of an answer of at most ``depth`` passages, without the topic's own if so told."""
    best = best_passages(answer.hits)
    found = best_first(Hit(docid, passage.score) for docid, passage in best.items())
    kept = without(found, answer.query.qid, hits) if remove_query else found[:hits]
    return dataclasses.replace(
        answer, hits=kept, passages={hit.docid: best[hit.docid].docid for hit in kept},
        short=len(kept) < hits and len(answer.hits) == depth,
    )  # fmt: skip


def best_passages(hits: Iterable[Hit]) -> dict[str, Hit]:
    """Document id -> its best passage; of equal ones the first. Raises :class:`UsageError` for an id of no passage."""
    best: dict[str, Hit] = {}
    for hit in best_first(hits):
        docid, delimiter, _ = hit.docid.rpartition(DELIMITER)
        if not delimiter:
            raise UsageError(
                f"--max-passage: the id {hit.docid!r} holds no {DELIMITER!r}; index passages as dupmae-ir "
                "encode.segment writes them"
            )
        best.setdefault(docid, hit)
    return best
