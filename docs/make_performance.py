"""Write the tables of :data:`PAGES` from benchmarks/results.

With --check, exit 1 when one is out of date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pages import ROOT, write_or_check

sys.path.insert(0, str(ROOT / "benchmarks"))
from harness import PICTURES, RESULTS, Claim, figure, processor_kind

from dupmae_ir.tables import markdown

PAGES = tuple(
    ROOT / name
    for name in (
        "docs/performance.md",
        "docs/serving.md",
        "docs/models.md",
        "docs/splade.md",
        "benchmarks/archive.md",
    )
)

Record = dict[str, Any]


def records() -> list[Record]:
    """All records, ordered by the table of goals and its first row that they belong to."""
    found = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))
    ]
    return sorted(
        found,
        key=lambda r: (
            min([(c.get("round", 1), c["row"]) for c in r["claims"]], default=(99, 0)),
            r["name"],
        ),
    )


def summary(found: Sequence[Record], number: int) -> str:
    """Markdown: every claim of a round with its row, what was measured, the peer, the figures and the goal.

    A column for each kind of processor; a goal is reached if it is on all that have a record.
    """
    rows: dict[tuple[Any, ...], dict[str, Claim]] = {}
    for c, record in _claims(found):
        if c.round == number:
            rows.setdefault((c.row, c.what, record["name"], c.ours, c.peer), {})[
                processor_kind(record)
            ] = c
    kinds = sorted({kind for figures in rows.values() for kind in figures})
    headers = [f"figure, {kind}" for kind in kinds] if len(kinds) > 1 else ["figure"]
    lines = [
        f"| row | what | ours | against | {' | '.join(headers)} | goal | |",
        f"|--:|:--|:--|:--|{'--:|' * len(headers)}--:|:--|",
    ]
    for (row, what, name, ours, peer), figures in sorted(rows.items(), key=lambda pair: pair[0][0]):
        c = next(iter(figures.values()))
        goal = f"{'≥' if c.sense == '>=' else '≤'} {c.goal:g}{c.unit}"
        cells = " | ".join(
            f"**{figure(figures[kind])}**" if kind in figures else "" for kind in kinds
        )
        reached = "reached" if all(each.reached for each in figures.values()) else "missed"
        lines.append(
            f"| {row} | {what} (`{name}`) | {ours} | {peer} | {cells} | {goal} | {reached} |"
        )
    return "\n".join(lines)


KEY = (
    ("encode", "encode passages, both in float32"),
    ("encode", "encode passages, bfloat16 against float32"),
    ("encode_peers", "encode both parts, 99 % of the words"),
    ("head", "OT head, d = 768: peak memory"),
    ("impact_writer", "build impact postings, one thread: synthetic"),
    ("impact_engine", "100 queries, 100,000 documents, k=1000"),
    ("impact_engine", "20 queries, 8,800,000 documents, k=1000"),
    ("impact_peers_encoded", "one query, 150,000 encoded passages, k=10,"),
    ("hybrid", "hybrid, exact top 1,000"),
    ("latency", "one query, encode and hybrid top 10"),
    ("startup", "first answer, time"),
    ("serve", "serve, 8 clients, queries a second"),
    ("encode_scaling", "memory of encode at its peak"),
    ("training", "pre-training, dupmae"),
)
"""Record and beginning of the claims that docs/performance.md shows."""


def key(found: Sequence[Record]) -> str:
    """Markdown: the claims of KEY, one line per peer; of several kinds of processor the worse figure."""
    lines = ["| what | ours | against | figure |", "|:--|:--|:--|--:|"]
    for name, what in KEY:
        claims: dict[tuple[str, str, str], Claim] = {}
        for c, record in _claims(found):
            if record["name"] == name and c.what.startswith(what):
                worse = min if c.sense == ">=" else max
                of = (c.what, c.ours, c.peer)
                claims[of] = worse(c, claims.get(of, c), key=lambda each: each.figure)
        if not claims:
            sys.exit(
                f"docs/make_performance.py: no claim of benchmarks/results/{name}.json begins with {what!r}"
            )
        lines += [f"| {c.what} | {c.ours} | {c.peer} | **{figure(c)}** |" for c in claims.values()]
    return "\n".join(lines)


def _claims(found: Sequence[Record]) -> Iterator[tuple[Claim, Record]]:
    return ((Claim(**c), record) for record in found for c in record["claims"])


def of_models(found: Sequence[Record], benchmark: str) -> str:
    """Markdown: the claims of a benchmark of other models, or its table, and where they were measured."""
    parts = []
    for record in found:
        if record["name"].startswith(benchmark):
            claims = [Claim(**c) for c in record["claims"]]
            header, rows = (
                ["what", "ours", "against", "figure"],
                [[c.what, c.ours, c.peer, figure(c)] for c in claims],
            )
            kept = record["details"]["table"]
            table = markdown(header, rows) if rows else markdown(kept["header"], kept["rows"])
            machine = record["machine"]
            parts += [
                table,
                f"`{record['command']}`, {record['date']}, {machine['cpu']}, {machine['cores']} cores.",
            ]
    return "\n\n".join(parts) or f"Not measured yet: `python benchmarks/{benchmark}.py`."


def engines(found: Sequence[Record]) -> str:
    """Markdown: queries a second of Lucene and of the postings by number of documents, best hits by row."""
    measured = {
        size: figures
        for record in found
        if record["name"].startswith("impact_engine")
        for size, figures in record["details"].items()
        if size.endswith(" documents")
    }
    names = ("ImpactSearcher (ours, Lucene)", "postings, ties by row")
    rows = [
        [
            size.removesuffix(" documents"),
            *(f"{_rounded(f[f'queries_per_second_k{k}'][n])}" for k in (1000, 10) for n in names),
        ]
        for size, f in sorted(
            measured.items(), key=lambda pair: int(pair[0].split()[0].replace(",", ""))
        )
    ]
    header = ["documents", "Lucene, k=1000", "postings, k=1000", "Lucene, k=10", "postings, k=10"]
    return markdown(header, rows).replace(":--", "--:", 1)


def servers(found: Sequence[Record]) -> str:
    """Markdown: requests a second and latencies of every server."""
    kept = next(
        record["details"]["table"] for record in reversed(found) if record["name"] == "serve"
    )
    return markdown(kept["header"], kept["rows"])


def _rounded(number: float) -> str:
    """Three digits."""
    return f"{float(f'{number:.3g}'):,.3g}" if number < 1000 else f"{float(f'{number:.3g}'):,.0f}"


def details(found: Sequence[Record]) -> str:
    """Markdown: a section for each record."""
    return "\n\n".join(_section(record) for record in found)


def _section(record: Record) -> str:
    machine = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    parts = [
        f"### {record['name']}",
        f"`{record['command']}`, {record['date']}: {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB; Python {machine['python']}, {versions}.",
    ]
    gates = list(dict.fromkeys(c["gate"] for c in record["claims"] if c["gate"]))
    if gates:
        parts.append("Checked before timing: " + "; ".join(gates) + ".")
    if tables := _rates(record["details"]):
        parts.append(tables)
    notes = list(
        dict.fromkeys(f"- {c['what']}: {c['note']}." for c in record["claims"] if c["note"])
    )
    if notes:
        parts.append("\n".join(notes))
    if (PICTURES / f"{record['name']}.png").is_file():
        parts.append(f"![{record['name']}](../docs/pictures/performance/{record['name']}.png)")
    return "\n\n".join(parts)


def _rates(details: dict[str, Any]) -> str:
    """Markdown: the tables of speeds in a record, and the growth with size where it was measured."""
    tables = []
    for key, value in details.items():
        if key.endswith("_per_second") and isinstance(value, dict) and _numbers(value.values()):
            unit = key.removesuffix("_per_second").replace("_", " ")
            tables.append(markdown(["", f"{unit}/s"], [[n, f"{v:,.1f}"] for n, v in value.items()]))
        if key == "table":
            tables.append(markdown(value["header"], value["rows"]))
        if key == "growth":
            names = list(value[0])
            rows = [[f"{row[n]:,.0f}" for n in names] for row in value]
            tables.append(markdown([n.replace("_", " ") for n in names], rows))
        if key.endswith("_exponent"):
            what = key.removesuffix("_exponent")
            tables.append(f"{what[0].upper()}{what[1:]} grows as size to the power of {value:.2f}.")
    return "\n\n".join(tables)


def _numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(v, int | float) for v in values)


if __name__ == "__main__":
    found = records()
    parts = {
        "key": lambda: key(found),
        "summary": lambda: summary(found, 1),
        "second": lambda: summary(found, 2),
        "third": lambda: summary(found, 3),
        "engines": lambda: engines(found),
        "details": lambda: details(found),
        "servers": lambda: servers(found),
        "models_speed": lambda: of_models(found, "models_speed"),
        "splade_memory": lambda: of_models(found, "splade_memory"),
    }
    write_or_check(PAGES, parts, "benchmarks/results")
