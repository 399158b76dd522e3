"""Write the tables of experiments/records into experiments/archive.md, the README and the embedded model's card.

With --check, exit 1 when a page is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

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
"""Row of the budget of 5 million tokens -> the rows that it is compared with over all queries."""
PUBLIC = ("scifact", "vaswani", "cranfield", "cacm")
PAGES = (
    ROOT / "experiments" / "archive.md",
    ROOT / "README.md",
    ROOT / "dupmae_ir" / "default_model" / "README.md",
)


def headline(records: list[Record]) -> str:
    """Markdown: the embedded model next to BM25, MiniLM and their fusion, on the public collections."""
    table = score_tables(records, "systems", "bm25", ["nDCG@10"])[0]
    header, _, *lines = [_cells(line) for line in table.splitlines()]
    columns = [header.index(name) for name in PUBLIC]
    rows = []
    for cells in lines:
        title, mode = cells[:2]
        rows.append([title, mode, *(cells[column] for column in columns)])

    # The embedded model comes last; the others keep their order.
    ours = next(r["title"] for r in records if r["row"] == "embedded")
    rows.sort(key=lambda row: row[0] == ours)
    return _table([header[0], "", *PUBLIC], rows)


def pooled(records: list[Record], row: str, controls: tuple[str, ...]) -> str:
    """Markdown: a row's title, and its differences from each control over all queries: each part, then the sum."""
    title = next(r["title"] for r in records if r["row"] == row)
    differences = [pooled_table(records, row, controls, mode) for mode in MODES]
    return "\n\n".join([f"{title}:", *differences])


def _cells(line: str) -> list[str]:
    """The cells of a row without bold; an asterisk that marks a significant difference stays."""
    cells = []
    for cell in line.split("|")[1:-1]:
        text = cell.strip().removeprefix("**")
        # A bold value with a mark ends in three asterisks.
        cells.append(text.replace("***", "*").removesuffix("**"))
    return cells


def _table(header: list[str], rows: list[list[str]]) -> str:
    """Markdown, the best value of each column in bold. The first two cells of a row are the system and the mode."""
    scores = [[_score(cell) for cell in row[2:]] for row in rows]
    best_scores = [max(column) for column in zip(*scores, strict=True)]
    marked_rows = []
    for row in rows:
        marked = row[:2]
        for cell, best in zip(row[2:], best_scores, strict=True):
            marked.append(f"**{cell}**" if _score(cell) == best else cell)
        marked_rows.append(marked)
    return tables.markdown(header, marked_rows, 2)


def _score(cell: str) -> float:
    return float(cell.rstrip("*"))


def _join(parts: Iterable[str]) -> str:
    return "\n\n".join(parts)


if __name__ == "__main__":
    embedded = read_records(RECORDS / "embedded")
    cores = read_records(RECORDS / "cores")
    tokens = read_records(RECORDS / "tokens")
    parts = {
        "headline": lambda: headline(embedded),
        "embedded": lambda: _join(score_tables(embedded, "systems", "bm25")),
        "embedded_differences": lambda: _join(difference_table(embedded, c) for c in COMPETITORS),
        "embedded_pooled": lambda: pooled_table(embedded, "embedded", COMPETITORS),
        "scores": lambda: scores(embedded),
        "differences": lambda: difference_table(cores),
        "systems": lambda: _join(score_tables(cores, "systems")),
        "ablations": lambda: _join(score_tables(cores, "ablations", measures=["nDCG@10"])),
        "caps": lambda: _join(score_tables(cores, "caps", measures=["nDCG@10"])),
        "costs": lambda: cost_table(cores),
        "choice": lambda: choice(cores),
        "tokens": lambda: score_table(tokens, ["systems"], "none", "nDCG@10"),
        "tokens_differences": lambda: _join(difference_table(tokens, mode=mode) for mode in MODES),
        "tokens_pooled": lambda: _join(
            pooled(tokens, row, controls) for row, controls in PRETRAINED.items()
        ),
        "tokens_costs": lambda: cost_table(tokens),
    }
    write_or_check(PAGES, parts, "experiments/records")
