"""Fusion methods: reciprocal ranks, interpolation, and the arithmetic of Pyserini's ``HybridSearcher``.

None of them computes the exact hybrid score (``--hybrid``, DupMAE Eq. 12). They combine two lists of limited depth and
assume a score for a document that only one list contains (``missing``):

    zero    its score in the other list is 0 (``pyserini.fusion``)
    min     its score is the lowest of that list (``pyserini.search.hybrid``)
    exact   its true score is computed (requires an index)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypedDict

from dupmae_ir.command import Command
from dupmae_ir.config import Config, OutputOptions, option
from dupmae_ir.errors import UsageError
from dupmae_ir.types import Hit, best_first

METHODS = ("rrf", "interpolation", "pyserini")
MISSING = ("zero", "min", "exact")
ALPHA = {"interpolation": 0.5, "pyserini": 0.1}
RRF_K = 60  #: Cormack, Clarke and Buettcher (SIGIR 2009)
_BY_SCORES = ("fusion=interpolation", "fusion=pyserini", "method=interpolation", "method=pyserini")
fusion_option = partial(option, group="fusion")


@dataclass(frozen=True, kw_only=True)
class FusionOptions(Config):
    """Parameters of the fusion methods; shared by ``search``, ``search.fusion`` and :class:`Fusion`."""

    rrf_k: int = fusion_option(RRF_K, "rrf: added to every rank", at_least=0, only_with=("fusion=rrf", "method=rrf"))
    alpha: float | None = fusion_option(
        None,
        "interpolation: weight of the dense list (the first run), 1 - alpha of the impact list (default: 0.5); "
        "pyserini: weight of the impact list (the second run) (default: 0.1)",
        only_with=_BY_SCORES,
    )
    normalize: bool = fusion_option(False, "scale the scores of each list to one range first", only_with=_BY_SCORES)
    missing: str = fusion_option(
        "zero",
        "interpolation: score of a document that a list lacks: 0, the list's lowest score, or its true score (needs "
        "an index); rrf adds nothing, pyserini takes the lowest",
        choices=MISSING,
        only_with=("fusion=interpolation", "method=interpolation"),
    )
    weight_on_dense: bool = fusion_option(
        False, "pyserini: alpha weighs the dense list instead", only_with=("fusion=pyserini", "method=pyserini")
    )


@dataclass(frozen=True)
class Fusion(FusionOptions):
    """A fusion method and its parameters. ``alpha`` None is the method's default."""

    method: str = fusion_option("rrf", "fusion method", choices=METHODS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method == "interpolation" and self.alpha is not None and not 0 <= self.alpha <= 1:
            raise UsageError(f"`alpha` must be between 0 and 1 for interpolation, got {self.alpha:g}")


@dataclass(frozen=True, kw_only=True)
class FusionConfig(Fusion, OutputOptions):
    """Fuse run files into one by reciprocal ranks, interpolation, or Pyserini's hybrid arithmetic.

    The exact sum of inner products cannot be computed from run files: use dupmae-ir search --hybrid.

    Examples:
        dupmae-ir search.fusion dense.trec impact.trec --output rrf.trec
        dupmae-ir search.fusion dense.trec impact.trec --method interpolation --normalize --missing min --output x.trec
    """

    runs: tuple[str, ...] = option(
        help="run files, TREC or MS MARCO format; for interpolation and pyserini two: dense first, impact second",
        positional=True,
        group="input and output",
        metavar="RUN",
    )
    output: str = option(help="run file to write", group="input and output", metavar="FILE")
    format: str = option("trec", "format of the output", choices=("trec", "msmarco"), group="input and output")
    tag: str = option("dupmae-fusion", "run tag, the last column of a TREC run", group="input and output")
    hits: int = fusion_option(1000, "documents kept per query", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.runs) < 2:
            raise UsageError("fusion needs two or more run files")
        if self.method != "rrf" and len(self.runs) != 2:
            raise UsageError(f"{self.method} joins exactly two runs, got {len(self.runs)}; rrf joins any number")


Exact = Callable[[list[str]], list[float]]
"""Computes the true scores of documents that a list lacks."""


class FusionSummary(TypedDict):
    """What was fused."""

    queries: int
    queries_missing_in_a_run: int
    output: str


def run(config: FusionConfig) -> FusionSummary:
    """Read the runs, fuse them, write ``config.output``. A query that a run lacks has an empty list there."""
    from dupmae_ir.io.runs import read_run, write_run  # imports numpy, which the help of a search does not need

    runs = [read_run(path) for path in config.runs]
    qids = list(dict.fromkeys(qid for r in runs for qid in r))
    lists = {qid: [list(r.get(qid, [])) for r in runs] for qid in qids}
    if config.method == "rrf":
        fused = {qid: rrf(own, config.rrf_k)[: config.hits] for qid, own in lists.items()}
    else:
        fused = {qid: fuse(config, first, second, config.hits) for qid, (first, second) in lists.items()}
    write_run(config.output, fused, config.tag, config.format)
    incomplete = sum(not all(own) for own in lists.values())
    return {"queries": len(qids), "queries_missing_in_a_run": incomplete, "output": config.output}


def fuse(
    fusion: Fusion, dense: Sequence[Hit], impact: Sequence[Hit], k: int, exact: tuple[Exact, Exact] | None = None
) -> list[Hit]:
    """The ``k`` best of two lists (best first). ``exact``: scorers for each list, for ``missing="exact"``."""
    if fusion.method == "rrf":
        return rrf([dense, impact], fusion.rrf_k)[:k]
    alpha = ALPHA[fusion.method] if fusion.alpha is None else fusion.alpha
    if fusion.method == "pyserini":
        return pyserini_hybrid(dense, impact, alpha, fusion.normalize, fusion.weight_on_dense)[:k]
    return interpolate(dense, impact, alpha, fusion.normalize, fusion.missing, exact)[:k]


def rrf(lists: Sequence[Sequence[Hit]], rrf_k: int = RRF_K) -> list[Hit]:
    """Reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009): sum of ``1 / (rrf_k + rank)``, ranks from 1.

    A list adds nothing to the score of a document that it lacks.
    """
    scores: dict[str, float] = {}
    for hits in lists:
        for rank, hit in enumerate(hits, start=1):
            scores[hit.docid] = scores.get(hit.docid, 0.0) + 1.0 / (rrf_k + rank)
    return best_first(Hit(docid, score) for docid, score in scores.items())


def interpolate(
    first: Sequence[Hit],
    second: Sequence[Hit],
    alpha: float = 0.5,
    normalize: bool = False,
    missing: str = "zero",
    exact: tuple[Exact, Exact] | None = None,
) -> list[Hit]:
    """``alpha * first + (1 - alpha) * second``.

    ``normalize`` maps each list's lowest score to 0 and its highest to 1 (one score, or all equal, to 1) before
    a missing document gets 0 (``zero``), the list's lowest score (``min``) or its true score on the same scale
    (``exact``).
    """
    docids = sorted({hit.docid for hit in (*first, *second)})
    scorers = exact or (None, None)
    a, b = (
        _filled(hits, docids, normalize, missing, scorer) for hits, scorer in zip((first, second), scorers, strict=True)
    )
    return best_first(Hit(d, alpha * a[d] + (1 - alpha) * b[d]) for d in docids)


def pyserini_hybrid(
    dense: Sequence[Hit],
    sparse: Sequence[Hit],
    alpha: float = 0.1,
    normalization: bool = False,
    weight_on_dense: bool = False,
) -> list[Hit]:
    """The scores of ``pyserini.search.hybrid.HybridSearcher``, number for number, with ties in docid order.

    ``alpha * sparse + dense`` (or ``sparse + alpha * dense``); a document that a list lacks gets the list's minimum.
    Where Pyserini divides by zero (normalization of equal scores) the score is 0, the middle of its range.
    """
    d, s = dict(dense), dict(sparse)
    dense_of, sparse_of = _hybrid_scores(d, normalization), _hybrid_scores(s, normalization)
    joined = (
        Hit(doc, sparse_of(doc) + alpha * dense_of(doc) if weight_on_dense else alpha * sparse_of(doc) + dense_of(doc))
        for doc in d.keys() | s.keys()
    )
    return best_first(joined)


def unit_range(low: float, high: float) -> Callable[[float], float]:
    """The linear map of [low, high] to [0, 1]; a single value maps to 1."""
    return (lambda score: (score - low) / (high - low)) if high > low else (lambda _: 1.0)


def _filled(
    hits: Sequence[Hit], docids: list[str], normalize: bool, missing: str, scorer: Exact | None
) -> dict[str, float]:
    scores = {hit.docid: float(hit.score) for hit in hits}
    low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
    mapped = unit_range(low, high) if normalize and scores else (lambda score: score)
    absent = [d for d in docids if d not in scores]
    filled = {d: mapped(score) for d, score in scores.items()}
    if missing == "exact":
        if scorer is None:
            raise UsageError("missing=exact needs an index to compute the true scores; use zero or min for run files")
        return filled | dict(zip(absent, map(mapped, scorer(absent)), strict=True))
    return filled | dict.fromkeys(absent, mapped(low) if missing == "min" and scores else 0.0)


def _hybrid_scores(scores: Mapping[str, float], normalization: bool) -> Callable[[str], float]:
    low, high = min(scores.values(), default=0), max(scores.values(), default=1)
    middle, width = (low + high) / 2, high - low

    def score(doc: str) -> float:
        value = scores.get(doc, low)
        if not normalization:
            return value
        return (value - middle) / width if width else 0.0

    return score


def summarize(config: FusionConfig, result: FusionSummary) -> str:
    """The line about the fused run for standard error."""
    incomplete = result["queries_missing_in_a_run"]
    note = f"; {incomplete} of them not in every run" if incomplete else ""
    return f"{config.output}: {result['queries']} queries by {config.method} from {len(config.runs)} runs{note}"


main = Command("search.fusion", FusionConfig, "dupmae_ir.search.fusion:run", summarize=summarize)

if __name__ == "__main__":
    main.exit()
