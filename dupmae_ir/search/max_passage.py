"""Documents by their best passage (MaxP): a list of passages in, a list of documents out."""

from __future__ import annotations

from collections.abc import Iterable

from dupmae_ir.errors import UsageError
from dupmae_ir.io.runs import best_first
from dupmae_ir.types import PASSAGE_DELIMITER, Hit


def best_passages(hits: Iterable[Hit]) -> list[Hit]:
    """Every document of a passage list with the score of its best passage, best first, ties by document id.

    Exact as far as the list goes: a passage that is not in it scores no more than its last, so a document that stands
    above the last passage has its best one in the list, and no document outside belongs before it.
    Raises :class:`UsageError` for an id that names no passage.
    """
    best: dict[str, float] = {}
    for hit in hits:
        docid, delimiter, _ = hit.docid.rpartition(PASSAGE_DELIMITER)
        if not delimiter:
            raise UsageError(
                f"--max-passage: the id {hit.docid!r} holds no {PASSAGE_DELIMITER!r}; index passages as dupmae-ir "
                "encode.segment writes them"
            )
        best[docid] = max(hit.score, best.get(docid, hit.score))
    return best_first(Hit(docid, score) for docid, score in best.items())
