"""Write the tables of :data:`PAGES` from benchmarks/results.

With --check, exit 1 when one is out of date.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pages import ROOT, write_or_check

sys.path.insert(0, str(ROOT / "benchmarks"))
import machine
from harness import PICTURES, RESULTS, Claim, figure, processor_kind

from dupmae_ir.tables import markdown

PAGES = (
    ROOT / "docs" / "performance.md",
    ROOT / "docs" / "serving.md",
    ROOT / "docs" / "models.md",
    ROOT / "docs" / "splade.md",
    ROOT / "docs" / "languages.md",
    ROOT / "benchmarks" / "archive.md",
)

Record = dict[str, Any]


def read_records() -> list[Record]:
    """All records, ordered by the first row that they have in the tables of goals, then by name."""
    unordered = []
    for path in sorted(RESULTS.glob("*.json")):
        unordered.append(json.loads(path.read_text(encoding="utf-8")))
    return sorted(unordered, key=lambda record: (_first_goal(record), record["name"]))


def _first_goal(record: Record) -> tuple[int, int]:
    """(round, row) of the first goal that the record belongs to; a record without claims comes last."""
    goals = [(claim.get("round", 1), claim["row"]) for claim in record["claims"]]
    return min(goals, default=(99, 0))


class SummaryRow(NamedTuple):
    """What identifies a row of a table of goals."""

    number: int
    what: str
    record: str
    ours: str
    peer: str


def summary(records: Sequence[Record], number: int) -> str:
    """Markdown: every claim of a round with its row, what was measured, the peer, the figures and the goal.

    A column for each kind of processor; a goal is reached if it is on all that have a record.
    """
    rows: dict[SummaryRow, dict[str, Claim]] = {}
    for claim, record in _claims(records):
        if claim.round == number:
            row = SummaryRow(claim.row, claim.what, record["name"], claim.ours, claim.peer)
            claim_of_kind = rows.setdefault(row, {})
            claim_of_kind[processor_kind(record)] = claim

    kinds = sorted(set().union(*rows.values()))
    headers = ["figure"]
    if len(kinds) > 1:
        headers = [f"figure, {kind}" for kind in kinds]
    lines = [
        f"| row | what | ours | against | {' | '.join(headers)} | goal | |",
        f"|--:|:--|:--|:--|{'--:|' * len(headers)}--:|:--|",
    ]
    # Stable: the claims of one row stay in the order of the records.
    for row in sorted(rows, key=lambda row: row.number):
        claim_of_kind = rows[row]
        claim = next(iter(claim_of_kind.values()))
        sign = "≥" if claim.sense == ">=" else "≤"
        figures = [f"**{figure(claim_of_kind[k])}**" if k in claim_of_kind else "" for k in kinds]
        reached = all(claim.reached for claim in claim_of_kind.values())
        cells = [
            str(row.number),
            f"{row.what} (`{row.record}`)",
            row.ours,
            row.peer,
            *figures,
            f"{sign} {claim.goal:g}{claim.unit}",
            "reached" if reached else "missed",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


SHOWN_CLAIMS = (
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
    ("serve", "serve, 5,268 documents, 8 clients, queries a second ("),
    ("encode_scaling", "memory of encode at its peak"),
    ("training", "pre-training, dupmae"),
)
"""Record and beginning of the claims that docs/performance.md shows."""


def shown_claims(records: Sequence[Record]) -> str:
    """Markdown: the claims of SHOWN_CLAIMS, one line per peer; of several kinds of processor the worse figure."""
    lines = ["| what | ours | against | figure |", "|:--|:--|:--|--:|"]
    for name, what in SHOWN_CLAIMS:
        worst: dict[tuple[str, str, str], Claim] = {}
        for claim, record in _claims(records):
            if record["name"] == name and claim.what.startswith(what):
                worse = min if claim.sense == ">=" else max
                row = (claim.what, claim.ours, claim.peer)
                worst[row] = worse(claim, worst.get(row, claim), key=lambda c: c.figure)
        if not worst:
            sys.exit(
                f"docs/make_performance.py: no claim of benchmarks/results/{name}.json begins with {what!r}"
            )
        lines += [f"| {c.what} | {c.ours} | {c.peer} | **{figure(c)}** |" for c in worst.values()]
    return "\n".join(lines)


def _claims(records: Sequence[Record]) -> Iterator[tuple[Claim, Record]]:
    for record in records:
        for claim in record["claims"]:
            yield Claim(**claim), record


def of_models(records: Sequence[Record], benchmark: str) -> str:
    """Markdown: the claims of a benchmark of other models, or its table, and where they were measured."""
    parts = []
    for record in records:
        if not record["name"].startswith(benchmark):
            continue
        claims = [Claim(**claim) for claim in record["claims"]]
        if claims:
            rows = [[c.what, c.ours, c.peer, figure(c)] for c in claims]
            table = markdown(["what", "ours", "against", "figure"], rows)
        else:
            table = _stored_table(record)
        machine = record["machine"]
        parts += [
            table,
            f"`{record['command']}`, {record['date']}, {machine['cpu']}, {machine['cores']} cores.",
        ]
    if not parts:
        return f"Not measured yet: `python benchmarks/{benchmark}.py`."
    return "\n\n".join(parts)


def noticed(records: Sequence[Record]) -> str:
    """Markdown: what a person notices, on the machines of benchmarks/machines.json and, at a million passages, from the
    records of encode_scaling and exact_scale."""
    machines = machine.records()
    figures = []
    for recorded in machines:
        figures.append({measure["name"]: measure["value"] for measure in recorded["measures"]})
    names = [_machine_name(recorded) for recorded in machines]
    rows = []
    for title, name, unit in (
        (
            f"{machine.DOCUMENTS:,} documents, until words can be searched",
            machine.WORDS_SEARCHED,
            "s",
        ),
        (
            f"{machine.DOCUMENTS:,} documents, until meaning can be, too",
            machine.MEANING_SEARCHED,
            "s",
        ),
        ("`search --query`, from the start of the process to its end", machine.FIRST_ANSWER, "s"),
        ("one query of an open index, median", f"{machine.ONE_QUERY}, median", "ms"),
    ):
        rows.append([title, *(f"{_rounded(values[name])} {unit}" for values in figures)])
    ten_thousand = []
    for values in figures:
        ten_thousand.append(f"{_rounded(10_000 / values['encode, both parts'])} s")
    rows.insert(2, ["10,000 documents, at the same rate", *ten_thousand])
    scale = next(record for record in records if record["name"] == "exact_scale")
    seconds = statistics.median(scale["seconds"]["hybrid top 10, 1,000,000 passages: rotated"])
    table = markdown(["", *names], rows)
    return (
        f"{table}\n\nFinding the ten best of a million passages of real text for an encoded query takes "
        f"{_rounded(1000 * seconds)} ms on one thread (`exact_scale`)."
    )


def _machine_name(recorded: Record) -> str:
    about = recorded["machine"]
    return f"{about['processor'].partition(' (')[0]}, {about['cores']} cores"


def engines(records: Sequence[Record]) -> str:
    """Markdown: queries a second of Lucene and of the postings by number of documents, ties by row."""
    figures_by_size = {}
    for record in records:
        if not record["name"].startswith("impact_engine"):
            continue
        for title, figures in record["details"].items():
            if title.endswith(" documents"):
                figures_by_size[title.removesuffix(" documents")] = figures

    rows = []
    for size in sorted(figures_by_size, key=lambda size: int(size.replace(",", ""))):
        cells = [size]
        for k in (1000, 10):
            rates = figures_by_size[size][f"queries_per_second_k{k}"]
            cells.append(_rounded(rates["ImpactSearcher (ours, Lucene)"]))
            cells.append(_rounded(rates["postings, ties by row"]))
        rows.append(cells)
    header = ["documents", "Lucene, k=1000", "postings, k=1000", "Lucene, k=10", "postings, k=10"]
    # The first column is a number as well.
    return markdown(header, rows).replace(":--", "--:", 1)


def servers(records: Sequence[Record]) -> str:
    """Markdown: requests a second and latencies of every server."""
    return _stored_table(next(r for r in reversed(records) if r["name"] == "serve"))


def _stored_table(record: Record) -> str:
    table = record["details"]["table"]
    return markdown(table["header"], table["rows"])


def _rounded(number: float) -> str:
    """Three digits, thousands separated."""
    rounded = float(f"{number:.3g}")
    # Above 1,000, "g" would switch to an exponent.
    return f"{rounded:,.3g}" if number < 1000 else f"{rounded:,.0f}"


def details(records: Sequence[Record]) -> str:
    """Markdown: a section for each record."""
    return "\n\n".join(_section(record) for record in records)


def _section(record: Record) -> str:
    machine = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    parts = [
        f"### {record['name']}",
        f"`{record['command']}`, {record['date']}: {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB; Python {machine['python']}, {versions}.",
    ]
    # Several claims can have the same gate or note, which is printed once.
    gates = dict.fromkeys(c["gate"] for c in record["claims"] if c["gate"])
    if gates:
        parts.append("Checked before timing: " + "; ".join(gates) + ".")
    tables = _rates(record["details"])
    if tables:
        parts.append(tables)
    notes = dict.fromkeys(f"- {c['what']}: {c['note']}." for c in record["claims"] if c["note"])
    if notes:
        parts.append("\n".join(notes))
    if (PICTURES / f"{record['name']}.png").is_file():
        parts.append(f"![{record['name']}](../docs/pictures/performance/{record['name']}.png)")
    return "\n\n".join(parts)


def _rates(details: dict[str, Any]) -> str:
    """Markdown: the tables of speeds in a record, and the growth with size if it was measured."""
    tables = []
    for key, value in details.items():
        if key.endswith("_per_second") and isinstance(value, dict) and _numbers(value.values()):
            unit = key.removesuffix("_per_second").replace("_", " ")
            rows = [[name, f"{rate:,.1f}"] for name, rate in value.items()]
            tables.append(markdown(["", f"{unit}/s"], rows))
        if key in ("table", "stages"):
            tables.append(markdown(value["header"], value["rows"]))
        if key == "growth":
            names = list(value[0])
            header = [name.replace("_", " ") for name in names]
            rows = []
            for measured in value:
                rows.append([f"{measured[name]:,.0f}" for name in names])
            tables.append(markdown(header, rows))
        if key.endswith("_exponent"):
            what = key.removesuffix("_exponent")
            tables.append(f"{what[0].upper()}{what[1:]} grows as size to the power of {value:.2f}.")
    return "\n\n".join(tables)


def _numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(v, int | float) for v in values)


if __name__ == "__main__":
    all_records = read_records()
    parts = {
        "noticed": lambda: noticed(all_records),
        "key": lambda: shown_claims(all_records),
        "summary": lambda: summary(all_records, 1),
        "second": lambda: summary(all_records, 2),
        "third": lambda: summary(all_records, 3),
        "engines": lambda: engines(all_records),
        "details": lambda: details(all_records),
        "servers": lambda: servers(all_records),
        "models_speed": lambda: of_models(all_records, "models_speed"),
        "multilingual": lambda: of_models(all_records, "multilingual"),
        "splade_memory": lambda: of_models(all_records, "splade_memory"),
    }
    write_or_check(PAGES, parts, "benchmarks/results")
