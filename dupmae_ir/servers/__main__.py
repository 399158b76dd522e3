"""``python -m dupmae_ir.servers VERB``: see ``--help``."""

from __future__ import annotations

import sys

from dupmae_ir.command import Command, dispatch
from dupmae_ir.console import megabytes
from dupmae_ir.servers.config import DropConfig, LoadConfig, ShowTableConfig, VerifyTableConfig


def summarize_load(config: LoadConfig, result: dict[str, object]) -> str:
    """How many rows were written, deleted and unchanged, and the size of the table."""
    counts = []
    for action in ("written", "deleted", "unchanged"):
        count = result[f"{action}_now"]
        if count:
            counts.append(f"{count:,} {action}")
    rows = ", ".join(counts) or "empty"
    size = ""
    if isinstance(result["bytes"], int):
        size = f", {megabytes(result['bytes'])}"
    return (
        f"{config.index} in {result['server']}, table {result['table']}: {rows}; "
        f"{result['documents']:,} documents{size}, {result['seconds']:.1f} s"
    )


def show_record(_: ShowTableConfig, result: dict[str, object]) -> str:
    """The record, one field a line."""
    return "\n".join(f"{name}: {value}" for name, value in result.items())


def summarize_verification(config: VerifyTableConfig, result: dict[str, object]) -> str:
    """How many rows were compared, and when they were loaded."""
    return (
        f"{config.table}: all {result['documents']:,} rows are as they were loaded at {result['loaded']}, "
        f"{result['seconds']:.1f} s"
    )


def summarize_drop(config: DropConfig, result: dict[str, object]) -> str:
    """How many documents the table had."""
    return f"{config.table}: dropped, {result['documents']:,} documents"


load = Command(
    "servers load", LoadConfig, "dupmae_ir.servers.load:run", summarize=summarize_load, resumes=True
)
show = Command("servers show", ShowTableConfig, "dupmae_ir.servers.load:show", show=show_record)
verify = Command(
    "servers verify",
    VerifyTableConfig,
    "dupmae_ir.servers.load:verify",
    summarize=summarize_verification,
)
drop = Command("servers drop", DropConfig, "dupmae_ir.servers.load:drop", summarize=summarize_drop)

VERBS = {
    "load": ("load an index into a server, or push what changed", load),
    "show": ("what a table of a server holds", show),
    "verify": ("compare every row of a table with what was loaded", verify),
    "drop": ("remove a table", drop),
}


def main(argv: list[str] | None = None) -> int:
    """Run one of the verbs and return its exit status."""
    return dispatch("servers", VERBS, argv)


if __name__ == "__main__":
    sys.exit(main())
