"""``dupmae-ir adapt``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.adapt.config import AdaptConfig
from dupmae_ir.command import Command
from dupmae_ir.console import table

PURPOSE = """
Adapt a model to a collection from its text alone, without queries or judgements: masked auto-encoding on the text
(DupMAE), and contrastive training on pseudo-queries (titles, headings, sentences), with both parts of the
representation held to those of the start. Held-out pseudo-queries decide: without a gain beyond chance the output is
the start, unchanged. The number of updates decides how long it takes. If interrupted, run the same command to resume.
"""
EXAMPLES = """
dupmae-ir adapt --corpus corpus.jsonl --output models/adapted
dupmae-ir adapt --corpus corpus.jsonl --output models/adapted --model models/mine --steps 400 --dtype bfloat16
"""


def summarize(config: AdaptConfig, result: dict[str, Any]) -> str:
    """The table of the two models and what became of it."""
    parts = list(result["start"])
    rows = [[name, *(f"{result[name][part]:.4f}" for part in parts)] for name in ("start", "adapted")]
    text = table(rows, ["nDCG@10", *parts])
    p = "p undefined" if result["p"] is None else f"p = {result['p']:.3f}"
    time = f"; {result['seconds']:,} s" if "seconds" in result else ""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in result["kinds"].items())
    asked = f"{result['held_out']:,} held-out pseudo-queries ({kinds}) among {result['pool']:,} documents"
    if result["kept"] == "adapted":
        end = f"{config.output}: the adapted model, better on the sum ({p})"
    else:
        end = f"{config.output}: no gain beyond chance ({p}), so this is the start, unchanged"
    return f"{text}\n{asked}; {result['steps']:,} updates{time}\n{end}"


main = Command(
    "adapt",
    PURPOSE,
    EXAMPLES,
    AdaptConfig,
    "dupmae_ir.adapt.run:run",
    show=summarize,
    resumes=True,
    packages=("accelerate", "matplotlib", "tensorboard"),
)

if __name__ == "__main__":
    main.exit()
