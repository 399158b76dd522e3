"""Other ways to join ranked lists: reciprocal ranks, interpolation, and Pyserini's ``HybridSearcher``.

None of them is the method's sum (that is ``--hybrid``, DupMAE Eq. 12): they see two lists of limited depth, and
must suppose something about a document that one list lacks. What they suppose is ``missing``:

    zero    the document scored nothing there (``pyserini.fusion``)
    min     it scored as much as the last of that list (``pyserini.search.hybrid``)
    exact   its true score is computed (only with an index at hand)

Also a command on run files:  python -m dupmae_ir.search.fusion RUN RUN ... --output fused.trec
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dupmae_ir.config import add_config, from_namespace, option
from dupmae_ir.console import Parser, guarded, say
from dupmae_ir.errors import UsageError
from dupmae_ir.search.ordering import best_first
from dupmae_ir.types import Hit

METHODS = ("rrf", "interpolation", "pyserini")
MISSING = ("zero", "min", "exact")
RRF_K = 60
ALPHA = {"interpolation": 0.5, "pyserini": 0.1}

Exact = Callable[[list[str]], list[float]]
"""True scores of documents that a list lacks."""


@dataclass(frozen=True)
class Fusion:
    """How to join two lists. ``alpha`` None is the method's own default; see the functions for its meaning."""

    method: str = "rrf"
    rrf_k: int = RRF_K
    alpha: float | None = None
    normalize: bool = False
    missing: str = "zero"
    weight_on_dense: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(f"no fusion named {self.method!r}; use one of {', '.join(METHODS)}")
        if self.missing not in MISSING:
            raise UsageError(f"missing={self.missing!r}: use one of {', '.join(MISSING)}")
        if self.rrf_k < 0:
            raise UsageError(f"--rrf-k must be 0 or more, got {self.rrf_k}")
        if self.method == "rrf" and (self.alpha is not None or self.normalize):
            raise UsageError("rrf uses ranks alone: --alpha and --normalize belong to interpolation and pyserini")
        if self.method != "interpolation" and self.missing != "zero":
            fixed = {"rrf": "rrf adds nothing for a missing document", "pyserini": "pyserini always takes the minimum"}
            raise UsageError(f"--missing {self.missing} belongs to interpolation; {fixed[self.method]}")
        if self.method == "interpolation" and self.alpha is not None and not 0 <= self.alpha <= 1:
            raise UsageError(f"--alpha must lie between 0 and 1 for interpolation, got {self.alpha:g}")
        if self.weight_on_dense and self.method != "pyserini":
            raise UsageError("--weight-on-dense belongs to pyserini")

    def __call__(
        self, dense: list[Hit], impact: list[Hit], k: int, exact: tuple[Exact, Exact] | None = None
    ) -> list[Hit]:
        """Join two lists, best first, into the ``k`` best. ``exact``: scorers of either, for ``missing="exact"``."""
        if self.method == "rrf":
            return rrf([dense, impact], self.rrf_k)[:k]
        alpha = ALPHA[self.method] if self.alpha is None else self.alpha
        if self.method == "pyserini":
            return pyserini_hybrid(dense, impact, alpha, self.normalize, self.weight_on_dense)[:k]
        return interpolate(dense, impact, alpha, self.normalize, self.missing, exact)[:k]


def rrf(lists: Sequence[list[Hit]], rrf_k: int = RRF_K) -> list[Hit]:
    """Reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009): sum of ``1 / (rrf_k + rank)``, ranks from 1.

    A document that a list lacks gets nothing from it.
    """
    scores: dict[str, float] = {}
    for hits in lists:
        for rank, hit in enumerate(hits, start=1):
            scores[hit.docid] = scores.get(hit.docid, 0.0) + 1.0 / (rrf_k + rank)
    return best_first(Hit(docid, score) for docid, score in scores.items())


def interpolate(
    first: list[Hit],
    second: list[Hit],
    alpha: float = 0.5,
    normalize: bool = False,
    missing: str = "zero",
    exact: tuple[Exact, Exact] | None = None,
) -> list[Hit]:
    """``alpha * first + (1 - alpha) * second``.

    ``normalize`` maps each list's lowest score to 0 and its highest to 1 (one score, or all equal, to 1) before
    a missing document gets 0 (``zero``), the list's lowest (``min``) or its true score on the same scale (``exact``).
    """
    docids = sorted({hit.docid for hit in (*first, *second)})
    scorers = exact or (None, None)
    a, b = (
        _filled(hits, docids, normalize, missing, scorer) for hits, scorer in zip((first, second), scorers, strict=True)
    )
    return best_first(Hit(d, alpha * a[d] + (1 - alpha) * b[d]) for d in docids)


def pyserini_hybrid(
    dense: list[Hit], sparse: list[Hit], alpha: float = 0.1, normalization: bool = False, weight_on_dense: bool = False
) -> list[Hit]:
    """What ``pyserini.search.hybrid.HybridSearcher`` computes, number for number, with ties in docid order.

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
    """The map of [low, high] to [0, 1]; of a single value to 1."""
    return (lambda score: (score - low) / (high - low)) if high > low else (lambda _: 1.0)


def _filled(
    hits: list[Hit], docids: list[str], normalize: bool, missing: str, scorer: Exact | None
) -> dict[str, float]:
    scores = {hit.docid: float(hit.score) for hit in hits}
    low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
    mapped = unit_range(low, high) if normalize and scores else (lambda score: score)
    absent = [d for d in docids if d not in scores]
    filled = {d: mapped(score) for d, score in scores.items()}
    if missing == "exact":
        if scorer is None:
            raise UsageError("missing=exact needs an index to compute the true scores; use zero or min with run files")
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


@dataclass(frozen=True)
class FusionConfig:
    """The command on run files."""

    runs: tuple[str, ...] = option(
        help="run files, TREC or MS MARCO format; for interpolation and pyserini two: dense first, impact second",
        positional=True,
        group="input and output",
        metavar="RUN",
    )
    output: str = option(help="run file to write", group="input and output", metavar="FILE")
    format: str = option("trec", "format of the output", choices=("trec", "msmarco"), group="input and output")
    tag: str = option("dupmae-fusion", "run tag, the last column of a TREC run", group="input and output")
    hits: int = option(1000, "documents kept per query", group="fusion")
    method: str = option("rrf", "how to join", choices=METHODS, group="fusion")
    rrf_k: int = option(RRF_K, "rrf: added to every rank", group="fusion")
    alpha: float | None = option(
        None,
        "interpolation: weight of the first run, 1 - alpha of the second (default: 0.5); "
        "pyserini: weight of the second run (default: 0.1)",
        group="fusion",
    )
    normalize: bool = option(False, "bring the scores of each list to one range first", group="fusion")
    missing: str = option(
        "zero", "interpolation: what a document scores in a run that lacks it", choices=("zero", "min"), group="fusion"
    )
    weight_on_dense: bool = option(False, "pyserini: alpha weighs the first run instead", group="fusion")
    quiet: bool = option(False, "no messages", group="messages")
    json: bool = option(False, "print the summary as JSON", group="messages")


def run(config: FusionConfig) -> int:
    """Read, join, write. A query that a run lacks is an empty list there."""
    from dupmae_ir.io.runs import read_run, write_run

    if config.hits < 1:
        raise UsageError(f"--hits must be at least 1, got {config.hits}")
    if len(config.runs) < 2:
        raise UsageError("fusion needs two or more run files")
    if config.method != "rrf" and len(config.runs) != 2:
        raise UsageError(f"{config.method} joins exactly two runs, got {len(config.runs)}; rrf joins any number")
    fusion = Fusion(config.method, config.rrf_k, config.alpha, config.normalize, config.missing, config.weight_on_dense)
    runs = [read_run(path) for path in config.runs]
    qids = list(dict.fromkeys(qid for r in runs for qid in r))
    lists = {qid: [list(r.get(qid, [])) for r in runs] for qid in qids}
    fused = {
        qid: rrf(many, config.rrf_k)[: config.hits] if config.method == "rrf" else fusion(many[0], many[1], config.hits)
        for qid, many in lists.items()
    }
    write_run(config.output, fused, config.tag, config.format)
    lonely = sum(not all(many) for many in lists.values())
    if config.json:
        summary = {"queries": len(qids), "queries_missing_in_a_run": lonely, "output": config.output}
        sys.stdout.write(json.dumps(summary) + "\n")
        return 0
    note = f"; {lonely} of them not in every run" if lonely else ""
    say(f"{config.output}: {len(qids)} queries by {config.method} from {len(runs)} runs{note}", config.quiet)
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = Parser(
        "search.fusion",
        "Join run files into one by reciprocal ranks, interpolation, or Pyserini's hybrid arithmetic.\n\n"
        "The method's own sum of inner products cannot be had from run files: use dupmae-ir search --hybrid.",
        "dupmae-ir search.fusion dense.trec impact.trec --output rrf.trec\n"
        "dupmae-ir search.fusion dense.trec impact.trec --method interpolation --normalize --missing min "
        "--output mix.trec",
    )
    add_config(parser, FusionConfig)
    return guarded(lambda: run(from_namespace(FusionConfig, parser.parse_args(argv))), parser.prog)


if __name__ == "__main__":
    sys.exit(main())
