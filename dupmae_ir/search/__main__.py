"""``python -m dupmae_ir.search``: see ``--help``."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from typing import Any

from dupmae_ir.config import parse
from dupmae_ir.console import Parser, guarded, say, table
from dupmae_ir.search.run import SearchConfig, run

PURPOSE = """
Search an index folder. Topics make a run file; one --query makes a readable answer.

Hybrid search ranks by the true sum <cls_q, cls_d> + <ot_q, ot_d>: every candidate is scored exactly on both sides, and
the lists are deepened until no unseen document can belong among the hits. Scores are in real units in every mode, so
hybrid = dense + impact. Equal scores are in docid order, here and in what trec_eval makes of the run.
"""
EXAMPLES = """
python -m dupmae_ir.search --index I --topics queries.jsonl --output run.trec
python -m dupmae_ir.search --index I --topics queries.jsonl --impact --hits 100 --output impact.trec
python -m dupmae_ir.search --index I --query "how do I wait for a thread to end" --corpus corpus.jsonl
python -m dupmae_ir.search --index I --query "how do I wait for a thread to end" --explain threading.Thread.join
"""


def main(argv: list[str] | None = None) -> int:
    return guarded(lambda: _main(argv), "dupmae-ir search")


def _main(argv: list[str] | None) -> int:
    config = parse(Parser("search", PURPOSE, EXAMPLES), SearchConfig, argv)
    found = run(config)
    if config.json:
        print(json.dumps(found, ensure_ascii=False))
    elif config.query is not None:
        say(_heading(found), config.quiet)
        print("\n".join(_explanation(found) if config.explain is not None else _answer(found)))
    else:
        say(_sentence(found), config.quiet)
    return 0


def _sentence(found: dict[str, Any]) -> str:
    """What a run says of itself when it is done."""
    rate = found["topics"] / found["seconds"] if found["seconds"] else 0
    text = f"{found['output']}: {found['topics']:,} topics, {found['mode']}, {found['seconds']:.1f} s ({rate:,.0f}/s)"
    if "certified" in found:
        reported = found["certified"] + len(found["uncertified"])
        depths = [
            f"{part} median {d['median']:,}, longest {d['max']:,}"
            for part in ("dense", "impact")
            if (d := found.get(f"depth_{part}"))
        ]
        text += f"\n  certified exact: {found['certified']:,} of {reported:,}; depth of lists: {'; '.join(depths)}"
    if (uncertified := found.get("uncertified")) and (approximate := _approximate(found)):
        text += f"\n  the others are not: {approximate}"
    elif uncertified:
        text += f"\n  not certified within --max-depth: {_some(uncertified)}"
    if found["blank"]:
        text += f"\n  {found['blank']:,} topics are blank and have no hits"
    if short := found.get("short"):
        text += f"\n  fewer documents than --hits, for want of passages (--passage-hits): {_some(short)}"
    if empty := found["without_hits"] - found["blank"]:
        text += f"\n  {empty:,} topics match nothing and are not in the run"
    return text


def _heading(found: dict[str, Any]) -> str:
    report = found["report"]
    if report is None:
        return f"{found['mode']}, {found['seconds']:.2f} s"
    state = "certified exact" if report["exact"] else f"not certified ({_approximate(found) or 'raise --max-depth'})"
    return (
        f"{found['mode']}, {state}: {report['candidates']:,} of {found['documents']:,} documents scored, "
        f"{found['seconds']:.2f} s"
    )


def _approximate(found: dict[str, Any]) -> str | None:
    """Why nothing is certified, in words; None where the dense index could."""
    dense = found.get("dense_index")
    if not dense or dense["exact"]:
        return None
    name, value = next((n, dense[n]) for n in ("nprobe", "ef_search") if n in dense)
    return f"{dense['kind']} is approximate, --{name.replace('_', '-')} {value} ({dense['reason']})"


def _answer(found: dict[str, Any]) -> list[str]:
    if not found["hits"]:
        return ["no document matches"]
    width = len(str(found["hits"][-1]["rank"]))
    return [line for hit in found["hits"] for line in _hit(found, hit, width)]


def _hit(found: dict[str, Any], hit: dict[str, Any], width: int) -> list[str]:
    """Rank, id and score; then title, text and matched terms, where they are known."""
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
    if hit.get("dense") is None or hit.get("impact") is None or found["mode"] in ("dense", "impact"):
        return ""
    if found["mode"] not in ("hybrid", "explain"):
        return f"  (dense {hit['dense']:.6g}, impact {hit['impact']:.6g})"
    d, i = ("" if w == 1 else f"{w:g} x " for w in found["weights"])
    return f" = {d}dense {hit['dense']:.6g} + {i}impact {hit['impact']:.6g}"


def _explanation(found: dict[str, Any]) -> list[str]:
    (hit,) = found["hits"]
    rows = [
        [t["term"], *(f"{t[column]:.4f}" for column in ("query_weight", "document_weight", "share"))]
        for t in hit["terms"]
    ]
    # The first line has no rank: the document was named, not found.
    lines = [line[3:] if n == 0 else line for n, line in enumerate(_hit(found, hit | {"terms": []}, 1))]
    if hit["impact"] is not None:
        lines += ["", table(rows, ["term", "query", "document", "share"])] if rows else ["no term matches"]
    return lines


def _some(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


if __name__ == "__main__":
    sys.exit(main())
