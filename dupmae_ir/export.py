"""``python -m dupmae_ir.export``: a model folder for other people's software. See ``--help``."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from dupmae_ir.config import option, parse
from dupmae_ir.console import Parser, guarded, say

PURPOSE = """
Write one part of a model for sentence-transformers (5.0 or later): cls opens as a SentenceTransformer, ot as a
SparseEncoder. Both use its own modules alone and give the vectors that dupmae-ir gives.
"""
EXAMPLES = """
python -m dupmae_ir.export --model checkpoints/mine --output exported/dense
python -m dupmae_ir.export --model checkpoints/mine --part ot --output exported/sparse
"""


@dataclass(frozen=True)
class ExportConfig:
    """Everything that ``python -m dupmae_ir.export`` can be told."""

    output: str = option(help="folder to make", metavar="FOLDER")
    model: str | None = option(None, "model folder; without it, the embedded default model", metavar="FOLDER")
    to: str = option("sentence-transformers", "whose layout", choices=("sentence-transformers",))
    part: str = option("cls", "dense vectors (cls) or sparse ones (ot)", choices=("cls", "ot"))
    overwrite: bool = option(False, "replace an older export")
    quiet: bool = option(False, "only errors")
    json: bool = option(False, "print the summary as JSON on standard output")


def run(config: ExportConfig) -> dict[str, Any]:
    """Export ``config.model`` to ``config.output``; returns what was written."""
    from dupmae_ir.models.checkpoints.export import export_sentence_transformers
    from dupmae_ir.models.checkpoints.folder import default_model_path

    model = default_model_path() if config.model is None else config.model
    return export_sentence_transformers(model, config.output, config.part, config.overwrite)


def main(argv: list[str] | None = None) -> int:
    return guarded(lambda: _main(argv), "dupmae-ir export")


def _main(argv: list[str] | None) -> int:
    config = parse(Parser("export", PURPOSE, EXAMPLES), ExportConfig, argv)
    written = run(config)
    if config.json:
        sys.stdout.write(json.dumps(written, ensure_ascii=False) + "\n")
    routed = "for each side " if written["routed"] else ""
    say(f"{written['output']}: {written['kind']} of {routed}{', '.join(written['modules'])}", config.quiet)
    return 0


if __name__ == "__main__":
    sys.exit(main())
