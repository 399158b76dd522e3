"""``python -m dupmae_ir.search.fusion``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.search.fusion.config import FusionConfig


def summarize(config: FusionConfig, result: dict[str, Any]) -> str:
    """The line about the fused run for standard error."""
    incomplete = result["queries_missing_in_a_run"]
    note = f"; {incomplete} of them not in every run" if incomplete else ""
    return f"{config.output}: {result['queries']} queries by {config.method} from {len(config.runs)} runs{note}"


main = Command("search.fusion", FusionConfig, "dupmae_ir.search.fusion.run:run", summarize=summarize)

if __name__ == "__main__":
    main.exit()
