"""The work of ``dupmae-ir eval.space``: pair, encode, measure, draw."""

from __future__ import annotations

import numpy as np

from dupmae_ir.console import say
from dupmae_ir.device import with_torch_threads
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.eval.space.config import SpaceConfig
from dupmae_ir.eval.space.divergence import cosine_distances, divergence, tsne
from dupmae_ir.eval.space.report import Space, as_page, as_svg
from dupmae_ir.io.collections import read_collection
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.models import load_encoder
from dupmae_ir.types import Representation


@with_torch_threads
def run(config: SpaceConfig) -> Space:
    """Read the pairs, encode them, measure the divergences, and write the picture if requested."""
    queries, passages = _paired(config)
    drawn = _draws(len(queries), config)
    if config.output and not 1 <= config.perplexity < 2 * len(drawn[0]):
        raise UsageError(
            f"--perplexity {config.perplexity:g} must be at least 1 and less than the {2 * len(drawn[0])} points"
        )
    used = sorted({i for rows in drawn for i in rows})
    encoder = load_encoder(config.model, device=config.device, dtype=config.dtype, parts=("cls",))
    say(f"{encoder.name}: {len(used):,} queries and their passages", config.quiet)
    q = _vectors(encoder.encode_queries([queries[i] for i in used]), encoder.name)
    p = _vectors(encoder.encode_documents([passages[i] for i in used]), encoder.name)
    position = {row: n for n, row in enumerate(used)}
    rows = [[position[i] for i in draw] for draw in drawn]
    found = tuple(divergence(cosine_distances(q[r], p[r])) for r in rows)
    points = tsne(np.concatenate([q[rows[0]], p[rows[0]]]), config.perplexity, config.seed) if config.output else None
    space = Space(encoder.name, len(queries), len(drawn[0]), found, points)
    if config.output:
        with atomic_write(config.output) as file:
            file.write(as_svg(space) if config.output.lower().endswith(".svg") else as_page(space, config))
    return space


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


def _draws(available: int, config: SpaceConfig) -> list[list[int]]:
    """Rows of the pairs of each draw. If a draw contains all pairs, there is only one."""
    pairs = min(config.pairs, available)
    if pairs < config.pairs:
        say(f"note: the data has {available:,} pairs, fewer than --pairs {config.pairs}", config.quiet)
    rng = np.random.default_rng(config.seed)
    draws = 1 if pairs == available else config.draws
    return [rng.choice(available, pairs, replace=False).tolist() for _ in range(draws)]


def _vectors(representation: Representation, name: str) -> np.ndarray:
    """The [CLS] vectors as float64."""
    if representation.cls is None:
        raise UsageError(f"{name} has no [CLS] vectors")
    return np.asarray(representation.cls, np.float64)
