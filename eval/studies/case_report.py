"""The values of a case study as text, Markdown, HTML and JSON, and the counts from which its cases are selected."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from dupmae_ir import tables
from dupmae_ir.console import table, visible
from dupmae_ir.eval.reports import html

if TYPE_CHECKING:
    from dupmae_ir.search.query.words import TermShare, WordShare

LISTS = {"dense": "[CLS]", "impact": "OT", "hybrid": "the sum"}
"""Search mode -> what the paper calls it."""

MOST_ANSWERS = 20  #: rows of the table of answers in text and pages; JSON has all
LONGEST = 300  #: characters of a document's text that are shown, in pages


@dataclass(frozen=True)
class ShownDocument:
    """A document of the case. ``score`` is the sum of ``dense`` and ``impact`` times their ``weights``; ``terms`` are
    the strongest of ``matched`` index terms, ``matching`` the strongest of ``matching_words`` words behind them."""

    docid: str
    grade: int | None  #: None if not judged
    ranks: dict[str, int | None]  #: search mode -> rank from 1; None below the searched depth
    score: float
    dense: float
    impact: float
    matched: int
    terms: tuple[TermShare, ...]
    title: str = ""
    text: str = ""
    matching: tuple[WordShare, ...] = ()
    matching_words: int = 0
    weights: tuple[float, float] = (1.0, 1.0)

    @property
    def words(self) -> str:
        """Title and text on one line."""
        return " ".join(f"{self.title}. {self.text}".removeprefix(". ").split())


@dataclass(frozen=True)
class CaseStudy:
    """One query. ``lists``: search mode -> the docids to show, best first; ``documents`` contains each of them."""

    qid: str
    query: str
    judged: bool  #: whether there are judgements for this query
    within: int
    depth: int
    answers: tuple[str, ...]  #: relevant documents of the index, best grade first
    absent: tuple[str, ...]  #: relevant documents that are not in the index
    lists: dict[str, tuple[str, ...]]
    documents: dict[str, ShownDocument]
    paper: str = ""  #: for a published query, what the paper prints

    def best_rank(self, mode: str) -> int | None:
        """The rank of the first answer in a list; None if there is none."""
        return min((r for a in self.answers if (r := self.documents[a].ranks[mode])), default=None)

    @property
    def name(self) -> str:
        """Heading: id and text of the query."""
        return f"{self.qid}: {self.query}" if self.qid else self.query

    @property
    def verdict(self) -> str:
        """Which lists find an answer, in a sentence."""
        if not self.judged:
            return "no judgements for this query"
        if not self.answers:
            return (
                "none of its answers is in the index"
                if self.absent
                else "it has no answer of that grade"
            )
        return "; ".join(f"{name} {self._finds(mode)}" for mode, name in LISTS.items())

    def _finds(self, mode: str) -> str:
        rank = self.best_rank(mode)
        if rank is None:
            return f"finds no answer in its first {self.depth:,} hits"
        return (
            f"finds an answer at rank {rank:,}"
            if rank <= self.within
            else f"misses (first answer at rank {rank:,})"
        )


def as_text(cases: Sequence[CaseStudy], tally: CaseTally | None = None) -> str:
    """For a terminal, 100 columns."""
    texts = ["\n".join(map(visible, _text_lines(case))) for case in cases]
    return "\n\n\n".join([tally.as_text(), *texts] if tally else texts)


def as_markdown(cases: Sequence[CaseStudy], tally: CaseTally | None = None) -> str:
    """One section per query."""
    lines = [tally.as_markdown(), ""] if tally else []
    for case in cases:
        lines += [f"## {_md(case.name)}", "", _md(_sentence(case)) + ".", ""]
        if case.answers:
            rows = ([*map(_md, row)] for row in _answers(case))
            lines += [tables.markdown([*map(_md, _answers_header())], rows)]
            lines += ["", *(_md(line) for line in _left_out(case))]
        for mode, name in LISTS.items():
            lines += ["", f"### {_md(_heading(case, mode, name))}", ""]
            for shown in _of(case, mode):
                words = f" {_md(_short(shown.words))}" if shown.words else ""
                lines += [
                    f"- {_md(_rank_and_id(shown, mode))}.{words}",
                    f"  Words: {_md(_terms(shown))}",
                ]
        lines.append("")
    return "\n".join(line.rstrip() for line in lines).rstrip("\n")


def as_html(cases: Sequence[CaseStudy], tally: CaseTally | None = None) -> str:
    """A self-contained page; matched words of a text are marked."""
    functions = {
        "sentence": _sentence,
        "answers_header": _answers_header,
        "answers": _answers,
        "left_out": _left_out,
        "heading": _heading,
        "of": _of,
        "score": _score,
        "terms": _terms,
        "marked": lambda shown: _marked(_short(shown.words), shown),
    }
    title = "[CLS], OT and their sum: a case study"
    return html.render(
        "case.html",
        Path(__file__).parent,
        title=title,
        cases=cases,
        tally=tally,
        lists=LISTS,
        tally_header=HEADER,
        **functions,
    )


def as_json(cases: Sequence[CaseStudy], tally: CaseTally | None = None) -> str:
    """Everything, in full precision: a list of cases; with ``tally``, an object of ``tally`` and ``cases``."""
    found = [
        {
            **asdict(case),
            "verdict": case.verdict,
            "best_rank": {mode: case.best_rank(mode) for mode in LISTS},
        }
        for case in cases
    ]
    whole = {"tally": tally.to_dict(), "cases": found} if tally else found
    return json.dumps(whole, indent=2, ensure_ascii=False)


def render(cases: Sequence[CaseStudy], format: str, tally: CaseTally | None = None) -> str:
    """``cases`` in one of :data:`FORMATS`, after the counts of ``tally``."""
    return FORMATS[format](cases, tally)


FORMATS: dict[str, Callable[..., str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "html": as_html,
    "json": as_json,
}


def _text_lines(case: CaseStudy) -> list[str]:
    lines = [case.name, *_wrapped(_sentence(case))]
    if case.answers:
        lines += ["", table(_answers(case), _answers_header()), *_left_out(case)]
    for mode, name in LISTS.items():
        lines += ["", _heading(case, mode, name)]
        for shown in _of(case, mode):
            lines += [f"  {_rank_and_id(shown, mode)}", *_wrapped(shown.words, "     ", 2)]
            lines += _wrapped(f"words: {_terms(shown)}", "     ")
    return lines


def _sentence(case: CaseStudy) -> str:
    lost = (
        f"; {len(case.absent)} of its answers are not in the index"
        if case.absent and case.answers
        else ""
    )
    shared = len(set(case.lists["dense"]) & set(case.lists["impact"]))
    ours = (
        case.verdict + lost
        if case.judged
        else f"{case.verdict}; {shared} shown documents are in both lists"
    )
    return f"{ours}. {case.paper}" if case.paper else ours


def _answers_header() -> list[str]:
    return ["answer", "grade", *LISTS.values(), "[CLS] score", "OT score", "their sum"]


def _answers(case: CaseStudy) -> list[list[str]]:
    return [
        [
            docid,
            str(s.grade),
            *(_rank(s.ranks[mode], case.depth) for mode in LISTS),
            f"{s.dense:.2f}",
            f"{s.impact:.2f}",
            f"{s.score:.2f}",
        ]
        for docid, s in ((docid, case.documents[docid]) for docid in case.answers[:MOST_ANSWERS])
    ]


def _left_out(case: CaseStudy) -> list[str]:
    more = len(case.answers) - MOST_ANSWERS
    return [f"and {more} more answers (--format json lists all)"] if more > 0 else []


def _heading(case: CaseStudy, mode: str, name: str) -> str:
    return f"{name} found" if case.lists[mode] else f"{name} found nothing"


def _of(case: CaseStudy, mode: str) -> list[ShownDocument]:
    return [case.documents[docid] for docid in case.lists[mode]]


def _rank_and_id(shown: ShownDocument, mode: str) -> str:
    others = ", ".join(f"{name} {shown.ranks[m] or '-'}" for m, name in LISTS.items() if m != mode)
    grade = f", grade {shown.grade}" if shown.grade is not None else ""
    return f"{shown.ranks[mode]}  {shown.docid}  {_score(shown, mode)} ({others}{grade})"


def _score(shown: ShownDocument, mode: str) -> str:
    if mode == "hybrid":
        parts = zip(shown.weights, (shown.dense, shown.impact), strict=True)
        shares = (
            f"{part:.2f}" if weight == 1 else f"{weight:g} x {part:.2f}" for weight, part in parts
        )
        return f"{shown.score:.2f} = {' + '.join(shares)}"
    return f"{shown.dense if mode == 'dense' else shown.impact:.2f}"


def _rank(rank: int | None, depth: int) -> str:
    return f"{rank:,}" if rank else f">{depth:,}"


def _terms(shown: ShownDocument) -> str:
    if shown.matching:
        more = shown.matching_words - len(shown.matching)
        listed = ", ".join(
            f"{w.word} {w.share:.2f}{' (expansion)' if w.expansion else ''}" for w in shown.matching
        )
        return f"{listed}{f' and {more} more' if more else ''}"
    if not shown.matched:
        return "none matches"
    more = shown.matched - len(shown.terms)
    listed = ", ".join(f"{term.term} {term.share:.2f}" for term in shown.terms)
    return f"{listed}{f' and {more} more' if more and listed else ''}" or f"{shown.matched} match"


def _marked(text: str, shown: ShownDocument) -> Markup:
    """``text`` with the matching words marked; where they are not known, the terms that are whole words."""
    words = {term.term.lower() for term in shown.terms if re.fullmatch(r"\w+", term.term)}
    words |= {one for word in shown.matching for one in (word.word, *word.text_words)}
    pieces = re.split(r"(\w+)", text)
    return Markup().join(
        Markup("<mark>{}</mark>").format(p) if p.lower() in words else escape(p) for p in pieces
    )


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST].rsplit(" ", 1)[0] + " ..."


def _wrapped(text: str, indent: str = "", most: int | None = None) -> list[str]:
    limit = {"max_lines": most, "placeholder": " ..."} if most else {}
    return textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=indent, **limit)  # type: ignore[arg-type]


def _md(text: str) -> str:
    """``text`` with Markdown's special characters escaped and control characters made visible."""
    return re.sub(r"([\\`*_\[\]<>#])", r"\\\1", visible(text, breaks=True))


HEADER = ["[CLS]", "OT", "queries", "the sum hits"]
FINDS = {
    "cls-hit-ot-miss": (True, False, None),
    "ot-hit-cls-miss": (False, True, None),
    "both-hit": (True, True, None),
    "both-miss": (False, False, None),
    "sum-hit-both-miss": (False, False, True),
    "sum-miss-cls-hit": (True, None, False),
    "sum-miss-ot-hit": (None, True, False),
}
"""``--find`` -> whether [CLS], OT and the sum must find an answer; None: either."""


@dataclass(frozen=True)
class Ranks3:
    """One query. Ranks of the first answer in the three lists; None if it is not among the first ``within``."""

    qid: str
    dense: int | None
    impact: int | None
    hybrid: int | None

    def satisfies(self, find: str) -> bool:
        """Whether the query is of the kind ``find``."""
        hits = (rank is not None for rank in (self.dense, self.impact, self.hybrid))
        return all(wanted in (None, hit) for hit, wanted in zip(hits, FINDS[find], strict=True))

    @property
    def clearness(self) -> tuple[int, int]:
        """Sort key: the best rank of an answer in [CLS] or OT, then in the sum; queries without one last."""
        last = 1 << 30
        return min(self.dense or last, self.impact or last), self.hybrid or last


@dataclass(frozen=True)
class CaseTally:
    """The queries with an answer in the index, in the order of the topics, and those of the kind ``find``."""

    find: str
    within: int
    ranks: tuple[Ranks3, ...]
    shown: int  #: cases shown of those found

    @property
    def found(self) -> list[Ranks3]:
        """Queries of the kind ``find``: best rank first, then in the order of the topics."""
        return sorted((r for r in self.ranks if r.satisfies(self.find)), key=lambda r: r.clearness)

    def cells(self) -> Iterator[tuple[bool, bool, int, int]]:
        """([CLS] hits, OT hits, queries, of these: queries for which the sum hits)."""
        for cls in (True, False):
            for ot in (True, False):
                inside = [
                    r
                    for r in self.ranks
                    if (r.dense is not None, r.impact is not None) == (cls, ot)
                ]
                yield cls, ot, len(inside), sum(r.hybrid is not None for r in inside)

    def sentence(self) -> str:
        """The number of queries found and the order of those shown."""
        return (
            f"{self.find}: {len(self.found):,} of {len(self.ranks):,} queries with an answer in the index; "
            f"{self.shown} shown, best rank first. A hit is an answer among the first {self.within}."
        )

    def as_text(self) -> str:
        """For a terminal."""
        return f"{self.sentence()}\n\n{table(self.rows(), HEADER)}"

    def as_markdown(self) -> str:
        """A sentence and a table."""
        return f"{self.sentence()}\n\n{tables.markdown([*map(_md, HEADER)], self.rows(), 0)}"

    def to_dict(self) -> dict[str, Any]:
        """Counts, and the query ids of those found."""
        names = ("cls_hits", "ot_hits", "queries", "sum_hits")
        cells = [dict(zip(names, cell, strict=True)) for cell in self.cells()]
        found = [
            {"qid": r.qid, "cls": r.dense, "ot": r.impact, "sum": r.hybrid} for r in self.found
        ]
        return {
            "find": self.find,
            "within": self.within,
            "queries": len(self.ranks),
            "cells": cells,
            "found": found,
        }

    def rows(self) -> list[list[str]]:
        """A row per cell of the table, for :data:`HEADER`."""
        words = {True: "hits", False: "misses"}
        return [[words[cls], words[ot], f"{n:,}", f"{kept:,}"] for cls, ot, n, kept in self.cells()]


def first_ranks(
    qid: str, lists: dict[str, Sequence[str]], answers: set[str], within: int
) -> Ranks3:
    """Search mode -> docids, best first -> the rank of the first answer in each list, up to ``within``."""

    def rank(mode: str) -> int | None:
        return next(
            (n for n, docid in enumerate(lists[mode][:within], 1) if docid in answers), None
        )

    return Ranks3(qid, rank("dense"), rank("impact"), rank("hybrid"))
