"""``python -m dupmae_ir.eval.repeats``: see ``--help``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dupmae_ir.command import Command
from dupmae_ir.eval.repeats.config import RepeatsConfig

if TYPE_CHECKING:
    from dupmae_ir.eval.repeats.run import Table

PURPOSE = """
Means, standard deviations and variances of a measure over repeated trainings (other seeds), as in MASTER's Table 6, and
the measure by pre-training steps, as in its Figure 2. Deviation and variance are those of the sample (n - 1). MASTER
prints percent with the variance of percent in parentheses; the last column has this form.
"""
EXAMPLES = """
python -m dupmae_ir.eval.repeats --qrels msmarco-passage --split dev -m MRR@10 \\\\
    MASTER=full-1.trec MASTER=full-2.trec MASTER=full-3.trec "w/o CPR=cpr-1.trec" "w/o CPR=cpr-2.trec"
python -m dupmae_ir.eval.repeats --qrels msmarco-passage --split dev --output figure2.svg \\\\
    Retriever2@10000=r2-10k.trec Retriever2@40000=r2-40k.trec Retriever2@120000=r2-120k.trec
"""


def summarize(config: RepeatsConfig, table: Table) -> str:  # noqa: ARG001
    """The line about the picture for standard error."""
    return f"picture: {config.output}" if config.output else ""


def show(config: RepeatsConfig, table: Table) -> str:
    """The text for standard output."""
    return table.text(config.format)


def as_json(config: RepeatsConfig, table: Table) -> str:  # noqa: ARG001
    """All values as JSON."""
    return json.dumps(table.to_dict(), ensure_ascii=False)


main = Command(
    "eval.repeats",
    PURPOSE,
    EXAMPLES,
    RepeatsConfig,
    "dupmae_ir.eval.repeats.run:run",
    summarize=summarize,
    show=show,
    as_json=as_json,
)

if __name__ == "__main__":
    main.exit()
