"""``python -m dupmae_ir.finetune.convert``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.finetune.convert.config import ConvertConfig


def summarize(config: ConvertConfig, result: dict[str, Any]) -> str:
    """The closing line: lines written, and every count."""
    counts = [f"{n:,} {name.replace('_', ' ')}" for name, n in result.items() if isinstance(n, int) and name != "lines"]
    return f"{config.output}: {result['lines']:,} lines; {', '.join(counts)}"


main = Command("finetune.convert", ConvertConfig, "dupmae_ir.finetune.convert.run:run", summarize=summarize)

if __name__ == "__main__":
    main.exit()
