"""``python -m dupmae_ir.finetune.mine``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.finetune.mine.config import MineConfig


def summarize(config: MineConfig, result: dict[str, Any]) -> str:
    """The closing line: negatives kept, hits dropped, queries without a negative."""
    count = {name: f"{value:,}" for name, value in result.items() if isinstance(value, int)}
    text = (
        f"{config.output}: {count['negatives']} negatives of {count['queries']} queries; dropped "
        f"{count['dropped_positive_id']} positives, {count['dropped_positive_text']} copies of positives and "
        f"{count['dropped_duplicate']} duplicates"
    )
    if bare := result["queries_without_negative"]:
        names = ", ".join(result["without_negative"][:3]) + (", ..." if bare > 3 else "")
        text += f"\nnote: {bare:,} {'query has' if bare == 1 else 'queries have'} no negative ({names})"
    return text


main = Command("finetune.mine", MineConfig, "dupmae_ir.finetune.mine.run:run", summarize=summarize, resumes=True)

if __name__ == "__main__":
    main.exit()
