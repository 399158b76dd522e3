"""The searches that negatives come from: BM25, or a model's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from dupmae_ir.device import processors
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.finetune.mine.config import PARTS, MineConfig
from dupmae_ir.index.bm25 import BM25Searcher
from dupmae_ir.index.config import Bm25Config, PostingsConfig
from dupmae_ir.index.postings import folder_of
from dupmae_ir.index.run import run_bm25, run_postings
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Hit, Query

Search = Callable[[Sequence[Query]], Mapping[str, Sequence[Hit]]]
"""Queries -> the top ``depth`` hits of each, by query id."""


def open_search(config: MineConfig, source: str, work: Path) -> Search:
    """The search of ``--by`` over the collection ``source``; its index is built in ``work``, or continued there."""
    return _bm25(config, source, work / "bm25") if config.by == "bm25" else _by_model(config, source, work / "index")


def _bm25(config: MineConfig, source: str, index: Path) -> Search:
    if not index.exists():  # an index appears complete or not at all
        run_bm25(Bm25Config(corpus=source, index=str(index), quiet=config.quiet))
    searcher = BM25Searcher(index, config.k1, config.b)
    return lambda queries: searcher.search(queries, config.depth, config.threads or processors())


def _by_model(config: MineConfig, source: str, index: Path) -> Search:
    encode(
        EncodeConfig(
            corpus=source,
            index=str(index),
            model=config.model,
            parts=PARTS[config.parts],
            device=config.device,
            document_length=config.document_length,
            dtype=config.dtype,
            title_separator=config.title_separator,
            threads=config.threads,
            quiet=config.quiet,
        )
    )
    if config.parts != "dense":
        _build_postings(config, index)
    searcher = Searcher.open(
        index, device=config.device, query_length=config.query_length, threads=config.threads, engine=config.engine
    )

    def search(queries: Sequence[Query]) -> dict[str, list[Hit]]:
        return {a.query.qid: a.hits for a in searcher.answers(queries, config.depth, config.parts)}

    return search


def _build_postings(config: MineConfig, index: Path) -> None:
    """Build the postings for --engine postings, and for auto where numba is installed."""
    needed = config.engine == "postings" or (config.engine == "auto" and find_spec("numba") is not None)
    if needed and not folder_of(str(index)).exists():
        run_postings(PostingsConfig(index=str(index), quiet=config.quiet))
