"""MaxP: rank documents by their best passage."""

from __future__ import annotations

from collections.abc import Iterable

from dupmae_ir.errors import UsageError
from dupmae_ir.io.runs import best_first
from dupmae_ir.types import PASSAGE_DELIMITER, Hit


def best_passages(hits: Iterable[Hit]) -> list[Hit]:
    """Every document of a passage list with the score of its best passage, best first, ties by document id.

    The result is exact down to the score of the last passage: unlisted passages score no more than that, so a document
    with a higher score has its best passage in the list. Raises :class:`UsageError` for an id that names no passage.
    """
    best: dict[str, float] = {}
    for hit in hits:
        docid, delimiter, _ = hit.docid.rpartition(PASSAGE_DELIMITER)
        if not delimiter:
            raise UsageError(
                f"--max-passage: the id {hit.docid!r} has no {PASSAGE_DELIMITER!r}; index the passages that dupmae-ir "
                "encode.passages writes"
            )
        best[docid] = max(hit.score, best.get(docid, hit.score))
    return best_first(Hit(docid, score) for docid, score in best.items())
