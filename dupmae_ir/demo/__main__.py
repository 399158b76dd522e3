"""``python -m dupmae_ir.demo``: see ``--help``."""

from __future__ import annotations

import json
import sys
from typing import Any

from dupmae_ir.config import parse
from dupmae_ir.console import Parser, guarded, table
from dupmae_ir.demo.run import MEASURES, SYSTEMS, DemoConfig, run

PURPOSE = """
See it all work, without downloading anything: the documentation of the running Python's standard library is encoded
with the embedded model, indexed for faiss and Lucene, searched with BM25, dense, impact and hybrid, and evaluated on
hand-written questions with graded answers. Each step prints the command that it runs.
"""
EXAMPLES = """
python -m dupmae_ir.demo
python -m dupmae_ir.demo --output /tmp/demo --json
"""
KINDS = ("lexical", "mixed", "paraphrase")


def main(argv: list[str] | None = None) -> int:
    return guarded(lambda: _main(argv), "dupmae-ir demo")


def _main(argv: list[str] | None) -> int:
    config = parse(Parser("demo", PURPOSE, EXAMPLES), DemoConfig, argv)
    results = run(config)
    print(json.dumps(results, ensure_ascii=False) if config.json else _page(results))
    return 0


def _page(results: dict[str, Any]) -> str:
    """The results as they are read: one table, three answers."""
    rows = [[system, *(f"{results['table'][system][m]:.4f}" for m in (*MEASURES, *KINDS))] for system in SYSTEMS]
    lines = [
        "",
        f"{results['queries']} questions on {results['documents']:,} documents "
        "(the last three columns: nDCG@10 by kind of question)",
        "",
        table(rows, ["", *MEASURES, *KINDS]),
    ]
    lines += ["", "Of each kind, the first question that hybrid answers among its first three hits and BM25 does not:"]
    for example in results["examples"]:
        lines += ["", *_example(example)]
    lines += [
        "",
        f"done in {results['seconds']:.0f} s; everything lies in {results['folder']}. Ask it yourself:",
        f"  dupmae-ir search --index {results['folder']}/index "
        f'--corpus {results["folder"]}/collection --query "how do I ..."',
    ]
    return "\n".join(lines)


def _example(example: dict[str, Any]) -> list[str]:
    ranks = ", ".join(f"{s} {example['ranks'][s] or '-'}" for s in SYSTEMS)
    lines = [f"{example['kind']}: {example['query']}", f"  rank of the first right answer: {ranks}"]
    for n, hit in enumerate(example["hits"], 1):
        right = {2: "answer", 1: "also useful"}.get(hit["grade"] or 0, "")
        terms = " ".join(t["term"] for t in hit["terms"])
        lines.append(
            f"  {n}. {hit['docid']:<44} {hit['score']:7.2f} = {hit['dense']:6.2f} dense + {hit['impact']:6.2f} impact"
            f"  ({terms}) {right}".rstrip()
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
