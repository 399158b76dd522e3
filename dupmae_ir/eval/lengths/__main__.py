"""``python -m dupmae_ir.eval.lengths``: see ``--help``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dupmae_ir.command import Command
from dupmae_ir.eval.lengths.config import LengthsConfig

if TYPE_CHECKING:
    from dupmae_ir.eval.lengths.run import Statistics


def show(config: LengthsConfig, found: Statistics) -> str:
    """The text for standard output."""
    return found.text(config.format)


def as_json(config: LengthsConfig, found: Statistics) -> str:  # noqa: ARG001
    """All statistics as JSON."""
    return json.dumps(found.to_list(), ensure_ascii=False)


main = Command("eval.lengths", LengthsConfig, "dupmae_ir.eval.lengths.run:run", show=show, as_json=as_json)

if __name__ == "__main__":
    main.exit()
