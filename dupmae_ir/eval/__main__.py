"""``python -m dupmae_ir.eval``: what runs score, in trec_eval's own values."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dupmae_ir.config import option, parse
from dupmae_ir.console import Parser, guarded, progress, say
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.eval.evaluate import Evaluation, evaluate
from dupmae_ir.eval.measures import FAMILIES, parse_measures
from dupmae_ir.eval.report import FORMATS, Report, as_json, per_query_tsv
from dupmae_ir.io.atomic import atomic_write
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.runs import read_run

PURPOSE = """\
Evaluate one or more runs against relevance judgements.

The values are trec_eval's, to the last digit: its ranking (score as a 32-bit float, then docid descending; the
rank column is ignored), its measures, its averages. Several runs make one table with the best of each column
marked."""

EXAMPLES = """\
python -m dupmae_ir.eval --qrels scifact/qrels/test.tsv bm25.trec hybrid.trec -m nDCG@10 MRR@10 R@100 MAP
python -m dupmae_ir.eval --qrels qrels.dl19-passage.txt run.trec -m nDCG@10 'AP(rel=2)' 'R(rel=2)@1000' --json"""


@dataclass(frozen=True)
class EvalConfig:
    """Settings of one evaluation."""

    runs: tuple[str, ...] = option(
        help="run files: TREC (qid Q0 docid rank score tag) or MS MARCO (qid docid rank), plain or .gz",
        group="input", metavar="RUN", positional=True,
    )  # fmt: skip
    qrels: str = option(
        help="judgements: TREC (qid 0 docid grade) or BEIR tsv, plain or .gz, or a BEIR folder",
        group="input", metavar="PATH",
    )  # fmt: skip
    split: str = option("test", "which qrels/SPLIT.tsv of a BEIR folder", group="input", metavar="SPLIT")
    measures: tuple[str, ...] = option(
        ("nDCG@10", "MRR@10", "R@100", "MAP"),
        "what to compute: ir_measures' names (listed below) or trec_eval's (ndcg_cut.10)",
        group="what counts", flag="-m", metavar="MEASURE",
    )  # fmt: skip
    rel_level: int = option(
        1, "smallest grade that is relevant, where a measure does not say (rel=N)", group="what counts"
    )  # fmt: skip
    complete: bool = option(
        True,
        "average over all judged queries, one without hits as 0, as trec_eval -c (default); --no-complete: only over "
        "those with hits",
        group="what counts",
    )  # fmt: skip
    remove_unjudged: bool = option(False, "drop hits without a judgement first, as Pyserini does", group="what counts")
    format: str = option("table", "how to print", group="output", choices=tuple(FORMATS))
    per_query: str | None = option(
        None, "also write the values of each query, tab-separated; - prints them instead (json: includes them)",
        group="output", metavar="FILE",
    )  # fmt: skip
    json: bool = option(False, "the same as --format json", group="output")
    quiet: bool = option(False, "no remarks on standard error", group="output")


def run(config: EvalConfig) -> int:
    """Read, evaluate, print."""
    measures = parse_measures(config.measures, _level(config.rel_level))
    qrels = read_qrels(config.qrels, config.split)
    names = _names(config.runs)
    evaluations: dict[str, Evaluation] = {}
    with progress("evaluate", "runs", total=len(names), quiet=config.quiet or len(names) == 1) as bar:
        for name, path in names.items():
            found = read_run(path, warn=lambda message: say(message, config.quiet))
            try:
                evaluations[name] = evaluate(
                    qrels, found, measures, complete=config.complete, remove_unjudged=config.remove_unjudged
                )
            except UsageError as e:
                raise InputError(f"{path}: {e}") from None
            bar.update()
    _show(Report(config.qrels, evaluations, names, config.remove_unjudged), config)
    return 0


def _show(report: Report, config: EvalConfig) -> None:
    here = config.per_query == "-"
    if config.per_query and not here:
        with atomic_write(config.per_query) as file:
            file.write(per_query_tsv(report) + "\n")
        say(f"values of each query: {config.per_query}", config.quiet)
    if config.json or config.format == "json":
        print(as_json(report, per_query=here))
    else:
        print(per_query_tsv(report) if here else FORMATS[config.format](report))


def _names(paths: Sequence[str]) -> dict[str, str]:
    """Name to show -> path: the file's name where that tells the runs apart, else the path."""
    if len(set(paths)) < len(paths):
        raise UsageError("the same run file is named twice")
    short = [Path(path).name for path in paths]
    return dict(zip(short if len(set(short)) == len(short) else paths, paths, strict=True))


def _level(level: int) -> int:
    if level < 1:
        raise UsageError(f"--rel-level {level}: a grade from 1 upwards; grade 0 means judged and not relevant")
    return level


def _epilog() -> str:
    ending = {"must": "@k", "may": "[@k]", "no": ""}
    names = {name + ending[family.cutoff]: family for name, family in FAMILIES.items()}
    width = max(map(len, names))
    return "measures (with k a rank, and (rel=N) for a relevance level):\n" + "\n".join(
        f"  {name.ljust(width)}  {family.meaning}" for name, family in names.items()
    )


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = Parser("eval", PURPOSE, EXAMPLES)
    parser.epilog = _epilog()
    return guarded(lambda: run(parse(parser, EvalConfig, argv)), parser.prog)


if __name__ == "__main__":
    sys.exit(main())
