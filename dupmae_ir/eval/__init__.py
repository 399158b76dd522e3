"""Evaluation: trec_eval's values under ir_measures' names.

from dupmae_ir.eval import evaluate
evaluate(qrels, run, ["nDCG@10", "R@100"]).mean
"""

from dupmae_ir.eval.evaluate import Counts, Evaluation, evaluate
from dupmae_ir.measures import Measure, parse_measures

__all__ = ["Counts", "Evaluation", "Measure", "evaluate", "parse_measures"]
