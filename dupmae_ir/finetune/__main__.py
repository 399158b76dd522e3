"""The command line of fine-tuning."""

from __future__ import annotations

import json
import sys

from dupmae_ir.config import add_config, from_namespace
from dupmae_ir.console import Parser, guarded
from dupmae_ir.finetune.run import FinetuneConfig, run

PURPOSE = """
Fine-tune a retriever with DupMAE's own similarity: the [CLS] inner product plus the ordinary-token inner
product, the document's OT part cut to its top k (Eq. 12), under the in-batch contrastive loss (Eq. 13).
A base without a masked-LM head (a sentence encoder) gets one first. Interrupted, the same command resumes.
"""
EXAMPLE = "dupmae-ir finetune --pairs train.jsonl.gz --model minilm --output models/mine --bf16"


def main(argv: list[str] | None = None) -> int:
    parser = Parser("finetune", PURPOSE, EXAMPLE)
    add_config(parser, FinetuneConfig)
    namespace = parser.parse_args(argv)
    return guarded(lambda: _main(from_namespace(FinetuneConfig, namespace)), parser.prog)


def _main(config: FinetuneConfig) -> int:
    summary = run(config)
    if config.json:
        print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
