"""``python -m dupmae_ir.pretrain.augment``: see ``--help``."""

from __future__ import annotations

from dupmae_ir.command import Command
from dupmae_ir.pretrain.augment.config import AugmentConfig, AugmentResult


def summarize(config: AugmentConfig, result: AugmentResult) -> str:
    """``FILE: 1,000 texts, 990 of them augmented in 12 s``."""
    time = f" in {result['seconds']:,.0f} s" if "seconds" in result else ""
    return f"{config.output}: {result['texts']:,} texts, {result['augmented']:,} of them augmented{time}"


main = Command(
    "pretrain.augment", AugmentConfig, "dupmae_ir.pretrain.augment.run:run", summarize=summarize, resumes=True
)

if __name__ == "__main__":
    main.exit()
