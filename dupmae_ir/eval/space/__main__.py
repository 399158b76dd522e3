"""``python -m dupmae_ir.eval.space``: see ``--help``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dupmae_ir.command import Command
from dupmae_ir.eval.space.config import SpaceConfig

if TYPE_CHECKING:
    from dupmae_ir.eval.space.report import Comparison


def summarize(config: SpaceConfig, spaces: Comparison) -> str:  # noqa: ARG001
    """The line about the picture for standard error."""
    return f"picture: {config.output}" if config.output else ""


def show(config: SpaceConfig, spaces: Comparison) -> str:  # noqa: ARG001
    """The text for standard output."""
    return spaces.text()


def as_json(config: SpaceConfig, spaces: Comparison) -> str:  # noqa: ARG001
    """The averages as JSON; of several models, also the tests."""
    return json.dumps(spaces.summary())


main = Command(
    "eval.space", SpaceConfig, "dupmae_ir.eval.space.run:run", summarize=summarize, show=show, as_json=as_json
)

if __name__ == "__main__":
    main.exit()
