"""``python -m dupmae_ir.eval.case``: see ``--help``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dupmae_ir.command import Command
from dupmae_ir.eval.case.config import CaseConfig

if TYPE_CHECKING:
    from dupmae_ir.eval.case.run import Study


def summarize(config: CaseConfig, study: Study) -> str:  # noqa: ARG001
    """The line about the file for standard error."""
    return f"case study: {config.output}" if config.output else ""


def show(config: CaseConfig, study: Study) -> str:
    """The text for standard output."""
    return "" if config.output else study.text(config)


main = Command("eval.case", CaseConfig, "dupmae_ir.eval.case.run:run", summarize=summarize, show=show, as_json=show)

if __name__ == "__main__":
    main.exit()
