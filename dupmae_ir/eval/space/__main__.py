"""``python -m dupmae_ir.eval.space``: see ``--help``."""

from __future__ import annotations

import json

from dupmae_ir.command import Command
from dupmae_ir.eval.space.config import SpaceConfig
from dupmae_ir.eval.space.report import Space, as_text

PURPOSE = """
CoT-MoTE's analysis of a dual encoder (section 5.3, Figure 4): a t-SNE picture of the [CLS] vectors of queries and
passages under cosine distance, and the average KL and JS divergence of their distance distributions (Eq. 14-19). Pairs
are drawn at random, 400 as in the paper, several times; averages are reported with their standard deviation.

The paper's sums run over the whole matrix of distances, so the divergences depend on the number of pairs; compare
models on the same pairs and the same number of pairs.
"""
EXAMPLES = """
python -m dupmae_ir.eval.space --queries scifact/queries.jsonl --passages scifact --qrels scifact --output space.html
python -m dupmae_ir.eval.space --model my/model --queries q.tsv --passages p.tsv --pairs 200 --draws 5 --json
"""


def summarize(config: SpaceConfig, space: Space) -> str:  # noqa: ARG001
    """The line about the picture for standard error."""
    return f"picture: {config.output}" if config.output else ""


def show(config: SpaceConfig, space: Space) -> str:  # noqa: ARG001
    """The text for standard output."""
    return as_text(space)


def as_json(config: SpaceConfig, space: Space) -> str:  # noqa: ARG001
    """The averages as JSON."""
    return json.dumps(space.summary())


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
