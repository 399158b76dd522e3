"""``python -m dupmae_ir.eval.case``: see ``--help``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dupmae_ir.command import Command
from dupmae_ir.eval.case.config import CaseConfig

if TYPE_CHECKING:
    from dupmae_ir.eval.case.run import Study

PURPOSE = """
The case study of the DupMAE paper's appendix for your own queries: what the [CLS] vectors retrieve, what the OT weights
retrieve, what their sum retrieves, the terms that each document matched, and the rank of every judged answer in the
three lists. As in the paper, a list succeeds if an answer is among its first 10. --find searches all judged topics for
queries that one part answers and the other does not (DupMAE, Tables 5 and 6), counts them and shows the clearest;
--published shows the paper's own four queries beside the ranks that it prints.
"""
EXAMPLES = """
python -m dupmae_ir.eval.case --index I --query "how do I wait for a thread to end" --corpus corpus.jsonl
python -m dupmae_ir.eval.case --index runs/demo/index --topics runs/demo/collection/queries.jsonl --qid q069 q091 \\
    --qrels runs/demo/collection --corpus runs/demo/collection --format html --output cases.html
python -m dupmae_ir.eval.case --index runs/demo/index --topics runs/demo/collection/queries.jsonl \\
    --qrels runs/demo/collection --corpus runs/demo/collection --find cls-hit-ot-miss --most 3
python -m dupmae_ir.eval.case --index indexes/dupmae-msmarco --published --corpus msmarco-passage/corpus.jsonl
"""


def summarize(config: CaseConfig, study: Study) -> str:  # noqa: ARG001
    """The line about the file for standard error."""
    return f"case study: {config.output}" if config.output else ""


def show(config: CaseConfig, study: Study) -> str:
    """The text for standard output."""
    return "" if config.output else study.text(config)


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
