"""``python -m dupmae_ir.eval.repeats``: see ``--help``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dupmae_ir.command import Command
from dupmae_ir.eval.repeats.config import RepeatsConfig

if TYPE_CHECKING:
    from dupmae_ir.eval.repeats.run import Table


def summarize(config: RepeatsConfig, table: Table) -> str:  # noqa: ARG001
    """The line about the picture for standard error."""
    return f"picture: {config.output}" if config.output else ""


def show(config: RepeatsConfig, table: Table) -> str:
    """The text for standard output."""
    return table.text(config.format)


def as_json(config: RepeatsConfig, table: Table) -> str:  # noqa: ARG001
    """All values as JSON."""
    return json.dumps(table.to_dict(), ensure_ascii=False)


main = Command(
    "eval.repeats", RepeatsConfig, "dupmae_ir.eval.repeats.run:run", summarize=summarize, show=show, as_json=as_json
)

if __name__ == "__main__":
    main.exit()
