"""Write the tables of benchmarks/growth.md from records in benchmarks/results. With --check, exit 1 when old."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from make_scale import amount, row
from pages import ROOT, write_or_check

PAGE = ROOT / "benchmarks" / "growth.md"
RESULTS = ROOT / "benchmarks" / "results"
EXTRAPOLATED_SIZE = 10_000_000
UNNOTICED_SECONDS = 0.1
"""Seconds that a person waits for a query without noticing."""
DOCUMENT_BYTES = 2200
"""Vector and postings of a document."""
STEP_TITLES = {
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
    growth = record("growth")
    sizes = growth["documents"]
    header = [f"{n:,}" for n in sizes]
    lines = [
        row("step", *header, "exponent", f"{EXTRAPOLATED_SIZE:,}, extrapolated"),
        "|:--|" + "--:|" * (len(sizes) + 2),
    ]
    for name, step in growth["steps"].items():
        seconds = dict(zip(sizes, step["seconds"], strict=True))
        # Small sizes hide growth behind constant costs, so every step except opening is extrapolated linearly at least.
        min_exponent = 0.0 if name == "open" else 1.0
        lines.append(_line(STEP_TITLES[name], sizes, seconds, step["exponent"], min_exponent))

    scaling = record("encode_scaling")
    seconds = {r["passages"]: r["seconds"] for r in scaling["growth"]}
    title = "the encode command, a tiny model"
    lines.append(_line(title, sizes, seconds, scaling["time_exponent"], 1.0))
    return "\n".join(lines)


def limit() -> str:
    """Markdown: how many documents a hybrid query on one core searches in :data:`UNNOTICED_SECONDS`."""
    growth = record("growth")
    size = growth["documents"][-1]
    seconds = growth["steps"]["query"]["seconds"][-1]
    max_documents = round(size * UNNOTICED_SECONDS / seconds, -5)
    gigabytes = DOCUMENT_BYTES * max_documents / 1e9
    return (
        f"With {duration(seconds)} for {size:,} documents, one core answers a hybrid query within "
        f"{duration(UNNOTICED_SECONDS)} up to about **{max_documents:,.0f} documents**, {gigabytes:.1f} GB of "
        "vectors and postings."
    )


def _line(
    name: str,
    sizes: Sequence[int],
    seconds: Mapping[int, float],
    exponent: float,
    min_exponent: float,
) -> str:
    """A row of the times; ``seconds`` may lack sizes, and grows with ``min_exponent`` at least beyond the last one."""
    cells = [duration(seconds[n]) if n in seconds else "" for n in sizes]
    last_size = max(seconds)
    factor = (EXTRAPOLATED_SIZE / last_size) ** max(min_exponent, exponent)
    return row(name, *cells, f"{exponent:.2f}", duration(seconds[last_size] * factor))


def duration(seconds: float) -> str:
    """In hours or minutes from two of them on, in seconds from one on, else in milliseconds."""
    if seconds >= 2 * 3600:
        return f"{amount(seconds / 3600)} h"
    if seconds >= 2 * 60:
        return f"{amount(seconds / 60)} min"
    if seconds >= 1:
        return f"{amount(seconds)} s"
    return f"{amount(1000 * seconds)} ms"


def space() -> str:
    """Markdown: bytes of a document, and memory of every step by size."""
    growth = record("growth")
    sizes = growth["documents"]
    header = [f"{n:,}" for n in sizes]
    lines = [row("", *header), "|:--|" + "--:|" * len(sizes)]

    for name in ("index", "postings", "codes"):
        if name not in growth["steps"]:
            continue
        step_bytes = growth["steps"][name]["bytes"]
        cells = [amount(b / n) for b, n in zip(step_bytes, sizes, strict=True)]
        lines.append(row(f"{STEP_TITLES[name]}: bytes a document", *cells))

    titles = {**STEP_TITLES, "query": "search"}
    for name in ("index", "postings", "query"):
        cells = [amount(megabytes) for megabytes in growth["steps"][name]["megabytes"]]
        lines.append(row(f"{titles[name]}: MB of memory", *cells))

    memory = {r["passages"]: r["megabytes"] for r in record("encode_scaling")["growth"]}
    cells = [amount(memory[n]) if n in memory else "" for n in sizes]
    lines.append(row("the encode command: MB of memory", *cells))
    return "\n".join(lines)


if __name__ == "__main__":
    parts = {"growth_steps": steps, "growth_room": space, "growth_limit": limit}
    write_or_check([PAGE], parts, "benchmarks/results/growth.json")
