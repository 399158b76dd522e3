"""The work of ``dupmae-ir eval``: read runs and judgements, evaluate, compare, and write the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dupmae_ir.config import subset
from dupmae_ir.console import progress, say
from dupmae_ir.device import need_packages
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.eval.compare import compare, mean_intervals
from dupmae_ir.eval.config import ComparisonOptions, EvalConfig
from dupmae_ir.eval.evaluate import Evaluation, evaluate
from dupmae_ir.eval.reports.html import FigureData, Ranks, as_html, relevant_ranks
from dupmae_ir.eval.reports.text import FORMATS, EvalReport, as_json, per_query_tsv
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.runs import read_run
from dupmae_ir.io.topics import read_topics
from dupmae_ir.measures import Measure, parse_measures
from dupmae_ir.types import Run


@dataclass(frozen=True)
class Evaluated:
    """The result of the command: all values, and the data of the figures."""

    report: EvalReport
    figures: FigureData

    def text(self, config: EvalConfig) -> str:
        """The printed output: the report in the requested format, or the values of each query."""
        here = config.per_query == "-"
        if config.json or config.format == "json":
            return as_json(self.report, per_query=here)
        if here:
            return per_query_tsv(self.report)
        if config.format == "html":
            return as_html(self.report, self.figures)
        return FORMATS[config.format](self.report)


def run(config: EvalConfig) -> Evaluated:
    """Evaluate the runs, compare them with the baseline, and write ``--report`` and ``--per-query``."""
    if config.html:
        need_packages("the HTML report", ["matplotlib"], "charts")
    measures = parse_measures(config.measures, config.rel_level)
    # Named in tables by file name if that is unique, else by path.
    table_names: Sequence[str] = [Path(path).name for path in config.runs]
    if len(set(table_names)) < len(table_names):
        table_names = config.runs
    names = dict(zip(table_names, config.runs, strict=True))
    baseline = None
    if config.baseline is not None:
        baseline = _named(config.baseline, names)
    elif config.html and len(names) > 1:
        baseline = next(iter(names))
    texts = {}
    if config.topics:
        texts = {topic.qid: topic.text for topic in read_topics(config.topics)}
    options = subset(config, ComparisonOptions)
    evaluations, ranks = _evaluations(config, names, measures)
    intervals = {}
    if baseline or config.html:
        intervals = {name: mean_intervals(e, options) for name, e in evaluations.items()}
    comparison = compare(evaluations, baseline, options) if baseline else None
    report = EvalReport(
        config.qrels,
        evaluations,
        names,
        config.remove_unjudged,
        comparison,
        intervals,
        options.level,
    )
    result = Evaluated(report, FigureData(ranks, texts, config.rel_level))
    if config.per_query and config.per_query != "-":
        _write(config.per_query, per_query_tsv(report), "values of each query", config.quiet)
    if config.report:
        _write(config.report, as_html(report, result.figures), "report", config.quiet)
    return result


def _evaluations(
    config: EvalConfig, names: Mapping[str, str], measures: Sequence[Measure]
) -> tuple[dict[str, Evaluation], dict[str, Ranks]]:
    """Name -> evaluation, and, for HTML, name -> ranks of the relevant documents."""
    qrels = read_qrels(config.qrels, config.split)
    complete = config.complete
    removed = config.remove_unjudged
    evaluations: dict[str, Evaluation] = {}
    ranks: dict[str, Ranks] = {}
    with progress(
        "evaluate", "runs", total=len(names), quiet=config.quiet or len(names) == 1
    ) as bar:
        for name, path in names.items():
            run = read_run(path, warn=lambda message: say(message, config.quiet))
            _warn_of_self_hits(path, run, config.quiet)
            try:
                evaluations[name] = evaluate(
                    qrels, run, measures, complete=complete, remove_unjudged=removed
                )
            except UsageError as e:
                raise InputError(f"{path}: {e}") from None
            if config.html:
                ranks[name] = relevant_ranks(qrels, run, config.rel_level, complete, removed)
            bar.update()
    return evaluations, ranks


def _warn_of_self_hits(path: str, run: Run, quiet: bool) -> None:
    """Name the queries that retrieve themselves, in collections whose queries are documents (ArguAna, Quora).

    A query that is a document is its own best match. Where numbers of queries and of documents merely coincide
    (Cranfield, Vaswani), the document of the same number is anywhere in the list. So the warning needs at least half
    of the documents with a query's own id to be the first hit.
    """
    self_hits = []
    first_hits = 0
    for qid, hits in run.items():
        for rank, hit in enumerate(hits, 1):
            if hit.docid == qid:
                self_hits.append(qid)
                first_hits += rank == 1
    if not self_hits or 2 * first_hits < len(self_hits):
        return
    names = ", ".join(self_hits[:3])
    if len(self_hits) > 3:
        names += ", ..."
    queries = "1 query retrieves"
    if len(self_hits) > 1:
        queries = f"{len(self_hits)} queries retrieve"
    say(
        f"warning: {path}: {queries} the document that has the query's own id ({names}); BEIR and Anserini remove it "
        "(search --remove-query)",
        quiet,
    )


def _named(run: str, names: Mapping[str, str]) -> str:
    """The name in the table of a baseline given by its name or its file."""
    for name, path in names.items():
        if run in (name, path):
            return name
    raise UsageError(f"`baseline` {run}: not one of the runs, which are {', '.join(names)}")


def _write(path: str, content: str, what: str, quiet: bool) -> None:
    with atomic_write(path) as file:
        file.write(content + "\n")
    say(f"{what}: {path}", quiet)
