"""Results of a search as text for a terminal."""

from __future__ import annotations

import dataclasses
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from dupmae_ir.console import emphasised, megabytes, one_line, table, unmarked
from dupmae_ir.search.view.naming import MODE_NAMES, NO_WORD, NOTABLE, NOTHING_MISSED, digits

if TYPE_CHECKING:
    from dupmae_ir.search.query.words import Snippet, WordShare
    from dupmae_ir.search.view.results import (
        QueryAnswer,
        RunSummary,
        Searched,
        SearchedDocuments,
        ShownHit,
    )


def run_summary(run: RunSummary) -> str:
    """The lines about a run file."""
    searched = run.searched
    rate = run.topics / run.seconds if run.seconds else 0
    text = f"{run.output}: {run.topics:,} topics, {_mode(searched)}, {run.seconds:.1f} s ({rate:,.0f}/s)"
    if run.reported:
        depths = "; ".join(
            f"{name} median {middle:,}, longest {most:,}"
            for name, middle, most in run.depth_counts()
        )
        text += (
            f"\n  {_exact(searched)}: {run.exact:,} of {run.reported:,}; depth of lists: {depths}"
        )
    if run.uncertified:
        reason = _approximate(searched)
        text += (
            f"\n  the others are not certified: {reason}"
            if reason
            else (f"\n  not certified within --max-depth: {_some(run.uncertified)}")
        )
    if searched.rerank:
        text += f"\n  {run.reranked:,} first hits reranked by {searched.rerank} in {run.rerank_seconds:.1f} s"
    if searched.within:
        text += f"\n  {_restriction(searched.within)}"
    if run.blank:
        text += f"\n  {run.blank:,} topics are blank and have no hits"
    if run.short:
        text += f"\n  fewer documents than --hits because --passage-hits is too small: {_some(run.short)}"
    if empty := run.without_hits - run.blank:
        text += f"\n  {empty:,} topics match nothing and are not in the run"
    return text


def query_summary(answer: QueryAnswer) -> str:
    """The lines about a query: the mode, whether the list is certified, what was searched."""
    searched, report = answer.searched, answer.report
    within = f"\n{_restriction(searched.within)}" if searched.within else ""
    if report is None:
        return f"{_mode(searched, MODE_NAMES)}, {answer.seconds:.2f} s{within}"
    state = _exact(searched, NOTHING_MISSED)
    if not report.exact:
        state = f"better ones may be missed ({_approximate(searched) or 'raise --max-depth'})"
    note = (
        f"\n{NO_WORD}"
        if answer.hits and not any(hit.details.has_query_word for hit in answer.hits)
        else ""
    )
    scored = f"{report.candidates:,} of {answer.size} scored"
    if report.reranked is not None:
        scored += f"; the first {report.reranked} reranked by {searched.rerank} in {report.rerank_seconds:.2f} s"
    return f"{_mode(searched, MODE_NAMES)}, {state}: {scored}, {answer.seconds:.2f} s{within}{note}"


def _mode(searched: Searched, names: Mapping[str, str] = MappingProxyType({})) -> str:
    bm25 = searched.bm25
    mode = names.get(searched.mode, searched.mode)
    return f"{mode} + {bm25.weight:g} x BM25 of {bm25.index}" if bm25 else mode


def _restriction(within: SearchedDocuments) -> str:
    """The documents that were searched, and the ids that the index does not contain."""
    by = ", ".join(name for name in (within.file, within.filter) if name is not None)
    text = f"{within.documents:,} documents searched ({by})"
    if within.unknown:
        text += (
            f"; {len(within.unknown):,} of its ids are not in the index: {_some(within.unknown)}"
        )
    return text


def _exact(searched: Searched, name: str = "certified exact") -> str:
    """What an exact list is called; of a list that is reranked, the candidates are exact."""
    if searched.rerank:
        return f"candidates: {_exact(dataclasses.replace(searched, rerank=None), name)}"
    if searched.server and searched.server.since:
        return f"{name} if table {searched.server.table} is unchanged since {searched.server.since}"
    if searched.unread_bytes:
        return f"{name} ({megabytes(searched.unread_bytes)} not read in full; see dupmae-ir index verify)"
    return name


def _approximate(searched: Searched) -> str | None:
    """The reason why nothing is certified; None for an index that certifies."""
    server = searched.server
    return f"the lists of {server.server} are approximate" if server and not server.exact else None


def hit_lines(answer: QueryAnswer) -> list[str]:
    """The hits of a query."""
    if not answer.hits:
        return ["no document matches"]
    return [line for hit in answer.hits for line in _hit(answer, hit, len(str(len(answer.hits))))]


def _hit(answer: QueryAnswer, hit: ShownHit, width: int, words: bool = True) -> list[str]:
    """Rank, file or id, and score; then title, best passage and matching words, if known."""
    indent = " " * (width + 2)
    place, document, snippet = hit.details.place, hit.details.document, hit.details.snippet
    name = unmarked(one_line(place or hit.docid))
    lines = [f"{hit.rank:>{width}}  {name}  {_score(answer, hit)}{_shares(answer, hit)}"]
    columns = min(100, shutil.get_terminal_size((100, 24)).columns)
    room = max(20, columns - len(indent))
    if place and document:
        title = unmarked(one_line((document.metadata or {}).get("title", "")))
        repeated = not title or title in str(place)
        lines.append(
            f"{indent}id {hit.docid}"
            if repeated
            else f"{indent}{title[: room // 2]} (id {hit.docid})"
        )
    elif document and document.title:
        title = unmarked(" ".join(document.title.split()))
        lines += [
            indent + line for line in textwrap.wrap(title, room, max_lines=1, placeholder=" ...")
        ]
    if snippet:
        lines += [indent + line for line in _passage(snippet, room)]
    least = NOTABLE * hit.details.explanation.score
    shown = [word for word in hit.details.words[: hit.max_terms] if word.share >= least]
    if words and hit.explained and shown:
        text = _words(shown, len(hit.details.words) - len(shown))
        lines += [indent + line for line in textwrap.wrap(text, room, subsequent_indent="  ")]
    return lines


def _score(answer: QueryAnswer, hit: ShownHit) -> str:
    """The score; of a list that was reranked, both that of the reranker, if it has read the hit, and the sum."""
    if answer.report is None or answer.report.reranked is None:
        return digits(hit.score)
    looked = (
        f"reranked {digits(hit.score)}, before "
        if hit.rank <= answer.report.reranked
        else "not reranked, "
    )
    return f"{looked}{digits(hit.details.explanation.score)}"


def _passage(snippet: Snippet, room: int) -> list[str]:
    """The best passage in lines, with the matching words emphasised."""
    before, after = "... " if snippet.before else "", " ..." if snippet.after else ""
    text = before + unmarked(snippet.text, " ") + after
    marks = [(start + len(before), end + len(before)) for start, end in snippet.marks]
    lines, at = [], 0
    for line in textwrap.wrap(text, room, drop_whitespace=True, break_on_hyphens=False):
        at = text.index(line, at)
        lines.append(
            emphasised(
                line, [(a - at, b - at) for a, b in marks if at <= a and b <= at + len(line)]
            )
        )
        at += len(line)
    return lines


def _words(words: Sequence[WordShare], more: int) -> str:
    """The strongest words of the query, then the expansions, with their shares of the score."""
    own = [f"{unmarked(w.word)} {digits(w.share)}" for w in words if not w.expansion]
    others = [f"{unmarked(w.word)} {digits(w.share)}" for w in words if w.expansion]
    kinds = [f"words: {', '.join(own)}"] if own else []
    kinds += [f"expansions: {', '.join(others)}"] if others else []
    return "; ".join(kinds) + (f" and {more} more" if more else "")


def _shares(answer: QueryAnswer, hit: ShownHit) -> str:
    mode, bm25, why = answer.searched.mode, answer.searched.bm25, hit.details.explanation
    parts = (
        ("meaning", why.dense, answer.weights[0]),
        ("words", why.impact, answer.weights[1]),
        ("BM25", why.bm25, bm25.weight if bm25 else 1),
    )
    shares = [
        f"{'' if weight == 1 else f'{weight:g} x '}{name} {digits(share)}"
        for name, share, weight in parts
        if share is not None
    ]
    if len(shares) < 2 or mode in ("dense", "impact"):
        return ""
    if mode not in ("hybrid", "explain"):
        return (
            "  ("
            + ", ".join(
                f"{name} {digits(share)}" for name, share, _ in parts[:2] if share is not None
            )
            + ")"
        )
    return f" = {' + '.join(shares)}"


def explanation_lines(answer: QueryAnswer) -> list[str]:
    """One explained hit, with a table of its words."""
    (hit,) = answer.hits
    rows = [
        [
            unmarked(word.word),
            _some([unmarked(one) for one in word.text_words], 3) or "-",
            "expansion" if word.expansion else "query",
            digits(word.share),
        ]
        for word in hit.details.words
    ]
    first, *others = _hit(answer, hit, 1, words=False)
    lines = [first[3:], *others]  # the first line has no rank, since the document was given by id
    if hit.details.explanation.impact is not None:
        lines += (
            ["", table(rows, ["word", "in the text", "from", "share"])]
            if rows
            else ["no word matches"]
        )
    return lines


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
