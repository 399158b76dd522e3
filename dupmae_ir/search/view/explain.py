"""Explanations of a hit: the parts of its score, each matched term's contribution, and what a person reads of it: the
words behind its score, and the best passage of its text with these words marked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dupmae_ir.index.format.texts import StoredDocument
from dupmae_ir.search.candidates.impact import ImpactQuery
from dupmae_ir.search.config import SearchSettings
from dupmae_ir.search.opened_index import OpenedIndex
from dupmae_ir.search.query.encoder import EncodedQuery
from dupmae_ir.search.query.words import SNIPPET, Mark, QueryWords, Snippet, TermShare, WordShare
from dupmae_ir.types import Document


@dataclass(frozen=True)
class Explanation:
    """The composition of a document's score. ``score`` is the weighted sum of ``dense``, ``impact`` and ``bm25``; a
    share is None if the index lacks the part, ``bm25`` if no BM25 index joins the sum. ``terms``: every matched term,
    strongest first; their shares sum to ``impact``."""

    docid: str
    score: float
    dense: float | None
    impact: float | None
    terms: list[TermShare]
    bm25: float | None = None


def explain(
    index: OpenedIndex,
    settings: SearchSettings,
    text: str,
    encoded: EncodedQuery,
    docids: Sequence[str],
    names: Mapping[str, str] | None = None,
) -> list[Explanation]:
    """One :class:`Explanation` per document. Raises :class:`UnknownName` for an id that the index does not contain.

    ``names``: index term -> the query's words for it, shown instead of terms that are hashes.
    """
    names = names or {}
    rows = np.array([index.known_row(docid) for docid in docids], np.int64)
    dense: Sequence[float | None] = [None] * len(rows)
    impact: Sequence[float | None] = dense
    if "cls" in index.parts:
        dense = index.dense(settings).queries(encoded.cls[None], settings.workers).scores(0, rows).tolist()
    if "ot" in index.parts:
        impact = index.impact(settings).queries([encoded.ot], settings.workers).scores(0, rows).tolist()
    opened = index.bm25(settings)
    bm25: Sequence[float | None] = opened.scores(text, rows).tolist() if opened else [None] * len(rows)
    return [
        Explanation(
            docid,
            _total(settings, d, i, lexical),
            d,
            i,
            _terms(index, encoded.ot, row, names) if i is not None else [],
            lexical,
        )
        for docid, row, d, i, lexical in zip(docids, rows.tolist(), dense, impact, bm25, strict=True)
    ]


def _total(settings: SearchSettings, dense: float | None, impact: float | None, bm25: float | None) -> float:
    weighted = ((dense, settings.dense_weight), (impact, settings.impact_weight), (bm25, settings.bm25_weight))
    shares = [(share, weight) for share, weight in weighted if share is not None]
    # The score of a part alone is not weighted.
    return shares[0][0] if len(shares) == 1 else sum((weight * share for share, weight in shares), 0.0)


def _terms(index: OpenedIndex, query: ImpactQuery, row: int, names: Mapping[str, str]) -> list[TermShare]:
    scale, terms = index.scale, index.folder.terms
    ids, impacts = index.folder.forward.row(row)
    document = dict(zip(ids.tolist(), impacts.tolist(), strict=True))
    shares = [
        TermShare(names.get(terms[i], terms[i]), w / scale, document[i] / scale, w * document[i] / scale**2)
        for i, w in zip(query.ids.tolist(), query.impacts.tolist(), strict=True)
        if i in document
    ]
    return sorted(shares, key=lambda share: (-share.share, share.term))


@dataclass(frozen=True)
class DescribedHit:
    """One document of a list.

    ``explanation``: its score by parts and index terms; ``words``: the impact by words, strongest first, whose shares
    sum to ``explanation.impact``; ``document``, ``snippet``: title and text, and the best passage of the text; None
    where they are not known. ``title_marks``, ``text_marks``: the matching words of title and text.
    """

    explanation: Explanation
    words: tuple[WordShare, ...]
    document: Document | StoredDocument | None
    snippet: Snippet | None
    title_marks: tuple[Mark, ...] = ()
    text_marks: tuple[Mark, ...] = ()


def describe(
    words: QueryWords,
    explanation: Explanation,
    document: Document | StoredDocument | None,
    names: Mapping[str, str] | None = None,
    longest: int = SNIPPET,
) -> DescribedHit:
    """The description of a hit from its explanation by raw index terms; ``names`` are shown instead of terms.
    ``longest``: characters of the passage."""
    text = "" if document is None else f"{document.title}\n{document.text}"
    shares = words.shares(explanation.terms, text)
    weights = words.weights(explanation.terms)
    snippet = words.snippet(weights, document.text, longest) if document and document.text else None
    marks = [
        words.shaded(explanation.terms, part) for part in ((document.title, document.text) if document else ("", ""))
    ]
    renamed = [dataclasses.replace(t, term=(names or {}).get(t.term, t.term)) for t in explanation.terms]
    renamed.sort(key=lambda term: (-term.share, term.term))
    return DescribedHit(dataclasses.replace(explanation, terms=renamed), tuple(shares), document, snippet, *marks)
