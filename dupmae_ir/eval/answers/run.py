"""The work of ``dupmae-ir eval.answers``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dupmae_ir.console import say, table
from dupmae_ir.errors import UsageError
from dupmae_ir.eval.answers.accuracy import first_ranks, read_answers
from dupmae_ir.eval.answers.config import AnswersConfig
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.io.runs import read_run


def run(config: AnswersConfig) -> dict[str, Any]:
    """Accuracies, first ranks, and the numbers of queries: all, without answers, without hits, only in the run."""
    answers, hits = read_answers(config.answers), read_run(config.run)
    if not answers.keys() & hits.keys():
        raise UsageError(
            f"{config.run} and {config.answers} have no query in common: {next(iter(hits))!r} and "
            f"{next(iter(answers))!r} are ids of different sets"
        )
    ranks = first_ranks(hits, answers, config.corpus, max(config.k), regex=config.regex, quiet=config.quiet)
    reached = {k: sum(rank is not None and rank <= k for rank in ranks.values()) for k in sorted(set(config.k))}
    result = {
        "accuracy": {f"Acc@{k}": count / len(ranks) for k, count in reached.items()},
        "questions": len(ranks),
        "without_answers": sum(not a for a in answers.values()),
        "without_hits": sum(not hits.get(q) for q in answers),
        "only_in_run": len(hits.keys() - answers.keys()),
        "first": ranks,
    }
    if config.output is not None:
        with atomic_write(config.output) as file:
            file.write(text(config, result) + "\n")
        say(f"answers: {config.output}", config.quiet)
    return result


def text(config: AnswersConfig, result: dict[str, Any]) -> str:
    """The result as a table, or as JSON."""
    if config.json:
        return json.dumps(result, ensure_ascii=False)
    rows = [[Path(config.run).name, *(f"{v:.4f}" for v in result["accuracy"].values())]]
    ranks = [f"{qid}\t{rank or '-'}" for qid, rank in result["first"].items()] if config.per_query else []
    return "\n".join([table(rows, ["run", *result["accuracy"]]), *ranks])
