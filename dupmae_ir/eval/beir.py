"""Search with BEIR's evaluation loop.

    from beir.datasets.data_loader import GenericDataLoader
    from beir.retrieval.evaluation import EvaluateRetrieval
    from dupmae_ir.eval.beir import DupmaeRetriever

    corpus, queries, qrels = GenericDataLoader("scifact").load(split="test")
    retrieval = EvaluateRetrieval(DupmaeRetriever("indexes/scifact"))
    results = retrieval.retrieve(corpus, queries)
    ndcg, _map, recall, precision = retrieval.evaluate(qrels, results, retrieval.k_values)

The class implements the methods of ``beir.retrieval.search.BaseSearch``, without importing beir.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dupmae_ir.encode.run import EncodeConfig
from dupmae_ir.encode.run import run as encode_corpus
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.io.lines import json_lines
from dupmae_ir.io.runs import strictly_decreasing
from dupmae_ir.search.config import SearchSettings
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Query

Corpus = Mapping[str, Mapping[str, str]]
"""Document id -> ``{"title": ..., "text": ...}``, as BEIR's data loader returns it."""
Results = dict[str, dict[str, float]]
"""Query id -> document id -> score."""


class DupmaeRetriever:
    """A retriever for ``EvaluateRetrieval``.

    Args:
        index: index folder. If it does not exist, the first search encodes the corpus into it.
        model: model folder; None is the model recorded in the index, or the embedded model for a new one.
        mode: dense, impact or hybrid; None is everything that the index has.
        device: auto, cpu, cuda, cuda:N or mps.
        settings: how to search.
        quiet: print no progress while encoding.
    """

    def __init__(
        self,
        index: str | Path,
        model: str | Path | None = None,
        *,
        mode: str | None = None,
        device: str = "auto",
        settings: SearchSettings | None = None,
        quiet: bool = True,
    ) -> None:
        self.index = Path(index)
        self.model = None if model is None else str(model)
        self.mode = mode
        self.device = device
        self.settings = settings
        self.quiet = quiet
        self._searcher: Searcher | None = None
        self._queries: dict[str, str] | None = None

    def search(
        self,
        corpus: Corpus,
        queries: Mapping[str, str],
        top_k: int,
        score_function: str | None = None,  # noqa: ARG002 (the model defines the score)
        **_: object,
    ) -> Results:
        """The best ``top_k`` documents of each query, without the document that has the query's id.

        Scores are lowered by the least float32 steps that keep ties in docid order, as in run files, so that BEIR's
        metrics equal those of ``dupmae-ir eval``. ``score_function`` is ignored: scores are inner products. Raises
        :class:`IndexMismatch` if the index has other documents than ``corpus``.
        """
        searcher = self._open(corpus)
        topics = [Query(qid, text) for qid, text in queries.items()]
        results: Results = {}
        for qid, hits in searcher.search(topics, top_k, self.mode, remove_query=True).items():
            scores = strictly_decreasing(np.array([hit.score for hit in hits], np.float64)).tolist()
            results[qid] = {hit.docid: score for hit, score in zip(hits, scores, strict=True)}
        return results

    def encode(self, corpus: Corpus, queries: Mapping[str, str], *_: object, **__: object) -> None:
        """Encode the corpus into the index if that does not exist, and keep the queries for
        :meth:`search_from_files`. BEIR's names of embedding files are ignored."""
        self._open(corpus)
        self._queries = dict(queries)

    def search_from_files(
        self,
        query_embeddings_file: str,  # noqa: ARG002
        corpus_embeddings_files: Sequence[str],  # noqa: ARG002
        top_k: int,
        **_: object,
    ) -> Results:
        """:meth:`search` for the corpus and the queries given to :meth:`encode`, which writes no embedding files."""
        if self._queries is None:
            raise UsageError(
                "call encode before search_from_files; the retriever writes an index, no embedding files"
            )
        return self.search({}, self._queries, top_k)

    def _open(self, corpus: Corpus) -> Searcher:
        if self._searcher is None:
            if not self.index.exists():
                self._build(corpus)
            self._searcher = Searcher.open(
                self.index, self.model, device=self.device, settings=self.settings
            )
        docids = self._searcher.index.docids
        # An empty corpus is that of search_from_files, which has none.
        if corpus and (len(corpus) != len(docids) or any(docid not in corpus for docid in docids)):
            raise IndexMismatch(
                f"{self.index} has {len(docids):,} documents, the corpus {len(corpus):,}, and their ids differ; name "
                "the index of this corpus, or a folder that does not exist"
            )
        return self._searcher

    def _build(self, corpus: Corpus) -> None:
        with TemporaryDirectory(prefix="dupmae-beir-") as folder:
            path = Path(folder) / "corpus.jsonl"
            with json_lines(path) as write:
                for docid, document in corpus.items():
                    title = document.get("title", "")
                    text = document.get("text", "")
                    write({"_id": docid, "title": title, "text": text})
            config = EncodeConfig(
                corpus=str(path),
                index=str(self.index),
                model=self.model,
                device=self.device,
                quiet=self.quiet,
            )
            encode_corpus(config)
