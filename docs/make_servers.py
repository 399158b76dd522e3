"""Write the table of benchmarks/results/servers/parity.json into docs/servers.md.

With --check, exit 1 when the page is out of date.
"""

from __future__ import annotations

import json

from pages import ROOT, write_or_check

from dupmae_ir.tables import markdown

RECORD = ROOT / "benchmarks" / "results" / "servers" / "parity.json"
PAGE = ROOT / "docs" / "servers.md"


def milliseconds(row: dict[str, float], name: str) -> str:
    """A time of a row; a dash for one that was not measured."""
    if name not in row:
        return "-"
    return f"{1000 * row[name]:.0f}"


def latencies(row: dict[str, float], k: int) -> str:
    """Median latencies of a local index, of the server with one client, and of the server with several."""
    local = milliseconds(row, f"p50_{k}_local")
    one_client = milliseconds(row, f"p50_{k}")
    many_clients = milliseconds(row, f"p50_{k}_many")
    return f"{local}, {one_client}, {many_clients}"


def parity() -> str:
    """Markdown: one row for each server and collection."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    hits = record["hits"]
    clients = record["clients"]
    header = [
        "server",
        "collection",
        "identical lists",
        "certified",
        "the server's own scores differ by at most",
        "load, s",
        "bytes",
        f"k = 10, ms: local, 1 client, {clients} clients",
        f"k = {hits}, ms: local, 1 client, {clients} clients",
    ]
    rows = []
    for row in record["rows"]:
        size = "not reported"
        if row["bytes"]:
            size = f"{row['bytes'] / 1e6:.0f} MB"
        cells = [
            row["server"],
            f"{row['collection']} ({row['documents']:,})",
            f"{row['identical']} of {row['topics']}",
            str(row["certified"]),
            f"{row['own_error']:.1e}",
            f"{row['load_seconds']:.1f}",
            size,
            latencies(row, 10),
            latencies(row, hits),
        ]
        rows.append(cells)
    return markdown(header, rows, 2)


if __name__ == "__main__":
    write_or_check([PAGE], {"parity": parity}, "benchmarks/results/servers/parity.json")
