"""Results of a search as text for a terminal."""

from __future__ import annotations

import shutil
import textwrap
from typing import Any

from dupmae_ir.console import emphasised, megabytes, table, unmarked


def run_summary(found: dict[str, Any]) -> str:
    """The lines about a run file."""
    rate = found["topics"] / found["seconds"] if found["seconds"] else 0
    mode = f"{found['mode']}{_joined(found)}"
    text = f"{found['output']}: {found['topics']:,} topics, {mode}, {found['seconds']:.1f} s ({rate:,.0f}/s)"
    if "certified" in found:
        reported = found["exact"] + len(found["uncertified"])
        depths = [
            f"{part} median {d['median']:,}, longest {d['max']:,}"
            for part in ("dense", "impact", "bm25", "sum")
            if (d := found.get(f"depth_{part}"))
        ]
        text += f"\n  {_exact(found)}: {found['exact']:,} of {reported:,}; depth of lists: {'; '.join(depths)}"
    if (uncertified := found.get("uncertified")) and (approximate := _approximate(found)):
        text += f"\n  the others are not certified: {approximate}"
    elif uncertified:
        text += f"\n  not certified within --max-depth: {_some(uncertified)}"
    if within := found.get("within"):
        text += f"\n  {_restriction(within)}"
    if found["blank"]:
        text += f"\n  {found['blank']:,} topics are blank and have no hits"
    if short := found.get("short"):
        text += f"\n  fewer documents than --hits because --passage-hits is too small: {_some(short)}"
    if empty := found["without_hits"] - found["blank"]:
        text += f"\n  {empty:,} topics match nothing and are not in the run"
    return text


def query_summary(found: dict[str, Any]) -> str:
    """The lines about a query: the mode, whether the list is certified, what was searched."""
    report = found["report"]
    within = f"\n{_restriction(found['within'])}" if "within" in found else ""
    if report is None:
        return f"{found['mode']}, {found['seconds']:.2f} s{within}"
    state = _exact(found) if report["exact"] else f"not certified ({_approximate(found) or 'raise --max-depth'})"
    mode = f"{found['mode']}{_joined(found)}"
    return (
        f"{mode}, {state}: {report['candidates']:,} of {found['documents']:,} documents scored, "
        f"{found['seconds']:.2f} s{within}"
    )


def _restriction(within: dict[str, Any]) -> str:
    """The documents that were searched, and the ids that the index does not contain."""
    by = ", ".join(within[name] for name in ("file", "filter") if name in within)
    text = f"{within['documents']:,} documents searched ({by})"
    if unknown := within.get("unknown"):
        text += f"; {unknown:,} of its ids are not in the index: {_some(list(within['unknown_ids']), total=unknown)}"
    return text


def _joined(found: dict[str, Any]) -> str:
    """`` + 0.6 x BM25 of FOLDER``, if BM25 joins the sum."""
    bm25 = found.get("bm25")
    return f" + {bm25['weight']:g} x BM25 of {bm25['index']}" if bm25 else ""


def _exact(found: dict[str, Any]) -> str:
    """What an exact list is called: certified only where the index records what its files must be."""
    if reason := found.get("not_sealed"):
        return f"exact ({reason})"
    if unread := found.get("unread_bytes"):
        return f"certified exact ({megabytes(unread)} not read in full; see dupmae-ir index verify)"
    return "certified exact"


def _approximate(found: dict[str, Any]) -> str | None:
    """The reason why nothing is certified; None for a dense index that certifies."""
    if (server := found.get("server")) and not server["exact"]:
        return f"the lists of {server['engine']} are approximate"
    dense = found.get("dense_index")
    if not dense or dense["exact"]:
        return None
    name, value = next((n, dense[n]) for n in ("nprobe", "ef_search") if n in dense)
    return f"{dense['kind']} is approximate, --{name.replace('_', '-')} {value} ({dense['reason']})"


def hit_lines(found: dict[str, Any]) -> list[str]:
    """The hits of a query."""
    if not found["hits"]:
        return ["no document matches"]
    width = len(str(found["hits"][-1]["rank"]))
    return [line for hit in found["hits"] for line in _hit(found, hit, width)]


def _hit(found: dict[str, Any], hit: dict[str, Any], width: int) -> list[str]:
    """Rank, id and score; then title, best passage and matching words, if known."""
    indent = " " * (width + 2)
    lines = [f"{hit['rank']:>{width}}  {hit['docid']}  {hit['score']:.6g}{_shares(found, hit)}"]
    columns = min(100, shutil.get_terminal_size((100, 24)).columns)
    room = max(20, columns - len(indent))
    if hit.get("title"):
        title = unmarked(" ".join(hit["title"].split()))
        lines += [indent + line for line in textwrap.wrap(title, room, max_lines=1, placeholder=" ...")]
    if snippet := hit.get("snippet"):
        lines += [indent + line for line in _passage(snippet, room)]
    if hit.get("words"):
        lines += [indent + line for line in textwrap.wrap(_words(hit), room, subsequent_indent="  ")]
    return lines


def _passage(snippet: dict[str, Any], room: int) -> list[str]:
    """The best passage in lines, with the matching words emphasised."""
    before, after = "... " if snippet["before"] else "", " ..." if snippet["after"] else ""
    text = before + unmarked(snippet["text"], " ") + after
    marks = [(start + len(before), end + len(before)) for start, end in snippet["marks"]]
    lines, at = [], 0
    for line in textwrap.wrap(text, room, drop_whitespace=True, break_on_hyphens=False):
        at = text.index(line, at)
        lines.append(emphasised(line, [(a - at, b - at) for a, b in marks if at <= a and b <= at + len(line)]))
        at += len(line)
    return lines


def _words(hit: dict[str, Any]) -> str:
    """The strongest words of the query, then the expansions, with their shares of the score."""
    own = [f"{unmarked(w['word'])} {w['share']:.4g}" for w in hit["words"] if not w["expansion"]]
    others = [f"{unmarked(w['word'])} {w['share']:.4g}" for w in hit["words"] if w["expansion"]]
    more = hit["matched_words"] - len(hit["words"])
    kinds = [f"words: {', '.join(own)}"] if own else []
    kinds += [f"expansions: {', '.join(others)}"] if others else []
    return "; ".join(kinds) + (f" and {more} more" if more else "")


def _shares(found: dict[str, Any], hit: dict[str, Any]) -> str:
    weights = (*found["weights"], found["bm25"]["weight"] if "bm25" in found else 1)
    shares = [
        f"{'' if weight == 1 else f'{weight:g} x '}{name} {hit[name]:.6g}"
        for name, weight in zip(("dense", "impact", "bm25"), weights, strict=True)
        if hit.get(name) is not None
    ]
    if len(shares) < 2 or found["mode"] in ("dense", "impact"):
        return ""
    if found["mode"] not in ("hybrid", "explain"):
        return f"  (dense {hit['dense']:.6g}, impact {hit['impact']:.6g})"
    return f" = {' + '.join(shares)}"


def explanation_lines(found: dict[str, Any]) -> list[str]:
    """One explained hit, with a table of its words."""
    (hit,) = found["hits"]
    rows = [
        [unmarked(w["word"]), _matching(w), "expansion" if w["expansion"] else "query", f"{w['share']:.4f}"]
        for w in hit["words"]
    ]
    # The first line has no rank, since the document was given by id.
    lines = [line[3:] if n == 0 else line for n, line in enumerate(_hit(found, hit | {"words": []}, 1))]
    if hit["impact"] is not None:
        lines += ["", table(rows, ["word", "in the text", "from", "share"])] if rows else ["no word matches"]
    return lines


def _matching(word: dict[str, Any], most: int = 3) -> str:
    """The words of the text that match, if it is known."""
    return _some([unmarked(one) for one in word["text_words"]], most) or "-"


def _some(names: list[str], most: int = 5, total: int | None = None) -> str:
    left = (len(names) if total is None else total) - most
    more = f" and {left:,} more" if left > 0 else ""
    return ", ".join(names[:most]) + more
