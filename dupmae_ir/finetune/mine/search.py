"""The searches that negatives and fused scores come from: BM25, a model's own, or both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dupmae_ir.device import processors
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.errors import CheckpointError
from dupmae_ir.finetune.mine.config import PARTS, MineConfig
from dupmae_ir.index.config import Bm25Config, PostingsConfig
from dupmae_ir.index.lucene.bm25 import BM25Searcher
from dupmae_ir.index.postings.postings import folder_of
from dupmae_ir.index.run import run_bm25, run_postings
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.names import model_folder
from dupmae_ir.search.fusion.methods import rrf
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Hit, Query

Search = Callable[[Sequence[Query]], Mapping[str, Sequence[Hit]]]
"""Queries -> the top ``depth`` hits of each, by query id."""


@dataclass(frozen=True)
class ModelSearch:
    """A model and how to encode and search with it; None stands for the model's own setting."""

    model: str
    parts: str  #: a key of :data:`~dupmae_ir.finetune.mine.config.PARTS`
    device: str = "auto"
    dtype: str | None = None
    document_length: int | None = None
    query_length: int | None = None
    title_separator: str | None = None
    threads: int = 0
    impact_search: str = "lucene"
    quiet: bool = True

    def open(self, source: str, index: Path) -> Searcher:
        """A searcher over the collection ``source``; its index is built in ``index``, or continued there."""
        encode(
            EncodeConfig(
                corpus=source,
                index=str(index),
                model=self.model,
                parts=PARTS[self.parts],
                device=self.device,
                document_length=self.document_length,
                dtype=self.dtype,
                title_separator=self.title_separator,
                threads=self.threads,
                quiet=self.quiet,
            )
        )
        if self.parts != "dense":
            self._build_postings(index)
        return Searcher.open(
            index,
            device=self.device,
            query_length=self.query_length,
            threads=self.threads,
            impact_search=self.impact_search,
        )

    def _build_postings(self, index: Path) -> None:
        """Build the postings for the engine ``postings``, and for ``auto`` where numba is installed."""
        needed = self.impact_search == "postings" or (self.impact_search == "auto" and find_spec("numba") is not None)
        if needed and not folder_of(str(index)).exists():
            run_postings(PostingsConfig(index=str(index), quiet=self.quiet))


def model_digest(model: str) -> str:
    """A digest of the weights of a retriever's folder or name. Raises :class:`CheckpointError` for a missing one."""
    if model.startswith("testing:"):
        return model
    folder = model_folder(model)
    if not folder.is_dir():
        raise CheckpointError(f"{model}: no such model folder; give one that encode can read")
    return folder_digest(folder)


def open_search(config: MineConfig, source: str, work: Path) -> Search:
    """The search of ``--by`` over the collection ``source``; its indexes are built in ``work``, or continued there."""
    searches = []
    if config.by != "bm25":
        searches.append(_by_model(config, source, work / "index"))
    if config.by != "model":
        searches.append(_bm25(config, source, work / "bm25"))
    return searches[0] if len(searches) == 1 else _joined(searches, config.depth)


def open_bm25(source: str, index: Path, k1: float, b: float, quiet: bool) -> BM25Searcher:
    """BM25 over the collection ``source``; its index is built in ``index`` unless it is there."""
    if not index.exists():  # an index appears complete or not at all
        run_bm25(Bm25Config(corpus=source, index=str(index), quiet=quiet))
    return BM25Searcher(index, k1, b)


def _bm25(config: MineConfig, source: str, index: Path) -> Search:
    searcher = open_bm25(source, index, config.k1, config.b, config.quiet)
    return lambda queries: searcher.search(queries, config.depth, config.threads or processors())


def _by_model(config: MineConfig, source: str, index: Path) -> Search:
    assert config.model is not None  # MineConfig
    names = (
        "parts",
        "device",
        "dtype",
        "document_length",
        "query_length",
        "title_separator",
        "threads",
        "impact_search",
    )
    settings = {name: getattr(config, name) for name in (*names, "quiet")}
    searcher = ModelSearch(config.model, **settings).open(source, index)

    def search(queries: Sequence[Query]) -> dict[str, Sequence[Hit]]:
        return {a.query.qid: a.hits for a in searcher.answers(queries, config.depth, config.parts)}

    return search


def _joined(searches: Sequence[Search], depth: int) -> Search:
    """The best ``depth`` of all lists by reciprocal ranks: first what several list, then the lists in turn."""

    def search(queries: Sequence[Query]) -> dict[str, list[Hit]]:
        found = [one(queries) for one in searches]
        return {q.qid: rrf([list(hits[q.qid]) for hits in found])[:depth] for q in queries}

    return search
