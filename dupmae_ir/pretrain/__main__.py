"""``python -m dupmae_ir.pretrain``: see ``--help``."""

from __future__ import annotations

from dupmae_ir.command import Command
from dupmae_ir.pretrain.config import PretrainConfig, PretrainResult


def summarize(config: PretrainConfig, result: PretrainResult) -> str:
    """``models/dupmae: 120 updates in 60 s; held-out loss 9.12 -> 7.35; plots in pretraining/losses.png``."""
    summary = f"{config.output}: {result['updates']:,} updates"
    if "seconds" in result:
        summary += f" in {result['seconds']:,} s"

    first = result["held_out"]["first"]
    last = result["held_out"]["last"]
    if first and last:
        summary += f"; held-out loss {first['loss']:.3f} -> {last['loss']:.3f}"
    gaps = []
    for name, value in (last or {}).items():
        if name.startswith("gap_"):
            gaps.append(f"{name.removeprefix('gap_')} {value:.3f}")
    if gaps:
        summary += f"; gap in nats: {', '.join(gaps)}"
    return f"{summary}; plots in pretraining/losses.png"


main = Command(
    "pretrain",
    PretrainConfig,
    "dupmae_ir.pretrain.run:run",
    summarize=summarize,
    resumes=True,
    distributed=True,
    packages=("accelerate", "numba", "matplotlib", "tensorboard"),
)

if __name__ == "__main__":
    main.exit()
