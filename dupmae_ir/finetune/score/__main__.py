"""``python -m dupmae_ir.finetune.score``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.finetune.score.config import ScoreConfig


def summarize(config: ScoreConfig, result: dict[str, Any]) -> str:
    """The closing line: pairs, queries and time."""
    time = f" in {result['seconds']:,.0f} s" if "seconds" in result else ""
    return f"{config.output}: {result['pairs']:,} pairs of {result['queries']:,} queries{time}"


main = Command("finetune.score", ScoreConfig, "dupmae_ir.finetune.score.run:run", summarize=summarize, resumes=True)

if __name__ == "__main__":
    main.exit()
