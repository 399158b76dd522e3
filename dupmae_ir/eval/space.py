"""``python -m dupmae_ir.eval.space``: how queries and passages share the vector space (CoT-MoTE, Figure 4)."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dupmae_ir.config import option, parse
from dupmae_ir.console import Parser, guarded, say
from dupmae_ir.errors import EnvironmentProblem, InputError, UsageError

PURPOSE = """
CoT-MoTE's analysis of a dual encoder (section 5.3, Figure 4): a t-SNE picture of the [CLS] vectors of queries and
passages under cosine distance, and the average KL and JS divergence of their distance distributions (Eq. 14-19). Pairs
are drawn at random, as many as the paper's 400, several times; the averages come with their standard deviation.

The paper's sums run over the whole matrix of distances, so the divergences depend on the number of pairs; compare
models on the same pairs and number.
"""
EXAMPLES = """
python -m dupmae_ir.eval.space --queries scifact/queries.jsonl --passages scifact --qrels scifact --output space.html
python -m dupmae_ir.eval.space --model my/model --queries q.tsv --passages p.tsv --pairs 200 --draws 5 --json
"""


class Divergence(NamedTuple):
    """Eq. 17 and 19, in nats."""

    kl: float
    js: float


@dataclass(frozen=True)
class SpaceConfig:
    """Everything that ``python -m dupmae_ir.eval.space`` can be told."""

    queries: str = option(help="topics file, or a name that Pyserini knows", group="what", metavar="FILE")
    passages: str = option(help="collection: JSON lines, tsv, .gz of these, or a folder", group="what", metavar="PATH")
    qrels: str | None = option(
        None,
        "judgements that pair a query with its first best passage; without them the n-th query goes with the "
        "n-th passage",
        group="what",
        metavar="PATH",
    )
    split: str = option("test", "which qrels/SPLIT.tsv of a BEIR folder", group="what", metavar="SPLIT")
    model: str | None = option(None, "model folder (default: the embedded model)", group="model", metavar="FOLDER")
    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps", group="model", metavar="NAME")
    dtype: str | None = option(
        None, "arithmetic: float32, bfloat16, float16 or auto (default: float32)", group="model", metavar="NAME"
    )
    pairs: int = option(400, "query-passage pairs of one draw", group="how")
    draws: int = option(
        10, "random draws whose divergences are averaged; each has other pairs where there are enough", group="how"
    )
    perplexity: float = option(30.0, "of t-SNE: how many neighbours count, less than the number of points", group="how")
    seed: int = option(0, "of the draws and of t-SNE", group="how")
    output: str | None = option(
        None, "picture of the first draw: .html page or .svg (default: numbers only)", group="output", metavar="FILE"
    )
    json: bool = option(False, "print the numbers as JSON", group="output")
    quiet: bool = option(False, "no messages", group="output")


@dataclass(frozen=True)
class Space:
    """What was measured. ``points``: (2 pairs, 2) t-SNE places, queries first; None without a picture."""

    model: str
    available: int  #: pairs there are
    pairs: int  #: in a draw
    draws: tuple[Divergence, ...]
    points: np.ndarray | None

    def summary(self) -> dict[str, Any]:
        """Averages and standard deviations (None for one draw) as plain values."""
        counts = {"pairs": self.pairs, "of": self.available, "draws": len(self.draws)}
        found: dict[str, Any] = {"model": self.model, **counts}
        for name in Divergence._fields:
            values = [getattr(d, name) for d in self.draws]
            found[name] = statistics.fmean(values)
            found[f"{name}_deviation"] = statistics.stdev(values) if len(values) > 1 else None
        return found


def cosine_distances(queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
    """(n, d), (m, d) -> (n, m) float64, 1 - cosine (CoT-MoTE Eq. 14). A vector of zeros is at distance 1 of all."""
    return np.asarray(1.0 - _unit(queries) @ _unit(passages).T)


def divergence(distances: np.ndarray) -> Divergence:
    """(n, n) distances, query i and passage i a pair -> KL and JS by CoT-MoTE Eq. 15-19, as printed.

    p1 is exp(-d) over its sum, p2 the same of d transposed; KL is the sum of p1 log(p1 / p2), JS the mean of the
    two divergences from (p1 + p2) / 2. The sums run over all n^2 entries. Raises ValueError for another shape, with
    which Eq. 17 has no meaning.
    """
    d = np.asarray(distances, np.float64)
    if d.ndim != 2 or d.shape[0] != d.shape[1]:
        raise ValueError(f"distances of as many queries as passages are wanted, got {d.shape}")
    p1 = np.exp(-d) / np.exp(-d).sum()
    p2 = np.exp(-d.T) / np.exp(-d.T).sum()
    average = (p1 + p2) / 2
    return Divergence(_relative_entropy(p1, p2), (_relative_entropy(p1, average) + _relative_entropy(p2, average)) / 2)


def tsne(vectors: np.ndarray, perplexity: float = 30.0, seed: int = 0) -> np.ndarray:
    """(n, d) -> (n, 2) by scikit-learn's t-SNE under cosine distance; the same seed gives the same picture."""
    try:
        from sklearn.manifold import TSNE  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        message = "the picture needs scikit-learn: pip install scikit-learn; or leave out --output"
        raise EnvironmentProblem(message) from None
    distances = np.maximum(cosine_distances(vectors, vectors), 0.0)  # rounding makes some -1e-16
    np.fill_diagonal(distances, 0.0)
    found = TSNE(2, perplexity=perplexity, metric="precomputed", init="random", random_state=seed)
    return np.asarray(found.fit_transform(distances), np.float64)


def run(config: SpaceConfig) -> Space:
    """Read, pair, encode, measure; write the picture where one is asked for."""
    check(config)
    from dupmae_ir.models import load_encoder

    queries, passages = _paired(config)
    drawn = _draws(len(queries), config)
    if config.output and not 1 <= config.perplexity < 2 * len(drawn[0]):
        raise UsageError(f"--perplexity {config.perplexity:g}: from 1 to less than the {2 * len(drawn[0])} points")
    used = sorted({i for rows in drawn for i in rows})
    encoder = load_encoder(config.model, device=config.device, dtype=config.dtype, parts=("cls",))
    say(f"{encoder.name}: {len(used):,} queries and their passages", config.quiet)
    q, p = (
        _vectors(encode([texts[i] for i in used]), encoder.name)
        for encode, texts in ((encoder.encode_queries, queries), (encoder.encode_documents, passages))
    )
    place = {row: n for n, row in enumerate(used)}
    rows = [[place[i] for i in draw] for draw in drawn]
    found = tuple(divergence(cosine_distances(q[r], p[r])) for r in rows)
    points = tsne(np.concatenate([q[rows[0]], p[rows[0]]]), config.perplexity, config.seed) if config.output else None
    space = Space(encoder.name, len(queries), len(drawn[0]), found, points)
    if config.output:
        _write_picture(space, config)
    return space


def check(config: SpaceConfig) -> None:
    """Refuse what means nothing, before anything is opened."""
    if config.pairs < 2:
        raise UsageError(f"--pairs must be at least 2, got {config.pairs}")
    if config.draws < 1 or config.seed < 0:
        raise UsageError("--draws must be at least 1 and --seed at least 0")
    if config.output and not config.output.lower().endswith((".html", ".svg")):
        raise UsageError(f"--output {config.output}: name a file that ends in .html or .svg")


def _paired(config: SpaceConfig) -> tuple[list[str], list[str]]:
    """Texts of queries and of the passages that go with them."""
    from dupmae_ir.io.collections import read_collection
    from dupmae_ir.io.qrels import read_qrels
    from dupmae_ir.io.topics import read_topics

    topics = [topic for topic in read_topics(config.queries) if topic.text.strip()]
    if config.qrels is None:
        passages = [document.joined() for document in read_collection(config.passages)]
        if len(passages) != len(topics):
            raise InputError(
                f"{config.queries} has {len(topics):,} queries and {config.passages} {len(passages):,} passages, which "
                "cannot be paired one by one; say which belong together by --qrels"
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
        raise InputError(f"{config.queries} and {config.passages} make {len(found)} pairs; at least 2 are wanted")
    return [query for query, _ in found], [passage for _, passage in found]


def _draws(available: int, config: SpaceConfig) -> list[list[int]]:
    """Rows of the pairs of each draw. All the pairs there are make one draw: others would repeat it."""
    pairs = min(config.pairs, available)
    if pairs < config.pairs:
        say(f"note: there are {available:,} pairs, fewer than --pairs {config.pairs}", config.quiet)
    rng = np.random.default_rng(config.seed)
    draws = 1 if pairs == available else config.draws
    return [rng.choice(available, pairs, replace=False).tolist() for _ in range(draws)]


def _vectors(representation: Any, name: str) -> np.ndarray:
    if representation.cls is None:
        raise UsageError(f"{name} makes no [CLS] vectors")
    return np.asarray(representation.cls, np.float64)


def _unit(vectors: np.ndarray) -> np.ndarray:
    v = np.asarray(vectors, np.float64)
    norms = np.linalg.norm(v, axis=1, keepdims=True)
    return np.asarray(v / np.where(norms == 0, 1.0, norms))


def _relative_entropy(p: np.ndarray, q: np.ndarray) -> float:
    return float((p * np.log(p / q)).sum())


def _write_picture(space: Space, config: SpaceConfig) -> None:
    from dupmae_ir.eval.reports import figures, page
    from dupmae_ir.io.publishing import atomic_write

    assert config.output
    svg = picture(space)
    if config.output.lower().endswith(".svg"):
        text = figures.standalone(svg, page.COLOURS + page.FIGURES)
    else:
        caption = f"t-SNE of {space.pairs} queries and {space.pairs} passages, cosine distance, seed {config.seed}"
        header = ["divergence", "average", "deviation"]
        about = f"{space.model}: {_counted(space)} of {config.queries} and {config.passages}"
        below = "CoT-MoTE Eq. 14-19, in nats; average and standard deviation of the draws"
        body = [
            f"<p>{page.esc(about)}</p>",
            page.figures([page.figure(svg, caption)]),
            page.table(below, header, _rows(space)),
        ]
        text = page.page("Queries and passages in one space", body) + "\n"
    with atomic_write(config.output) as file:
        file.write(text)
    say(f"picture: {config.output}", config.quiet)


def picture(space: Space) -> str:
    """The t-SNE places as an SVG: queries are circles, passages triangles. The axes have no unit."""
    from dupmae_ir.eval.reports import figures

    assert space.points is not None
    groups = {"queries": space.points[: space.pairs].tolist(), "passages": space.points[space.pairs :].tolist()}
    low, high = space.points.min(axis=0), space.points.max(axis=0)
    x, y = (figures.Axis(f"t-SNE, dimension {n + 1}", float(low[n]), float(high[n]), ()) for n in range(2))
    return figures.scatter(groups, x, y, f"[CLS] vectors by {space.model}")


def _counted(space: Space) -> str:
    draws = len(space.draws)
    how = "all" if space.pairs == space.available else f"{draws} random draw{'s' if draws > 1 else ''} from the"
    return f"{space.pairs:,} pairs, {how} {space.available:,}"


def _rows(space: Space) -> list[list[str]]:
    found = space.summary()
    names = {"kl": "KL (Eq. 17)", "js": "JS (Eq. 19)"}
    deviations = {k: "-" if found[f"{k}_deviation"] is None else f"{found[f'{k}_deviation']:.2e}" for k in names}
    return [[name, f"{found[key]:.4e}", deviations[key]] for key, name in names.items()]


def _text(space: Space) -> str:
    from dupmae_ir.console import table

    return "\n".join(
        [f"{space.model}: {_counted(space)}", "", table(_rows(space), ["divergence", "average", "deviation"])]
    )


def _main(argv: Sequence[str] | None) -> int:
    config = parse(Parser("eval.space", PURPOSE, EXAMPLES), SpaceConfig, list(argv) if argv is not None else None)
    space = run(config)
    sys.stdout.write((json.dumps(space.summary()) if config.json else _text(space)) + "\n")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return guarded(lambda: _main(argv), "dupmae-ir eval.space")


if __name__ == "__main__":
    sys.exit(main())
