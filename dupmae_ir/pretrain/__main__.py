"""The command line of pre-training."""

from __future__ import annotations

import json
import sys

from dupmae_ir.config import parse
from dupmae_ir.console import Parser, guarded
from dupmae_ir.pretrain.run import PretrainConfig, run

PURPOSE = """
Pre-train a retrieval encoder on plain text by masked auto-encoding: RetroMAE, DupMAE, MASTER, CoT-MAE or
CoT-MoTE; or by masked words alone (mlm), to compare them with. The preset's choices are printed and stored; every
one can be overruled. Interrupted, the same command resumes to the same numbers. With several processes:
torchrun -m dupmae_ir.pretrain ...
"""
EXAMPLE = """
dupmae-ir pretrain --method dupmae --model bert-base-uncased --corpus passages.txt.gz --output models/dupmae
dupmae-ir pretrain --method dupmae --init-from models/dupmae --corpus beir/scifact --output models/dupmae-dagger
"""


def main(argv: list[str] | None = None) -> int:
    parser = Parser("pretrain", PURPOSE, EXAMPLE)
    return guarded(lambda: _main(parse(parser, PretrainConfig, argv)), parser.prog)


def _main(config: PretrainConfig) -> int:
    summary = run(config)
    if config.json and summary:
        print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
