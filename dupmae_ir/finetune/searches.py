"""The searches that negatives and fused scores come from: BM25, a model's own, or both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from dupmae_ir.config import subset
from dupmae_ir.device import processors
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.errors import CheckpointError
from dupmae_ir.finetune.mine import PARTS, MineConfig, SearchOptions
from dupmae_ir.index.config import Bm25Config, PostingsConfig
from dupmae_ir.index.lucene.bm25 import BM25Searcher
from dupmae_ir.index.postings.format import folder_of
from dupmae_ir.index.run import run_bm25, run_postings
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.names import model_folder
from dupmae_ir.search.exact.fused import rrf
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Hit, Query

Search = Callable[[Sequence[Query]], Mapping[str, Sequence[Hit]]]
"""Queries -> the top ``depth`` hits of each, by query id."""


def model_digest(model: str) -> str:
    """A digest of the weights of a retriever's folder or name. Raises :class:`CheckpointError` for a missing one."""
    if model.startswith("testing:"):
        return model
    folder = model_folder(model)
    if not folder.is_dir():
        raise CheckpointError(f"{model}: no such model folder; give one that encode can read")
    return folder_digest(folder)


def open_search(config: MineConfig, source: str, work: Path) -> Search:
    """The search that ``config.by`` names over the collection ``source``; its indexes are built, or continued, in
    ``work``. Both searches are joined by reciprocal ranks: first what several list, then the lists in turn."""
    searches: list[Search] = []
    if config.model is not None:
        searcher = open_retriever(config, config.model, source, work / "index", config.title_separator)
        searches.append(lambda queries: retriever_hits(searcher, queries, config.depth, config.parts))
    if config.by != "model":
        bm25 = open_bm25(config, source, work / "bm25")
        searches.append(lambda queries: bm25.search(queries, config.depth, config.threads or processors()))
    if len(searches) == 1:
        return searches[0]

    def search_both(queries: Sequence[Query]) -> dict[str, list[Hit]]:
        lists = [search(queries) for search in searches]
        return {q.qid: rrf([list(hits[q.qid]) for hits in lists])[: config.depth] for q in queries}

    return search_both


def open_bm25(options: SearchOptions, source: str, index: Path) -> BM25Searcher:
    """BM25 over the collection ``source``; its index is built in ``index`` unless it is there."""
    if not index.exists():  # an index appears complete or not at all
        run_bm25(Bm25Config(corpus=source, index=str(index), quiet=options.quiet))
    return BM25Searcher(index, options.k1, options.b)


def open_retriever(
    options: SearchOptions, model: str, source: str, index: Path, title_separator: str | None = None
) -> Searcher:
    """A searcher over the collection ``source``; its index is built in ``index``, or continued there."""
    shared = subset(options, SearchOptions)
    changes = {"corpus": source, "index": str(index), "model": model, "parts": PARTS[options.parts]}
    encode(subset(shared, EncodeConfig, **changes, title_separator=title_separator))
    numba = find_spec("numba") is not None
    by_postings = options.impact_search == "postings" or (options.impact_search == "auto" and numba)
    if options.parts != "dense" and by_postings and not folder_of(str(index)).exists():
        run_postings(PostingsConfig(index=str(index), quiet=options.quiet))
    return Searcher.open(
        index,
        device=options.device,
        query_length=options.query_length,
        threads=options.threads,
        impact_search=options.impact_search,
    )


def retriever_hits(searcher: Searcher, queries: Sequence[Query], depth: int, parts: str) -> dict[str, Sequence[Hit]]:
    """The top ``depth`` hits of each query, by query id."""
    return {a.query.qid: a.hits for a in searcher.answers(queries, depth, parts)}
