"""``python -m dupmae_ir.serve``: see ``--help``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dupmae_ir.command import Command
from dupmae_ir.serve.config import ServeConfig

if TYPE_CHECKING:
    from dupmae_ir.serve.run import ServeSummary


def summarize(_: ServeConfig, result: ServeSummary) -> str:
    """One line at the end."""
    return f"stopped after {result['seconds']:,} s: {result['lists']:,} lists, {result['certified']:,} certified exact"


main = Command(
    "serve",
    ServeConfig,
    "dupmae_ir.serve.run:run",
    summarize=summarize,
    packages=("fastapi", "uvicorn"),
    extra="serve",
)

if __name__ == "__main__":
    main.exit()
