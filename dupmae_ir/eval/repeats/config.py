"""Options of ``dupmae-ir eval.repeats``."""

from __future__ import annotations

from dataclasses import dataclass

from dupmae_ir.config import OutputOptions, option
from dupmae_ir.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class RepeatsConfig(OutputOptions):
    r"""Means, standard deviations and variances of a measure over repeated trainings (other seeds), as in MASTER's
    Table 6, and the measure by pre-training steps, as in its Figure 2. Deviation and variance are those of the sample
    (n - 1). MASTER prints percent with the variance of percent in parentheses; the last column has this form.

    Examples:
        python -m dupmae_ir.eval.repeats --qrels msmarco-passage --split dev -m MRR@10 \\
            MASTER=full-1.trec MASTER=full-2.trec MASTER=full-3.trec "w/o CPR=cpr-1.trec" "w/o CPR=cpr-2.trec"
        python -m dupmae_ir.eval.repeats --qrels msmarco-passage --split dev --output figure2.svg \\
            Retriever2@10000=r2-10k.trec Retriever2@40000=r2-40k.trec Retriever2@120000=r2-120k.trec
    """

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
