"""``python -m dupmae_ir.encode.merge I.0 I.1 I.2 --index I``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.encode.config import MergeConfig


def summarize(config: MergeConfig, result: dict[str, Any]) -> str:
    """How many documents and shards there are."""
    return f"{config.index}: {result['documents']:,} documents from {len(result['shards'])} shards"


main = Command("encode.merge", MergeConfig, "dupmae_ir.encode.merging:run", summarize=summarize)

if __name__ == "__main__":
    main.exit()
