"""``python -m dupmae_ir.eval.lengths``: see ``--help``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dupmae_ir.command import Command
from dupmae_ir.eval.lengths.config import LengthsConfig

if TYPE_CHECKING:
    from dupmae_ir.eval.lengths.run import Statistics

PURPOSE = """
Statistics of a collection's queries and passages: the number of texts (MASTER, Table 1) and their lengths in words
separated by white space (CoT-MoTE, Figure 1A: MS MARCO's queries have 1 to 75 words and 6 on average, its passages 1 to
362 and 56). One pass over the files.
"""
EXAMPLES = """
python -m dupmae_ir.eval.lengths --queries msmarco-passage/queries.dev.tsv --passages msmarco-passage/corpus.jsonl
python -m dupmae_ir.eval.lengths --queries scifact/queries.jsonl --passages scifact --with-titles --json
"""


def show(config: LengthsConfig, found: Statistics) -> str:
    """The text for standard output."""
    return found.text(config.format)


def as_json(config: LengthsConfig, found: Statistics) -> str:  # noqa: ARG001
    """All statistics as JSON."""
    return json.dumps(found.to_list(), ensure_ascii=False)


main = Command(
    "eval.lengths", PURPOSE, EXAMPLES, LengthsConfig, "dupmae_ir.eval.lengths.run:run", show=show, as_json=as_json
)

if __name__ == "__main__":
    main.exit()
