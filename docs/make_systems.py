"""Write the tables of experiments/records into experiments/archive.md, the README and the embedded model's card.

With --check, exit 1 when a page is out of date.
"""

from __future__ import annotations

import sys

from pages import ROOT, write_or_check

sys.path.insert(0, str(ROOT / "experiments"))
from embedded import scores
from records import Record, read_records
from tables import choice, cost_table, difference_table, pooled_table, score_table, score_tables

from dupmae_ir import tables

RECORDS = ROOT / "experiments" / "records"
COMPETITORS = ("bm25", "minilm", "fused-rrf", "fused-min-max")
MODES = ("dense", "impact", "hybrid")
PRETRAINED = {"dupmae": ("none", "mlm", "retromae"), "retromae": ("none", "mlm")}
"""Rows of the budget of 5 million tokens, and those that they are compared with over all queries."""
PUBLIC = ("scifact", "vaswani", "cranfield", "cacm")
PAGES = (
    ROOT / "experiments" / "archive.md",
    ROOT / "README.md",
    ROOT / "dupmae_ir" / "default_model" / "README.md",
)


def headline(records: list[Record]) -> str:
    """Markdown: the embedded model beside BM25, MiniLM and their fusion, on the public collections."""
    header, _, *lines = [
        _cells(line)
        for line in score_tables(records, "systems", "bm25", ["nDCG@10"])[0].splitlines()
    ]
    columns = [header.index(name) for name in PUBLIC]
    rows = [[title, mode, *(cells[c - 2] for c in columns)] for title, mode, *cells in lines]
    ours = next(r["title"] for r in records if r["row"] == "embedded")
    return _table([header[0], "", *PUBLIC], sorted(rows, key=lambda row: row[0] == ours))


def pooled(records: list[Record], row: str, controls: tuple[str, ...]) -> str:
    """Markdown: a row's title, and its differences from each control over all queries: each half, then the sum."""
    title = next(r["title"] for r in records if r["row"] == row)
    return "\n\n".join(
        [f"{title}:", *(pooled_table(records, row, controls, mode) for mode in MODES)]
    )


def _cells(line: str) -> list[str]:
    return [
        cell.strip().removeprefix("**").replace("***", "*").removesuffix("**")
        for cell in line.split("|")[1:-1]
    ]


def _table(header: list[str], rows: list[list[str]]) -> str:
    """Markdown, the best value of each column in bold."""
    values = [[float(cell.rstrip("*")) for cell in row[2:]] for row in rows]
    best = [max(column) for column in zip(*values, strict=True)]
    marked = [
        [
            *row[:2],
            *(f"**{c}**" if v == b else c for c, v, b in zip(row[2:], found, best, strict=True)),
        ]
        for row, found in zip(rows, values, strict=True)
    ]
    return tables.markdown(header, marked, 2)


if __name__ == "__main__":
    embedded, cores, tokens = (
        read_records(RECORDS / name) for name in ("embedded", "cores", "tokens")
    )
    parts = {
        "headline": lambda: headline(embedded),
        "embedded": lambda: "\n\n".join(score_tables(embedded, "systems", "bm25")),
        "embedded_differences": lambda: "\n\n".join(
            difference_table(embedded, c) for c in COMPETITORS
        ),
        "embedded_pooled": lambda: pooled_table(embedded, "embedded", COMPETITORS),
        "scores": lambda: scores(embedded),
        "differences": lambda: difference_table(cores),
        "systems": lambda: "\n\n".join(score_tables(cores, "systems")),
        "ablations": lambda: "\n\n".join(score_tables(cores, "ablations", measures=["nDCG@10"])),
        "caps": lambda: "\n\n".join(score_tables(cores, "caps", measures=["nDCG@10"])),
        "costs": lambda: cost_table(cores),
        "choice": lambda: choice(cores),
        "tokens": lambda: score_table(tokens, ["systems"], "none", "nDCG@10"),
        "tokens_differences": lambda: "\n\n".join(
            difference_table(tokens, mode=mode) for mode in MODES
        ),
        "tokens_pooled": lambda: "\n\n".join(
            pooled(tokens, row, against) for row, against in PRETRAINED.items()
        ),
        "tokens_costs": lambda: cost_table(tokens),
    }
    write_or_check(PAGES, parts, "experiments/records")
