"""``python -m dupmae_ir.pretrain``: see ``--help``."""

from __future__ import annotations

from dupmae_ir.command import Command
from dupmae_ir.pretrain.config import PretrainConfig, PretrainResult


def summarize(config: PretrainConfig, result: PretrainResult) -> str:
    """``models/dupmae: 120 updates in 60 s; held-out loss 9.12 -> 7.35; plots in pretraining/losses.png``."""
    time = f" in {result['seconds']:,} s" if "seconds" in result else ""
    first, last = result["held_out"]["first"], result["held_out"]["last"]
    losses = f"; held-out loss {first['loss']:.3f} -> {last['loss']:.3f}" if first and last else ""
    gaps = [
        f"{name.removeprefix('gap_')} {gap:.3f}"
        for name, gap in (last or {}).items()
        if name.startswith("gap_")
    ]
    read = f"; gap in nats: {', '.join(gaps)}" if gaps else ""
    return f"{config.output}: {result['updates']:,} updates{time}{losses}{read}; plots in pretraining/losses.png"


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
