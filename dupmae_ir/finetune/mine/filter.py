"""Which hits of a search are hard negatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Collection as Ids
from typing import NamedTuple

from dupmae_ir.types import Hit


class Candidate(NamedTuple):
    """A hit that may serve as a negative; rank 1 is the first hit of the search."""

    docid: str
    score: float
    rank: int


def hard_negatives(
    hits: Sequence[Hit], positives: Ids[str], answers: Ids[int], key: Callable[[str], int | None], skip_top: int = 0
) -> tuple[list[Candidate], dict[str, int]]:
    """The hits below the first ``skip_top`` that are neither a positive nor a copy of an earlier hit.

    Args:
        hits: of one query, best first.
        positives: ids of its positives.
        answers: text keys of its positives.
        key: docid -> text key, or None.
        skip_top: hits to skip.

    Returns:
        The candidates, and the number of dropped hits by reason. Positives among the skipped hits are counted as well.
    """
    dropped = {"positive_id": 0, "positive_text": 0, "duplicate": 0}
    kept: list[Candidate] = []
    seen: set[int | None] = set()
    for rank, hit in enumerate(hits, 1):
        text = key(hit.docid)
        if hit.docid in positives:
            dropped["positive_id"] += 1
        elif text in answers:
            dropped["positive_text"] += 1
        elif rank > skip_top:
            if text in seen:
                dropped["duplicate"] += 1
                continue
            seen.add(text)
            kept.append(Candidate(hit.docid, hit.score, rank))
    return kept, dropped
