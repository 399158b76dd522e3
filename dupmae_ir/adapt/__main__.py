"""``dupmae-ir adapt``: see ``--help``."""

from __future__ import annotations

from dupmae_ir.adapt.config import AdaptConfig, AdaptResult
from dupmae_ir.command import Command
from dupmae_ir.console import table


def summarize(config: AdaptConfig, result: AdaptResult) -> str:
    """The table of the two models and what became of it."""
    parts = list(result["start"])
    models = (("start", result["start"]), ("adapted", result["adapted"]))
    text = table([[name, *(f"{values[part]:.4f}" for part in parts)] for name, values in models], ["nDCG@10", *parts])
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
    AdaptConfig,
    "dupmae_ir.adapt.run:run",
    show=summarize,
    resumes=True,
    packages=("accelerate", "matplotlib", "tensorboard"),
)

if __name__ == "__main__":
    main.exit()
