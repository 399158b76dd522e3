"""Evaluate a run against relevance judgements with trec_eval's measures. Run: python examples/evaluate_a_run.py"""

from dupmae_ir.eval.evaluate import evaluate
from dupmae_ir.types import Hit


def main() -> None:
    qrels = {"q1": {"d1": 2, "d2": 1}, "q2": {"d9": 1}}
    run = {
        "q1": [Hit("d2", 9.0), Hit("d1", 8.5), Hit("d3", 1.0)],
        "q2": [Hit("d4", 3.0), Hit("d9", 2.0)],
    }
    result = evaluate(qrels, run, ["nDCG@10", "MRR@10", "R@100", "AP(rel=2)"])
    for measure, value in result.mean.items():
        print(f"{measure:10} {value:.4f}")
    print(f"{result.counts.unjudged_hits} of {result.counts.hits} hits are unjudged")


if __name__ == "__main__":
    main()
