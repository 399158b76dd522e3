"""``python -m dupmae_ir.search``: see ``--help``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dupmae_ir.command import Command
from dupmae_ir.search.config import SearchConfig
from dupmae_ir.search.view.display import explanation_lines, hit_lines, query_summary, run_summary

if TYPE_CHECKING:
    from dupmae_ir.search.view.results import QueryAnswer


def summarize(config: SearchConfig, result: Any) -> str:
    """The line about the run, or of the query for standard error."""
    if config.json:
        return ""
    return run_summary(result) if config.query is None else query_summary(result)


def show(config: SearchConfig, answer: QueryAnswer) -> str:
    """The text for standard output."""
    if config.query is None:
        return ""
    return "\n".join(explanation_lines(answer) if config.explain is not None else hit_lines(answer))


def as_json(_: SearchConfig, result: Any) -> str:
    """The summary of the run, or the answer."""
    return json.dumps(result.to_dict(), ensure_ascii=False)


main = Command(
    "search",
    SearchConfig,
    "dupmae_ir.search.run:run",
    summarize=summarize,
    show=show,
    as_json=as_json,
)

if __name__ == "__main__":
    main.exit()
