"""``python -m dupmae_ir.finetune.cross_encoder``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.finetune.cross_encoder.config import CrossEncoderConfig


def summarize(config: CrossEncoderConfig, result: dict[str, Any]) -> str:
    """The closing line: updates, time, and the change of the held-out loss."""
    time = f" in {result['seconds']:,} s" if "seconds" in result else ""
    text = f"{config.output}: {result['updates']:,} updates on {result['queries']:,} queries{time}"
    if held := result["held_out"]:
        b, a = held["before"], held["after"]
        text += (
            f"; held out: loss {b['loss']:.3f} -> {a['loss']:.3f}, positive ranked first in {b['positive_first']:.0%} "
            f"-> {a['positive_first']:.0%} of the groups"
        )
    return text


main = Command(
    "finetune.cross_encoder",
    CrossEncoderConfig,
    "dupmae_ir.finetune.cross_encoder.run:run",
    summarize=summarize,
    resumes=True,
    packages=("accelerate", "matplotlib", "tensorboard"),
)

if __name__ == "__main__":
    main.exit()
