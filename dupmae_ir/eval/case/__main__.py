"""``python -m dupmae_ir.eval.case``: see ``--help``."""

from __future__ import annotations

from dupmae_ir.command import Command
from dupmae_ir.eval.case.config import CaseConfig
from dupmae_ir.eval.reports.case import Case, text

PURPOSE = """
The case study of the DupMAE paper's appendix for your own queries: what the [CLS] vectors retrieve, what the OT weights
retrieve, what their sum retrieves, the terms that each document matched, and the rank of every judged answer in the
three lists. As in the paper, a list succeeds if an answer is among its first 10.
"""
EXAMPLES = """
python -m dupmae_ir.eval.case --index I --query "how do I wait for a thread to end" --corpus corpus.jsonl
python -m dupmae_ir.eval.case --index runs/demo/index --topics runs/demo/collection/queries.jsonl --qid q069 q091 \\
    --qrels runs/demo/collection --corpus runs/demo/collection --format html --output cases.html
"""


def summarize(config: CaseConfig, cases: list[Case]) -> str:  # noqa: ARG001
    """The line about the file for standard error."""
    return f"case study: {config.output}" if config.output else ""


def show(config: CaseConfig, cases: list[Case]) -> str:
    """The text for standard output."""
    return "" if config.output else text(cases, "json" if config.json else config.format)


main = Command(
    "eval.case",
    PURPOSE,
    EXAMPLES,
    CaseConfig,
    "dupmae_ir.eval.case.run:run",
    summarize=summarize,
    show=show,
    as_json=show,
)

if __name__ == "__main__":
    main.exit()
