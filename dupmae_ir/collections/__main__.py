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
_INDENT = 20
"""Columns of the labels in ``show``."""


def _show_list(_: ListCollectionsConfig, rows: list[CollectionRow]) -> str:
    cells = []
    for row in rows:
        documents = "?" if row.documents is None else f"{row.documents:,}"
        cells.append([row.name, documents, " ".join(row.tests), row.state])
    return table(cells, ["collection", "documents", "tests", "state"])


def _list_notes(config: ListCollectionsConfig, _: list[CollectionRow]) -> str:
    notes = []
    for note in describe_cache(config):
        notes.append(textwrap.fill(note, _WIDTH, subsequent_indent="  ", break_on_hyphens=False))
    return "\n".join(notes)


def _show_collection(config: ShowCollectionConfig, result: Mapping[str, object]) -> str:
    lines = [f"{result['name']}: {result['title']}"]
    for label, text in describe(config):
        # Addresses and paths are never broken.
        parts = textwrap.wrap(
            text, _WIDTH - _INDENT, break_long_words=False, break_on_hyphens=False
        )
        first_line = f"  {label}".ljust(_INDENT)
        lines.append(first_line + "".join(parts[:1]))
        for part in parts[1:]:
            lines.append(" " * _INDENT + part)
    return "\n".join(lines)


def _show_prepared(_: GetCollectionsConfig, manifests: list[dict[str, object]]) -> str:
    lines = []
    for manifest in manifests:
        lines.append(f"{manifest['name']}: {manifest['summary']}")
        lines.append(f"  in {manifest['folder']}")
    return "\n".join(lines)


WORK = "dupmae_ir.collections.run"
list_command = Command(
    "collections list",
    ListCollectionsConfig,
    f"{WORK}:list_collections",
    summarize=_list_notes,
    show=_show_list,
    as_json=lambda _, rows: json.dumps(rows, ensure_ascii=False, default=dataclasses.asdict),
)
show_command = Command(
    "collections show", ShowCollectionConfig, f"{WORK}:show_collection", show=_show_collection
)
get_command = Command(
    "collections get",
    GetCollectionsConfig,
    f"{WORK}:get_collections",
    show=_show_prepared,
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
