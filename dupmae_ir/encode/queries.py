"""``python -m dupmae_ir.encode.queries``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.encode.config import QueriesConfig


def summarize(config: QueriesConfig, result: dict[str, Any]) -> str:
    """How many queries there are, and the files."""
    return f"{result['queries']} queries in {', '.join(f'{config.output}/{name}' for name in result['files'])}"


main = Command("encode.queries", QueriesConfig, "dupmae_ir.encode.query_files:run", summarize=summarize)

if __name__ == "__main__":
    main.exit()
