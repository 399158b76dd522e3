"""A hit as a person reads it: the words behind its score, and the best passage of its text with these words marked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from dupmae_ir.index.format.texts import StoredDocument
from dupmae_ir.search.query.words import SNIPPET, Mark, QueryWords, Snippet, WordShare
from dupmae_ir.search.view.explain import Explanation
from dupmae_ir.types import Document


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


def described(
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
