"""The values of a case study, formatted as text, Markdown, HTML and JSON."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dupmae_ir.console import table, visible
from dupmae_ir.eval.reports import page
from dupmae_ir.eval.reports.tally import Tally

if TYPE_CHECKING:
    from dupmae_ir.search.query.words import WordShare
    from dupmae_ir.search.view.explain import TermShare

LISTS = {"dense": "[CLS]", "impact": "OT", "hybrid": "the sum"}
"""Search mode -> what the paper calls it."""

MOST_ANSWERS = 20  #: rows of the table of answers in text and pages; JSON has all
LONGEST = 300  #: characters of a document's text that are shown, in pages


@dataclass(frozen=True)
class Shown:
    """A document of the case. ``score`` is ``dense + impact``; ``terms`` are the strongest of ``matched`` index terms,
    ``matching`` the strongest of ``matching_words`` words behind them."""

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

    @property
    def words(self) -> str:
        """Title and text on one line."""
        return " ".join(f"{self.title}. {self.text}".removeprefix(". ").split())


@dataclass(frozen=True)
class Case:
    """One query. ``lists``: search mode -> the docids to show, best first; ``documents`` contains each of them."""

    qid: str
    query: str
    judged: bool  #: whether there are judgements for this query
    within: int
    depth: int
    answers: tuple[str, ...]  #: relevant documents of the index, best grade first
    absent: tuple[str, ...]  #: relevant documents that are not in the index
    lists: dict[str, tuple[str, ...]]
    documents: dict[str, Shown]
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
            return "none of its answers is in the index" if self.absent else "it has no answer of that grade"
        return "; ".join(f"{name} {self._finds(mode)}" for mode, name in LISTS.items())

    def _finds(self, mode: str) -> str:
        rank = self.best_rank(mode)
        if rank is None:
            return f"finds no answer in its first {self.depth:,} hits"
        return f"finds an answer at rank {rank:,}" if rank <= self.within else f"misses (first answer at rank {rank:,})"


def as_text(cases: Sequence[Case], tally: Tally | None = None) -> str:
    """For a terminal, 100 columns."""
    texts = ["\n".join(map(visible, _text_lines(case))) for case in cases]
    return "\n\n\n".join([tally.as_text(), *texts] if tally else texts)


def as_markdown(cases: Sequence[Case], tally: Tally | None = None) -> str:
    """One section per query."""
    lines = [tally.as_markdown(), ""] if tally else []
    for case in cases:
        lines += [f"## {_md(case.name)}", "", _md(_sentence(case)) + ".", ""]
        if case.answers:
            header = _answers_header()
            lines += [" | ".join(["", *header, ""]).strip(), "| :-- |" + " --: |" * (len(header) - 1)]
            lines += [f"| {' | '.join(map(_md, row))} |" for row in _answers(case)]
            lines += ["", *(_md(line) for line in _left_out(case))]
        for mode, name in LISTS.items():
            lines += ["", f"### {_md(_heading(case, mode, name))}", ""]
            for shown in _of(case, mode):
                words = f" {_md(_short(shown.words))}" if shown.words else ""
                lines += [f"- {_md(_rank_and_id(shown, mode))}.{words}", f"  Words: {_md(_terms(shown))}"]
        lines.append("")
    return "\n".join(line.rstrip() for line in lines).rstrip("\n")


def as_html(cases: Sequence[Case], tally: Tally | None = None) -> str:
    """A self-contained page; matched words of a text are marked."""
    body: list[str] = [tally.as_html()] if tally else []
    for case in cases:
        body += [f"<h2>{page.esc(case.name)}</h2>", f"<p>{page.esc(_sentence(case))}.</p>"]
        if case.answers:
            rows = [[page.esc(cell) for cell in row] for row in _answers(case)]
            caption = f"Ranks of the answers in the first {case.depth:,} hits of each list"
            body += [page.table(caption, _answers_header(), rows), page.bullets(_left_out(case))]
        body += ['<div class="figures">', *(_html_list(case, mode, name) for mode, name in LISTS.items()), "</div>"]
    return page.page("[CLS], OT and their sum: a case study", body)


def as_json(cases: Sequence[Case], tally: Tally | None = None) -> str:
    """Everything, in full precision: a list of cases; with ``tally``, an object of ``tally`` and ``cases``."""
    found = [
        {**asdict(case), "verdict": case.verdict, "best_rank": {mode: case.best_rank(mode) for mode in LISTS}}
        for case in cases
    ]
    whole = {"tally": tally.to_dict(), "cases": found} if tally else found
    return json.dumps(whole, indent=2, ensure_ascii=False)


def text(cases: Sequence[Case], format: str, tally: Tally | None = None) -> str:
    """``cases`` in one of :data:`FORMATS`, after the counts of ``tally``."""
    return FORMATS[format](cases, tally)


FORMATS: dict[str, Callable[..., str]] = {"text": as_text, "markdown": as_markdown, "html": as_html, "json": as_json}


def _text_lines(case: Case) -> list[str]:
    lines = [case.name, *_wrapped(_sentence(case))]
    if case.answers:
        lines += ["", table(_answers(case), _answers_header()), *_left_out(case)]
    for mode, name in LISTS.items():
        lines += ["", _heading(case, mode, name)]
        for shown in _of(case, mode):
            lines += [f"  {_rank_and_id(shown, mode)}", *_wrapped(shown.words, "     ", 2)]
            lines += _wrapped(f"words: {_terms(shown)}", "     ")
    return lines


def _sentence(case: Case) -> str:
    lost = f"; {len(case.absent)} of its answers are not in the index" if case.absent and case.answers else ""
    shared = len(set(case.lists["dense"]) & set(case.lists["impact"]))
    ours = case.verdict + lost if case.judged else f"{case.verdict}; {shared} shown documents are in both lists"
    return f"{ours}. {case.paper}" if case.paper else ours


def _answers_header() -> list[str]:
    return ["answer", "grade", *LISTS.values(), "[CLS] score", "OT score", "their sum"]


def _answers(case: Case) -> list[list[str]]:
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


def _left_out(case: Case) -> list[str]:
    more = len(case.answers) - MOST_ANSWERS
    return [f"and {more} more answers (--format json lists all)"] if more > 0 else []


def _heading(case: Case, mode: str, name: str) -> str:
    return f"{name} found" if case.lists[mode] else f"{name} found nothing"


def _of(case: Case, mode: str) -> list[Shown]:
    return [case.documents[docid] for docid in case.lists[mode]]


def _rank_and_id(shown: Shown, mode: str) -> str:
    others = ", ".join(f"{name} {shown.ranks[m] or '-'}" for m, name in LISTS.items() if m != mode)
    grade = f", grade {shown.grade}" if shown.grade is not None else ""
    return f"{shown.ranks[mode]}  {shown.docid}  {_score(shown, mode)} ({others}{grade})"


def _score(shown: Shown, mode: str) -> str:
    if mode == "hybrid":
        return f"{shown.score:.2f} = {shown.dense:.2f} + {shown.impact:.2f}"
    return f"{shown.dense if mode == 'dense' else shown.impact:.2f}"


def _rank(rank: int | None, depth: int) -> str:
    return f"{rank:,}" if rank else f">{depth:,}"


def _terms(shown: Shown) -> str:
    if shown.matching:
        more = shown.matching_words - len(shown.matching)
        listed = ", ".join(f"{w.word} {w.share:.2f}{' (expansion)' if w.expansion else ''}" for w in shown.matching)
        return f"{listed}{f' and {more} more' if more else ''}"
    if not shown.matched:
        return "none matches"
    more = shown.matched - len(shown.terms)
    listed = ", ".join(f"{term.term} {term.share:.2f}" for term in shown.terms)
    return f"{listed}{f' and {more} more' if more and listed else ''}" or f"{shown.matched} match"


def _html_list(case: Case, mode: str, name: str) -> str:
    items = []
    for s in _of(case, mode):
        text = f"<br>{_marked(_short(s.words), s)}" if s.words else ""
        items.append(
            f'<li value="{s.ranks[mode]}"><strong>{page.esc(s.docid)}</strong> {page.esc(_score(s, mode))}'
            f'{_badge(case, s)}{text}<br><span class="note">words: {page.esc(_terms(s))}</span></li>'
        )
    heading = page.esc(_heading(case, mode, name))
    return "\n".join([f"<section><h3>{heading}</h3>", "<ol>", *items, "</ol></section>"])


def _badge(case: Case, shown: Shown) -> str:
    return f" <mark>answer, grade {shown.grade}</mark>" if shown.docid in case.answers else ""


def _marked(text: str, shown: Shown) -> str:
    """Escaped ``text`` with the matching words marked; where they are not known, the terms that are whole words."""
    words = {term.term.lower() for term in shown.terms if re.fullmatch(r"\w+", term.term)}
    words |= {one for word in shown.matching for one in (word.word, *word.text_words)}
    pieces = re.split(r"(\w+)", text)
    return "".join(f"<mark>{page.esc(p)}</mark>" if p.lower() in words else page.esc(p) for p in pieces)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST].rsplit(" ", 1)[0] + " ..."


def _wrapped(text: str, indent: str = "", most: int | None = None) -> list[str]:
    limit = {"max_lines": most, "placeholder": " ..."} if most else {}
    return textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=indent, **limit)  # type: ignore[arg-type]


def _md(text: str) -> str:
    """``text`` with Markdown's special characters escaped and control characters made visible."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", visible(text, breaks=True))
