"""``python -m dupmae_ir.collections list|show|get``: see ``--help``."""

from __future__ import annotations

import dataclasses
import json
import sys
import textwrap
from collections.abc import Mapping

from dupmae_ir.collections.run import (
    CollectionRow,
    GetCollectionsConfig,
    ListCollectionsConfig,
    ShowCollectionConfig,
    describe,
    describe_cache,
)
from dupmae_ir.command import Command, dispatch
from dupmae_ir.console import table

_WIDTH = 100


def _show_list(_: ListCollectionsConfig, rows: list[CollectionRow]) -> str:
    cells = [
        [r.name, "?" if r.documents is None else f"{r.documents:,}", " ".join(r.tests), r.state]
        for r in rows
    ]
    return table(cells, ["collection", "documents", "tests", "state"])


def _list_notes(config: ListCollectionsConfig, _: list[CollectionRow]) -> str:
    notes = describe_cache(config)
    return "\n".join(
        textwrap.fill(n, _WIDTH, subsequent_indent="  ", break_on_hyphens=False) for n in notes
    )


def _show_collection(config: ShowCollectionConfig, result: Mapping[str, object]) -> str:
    lines = [f"{result['name']}: {result['title']}"]
    for label, text in describe(config):
        # Addresses and paths are never broken.
        parts = textwrap.wrap(
            text, _WIDTH - 20, break_long_words=False, break_on_hyphens=False
        ) or [""]
        lines += [f"  {(label if i == 0 else '').ljust(18)}{part}" for i, part in enumerate(parts)]
    return "\n".join(lines)


WORK = "dupmae_ir.collections.run"
list_command = Command(
    "collections list",
    ListCollectionsConfig,
    f"{WORK}:list_collections",
    summarize=_list_notes,
    show=_show_list,
    as_json=lambda _, made: json.dumps(made, ensure_ascii=False, default=dataclasses.asdict),
)
show_command = Command(
    "collections show", ShowCollectionConfig, f"{WORK}:show_collection", show=_show_collection
)
get_command = Command(
    "collections get",
    GetCollectionsConfig,
    f"{WORK}:get_collections",
    show=lambda _, made: "\n".join(
        f"{m['name']}: {m['summary']}\n  in {m['folder']}" for m in made
    ),
    resumes=True,
)
VERBS = {
    "list": ("list all collections with documents, tests and state", list_command),
    "show": ("show everything known about a collection", show_command),
    "get": ("download, convert and verify collections; run again to resume", get_command),
}


def main(argv: list[str] | None = None) -> int:
    """Run one of the three commands and return its exit status."""
    return dispatch("collections", VERBS, argv)


if __name__ == "__main__":
    sys.exit(main())
