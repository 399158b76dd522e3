"""``python -m dupmae_ir.eval.space``: see ``--help``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dupmae_ir.command import Command
from dupmae_ir.eval.space.config import SpaceConfig

if TYPE_CHECKING:
    from dupmae_ir.eval.space.report import Comparison

PURPOSE = """
CoT-MoTE's analysis of a dual encoder (section 5.3, Figure 4): a t-SNE picture of the [CLS] vectors of queries and
passages under cosine distance, and the average KL and JS divergence of their distance distributions (Eq. 14-19). Pairs
are drawn at random, 400 as in the paper, several times; averages are reported with their standard deviation.

Several models make the paper's Figure 4: one panel each with kernel densities (A), and bars of KL and JS with paired
two-tailed t-tests over the draws (B); their table is its Table 1 (MRR@10 comes from eval). All models get the same
pairs.

The paper's sums run over the whole matrix of distances, so the divergences depend on the number of pairs; compare
models on the same pairs and the same number of pairs.
"""
EXAMPLES = """
python -m dupmae_ir.eval.space --queries scifact/queries.jsonl --passages scifact --qrels scifact --output space.html
python -m dupmae_ir.eval.space --model my/model --queries q.tsv --passages p.tsv --pairs 200 --draws 5 --json
python -m dupmae_ir.eval.space --model siamese mote separate --name Siamese MoTE "Fully separate" \\
    --queries msmarco-passage/queries.dev.tsv --passages msmarco-passage --qrels msmarco-passage --split dev \\
    --output figure4.html
"""


def summarize(config: SpaceConfig, spaces: Comparison) -> str:  # noqa: ARG001
    """The line about the picture for standard error."""
    return f"picture: {config.output}" if config.output else ""


def show(config: SpaceConfig, spaces: Comparison) -> str:  # noqa: ARG001
    """The text for standard output."""
    return spaces.text()


def as_json(config: SpaceConfig, spaces: Comparison) -> str:  # noqa: ARG001
    """The averages as JSON; of several models, also the tests."""
    return json.dumps(spaces.summary())


main = Command(
    "eval.space",
    PURPOSE,
    EXAMPLES,
    SpaceConfig,
    "dupmae_ir.eval.space.run:run",
    summarize=summarize,
    show=show,
    as_json=as_json,
)

if __name__ == "__main__":
    main.exit()
