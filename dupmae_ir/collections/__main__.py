"""``python -m dupmae_ir.collections list|show|get|check``: see ``--help``."""

from __future__ import annotations

import sys
import textwrap
from typing import Any

from dupmae_ir.collections.config import CheckConfig, GetConfig, ListConfig, ShowConfig
from dupmae_ir.collections.run import describe, describe_cache, summarize
from dupmae_ir.command import Command, dispatch
from dupmae_ir.console import table

_WIDTH = 100


def _show_list(_: ListConfig, rows: list[dict[str, Any]]) -> str:
    cells = [[r["name"], _count(r["documents"]), " ".join(r["tests"]), r["state"]] for r in rows]
    return table(cells, ["collection", "documents", "tests", "state"])


def _list_notes(config: ListConfig, _: list[dict[str, Any]]) -> str:
    notes = describe_cache(config)
    return "\n".join(textwrap.fill(n, _WIDTH, subsequent_indent="  ", break_on_hyphens=False) for n in notes)


def _show_collection(config: ShowConfig, result: dict[str, Any]) -> str:
    lines = [f"{result['name']}: {result['title']}", *(_wrapped(label, text) for label, text in describe(config))]
    return "\n".join(lines)


def _show_prepared(_: GetConfig, manifests: list[dict[str, Any]]) -> str:
    return "\n".join(f"{m['name']}: {summarize(m)}\n  in {m['folder']}" for m in manifests)


def _show_check(_: CheckConfig, report: dict[str, dict[str, Any]]) -> str:
    return "\n".join(f"{name}: {'; '.join(e['problems']) or e['summary']}" for name, e in report.items())


def _check_status(_: CheckConfig, report: dict[str, dict[str, Any]]) -> int:
    return int(any(entry["problems"] for entry in report.values()))


def _wrapped(label: str, text: str) -> str:
    """Wraps text at words; addresses and paths are never broken."""
    lines = textwrap.wrap(text, _WIDTH - 20, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join(f"  {(label if i == 0 else '').ljust(18)}{line}" for i, line in enumerate(lines))


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


list_command = Command(
    "collections list", ListConfig, "dupmae_ir.collections.run:list_collections", summarize=_list_notes, show=_show_list
)
show_command = Command(
    "collections show", ShowConfig, "dupmae_ir.collections.run:show_collection", show=_show_collection
)
get_command = Command(
    "collections get", GetConfig, "dupmae_ir.collections.run:get_collections", show=_show_prepared, resumes=True
)
check_command = Command(
    "collections check",
    CheckConfig,
    "dupmae_ir.collections.run:check_collections",
    show=_show_check,
    status=_check_status,
)
VERBS = {
    "list": ("list all collections with documents, tests and state", list_command),
    "show": ("show everything known about a collection", show_command),
    "get": ("download, convert and verify collections; run again to resume", get_command),
    "check": ("read prepared collections again and compare; exit status 1 if there is a problem", check_command),
}


def main(argv: list[str] | None = None) -> int:
    """Run one of the four commands and return its exit status."""
    return dispatch("collections", VERBS, argv)


if __name__ == "__main__":
    sys.exit(main())
