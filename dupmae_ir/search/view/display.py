"""Results of a search as text for a terminal."""

from __future__ import annotations

import dataclasses
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from dupmae_ir.console import emphasised, megabytes, one_line, table, unmarked
from dupmae_ir.search.view.naming import (
    BY_MEANING,
    MODE_NAMES,
    NO_WORD,
    NOTABLE,
    NOTHING_MISSED,
    digits,
)

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
        depths = []
        for name, median, maximum in run.depth_counts():
            depths.append(f"{name} median {median:,}, longest {maximum:,}")
        text += f"\n  {_exact(searched)}: {run.exact:,} of {run.reported:,}; depth of lists: {'; '.join(depths)}"
    if run.uncertified:
        reason = _approximate(searched)
        if reason:
            text += f"\n  the others are not certified: {reason}"
        else:
            text += f"\n  not certified within --max-depth: {_first_names(run.uncertified)}"
    if searched.rerank:
        text += f"\n  {run.reranked:,} first hits reranked by {searched.rerank} in {run.rerank_seconds:.1f} s"
    if searched.within:
        text += f"\n  {_restriction(searched.within)}"
    if run.blank:
        text += f"\n  {run.blank:,} topics are blank and have no hits"
    if run.short:
        names = _first_names(run.short)
        text += f"\n  fewer documents than --hits because --passage-hits is too small: {names}"
    empty = run.without_hits - run.blank
    if empty:
        text += f"\n  {empty:,} topics match nothing and are not in the run"
    return text


def query_summary(answer: QueryAnswer) -> str:
    """The lines about a query: the mode, whether the list is certified, what was searched."""
    searched = answer.searched
    report = answer.report
    within = f"\n{_restriction(searched.within)}" if searched.within else ""
    if report is None:
        return f"{_mode(searched, MODE_NAMES)}, {answer.seconds:.2f} s{within}"
    if report.exact:
        state = _exact(searched, NOTHING_MISSED)
    else:
        reason = _approximate(searched) or "raise --max-depth"
        state = f"better ones may be missed ({reason})"
    note = ""
    if answer.hits and not any(hit.details.has_query_word for hit in answer.hits):
        note = f"\n{NO_WORD}"
    scored = f"{report.candidates:,} of {answer.size} scored"
    if report.reranked is not None:
        scored += f"; the first {report.reranked} reranked by {searched.rerank} in {report.rerank_seconds:.2f} s"
    return f"{_mode(searched, MODE_NAMES)}, {state}: {scored}, {answer.seconds:.2f} s{within}{note}"


def _mode(searched: Searched, names: Mapping[str, str] = MappingProxyType({})) -> str:
    bm25 = searched.bm25
    mode = names.get(searched.mode, searched.mode)
    if not bm25:
        return mode
    return f"{mode} + {bm25.weight:g} x BM25 of {bm25.index}"


def _restriction(within: SearchedDocuments) -> str:
    """The documents that were searched, and the ids that the index does not contain."""
    by = ", ".join(name for name in (within.file, within.filter) if name is not None)
    text = f"{within.documents:,} documents searched ({by})"
    if within.unknown:
        names = _first_names(within.unknown)
        text += f"; {len(within.unknown):,} of its ids are not in the index: {names}"
    return text


def _exact(searched: Searched, name: str = "certified exact") -> str:
    """What an exact list is called; of a list that is reranked, the candidates are exact."""
    if searched.rerank:
        return f"candidates: {_exact(dataclasses.replace(searched, rerank=None), name)}"
    if searched.server and searched.server.assumes:
        return f"{name} if {searched.server.assumes}"
    if searched.unread_bytes:
        return f"{name} ({megabytes(searched.unread_bytes)} not read in full; see dupmae-ir index verify)"
    return name


def _approximate(searched: Searched) -> str | None:
    """The reason why nothing is certified; None for an index that certifies."""
    if searched.missing:
        return searched.missing
    server = searched.server
    if server and not server.exact:
        return f"the lists of {server.server} are approximate"
    return None


def hit_lines(answer: QueryAnswer) -> list[str]:
    """The hits of a query."""
    if not answer.hits:
        return ["no document matches"]
    rank_width = len(str(len(answer.hits)))
    lines = []
    for hit in answer.hits:
        lines.extend(_hit(answer, hit, rank_width))
    return lines


def _hit(answer: QueryAnswer, hit: ShownHit, width: int, words: bool = True) -> list[str]:
    """Rank, file or id, and score; then title, best passage and matching words, if known."""
    indent = " " * (width + 2)
    place = hit.details.place
    document = hit.details.document
    snippet = hit.details.snippet
    name = unmarked(one_line(place or hit.docid))
    if hit.details.language:
        name += f" ({hit.details.language})"
    lines = [f"{hit.rank:>{width}}  {name}  {_score(answer, hit)}{_shares(answer, hit)}"]
    columns = min(100, shutil.get_terminal_size((100, 24)).columns)
    room = max(20, columns - len(indent))
    if place and document:
        title = unmarked(one_line((document.metadata or {}).get("title", "")))
        # A title that is also the file's name would be shown twice.
        if not title or title in str(place):
            lines.append(f"{indent}id {hit.docid}")
        else:
            lines.append(f"{indent}{title[: room // 2]} (id {hit.docid})")
    elif document and document.title:
        title = unmarked(" ".join(document.title.split()))
        wrapped = textwrap.wrap(title, room, max_lines=1, placeholder=" ...")
        lines += [indent + line for line in wrapped]
    if snippet:
        lines += [indent + line for line in _passage(snippet, room)]
    min_share = NOTABLE * hit.details.explanation.score
    notable = [word for word in hit.details.words[: hit.max_terms] if word.share >= min_share]
    if words and hit.explained and notable:
        text = _words(notable, len(hit.details.words) - len(notable))
        lines += [indent + line for line in textwrap.wrap(text, room, subsequent_indent="  ")]
    elif words and hit.explained and hit.details.is_by_meaning:
        lines.append(indent + BY_MEANING)
    return lines


def _score(answer: QueryAnswer, hit: ShownHit) -> str:
    """The score; of a list that was reranked, both that of the reranker, if it has read the hit, and the sum."""
    if answer.report is None or answer.report.reranked is None:
        return digits(hit.score)
    sum_score = digits(hit.details.explanation.score)
    if hit.rank > answer.report.reranked:
        return f"not reranked, {sum_score}"
    return f"reranked {digits(hit.score)}, before {sum_score}"


def _passage(snippet: Snippet, room: int) -> list[str]:
    """The best passage in lines, with the matching words emphasised."""
    before = "... " if snippet.before else ""
    after = " ..." if snippet.after else ""
    text = before + unmarked(snippet.text, " ") + after
    marks = [(start + len(before), end + len(before)) for start, end in snippet.marks]

    lines = []
    line_start = 0
    for line in textwrap.wrap(text, room, drop_whitespace=True, break_on_hyphens=False):
        # The line is looked for, since wrapping drops the blanks between lines.
        line_start = text.index(line, line_start)
        line_end = line_start + len(line)
        spans = []
        for start, end in marks:
            if line_start <= start and end <= line_end:
                spans.append((start - line_start, end - line_start))
        lines.append(emphasised(line, spans))
        line_start = line_end
    return lines


def _words(words: Sequence[WordShare], unlisted: int) -> str:
    """The strongest words of the query, then the expansions, with their shares of the score."""
    query_words = []
    expansions = []
    for word in words:
        text = f"{unmarked(word.word)} {digits(word.share)}"
        if word.expansion:
            expansions.append(text)
        else:
            query_words.append(text)
    kinds = []
    if query_words:
        kinds.append(f"words: {', '.join(query_words)}")
    if expansions:
        kinds.append(f"expansions: {', '.join(expansions)}")
    text = "; ".join(kinds)
    if unlisted:
        text += f" and {unlisted} more"
    return text


def _shares(answer: QueryAnswer, hit: ShownHit) -> str:
    """`` = meaning 3.2 + words 4.1``; for a fused list, whose score is no sum, ``  (meaning 3.2, words 4.1)``."""
    why = hit.details.explanation
    bm25 = answer.searched.bm25
    dense_weight, impact_weight = answer.weights
    parts = (
        ("meaning", why.dense, dense_weight),
        ("words", why.impact, impact_weight),
        ("BM25", why.bm25, bm25.weight if bm25 else 1),
    )
    shares = []
    summands = []
    for name, share, weight in parts:
        if share is None:
            continue
        shares.append(f"{name} {digits(share)}")
        factor = "" if weight == 1 else f"{weight:g} x "
        summands.append(f"{factor}{name} {digits(share)}")
    if len(summands) < 2 or answer.searched.mode in ("dense", "impact"):
        return ""
    if answer.searched.mode in ("hybrid", "explain"):
        return f" = {' + '.join(summands)}"
    if why.bm25 is not None:
        del shares[-1]  # a fusion is of the dense and the impact list
    return f"  ({', '.join(shares)})"


def explanation_lines(answer: QueryAnswer) -> list[str]:
    """One explained hit, with a table of its words."""
    (hit,) = answer.hits
    rows = []
    for word in hit.details.words:
        in_text = _first_names([unmarked(text_word) for text_word in word.text_words], 3)
        origin = "expansion" if word.expansion else "query"
        rows.append([unmarked(word.word), in_text or "-", origin, digits(word.share)])

    lines = _hit(answer, hit, 1, words=False)
    # Without the rank, since the document was given by id.
    lines[0] = lines[0][3:]
    if hit.details.explanation.impact is None:
        return lines
    if not rows:
        return [*lines, BY_MEANING if hit.details.is_by_meaning else "no word matches"]
    return [*lines, "", table(rows, ["word", "in the text", "from", "share"])]


def _first_names(names: Sequence[str], count: int = 5) -> str:
    text = ", ".join(names[:count])
    if len(names) > count:
        text += f" and {len(names) - count:,} more"
    return text
