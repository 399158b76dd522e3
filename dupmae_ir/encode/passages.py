"""``python -m dupmae_ir.encode.passages``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.encode.config import PassagesConfig


def summarize(config: PassagesConfig, result: dict[str, Any]) -> str:
    """How many passages and documents there are."""
    return f"{config.output}: {result['passages']:,} passages of {result['documents']:,} documents"


main = Command("encode.passages", PassagesConfig, "dupmae_ir.encode.segmentation:run", summarize=summarize)

if __name__ == "__main__":
    main.exit()
