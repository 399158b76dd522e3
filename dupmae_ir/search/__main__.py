"""``python -m dupmae_ir.search``: see ``--help``."""

from __future__ import annotations

import shutil
import textwrap
from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.console import megabytes, table
from dupmae_ir.search.config import SearchConfig

PURPOSE = """
Search an index folder. --topics writes a run file; --query prints the hits of one query.

Hybrid search ranks by the exact sum <cls_q, cls_d> + <ot_q, ot_d>: every candidate is scored exactly on both sides, and
the lists are deepened until no unseen document can be among the hits. With --bm25-index, BM25 scores of the same
documents are a third part of the sum, with the same guarantee. Scores are in real units in every mode, so
hybrid = dense + impact. Equal scores are in docid order, here and in trec_eval's reading of the run.
"""
EXAMPLES = """
python -m dupmae_ir.search --index I --topics queries.jsonl --output run.trec
python -m dupmae_ir.search --index I --topics queries.jsonl --impact --hits 100 --output impact.trec
python -m dupmae_ir.search --index I --topics queries.jsonl --bm25-index I2 --bm25-weight 0.6 --output run.trec
python -m dupmae_ir.search --index I --query "how do I wait for a thread to end" --corpus corpus.jsonl
python -m dupmae_ir.search --index I --query "how do I wait for a thread to end" --explain threading.Thread.join
"""


def summarize(config: SearchConfig, result: dict[str, Any]) -> str:
    """The line about the run, or of the query for standard error."""
    if config.json:
        return ""
    return _summary_of_run(result) if config.query is None else _summary_of_query(result)


def show(config: SearchConfig, result: dict[str, Any]) -> str:
    """The text for standard output."""
    if config.query is None:
        return ""
    return "\n".join(_explanation(result) if config.explain is not None else _hits(result))


def _summary_of_run(found: dict[str, Any]) -> str:
    rate = found["topics"] / found["seconds"] if found["seconds"] else 0
    mode = f"{found['mode']}{_joined(found)}"
    text = f"{found['output']}: {found['topics']:,} topics, {mode}, {found['seconds']:.1f} s ({rate:,.0f}/s)"
    if "certified" in found:
        reported = found["exact"] + len(found["uncertified"])
        depths = [
            f"{part} median {d['median']:,}, longest {d['max']:,}"
            for part in ("dense", "impact", "bm25")
            if (d := found.get(f"depth_{part}"))
        ]
        text += f"\n  {_exact(found)}: {found['exact']:,} of {reported:,}; depth of lists: {'; '.join(depths)}"
    if (uncertified := found.get("uncertified")) and (approximate := _approximate(found)):
        text += f"\n  the others are not certified: {approximate}"
    elif uncertified:
        text += f"\n  not certified within --max-depth: {_some(uncertified)}"
    if found["blank"]:
        text += f"\n  {found['blank']:,} topics are blank and have no hits"
    if short := found.get("short"):
        text += f"\n  fewer documents than --hits because --passage-hits is too small: {_some(short)}"
    if empty := found["without_hits"] - found["blank"]:
        text += f"\n  {empty:,} topics match nothing and are not in the run"
    return text


def _summary_of_query(found: dict[str, Any]) -> str:
    report = found["report"]
    if report is None:
        return f"{found['mode']}, {found['seconds']:.2f} s"
    state = _exact(found) if report["exact"] else f"not certified ({_approximate(found) or 'raise --max-depth'})"
    mode = f"{found['mode']}{_joined(found)}"
    return (
        f"{mode}, {state}: {report['candidates']:,} of {found['documents']:,} documents scored, "
        f"{found['seconds']:.2f} s"
    )


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
    dense = found.get("dense_index")
    if not dense or dense["exact"]:
        return None
    name, value = next((n, dense[n]) for n in ("nprobe", "ef_search") if n in dense)
    return f"{dense['kind']} is approximate, --{name.replace('_', '-')} {value} ({dense['reason']})"


def _hits(found: dict[str, Any]) -> list[str]:
    if not found["hits"]:
        return ["no document matches"]
    width = len(str(found["hits"][-1]["rank"]))
    return [line for hit in found["hits"] for line in _hit(found, hit, width)]


def _hit(found: dict[str, Any], hit: dict[str, Any], width: int) -> list[str]:
    """Rank, id and score; then title, text and matched terms, if known."""
    indent = " " * (width + 2)
    lines = [f"{hit['rank']:>{width}}  {hit['docid']}  {hit['score']:.6g}{_shares(found, hit)}"]
    if hit.get("title") or hit.get("text"):
        text = " ".join(f"{hit['title'] or ''}  {hit['text'] or ''}".split())
        columns = min(100, shutil.get_terminal_size((100, 24)).columns)
        room = max(20, columns - len(indent))
        lines += [indent + line for line in textwrap.wrap(text, room, max_lines=2, placeholder=" ...")]
    if terms := hit.get("terms"):
        more = hit["matched_terms"] - len(terms)
        shown = ", ".join(f"{t['term']} {t['share']:.4g}" for t in terms)
        lines.append(f"{indent}terms: {shown}{f' and {more} more' if more else ''}")
    return lines


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


def _explanation(found: dict[str, Any]) -> list[str]:
    (hit,) = found["hits"]
    rows = [
        [t["term"], *(f"{t[column]:.4f}" for column in ("query_weight", "document_weight", "share"))]
        for t in hit["terms"]
    ]
    # The first line has no rank, since the document was given by id.
    lines = [line[3:] if n == 0 else line for n, line in enumerate(_hit(found, hit | {"terms": []}, 1))]
    if hit["impact"] is not None:
        lines += ["", table(rows, ["term", "query", "document", "share"])] if rows else ["no term matches"]
    return lines


def _some(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


main = Command("search", PURPOSE, EXAMPLES, SearchConfig, "dupmae_ir.search.run:run", summarize=summarize, show=show)

if __name__ == "__main__":
    main.exit()
