"""``python -m dupmae_ir.eval``: what runs score, in trec_eval's own values."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dupmae_ir.config import option, parse
from dupmae_ir.console import Parser, guarded, progress, say
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.eval.compare import TESTS, Settings, compare, mean_intervals
from dupmae_ir.eval.evaluate import Evaluation, evaluate
from dupmae_ir.eval.reports.html import Figures, as_html
from dupmae_ir.eval.reports.ranks import Ranks, relevant_ranks
from dupmae_ir.eval.reports.text import FORMATS, Report, as_json, per_query_tsv
from dupmae_ir.eval.significance import EXACT, PERMUTATIONS
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.runs import read_run
from dupmae_ir.io.topics import read_topics
from dupmae_ir.measures import FAMILIES, parse_measures

PURPOSE = """\
Evaluate one or more runs against relevance judgements.

The values are trec_eval's, to the last digit: its ranking (score as a 32-bit float, then docid descending; the
rank column is ignored), its measures, its averages. Several runs make one table with the best of each column
marked. With --baseline, or in an HTML report (where the first run is the baseline unless another is named), the
others are compared with one run: paired t-test and permutation test with Holm's correction over the compared runs,
bootstrap intervals, wins, ties and losses, and the queries that moved most."""

EXAMPLES = """\
python -m dupmae_ir.eval --qrels scifact/qrels/test.tsv bm25.trec hybrid.trec -m nDCG@10 MRR@10 R@100 MAP
python -m dupmae_ir.eval --qrels qrels.dl19-passage.txt run.trec -m nDCG@10 'AP(rel=2)' 'R(rel=2)@1000' --json
python -m dupmae_ir.eval --qrels scifact bm25.trec dense.trec impact.trec hybrid.trec --baseline bm25.trec
python -m dupmae_ir.eval --qrels scifact bm25.trec dense.trec impact.trec hybrid.trec --baseline bm25.trec \\
    --parts dense.trec impact.trec hybrid.trec --topics scifact/queries.jsonl --report scifact.html"""

_FORMATS = (*FORMATS, "html")


@dataclass(frozen=True)
class EvalConfig:
    """Settings of one evaluation."""

    runs: tuple[str, ...] = option(
        help="run files: TREC (qid Q0 docid rank score tag) or MS MARCO (qid docid rank), plain or .gz",
        group="input",
        metavar="RUN",
        positional=True,
    )
    qrels: str = option(
        help="judgements: TREC (qid 0 docid grade) or BEIR tsv, plain or .gz, or a BEIR folder",
        group="input",
        metavar="PATH",
    )
    split: str = option("test", "which qrels/SPLIT.tsv of a BEIR folder", group="input", metavar="SPLIT")
    measures: tuple[str, ...] = option(
        ("nDCG@10", "MRR@10", "R@100", "MAP"),
        "what to compute: ir_measures' names (listed below) or trec_eval's (ndcg_cut.10)",
        group="what counts",
        flag="-m",
        metavar="MEASURE",
    )
    rel_level: int = option(
        1, "smallest grade that is relevant, where a measure does not say (rel=N)", group="what counts"
    )
    complete: bool = option(
        True,
        "average over all judged queries, one without hits as 0, as trec_eval -c (default); --no-complete: only over "
        "those with hits",
        group="what counts",
    )
    remove_unjudged: bool = option(False, "drop hits without a judgement first, as Pyserini does", group="what counts")
    baseline: str | None = option(
        None,
        "compare the other runs with this one: its file or its name in the table",
        group="comparison",
        metavar="RUN",
    )
    test: str = option(
        "both",
        "significance tests: Student's paired t (marked †), paired permutation (marked ‡)",
        group="comparison",
        choices=tuple(TESTS),
    )
    alpha: float = option(0.05, "error accepted; intervals are of level 1 - alpha", group="comparison")
    seed: int = option(0, "of the permutations and resamples", group="comparison")
    resamples: int = option(
        PERMUTATIONS,
        f"sign flips drawn by a permutation test; with at most {EXACT} queries that differ all are tried",
        group="comparison",
    )
    moved: int = option(5, "queries to name that moved most", group="comparison")
    parts: tuple[str, ...] = option(
        (),
        "HTML: which runs are [CLS] (dense), OT (impact) and their sum (hybrid), to show how they complement "
        "each other",
        group="comparison",
        metavar="RUN",
    )
    topics: str | None = option(
        None, "HTML: the topics, to show the words of the queries that moved", group="comparison", metavar="FILE"
    )
    format: str = option("table", "how to print", group="output", choices=_FORMATS)
    report: str | None = option(
        None, "also write a self-contained HTML page with tables and figures", group="output", metavar="FILE.html"
    )
    per_query: str | None = option(
        None,
        "also write the values of each query, tab-separated; - prints them instead (json: includes them)",
        group="output",
        metavar="FILE",
    )
    json: bool = option(False, "the same as --format json", group="output")
    quiet: bool = option(False, "no remarks on standard error", group="output")


def run(config: EvalConfig) -> int:
    """Read, evaluate, compare, print."""
    level = _level(config.rel_level)
    measures = parse_measures(config.measures, level)
    names = _names(config.runs)
    baseline, settings = _baseline(config, names)
    parts = _parts(config, names)
    texts = {t.qid: t.text for t in read_topics(config.topics)} if config.topics else {}
    qrels = read_qrels(config.qrels, config.split)
    evaluations: dict[str, Evaluation] = {}
    ranks: dict[str, Ranks] = {}
    with progress("evaluate", "runs", total=len(names), quiet=config.quiet or len(names) == 1) as bar:
        for name, path in names.items():
            found = read_run(path, warn=lambda message: say(message, config.quiet))
            try:
                evaluations[name] = evaluate(
                    qrels, found, measures, complete=config.complete, remove_unjudged=config.remove_unjudged
                )
            except UsageError as e:
                raise InputError(f"{path}: {e}") from None
            if _wants_html(config):
                ranks[name] = relevant_ranks(qrels, found, level, config.complete, config.remove_unjudged)
            bar.update()
    intervals = {}
    if baseline or _wants_html(config):
        intervals = {name: mean_intervals(e, settings) for name, e in evaluations.items()}
    comparison = compare(evaluations, baseline, settings) if baseline else None
    report = Report(config.qrels, evaluations, names, config.remove_unjudged, comparison, intervals, settings.level)
    _show(report, Figures(ranks, parts, texts, level), config)
    return 0


def _show(report: Report, figures: Figures, config: EvalConfig) -> None:
    here = config.per_query == "-"
    if config.per_query and not here:
        _write(config.per_query, per_query_tsv(report), "values of each query", config.quiet)
    if config.report:
        _write(config.report, as_html(report, figures), "report", config.quiet)
    if config.json or config.format == "json":
        print(as_json(report, per_query=here))
    elif here:
        print(per_query_tsv(report))
    elif config.format == "html":
        print(as_html(report, figures))
    else:
        print(FORMATS[config.format](report))


def _write(path: str, text: str, what: str, quiet: bool) -> None:
    with atomic_write(path) as file:
        file.write(text + "\n")
    say(f"{what}: {path}", quiet)


def _wants_html(config: EvalConfig) -> bool:
    return bool(config.report) or (config.format == "html" and not config.json)


def _baseline(config: EvalConfig, names: dict[str, str]) -> tuple[str | None, Settings]:
    """Name of the run to compare with, None for no comparison; and how to compare."""
    settings = Settings(TESTS[config.test], config.alpha, config.seed, config.resamples, config.moved)
    if config.baseline is not None:
        baseline = _named(config.baseline, names, "--baseline")
        if len(names) == 1:
            raise UsageError(f"--baseline {config.baseline}: name the runs to compare with it, too")
        return baseline, settings
    if _wants_html(config):
        return (next(iter(names)) if len(names) > 1 else None), settings
    for name in ("test", "alpha", "seed", "resamples", "moved"):
        if getattr(config, name) != getattr(EvalConfig, name):
            raise UsageError(f"--{name} belongs to a comparison; name the run to compare with by --baseline RUN")
    return None, settings


def _parts(config: EvalConfig, names: dict[str, str]) -> tuple[str, ...]:
    """Names of the [CLS], OT and hybrid runs, or none."""
    for flag, given in {"--parts": config.parts, "--topics": config.topics}.items():
        if given and not _wants_html(config):
            raise UsageError(f"{flag} belongs to the HTML report; add --report FILE.html")
    if config.parts and len(set(config.parts)) != 3:
        raise UsageError(f"--parts wants three runs, [CLS], OT and their sum, got {len(set(config.parts))}")
    return tuple(_named(run, names, "--parts") for run in config.parts)


def _named(run: str, names: dict[str, str], flag: str) -> str:
    """The name in the table of a run that is given by its name or its file."""
    for name, path in names.items():
        if run in (name, path):
            return name
    raise UsageError(f"{flag} {run}: not one of the runs, which are {', '.join(names)}")


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
