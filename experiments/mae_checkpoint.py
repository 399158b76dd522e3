"""Store a checkpoint in float16, so that the experiment continues on another machine; and restore it.

    python experiments/mae_checkpoint.py store OUTPUT/runs/stage0.seed0 experiments/checkpoints/stage0.seed0
    python experiments/mae_checkpoint.py restore experiments/checkpoints/stage0.seed0 OUTPUT/runs/stage0.seed0

mae_from_scratch.py restores what is in experiments/checkpoints instead of training it: all branches start from the same
float16 weights of stage 0, and all fine-tunings of a branch from the same ones of stage 1.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from dupmae_ir.console import guarded
from dupmae_ir.errors import InputError

LEFT_OUT = shutil.ignore_patterns("*.png", "tensorboard")
"""Files of a trained model that training does not read."""
DTYPES = {"store": torch.float16, "restore": torch.float32}


def convert(source: Path, target: Path, dtype: torch.dtype) -> None:
    """Copy a model's folder to ``target``, which must not exist, with its floating-point weights in ``dtype``.

    Raises :class:`InputError` for a folder without weights, and for weights that ``dtype`` cannot hold.
    """
    if not any(source.glob("*.safetensors")):
        raise InputError(f"{source}: no *.safetensors; give the folder of a trained model")
    work = target.with_name(f".{target.name}.part")
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(source, work, ignore=LEFT_OUT)
    for path in work.rglob("*.safetensors"):
        weights = {}
        for name, tensor in load_file(path).items():
            weights[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
        overflow = [name for name, tensor in weights.items() if not tensor.isfinite().all()]
        if overflow:
            raise InputError(
                f"{source / path.relative_to(work)}: {overflow[0]} is not finite in {dtype}"
            )
        save_file(weights, path, {"format": "pt"})
    work.rename(target)


def main(argv: list[str] | None = None) -> int:
    """Parse the flags and convert. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=DTYPES)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    args = parser.parse_args(argv)

    def work() -> int:
        if args.target.exists():
            raise InputError(f"{args.target} exists")
        args.target.parent.mkdir(parents=True, exist_ok=True)
        convert(args.source, args.target, DTYPES[args.verb])
        return 0

    return guarded(work, "mae_checkpoint.py")


if __name__ == "__main__":
    sys.exit(main())
