"""``python -m dupmae_ir.eval.answers``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.eval.answers.config import AnswersConfig
from dupmae_ir.eval.answers.run import text


def summarize(config: AnswersConfig, result: dict[str, Any]) -> str:
    """The line about the queries for standard error."""
    counts = (
        f"{result['questions']} queries; {result['without_answers']} without an answer and {result['without_hits']} "
        "without hits count as not answered"
    )
    if others := result["only_in_run"]:
        counts += f"\nnote: {others} queries of {config.run} are not in {config.answers} and do not count"
    return counts


def show(config: AnswersConfig, result: dict[str, Any]) -> str:
    """The text for standard output."""
    return "" if config.output else text(config, result)


main = Command(
    "eval.answers", AnswersConfig, "dupmae_ir.eval.answers.run:run", summarize=summarize, show=show, as_json=show
)

if __name__ == "__main__":
    main.exit()
