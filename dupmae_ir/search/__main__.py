"""``python -m dupmae_ir.search``: see ``--help``."""

from __future__ import annotations

import json
from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.search.config import SearchConfig
from dupmae_ir.search.display import explanation_lines, hit_lines, query_summary, run_summary

PURPOSE = """
Search an index folder. --topics writes a run file; --query prints the hits of one query; --interactive answers one
query after the other, with the model and the index kept in memory (:help lists its commands).

Hybrid search ranks by the exact sum <cls_q, cls_d> + <ot_q, ot_d>: every candidate is scored exactly on both sides, and
the lists are deepened until no unseen document can be among the hits. --within and --filter restrict the search to some
documents; the guarantee then is about these. With --bm25-index, BM25 scores of the same
documents are a third part of the sum, with the same guarantee. Scores are in real units in every mode, so
hybrid = dense + impact. Equal scores are in docid order, here and in trec_eval's reading of the run.
"""
EXAMPLES = """
python -m dupmae_ir.search --index I --topics queries.jsonl --output run.trec
python -m dupmae_ir.search --index I --topics queries.jsonl --impact --hits 100 --output impact.trec
python -m dupmae_ir.search --index I --topics queries.jsonl --bm25-index I2 --bm25-weight 0.6 --output run.trec
python -m dupmae_ir.search --index I --query "how do I wait for a thread to end" --corpus corpus.jsonl
python -m dupmae_ir.search --index I --interactive
python -m dupmae_ir.search --index I --query "release notes" --filter 'year >= 2020 and lang = "en"'
python -m dupmae_ir.search --index I --query "how do I wait for a thread to end" --explain threading.Thread.join
"""


def summarize(config: SearchConfig, result: dict[str, Any]) -> str:
    """The line about the run, or of the query for standard error."""
    if config.json or config.interactive:
        return ""
    return run_summary(result) if config.query is None else query_summary(result)


def show(config: SearchConfig, result: dict[str, Any]) -> str:
    """The text for standard output."""
    if config.query is None:
        return ""
    return "\n".join(explanation_lines(result) if config.explain is not None else hit_lines(result))


def as_json(config: SearchConfig, result: dict[str, Any]) -> str:
    """The result; nothing after an interactive search, which has printed every answer."""
    return "" if config.interactive else json.dumps(result, ensure_ascii=False)


main = Command(
    "search",
    PURPOSE,
    EXAMPLES,
    SearchConfig,
    "dupmae_ir.search.run:run",
    summarize=summarize,
    show=show,
    as_json=as_json,
)

if __name__ == "__main__":
    main.exit()
