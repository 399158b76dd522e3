"""Write the tables of benchmarks/growth.md from records in benchmarks/results. With --check, exit 1 when old."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from make_scale import amount, row
from pages import ROOT, write_or_check

PAGE, RESULTS = ROOT / "benchmarks" / "growth.md", ROOT / "benchmarks" / "results"
LARGE = 10_000_000
PATIENCE = 0.1
"""Seconds that a person waits for a query without noticing."""
MEMORY = 2200
"""Bytes a document of vectors and postings."""
WORDS = {
    "index": "vectors, impacts, Lucene",
    "postings": "postings from the forward index",
    "open": "open and first answer",
    "query": "one hybrid query, 10 hits",
    "topics": "a query of a topic set, hybrid, 1,000 hits",
    "codes": "codes from the vectors",
    "query_codes": "one hybrid query, 10 hits, by codes",
}


def record(name: str) -> Mapping[str, Any]:
    """The details of a record."""
    return dict(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["details"])


def steps() -> str:
    """Markdown: processor time of every step by size, its exponent, and what ten million documents would take."""
    found = record("growth")
    sizes = found["documents"]
    lines = [
        row("step", *(f"{n:,}" for n in sizes), "exponent", f"{LARGE:,}, extrapolated"),
        "|:--|" + "--:|" * (len(sizes) + 2),
    ]
    for name, step in found["steps"].items():
        seconds = dict(zip(sizes, step["seconds"], strict=True))
        # Small sizes hide growth behind constant costs: no less than linear beyond the last, but for opening.
        lines.append(
            _line(WORDS[name], sizes, seconds, step["exponent"], 0.0 if name == "open" else 1.0)
        )
    scaling = record("encode_scaling")
    known = {r["passages"]: r["seconds"] for r in scaling["growth"]}
    lines.append(
        _line("the encode command, a tiny model", sizes, known, scaling["time_exponent"], 1.0)
    )
    return "\n".join(lines)


def limit() -> str:
    """Markdown: the documents whose hybrid query takes :data:`PATIENCE` on one core."""
    found = record("growth")
    size = found["documents"][-1]
    seconds = found["steps"]["query"]["seconds"][-1]
    most = round(size * PATIENCE / seconds, -5)
    return (
        f"With {duration(seconds)} for {size:,} documents, one core answers a hybrid query within "
        f"{duration(PATIENCE)} up to about **{most:,.0f} documents**, {MEMORY * most / 1e9:.1f} GB of vectors "
        f"and postings."
    )


def _line(
    name: str, sizes: Sequence[int], seconds: Mapping[int, float], exponent: float, least: float
) -> str:
    """``seconds`` by size, which may lack some of ``sizes``; they grow at least with the power ``least``."""
    cells = [duration(seconds[n]) if n in seconds else "" for n in sizes]
    last = max(seconds)
    beyond = seconds[last] * (LARGE / last) ** max(least, exponent)
    return row(name, *cells, f"{exponent:.2f}", duration(beyond))


def duration(seconds: float) -> str:
    """In the unit that suits it."""
    for size, unit in ((3600, "h"), (60, "min"), (1, "s")):
        if seconds >= 2 * size or (unit == "s" and seconds >= 1):
            return f"{amount(seconds / size)} {unit}"
    return f"{amount(1000 * seconds)} ms"


def room() -> str:
    """Markdown: bytes of a document, and memory of every step by size."""
    found = record("growth")
    sizes = found["documents"]
    lines = [row("", *(f"{n:,}" for n in sizes)), "|:--|" + "--:|" * len(sizes)]
    for name in ("index", "postings", "codes"):
        if name not in found["steps"]:
            continue
        each = [amount(b / n) for b, n in zip(found["steps"][name]["bytes"], sizes, strict=True)]
        lines.append(row(f"{WORDS[name]}: bytes a document", *each))
    for name in ("index", "postings", "query"):
        title = "search" if name == "query" else WORDS[name]
        lines.append(
            row(f"{title}: MB of memory", *(amount(m) for m in found["steps"][name]["megabytes"]))
        )
    memory = {r["passages"]: r["megabytes"] for r in record("encode_scaling")["growth"]}
    lines.append(
        row(
            "the encode command: MB of memory",
            *(amount(memory[n]) if n in memory else "" for n in sizes),
        )
    )
    return "\n".join(lines)


if __name__ == "__main__":
    parts = {"growth_steps": steps, "growth_room": room, "growth_limit": limit}
    write_or_check([PAGE], parts, "benchmarks/results/growth.json")
