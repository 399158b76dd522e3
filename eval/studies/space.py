"""Queries and passages in one vector space: t-SNE, and the divergence of their distances (CoT-MoTE, section 5.3).

python eval/studies/space.py --queries scifact/queries.jsonl --passages scifact --qrels scifact --output space.svg
"""

from __future__ import annotations

import itertools
import statistics
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import gaussian_kde
from study import check_picture, figure, save, study

from dupmae_ir.config import ComputeOptions, OutputOptions, option
from dupmae_ir.console import say, table
from dupmae_ir.device import with_torch_threads
from dupmae_ir.errors import EnvironmentProblem, InputError, UsageError
from dupmae_ir.eval.significance import t_test
from dupmae_ir.io.collections import read_collection
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.models import load_encoder
from dupmae_ir.types import Representation

NAMES = {"kl": "KL (Eq. 17)", "js": "JS (Eq. 19)"}
MARKS = {1e-4: "****", 1e-3: "***", 0.01: "**", 0.05: "*"}
"""Largest p -> mark, as in CoT-MoTE's Figure 4."""
GRID = 60  #: values per axis at which a contour is traced
LEVELS = (0.2, 0.5, 0.8)  #: contours, as shares of the largest density
_LEAST = 1e-300  #: replaces a density that underflows to 0, so that logarithms are finite
_MARGIN = 0.06  #: of the range, around the points


@dataclass(frozen=True, kw_only=True)
class SpaceConfig(ComputeOptions, OutputOptions):
    r"""CoT-MoTE's analysis of a dual encoder (section 5.3, Figure 4): a t-SNE picture of the [CLS] vectors of queries
    and passages under cosine distance, and the average KL and JS divergence of their distance distributions (Eq.
    14-19). Pairs are drawn at random, 400 as in the paper, several times; averages are reported with their standard
    deviation.

    Several models make the paper's Figure 4: one panel each with kernel densities (A), and bars of KL and JS with
    paired two-tailed t-tests over the draws (B); their table is its Table 1 (MRR@10 comes from eval). All models get
    the same pairs.

    The paper's sums run over the whole matrix of distances, so the divergences depend on the number of pairs; compare
    models on the same pairs and the same number of pairs.

    Examples:
        python eval/studies/space.py --queries scifact/queries.jsonl --passages scifact --qrels scifact \
            --output space.svg
        python eval/studies/space.py --model my/model --queries q.tsv --passages p.tsv --pairs 200 --draws 5 --json
        python eval/studies/space.py --model siamese mote separate --name Siamese MoTE "Fully separate" \
            --queries msmarco-passage/queries.dev.tsv --passages msmarco-passage --qrels msmarco-passage --split dev \
            --output figure4.svg
    """

    queries: str = option(
        help="topics file, or a Pyserini topics name", group="input", metavar="FILE"
    )
    passages: str = option(
        help="collection: JSON lines, tsv, .gz of these, or a folder", group="input", metavar="PATH"
    )
    qrels: str | None = option(
        None,
        "judgements that pair a query with its first passage of the highest grade (default: the n-th query is paired "
        "with the n-th passage)",
        group="input",
        metavar="PATH",
    )
    split: str = option(
        "test", "which qrels/SPLIT.tsv of a BEIR folder", group="input", metavar="SPLIT"
    )
    model: tuple[str, ...] = option(
        (),
        "model folders, one panel each, compared on the same pairs (default: the embedded model)",
        group="input",
        metavar="FOLDER",
    )
    name: tuple[str, ...] = option(
        (),
        "names of the models in tables and pictures, in order (default: their folders)",
        group="input",
        metavar="NAME",
        only_with="model",
    )
    pairs: int = option(400, "query-passage pairs per draw", group="measurement", at_least=2)
    draws: int = option(
        10,
        "random draws over which the divergences are averaged and tested; disjoint if the data has enough pairs; one "
        "draw if it contains all pairs",
        group="measurement",
        at_least=1,
    )
    perplexity: float = option(
        30.0,
        "perplexity of t-SNE (effective number of neighbours), less than the number of points",
        group="measurement",
    )
    seed: int = option(0, "seed of the draws and of t-SNE", group="measurement", at_least=0)
    output: str | None = option(
        None,
        "picture of the first draw, with bars for several models: .svg, .png or .pdf (default: numbers only)",
        group="output",
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        names = self.name or self.model
        if len(names) != len(self.model) or len(set(names)) < len(names):
            setting = "name" if self.name else "model"
            raise UsageError(
                f"`{setting}` {' '.join(names)}: there must be one name per model, and all must differ"
            )
        check_picture(self.output)


class Divergence(NamedTuple):
    """Eq. 17 and 19, in nats."""

    kl: float
    js: float


def cosine_distances(queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
    """(n, d), (m, d) -> (n, m) float64, 1 - cosine (CoT-MoTE Eq. 14). A zero vector has distance 1 from all others."""
    return np.asarray(1.0 - _unit(queries) @ _unit(passages).T)


def divergence(distances: np.ndarray) -> Divergence:
    """(n, n) distances, query i and passage i a pair -> KL and JS by CoT-MoTE Eq. 15-19, as printed.

    p1 is exp(-d) divided by its sum, p2 the same for d transposed; KL is the sum of p1 log(p1 / p2), JS the mean of the
    two divergences from (p1 + p2) / 2. The sums run over all n^2 entries. Raises ValueError for a matrix that is not
    square, for which Eq. 17 is undefined.
    """
    d = np.asarray(distances, np.float64)
    if d.ndim != 2 or d.shape[0] != d.shape[1]:
        raise ValueError(f"expected a square matrix of distances, got {d.shape}")
    p1 = np.exp(-d) / np.exp(-d).sum()
    p2 = np.exp(-d.T) / np.exp(-d.T).sum()
    average = (p1 + p2) / 2
    return Divergence(
        relative_entropy(p1, p2),
        (relative_entropy(p1, average) + relative_entropy(p2, average)) / 2,
    )


def tsne(vectors: np.ndarray, perplexity: float = 30.0, seed: int = 0) -> np.ndarray:
    """(n, d) -> (n, 2) by scikit-learn's t-SNE under cosine distance; the same seed gives the same picture."""
    try:
        from sklearn.manifold import TSNE  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        message = "the picture requires scikit-learn: pip install scikit-learn"
        raise EnvironmentProblem(message) from None
    distances = np.maximum(
        cosine_distances(vectors, vectors), 0.0
    )  # rounding yields values such as -1e-16
    np.fill_diagonal(distances, 0.0)
    map_ = TSNE(2, perplexity=perplexity, metric="precomputed", init="random", random_state=seed)
    return np.asarray(map_.fit_transform(distances), np.float64)


def _unit(vectors: np.ndarray) -> np.ndarray:
    v = np.asarray(vectors, np.float64)
    norms = np.linalg.norm(v, axis=1, keepdims=True)
    return np.asarray(v / np.where(norms == 0, 1.0, norms))


def relative_entropy(p: np.ndarray, q: np.ndarray) -> float:
    """Sum of p log(p / q) over all entries, in nats."""
    return float((p * np.log(p / q)).sum())


def density(points: np.ndarray, at: np.ndarray) -> np.ndarray:
    """(n, 2) points, (m, 2) -> (m,) Gaussian kernel density with Scott's bandwidth (scipy's ``gaussian_kde``)."""
    return np.maximum(
        gaussian_kde(np.asarray(points, np.float64).T)(np.asarray(at, np.float64).T), _LEAST
    )


def density_divergence(queries: np.ndarray, passages: np.ndarray) -> Divergence:
    """(n, 2), (n, 2) -> KL and JS of the two kernel densities, each normalised over all 2n points.

    This is the reading of A.1 in which p1 and p2 are the densities of queries and passages in the t-SNE plane. It
    depends on the seed of t-SNE.
    """
    at = np.concatenate([queries, passages])
    p1, p2 = (p / p.sum() for p in (density(queries, at), density(passages, at)))
    middle = (p1 + p2) / 2
    return Divergence(
        relative_entropy(p1, p2), (relative_entropy(p1, middle) + relative_entropy(p2, middle)) / 2
    )


class PairTest(NamedTuple):
    """A paired two-tailed t-test over the draws. ``p`` is None for one draw, or if all differences are equal."""

    first: str
    second: str
    divergence: str  #: kl or js
    p: float | None

    @property
    def mark(self) -> str:
        """``*`` to ``****``; ``ns`` for no significant difference, empty for an undefined test."""
        if self.p is None:
            return ""
        return next((mark for level, mark in MARKS.items() if self.p <= level), "ns")


@dataclass(frozen=True)
class Space:
    """The measured divergences. ``points``: (2 pairs, 2) t-SNE coordinates, queries first; None without a picture."""

    model: str
    available: int  #: pairs in the data
    pairs: int  #: pairs per draw
    draws: tuple[Divergence, ...]
    points: np.ndarray | None

    @cached_property
    def density(self) -> Divergence | None:
        """Divergence of the kernel densities in the t-SNE plane of the first draw; None without a picture."""
        if self.points is None:
            return None
        return density_divergence(self.points[: self.pairs], self.points[self.pairs :])

    def summary(self) -> dict[str, Any]:
        """Averages and standard deviations (None for one draw) as plain values."""
        counts = {"pairs": self.pairs, "of": self.available, "draws": len(self.draws)}
        found: dict[str, Any] = {"model": self.model, **counts}
        for name in Divergence._fields:
            values = [getattr(d, name) for d in self.draws]
            found[name] = statistics.fmean(values)
            found[f"{name}_deviation"] = statistics.stdev(values) if len(values) > 1 else None
        if self.density:
            found |= {f"density_{name}": value for name, value in self.density._asdict().items()}
        return found


@dataclass(frozen=True)
class ModelComparison:
    """One or more models, measured on the same draws. ``disjoint``: whether no pair is in two draws."""

    spaces: tuple[Space, ...]
    disjoint: bool

    def tests(self) -> list[PairTest]:
        """Every two models, for KL and JS; p is not corrected for the number of tests."""
        return [
            PairTest(a.model, b.model, name, _p(a, b, name))
            for name in Divergence._fields
            for a, b in itertools.combinations(self.spaces, 2)
        ]

    def text(self) -> str:
        """The averages as a table; of several models, also the tests."""
        first = self.spaces[0]
        if len(self.spaces) == 1:
            header = ["divergence", "average", "deviation"]
            lines = [f"{first.model}: {_pairs(first)}", "", table(_rows(first), header)]
            return "\n".join([*lines, *_density_lines(self)])
        tests = table(_test_rows(self), ["p of two models", *NAMES.values()])
        return "\n".join(
            [
                _pairs(first),
                "",
                table(*_averages(self)),
                "",
                tests,
                _caveat(self),
                *_density_lines(self),
            ]
        )

    def summary(self) -> dict[str, Any]:
        """Of one model its own summary; of several, theirs and the tests."""
        if len(self.spaces) == 1:
            return self.spaces[0].summary()
        models = [space.summary() for space in self.spaces]
        tests = [{**test._asdict(), "mark": test.mark} for test in self.tests()]
        return {"models": models, "disjoint": self.disjoint, "tests": tests}


def _p(a: Space, b: Space, name: str) -> float | None:
    differences = [
        getattr(x, name) - getattr(y, name) for x, y in zip(a.draws, b.draws, strict=True)
    ]
    return t_test(np.asarray(differences)) if len(differences) > 1 else None


def draw(comparison: ModelComparison, output: str) -> None:
    """A panel per model with the first draw's texts and the contours of their densities (A), and for several models a
    bar chart per divergence with the marks of the tests (B)."""
    spaces = comparison.spaces
    made, axes = figure(len(spaces) + (len(NAMES) if len(spaces) > 1 else 0))
    for panel, space in zip(axes, spaces, strict=False):
        _panel(panel, space)
    if len(spaces) > 1:
        for panel, key in zip(axes[len(spaces) :], NAMES, strict=True):
            _bars(panel, comparison, key)
    save(made, output)


def _panel(axes: Any, space: Space) -> None:
    """Queries are circles, passages triangles; t-SNE's axes have no unit."""
    assert space.points is not None
    low, high = space.points.min(axis=0), space.points.max(axis=0)
    margin = _MARGIN * (high - low)
    xs, ys = (np.linspace(low[n] - margin[n], high[n] + margin[n], GRID) for n in range(2))
    grid = np.stack(np.meshgrid(xs, ys), axis=-1)
    parts = {"queries": space.points[: space.pairs], "passages": space.points[space.pairs :]}
    for number, (name, points) in enumerate(parts.items()):
        colour = f"C{number}"
        axes.scatter(*points.T, s=12, marker="o^"[number], color=colour, alpha=0.5, label=name)
        values = density(points, grid.reshape(-1, 2)).reshape(GRID, GRID)
        axes.contour(xs, ys, values, [share * values.max() for share in LEVELS], colors=colour)
    axes.set(
        title=space.model, xlabel="t-SNE, dimension 1", ylabel="dimension 2", xticks=[], yticks=[]
    )
    axes.legend()


def _bars(axes: Any, comparison: ModelComparison, key: str) -> None:
    """A bar per model with its standard deviation, and a bracket for each test."""
    summaries = [space.summary() for space in comparison.spaces]
    names, means = [s["model"] for s in summaries], [s[key] for s in summaries]
    deviations = [s[f"{key}_deviation"] or 0.0 for s in summaries]
    axes.bar(
        names,
        means,
        yerr=deviations,
        capsize=4,
        alpha=0.6,
        color=[f"C{n}" for n in range(len(names))],
    )
    top = max(mean + deviation for mean, deviation in zip(means, deviations, strict=True))
    tests = [t for t in comparison.tests() if t.divergence == key and t.mark]
    for number, t in enumerate(tests):
        first, second, height = (
            names.index(t.first),
            names.index(t.second),
            top * (1.08 + 0.13 * number),
        )
        axes.plot([first, second], [height, height], color="black", linewidth=1)
        axes.annotate(t.mark, ((first + second) / 2, height), ha="center", va="bottom")
    axes.set(ylabel=NAMES[key], ylim=(0, top * (1.1 + 0.13 * len(tests)) or 1))


def _averages(comparison: ModelComparison) -> tuple[list[list[str]], list[str]]:
    """Rows and header: a row per model, average and deviation of each divergence."""
    rows = [
        [space.model, *itertools.chain(*(row[1:] for row in _rows(space)))]
        for space in comparison.spaces
    ]
    return rows, ["model", "KL (Eq. 17)", "deviation", "JS (Eq. 19)", "deviation"]


def _test_rows(comparison: ModelComparison) -> list[list[str]]:
    """A row per two models: p and mark of each divergence."""
    tests = {(t.first, t.second, t.divergence): t for t in comparison.tests()}
    pairs = dict.fromkeys((first, second) for first, second, _ in tests)
    return [[f"{a} / {b}", *(_p_text(tests[a, b, name]) for name in NAMES)] for a, b in pairs]


def _p_text(test: PairTest) -> str:
    return "-" if test.p is None else f"{test.p:.2g} {test.mark}"


def _caveat(comparison: ModelComparison) -> str:
    draws = len(comparison.spaces[0].draws)
    note = f"paired two-tailed t-tests over {draws} draws, not corrected; * p <= 0.05, ** 0.01, *** 0.001, **** 0.0001"
    if draws < 2:
        return "no test: it needs at least two draws"
    return note if comparison.disjoint else f"{note}; draws share pairs, so p is too small"


def _density_lines(comparison: ModelComparison) -> list[str]:
    """The divergence of the two kernel densities over the drawn points, the other reading of appendix A.1."""
    return [
        f"{s.model}: divergence of the kernel densities: KL {s.density.kl:.3f}, JS {s.density.js:.3f}"
        for s in comparison.spaces
        if s.density is not None
    ]


def _pairs(space: Space) -> str:
    draws = len(space.draws)
    how = (
        "all"
        if space.pairs == space.available
        else f"{draws} random draw{'s' if draws > 1 else ''} from the"
    )
    return f"{space.pairs:,} pairs, {how} {space.available:,}"


def _rows(space: Space) -> list[list[str]]:
    found = space.summary()
    deviations = {
        k: "-" if found[f"{k}_deviation"] is None else f"{found[f'{k}_deviation']:.2e}"
        for k in NAMES
    }
    return [[name, f"{found[key]:.4e}", deviations[key]] for key, name in NAMES.items()]


@with_torch_threads
def run(config: SpaceConfig) -> ModelComparison:
    """Read the pairs, encode them with each model, measure the divergences, and write the picture if requested."""
    queries, passages = _paired(config)
    drawn = _draws(len(queries), config)
    if config.output and not 1 <= config.perplexity < 2 * len(drawn.rows[0]):
        raise UsageError(
            f"`perplexity` {config.perplexity:g} must be at least 1 and less than the {2 * len(drawn.rows[0])} points"
        )
    used = sorted({i for rows in drawn.rows for i in rows})
    texts = [queries[i] for i in used], [passages[i] for i in used]
    position = {row: n for n, row in enumerate(used)}
    rows = [[position[i] for i in draw] for draw in drawn.rows]
    names = config.name or config.model or ("",)
    spaces = tuple(
        _measured(model, name, texts, rows, len(queries), config)
        for model, name in zip(config.model or (None,), names, strict=True)
    )
    comparison = ModelComparison(spaces, drawn.disjoint)
    if config.output:
        draw(comparison, config.output)
    return comparison


def _measured(
    model: str | None,
    name: str,
    texts: tuple[list[str], list[str]],
    rows: list[list[int]],
    available: int,
    config: SpaceConfig,
) -> Space:
    """One model: its divergences in all draws, and the t-SNE coordinates of the first if there will be a picture."""
    encoder = load_encoder(model, device=config.device, dtype=config.dtype, parts=("cls",))
    say(f"{encoder.name}: {len(texts[0]):,} queries and their passages", config.quiet)
    q = _vectors(encoder.encode_queries(texts[0]), encoder.name)
    p = _vectors(encoder.encode_documents(texts[1]), encoder.name)
    found = tuple(divergence(cosine_distances(q[r], p[r])) for r in rows)
    points = (
        tsne(np.concatenate([q[rows[0]], p[rows[0]]]), config.perplexity, config.seed)
        if config.output
        else None
    )
    shown = name if config.name or len(config.model) > 1 else encoder.name
    return Space(shown, available, len(rows[0]), found, points)


def _paired(config: SpaceConfig) -> tuple[list[str], list[str]]:
    """Texts of queries, and of the passages paired with them."""
    topics = [topic for topic in read_topics(config.queries) if topic.text.strip()]
    if config.qrels is None:
        passages = [document.joined() for document in read_collection(config.passages)]
        if len(passages) != len(topics):
            raise InputError(
                f"{config.queries} has {len(topics):,} queries and {config.passages} {len(passages):,} passages, which "
                "cannot be paired in order; give the pairs with `qrels`"
            )
        found = list(zip((topic.text for topic in topics), passages, strict=True))
    else:
        judged = read_qrels(config.qrels, config.split)
        best = {
            qid: max(grades, key=lambda docid: grades[docid])
            for qid, grades in judged.items()
            if max(grades.values()) > 0
        }
        wanted = set(best.values())
        texts = {d.docid: d.joined() for d in read_collection(config.passages) if d.docid in wanted}
        found = [(t.text, texts[best[t.qid]]) for t in topics if best.get(t.qid) in texts]
    if len(found) < 2:
        raise InputError(
            f"{config.queries} and {config.passages} make {len(found)} pairs; at least 2 are needed"
        )
    return [query for query, _ in found], [passage for _, passage in found]


class PairDraws(NamedTuple):
    rows: list[list[int]]  #: rows of the pairs, per draw
    disjoint: bool  #: whether no pair is in two draws


def _draws(available: int, config: SpaceConfig) -> PairDraws:
    """The pairs of each draw, disjoint if there are enough. If a draw contains all pairs, there is only one."""
    pairs = min(config.pairs, available)
    if pairs < config.pairs:
        say(
            f"note: the data has {available:,} pairs, fewer than --pairs {config.pairs}",
            config.quiet,
        )
    rng = np.random.default_rng(config.seed)
    draws = 1 if pairs == available else config.draws
    if draws * pairs <= available:
        order = rng.permutation(available)[: draws * pairs].reshape(draws, pairs)
        return PairDraws(order.tolist(), True)
    return PairDraws(
        [rng.choice(available, pairs, replace=False).tolist() for _ in range(draws)], False
    )


def _vectors(representation: Representation, name: str) -> np.ndarray:
    """The [CLS] vectors as float64."""
    if representation.cls is None:
        raise UsageError(f"{name} has no [CLS] vectors")
    return np.asarray(representation.cls, np.float64)


main = study(
    "space", SpaceConfig, run, lambda _, comparison: comparison.text(), ModelComparison.summary
)

if __name__ == "__main__":
    sys.exit(main())
