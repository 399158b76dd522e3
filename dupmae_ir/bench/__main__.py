"""``python -m dupmae_ir.bench``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.bench.config import BenchConfig
from dupmae_ir.command import Command
from dupmae_ir.console import table


def show(config: BenchConfig, result: dict[str, Any]) -> str:  # noqa: ARG001
    """The figures as a table, with those of recorded machines."""
    recorded = result["recorded"]
    rows = []
    for measure in result["measures"]:
        row = [measure["name"], f"{_short(measure['value'])} {measure['unit']}"]
        for record in recorded:
            values = {m["name"]: m["value"] for m in record["measures"]}
            row.append(_compared(measure, values.get(measure["name"])))
        rows.append(row)
    named = [f"machine {number}" for number, _ in enumerate(recorded, 1)]
    lines = [table(rows, [f"{result['documents']:,} documents", "here", *named]), "", f"here: {_machine(result)}"]
    return "\n".join([*lines, *(f"{name}: {_machine(r)}" for name, r in zip(named, recorded, strict=True))])


def _compared(measure: dict[str, Any], recorded: float | None) -> str:
    """A recorded figure, and how many times better (above 1) or worse this machine is."""
    if not recorded or not measure["value"]:
        return "-"
    times = measure["value"] / recorded if measure["more_is_better"] else recorded / measure["value"]
    return f"{_short(recorded)} ({times:.2f}x)"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _machine(result: dict[str, Any]) -> str:
    machine, load = result["machine"], result["load_average"]
    busy = "" if load is None else f", load average {load:.1f} before"
    return f"{machine['processor']}, {machine['cores']} cores, torch {machine['versions'].get('torch')}{busy}"


main = Command("bench", BenchConfig, "dupmae_ir.bench.run:run", show=show)

if __name__ == "__main__":
    main.exit()
