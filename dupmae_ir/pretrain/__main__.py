"""``python -m dupmae_ir.pretrain``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.pretrain.config import PretrainConfig

PURPOSE = """
Pre-train a retrieval encoder on plain text by masked auto-encoding (RetroMAE, DupMAE, MASTER, CoT-MAE or CoT-MoTE), or
by masked-LM training only (mlm) as a baseline. The choices of the preset are printed and recorded; flags override them.
If interrupted, run the same command to resume; the result is the same. With several processes:
torchrun -m dupmae_ir.pretrain ...
"""
EXAMPLES = """
dupmae-ir pretrain --method dupmae --model bert-base-uncased/ --corpus passages.txt.gz --output models/dupmae
dupmae-ir pretrain --method dupmae --init-from models/dupmae --corpus beir/scifact --output models/dupmae-dagger
"""


def summarize(config: PretrainConfig, result: dict[str, Any]) -> str:
    """``models/dupmae: 120 updates in 60 s; held-out loss 9.12 -> 7.35; plots in pretraining/losses.png``."""
    time = f" in {result['seconds']:,} s" if "seconds" in result else ""
    first, last = result["held_out"]["first"], result["held_out"]["last"]
    losses = f"; held-out loss {first['loss']:.3f} -> {last['loss']:.3f}" if first and last else ""
    return f"{config.output}: {result['updates']:,} updates{time}{losses}; plots in pretraining/losses.png"


main = Command(
    "pretrain",
    PURPOSE,
    EXAMPLES,
    PretrainConfig,
    "dupmae_ir.pretrain.run:run",
    summarize=summarize,
    resumes=True,
    packages=("accelerate", "numba", "matplotlib", "tensorboard"),
)

if __name__ == "__main__":
    main.exit()
