"""Options of ``dupmae-ir eval.repeats``."""

from __future__ import annotations

from dataclasses import dataclass

from dupmae_ir.config import OutputOptions, option
from dupmae_ir.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class RepeatsConfig(OutputOptions):
    """Options of ``dupmae-ir eval.repeats``."""

    runs: tuple[str, ...] = option(
        help="run files as SYSTEM=FILE, or SYSTEM@STEP=FILE for a curve; runs of the same system and step are repeats",
        group="input",
        metavar="SYSTEM[@STEP]=FILE",
        positional=True,
    )
    qrels: str = option(help="judgements (TREC, BEIR, or a BEIR folder)", group="input", metavar="PATH")
    split: str = option("test", "which qrels/SPLIT.tsv of a BEIR folder", group="input", metavar="SPLIT")
    measure: str = option("MRR@10", "the measure", group="evaluation", metavar="NAME", flag="-m")
    rel_level: int = option(1, "smallest grade of a relevant document", group="evaluation", at_least=1)
    format: str = option("text", "output format", group="output", choices=("text", "markdown"))
    output: str | None = option(
        None, "picture of the measure over the steps: .html page or .svg", group="output", metavar="FILE"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output and not self.output.lower().endswith((".html", ".svg")):
            raise UsageError(f"--output {self.output}: name a file that ends in .html or .svg")
