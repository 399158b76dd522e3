"""``python -m dupmae_ir.search``: see ``--help``."""

from __future__ import annotations

import json
from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.search.config import SearchConfig
from dupmae_ir.search.view.display import explanation_lines, hit_lines, query_summary, run_summary


def summarize(config: SearchConfig, result: dict[str, Any]) -> str:
    """The line about the run, or of the query for standard error."""
    if config.json or config.interactive:
        return ""
    return run_summary(result) if config.query is None else query_summary(result)


def show(config: SearchConfig, result: dict[str, Any]) -> str:
    """The text for standard output."""
    if config.query is None:
        return ""
    return "\n".join(explanation_lines(result) if config.explain is not None else hit_lines(result))


def as_json(config: SearchConfig, result: dict[str, Any]) -> str:
    """The result; nothing after an interactive search, which has printed every answer."""
    return "" if config.interactive else json.dumps(result, ensure_ascii=False)


main = Command("search", SearchConfig, "dupmae_ir.search.run:run", summarize=summarize, show=show, as_json=as_json)

if __name__ == "__main__":
    main.exit()
