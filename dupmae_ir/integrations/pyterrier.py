"""A PyTerrier transformer.

    import pyterrier as pt
    from dupmae_ir.integrations.pyterrier import PyTerrierRetriever

    hybrid = PyTerrierRetriever("my-index", num_results=1000)
    dense = PyTerrierRetriever("my-index", mode="dense")
    pt.Experiment([dense % 10, hybrid], topics, qrels, ["ndcg_cut_10"], names=["dense", "hybrid"])

PyTerrier and Pyserini each start a JVM with their own classpath, which one process cannot have: import this module, and
search with ``impact_search="postings"``, if a pipeline also has Terrier's own retrievers.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyterrier as pt

from dupmae_ir.integrations.passages import PassageSearch
from dupmae_ir.search.config import RUN_HITS
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Query


class PyTerrierRetriever(pt.Transformer):
    """Retrieves by dense, impact or hybrid search: topics (``qid``, ``query``) to results.

    Results have ``docno``, ``score`` and ``rank`` (from 0), and the columns of the topics. Scores fall from rank to
    rank and ties are in docid order, as in the run files of ``dupmae-ir search``.

    Args:
        index: index folder, or an open searcher.
        mode: dense, impact or hybrid; None is everything that the index has.
        num_results: documents per query.
        text: add the columns ``title`` and ``text`` from the texts stored in the index.
    """

    def __init__(
        self,
        index: str | Path | Searcher,
        mode: str | None = None,
        num_results: int = RUN_HITS,
        *,
        text: bool = False,
    ) -> None:
        super().__init__()
        self.searcher = index if isinstance(index, Searcher) else Searcher.open(index)
        self.mode = mode
        self.num_results = num_results
        self._texts = PassageSearch(self.searcher, mode) if text else None

    def transform(self, topics: pd.DataFrame) -> pd.DataFrame:
        """The best ``num_results`` documents of each topic."""
        pt.validate.columns(topics, includes=["qid", "query"])
        queries = []
        for qid, query in zip(topics["qid"], topics["query"], strict=True):
            queries.append(Query(str(qid), str(query)))
        run = self.searcher.search(queries, self.num_results, self.mode)

        rows = []
        for topic in queries:
            for rank, hit in enumerate(run[topic.qid]):
                rows.append((topic.qid, hit.docid, hit.score, rank))
        results = pd.DataFrame(rows, columns=["qid", "docno", "score", "rank"])
        # Without rows, pandas cannot infer the types of columns.
        results = results.astype({"qid": object, "docno": object, "score": float, "rank": int})
        if self._texts is not None:
            documents = [self.searcher.document(docno) for docno in results["docno"]]
            results["title"] = [document.title if document else "" for document in documents]
            results["text"] = [document.text if document else "" for document in documents]

        # Results of an earlier stage of the pipeline are replaced.
        result_columns = ("docno", "score", "rank", "title", "text")
        replaced = [column for column in result_columns if column in topics.columns]
        kept = topics.drop(columns=replaced)
        # As text on both sides of the merge: topics may number their queries.
        kept = kept.assign(qid=kept["qid"].astype(str))
        return kept.merge(results, on="qid", how="inner")
