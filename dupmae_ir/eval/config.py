"""Options of ``dupmae-ir eval``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dupmae_ir.config import Config, OutputOptions, input_option, option, output_option
from dupmae_ir.errors import UsageError

TESTS = {"t": ("t",), "permutation": ("permutation",), "both": ("t", "permutation")}
FORMATS = ("table", "markdown", "latex", "csv", "json", "html")
PERMUTATIONS = 100_000  #: random sign flips, if there are too many to try all; p = 0.05 is then known to 0.0014
EXACT = 20  #: with at most this many non-zero differences, all 2^n sign flips are tried
_WITH_HTML = ("report", "format=html and !json")
_WITH_COMPARISON = ("baseline", *_WITH_HTML)

comparison_option = partial(option, group="comparison", only_with=_WITH_COMPARISON)
measures_option = partial(option, group="measures")


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(Config):
    """How runs are compared with a baseline."""

    test: str = comparison_option(
        "both",
        "significance tests: Student's paired t (marked †), paired permutation (marked ‡)",
        choices=tuple(TESTS),
    )
    alpha: float = comparison_option(
        0.05, "significance level; confidence intervals have level 1 - alpha", above=0, below=1
    )
    seed: int = comparison_option(0, "seed of the permutations and resamples", at_least=0)
    resamples: int = comparison_option(
        PERMUTATIONS,
        f"random sign flips of a permutation test; with at most {EXACT} queries that differ, all are tried",
        at_least=1,
    )
    moved: int = comparison_option(5, "queries listed with the largest differences", at_least=0)

    @property
    def tests(self) -> tuple[str, ...]:
        """The tests: ``t``, ``permutation`` or both."""
        return TESTS[self.test]

    @property
    def level(self) -> float:
        """Level of the confidence intervals."""
        return 1 - self.alpha


@dataclass(frozen=True, kw_only=True)
class EvalConfig(ComparisonOptions, OutputOptions):
    r"""Evaluate one or more runs against relevance judgements.

    The values are identical to trec_eval's: its ranking (score as a 32-bit float, then docid descending; the rank
    column is ignored), its measures, its averages. Several runs make one table with the best value of each column
    marked. With --baseline, or in an HTML report (where the first run is the default baseline), the other runs are
    compared with the baseline: paired t-test and permutation test with Holm's correction over the compared runs,
    bootstrap intervals, wins, ties and losses, and the queries that moved most.

    Examples:
        dupmae-ir eval --qrels scifact/qrels/test.tsv bm25.trec hybrid.trec -m nDCG@10 MRR@10 R@100 MAP
        dupmae-ir eval --qrels qrels.dl19-passage.txt run.trec -m nDCG@10 'AP(rel=2)' 'R(rel=2)@1000' --json
        dupmae-ir eval --qrels scifact bm25.trec dense.trec impact.trec hybrid.trec --baseline bm25.trec
        dupmae-ir eval --qrels scifact bm25.trec dense.trec impact.trec hybrid.trec --baseline bm25.trec \
            --topics scifact/queries.jsonl --report scifact.html
    """

    runs: tuple[str, ...] = input_option(
        help="run files: TREC (qid Q0 docid rank score tag) or MS MARCO (qid docid rank), plain or .gz",
        metavar="RUN",
        positional=True,
    )
    qrels: str = input_option(
        help="judgements: TREC (qid 0 docid grade) or BEIR tsv, plain or .gz, or a BEIR folder",
        metavar="PATH",
    )
    split: str = input_option("test", "which qrels/SPLIT.tsv of a BEIR folder", metavar="SPLIT")
    measures: tuple[str, ...] = measures_option(
        ("nDCG@10", "MRR@10", "R@100", "MAP"),
        "measures by ir_measures' names (listed below) or trec_eval's (ndcg_cut.10)",
        flag="-m",
        metavar="MEASURE",
    )
    rel_level: int = measures_option(
        1,
        "smallest relevant grade, for measures without (rel=N); grade 0 means judged and not relevant",
        at_least=1,
    )
    complete: bool = measures_option(
        True,
        "average over all judged queries, one without hits as 0, as trec_eval -c (default); --no-complete: only over "
        "those with hits",
    )
    remove_unjudged: bool = measures_option(
        False, "remove hits without a judgement first, as Pyserini does"
    )
    baseline: str | None = option(
        None,
        "compare the other runs with this one, given by its file or its name in the table",
        group="comparison",
        metavar="RUN",
    )
    topics: str | None = comparison_option(
        None,
        "HTML: the topics, to show the text of the queries that moved most",
        metavar="FILE",
        only_with=_WITH_HTML,
    )
    format: str = output_option("table", "output format", choices=FORMATS)
    report: str | None = output_option(
        None, "also write a self-contained HTML page with tables and figures", metavar="FILE.html"
    )
    per_query: str | None = output_option(
        None,
        "also write the values of each query, tab-separated; - prints them instead (JSON: includes them)",
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.runs)) < len(self.runs):
            raise UsageError("the same run file is named twice")
        if self.baseline is not None and len(self.runs) == 1:
            raise UsageError(f"`baseline` {self.baseline}: name the runs to compare with it")

    @property
    def html(self) -> bool:
        """Whether an HTML page is written or printed."""
        return bool(self.report) or (self.format == "html" and not self.json)
