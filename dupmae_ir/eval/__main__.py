"""``python -m dupmae_ir.eval``: see ``--help``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dupmae_ir.command import Command
from dupmae_ir.eval.config import EvalConfig
from dupmae_ir.measures import FAMILIES

if TYPE_CHECKING:
    from dupmae_ir.eval.run import Evaluated

PURPOSE = """\
Evaluate one or more runs against relevance judgements.

The values are identical to trec_eval's: its ranking (score as a 32-bit float, then docid descending; the rank column
is ignored), its measures, its averages. Several runs make one table with the best value of each column marked. With
--baseline, or in an HTML report (where the first run is the default baseline), the other runs are compared with the
baseline: paired t-test and permutation test with Holm's correction over the compared runs, bootstrap intervals, wins,
ties and losses, and the queries that moved most."""

EXAMPLES = """\
python -m dupmae_ir.eval --qrels scifact/qrels/test.tsv bm25.trec hybrid.trec -m nDCG@10 MRR@10 R@100 MAP
python -m dupmae_ir.eval --qrels qrels.dl19-passage.txt run.trec -m nDCG@10 'AP(rel=2)' 'R(rel=2)@1000' --json
python -m dupmae_ir.eval --qrels scifact bm25.trec dense.trec impact.trec hybrid.trec --baseline bm25.trec
python -m dupmae_ir.eval --qrels scifact bm25.trec dense.trec impact.trec hybrid.trec --baseline bm25.trec \\
    --parts dense.trec impact.trec hybrid.trec --topics scifact/queries.jsonl --report scifact.html"""


def measures() -> str:
    """The table of measures on the help page."""
    ending = {"must": "@k", "may": "[@k]", "no": ""}
    names = {name + ending[family.cutoff]: family for name, family in FAMILIES.items()}
    width = max(map(len, names))
    return "measures (k is a rank; (rel=N) sets the relevance level):\n" + "\n".join(
        f"  {name.ljust(width)}  {family.meaning}" for name, family in names.items()
    )


def show(config: EvalConfig, result: Evaluated) -> str:
    """The text for standard output."""
    return result.text(config)


main = Command(
    "eval", PURPOSE, EXAMPLES, EvalConfig, "dupmae_ir.eval.run:run", show=show, as_json=show, epilog=measures()
)

if __name__ == "__main__":
    main.exit()
