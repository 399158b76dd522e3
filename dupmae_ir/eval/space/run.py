"""The work of ``dupmae-ir eval.space``: pair, encode, measure, draw."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dupmae_ir.console import say
from dupmae_ir.device import with_torch_threads
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.eval.space.config import SpaceConfig
from dupmae_ir.eval.space.divergence import cosine_distances, divergence, tsne
from dupmae_ir.eval.space.report import Comparison, Space, as_page, as_svg
from dupmae_ir.io.collections import read_collection
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.models import load_encoder
from dupmae_ir.types import Representation


@with_torch_threads
def run(config: SpaceConfig) -> Comparison:
    """Read the pairs, encode them with each model, measure the divergences, and write the picture if requested."""
    queries, passages = _paired(config)
    drawn = _draws(len(queries), config)
    if config.output and not 1 <= config.perplexity < 2 * len(drawn.rows[0]):
        raise UsageError(
            f"--perplexity {config.perplexity:g} must be at least 1 and less than the {2 * len(drawn.rows[0])} points"
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
    made = Comparison(spaces, drawn.disjoint)
    if config.output:
        with atomic_write(config.output) as file:
            file.write(as_svg(made) if config.output.lower().endswith(".svg") else as_page(made, config))
    return made


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
    points = tsne(np.concatenate([q[rows[0]], p[rows[0]]]), config.perplexity, config.seed) if config.output else None
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
                "cannot be paired in order; give the pairs with --qrels"
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
        raise InputError(f"{config.queries} and {config.passages} make {len(found)} pairs; at least 2 are needed")
    return [query for query, _ in found], [passage for _, passage in found]


class _Draws(NamedTuple):
    rows: list[list[int]]  #: rows of the pairs, per draw
    disjoint: bool  #: whether no pair is in two draws


def _draws(available: int, config: SpaceConfig) -> _Draws:
    """The pairs of each draw, disjoint if there are enough. If a draw contains all pairs, there is only one."""
    pairs = min(config.pairs, available)
    if pairs < config.pairs:
        say(f"note: the data has {available:,} pairs, fewer than --pairs {config.pairs}", config.quiet)
    rng = np.random.default_rng(config.seed)
    draws = 1 if pairs == available else config.draws
    if draws * pairs <= available:
        order = rng.permutation(available)[: draws * pairs].reshape(draws, pairs)
        return _Draws(order.tolist(), True)
    return _Draws([rng.choice(available, pairs, replace=False).tolist() for _ in range(draws)], False)


def _vectors(representation: Representation, name: str) -> np.ndarray:
    """The [CLS] vectors as float64."""
    if representation.cls is None:
        raise UsageError(f"{name} has no [CLS] vectors")
    return np.asarray(representation.cls, np.float64)
