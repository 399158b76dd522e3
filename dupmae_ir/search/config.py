"""Settings of a search: :class:`SearchSettings` for the Searcher, :class:`SearchConfig` for ``dupmae-ir search``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from dupmae_ir.config import ComputeOptions, OneOf, OutputOptions, Requires, ThreadOptions, option
from dupmae_ir.device import IMPACT_SEARCHES, processors
from dupmae_ir.errors import UsageError
from dupmae_ir.index.dense_kinds import FLAT, ROTATED
from dupmae_ir.search.fusion import METHODS, FusionOptions, fusion_option

MODES = {"dense": ("cls",), "impact": ("ot",), "hybrid": ("cls", "ot")}
"""Search mode -> the parts of the index it needs."""

DENSE_INDEXES = (FLAT, ROTATED, "auto")
"""How vectors are searched."""
MOST_TERMS = 1024
"""Lucene rejects queries with more clauses."""
RUN_HITS = 1000
QUERY_HITS = 10
_LARGEST = sys.float_info.max
_RECORDED_WEIGHT = "default: the one recorded in the index, 1 for most models"
what_option = partial(option, group="what")
mode_option = partial(option, group="mode (at most one)")
sum_option = partial(option, group="scores", only_with="!dense and !impact and !bm25 and !fusion")
bm25_option = partial(option, group="scores", only_with=("bm25", "bm25_index"))
run_option = partial(option, group="with --topics", only_with="topics")
query_option = partial(option, group="with --query", only_with=("query", "interactive"))
server_option = partial(option, group="server", only_with="server")
rerank_option = partial(option, group="second look", only_with="rerank")
encoder_option = partial(option, group="query encoder", only_with="!bm25")


@dataclass(frozen=True, kw_only=True)
class SearchSettings(ThreadOptions):
    """How a :class:`~dupmae_ir.search.searcher.Searcher` searches; also flags of ``dupmae-ir search``."""

    batch_size: int = option(
        256,
        "queries searched together; no effect on scores, bit for bit",
        group="compute",
        at_least=1,
    )
    query_terms: int = encoder_option(
        MOST_TERMS,
        f"strongest OT weights kept per query; Lucene takes at most {MOST_TERMS}",
        at_least=1,
        at_most=MOST_TERMS,
    )
    dense_weight: float | None = sum_option(
        None, f"hybrid: weight of the dense score ({_RECORDED_WEIGHT})", above=0, at_most=_LARGEST
    )
    impact_weight: float | None = sum_option(
        None, f"hybrid: weight of the impact score ({_RECORDED_WEIGHT})", above=0, at_most=_LARGEST
    )
    bm25_index: str | None = sum_option(
        None,
        "hybrid: Lucene index of the same collection (made by 'dupmae-ir index bm25'), whose BM25 scores join the sum",
        metavar="FOLDER",
    )
    bm25_weight: float = option(
        1.0,
        "hybrid: weight of the BM25 score",
        group="scores",
        above=0,
        at_most=_LARGEST,
        only_with="bm25_index",
    )
    k1: float = bm25_option(0.9, "BM25: saturation of term frequencies", at_least=0)
    b: float = bm25_option(0.4, "BM25: length normalisation, 0 to 1", at_least=0, at_most=1)
    max_depth: int = option(
        0,
        "longest candidate list; 0 = no limit. Topics that need more to be certified are reported",
        group="scores",
        at_least=0,
        only_with="!bm25",
    )
    dense_index: str = option(
        "auto",
        "rotated: codes that exclude most documents before their vectors are read, made by encode for large "
        "collections or by 'dupmae-ir index dense'; flat: all vectors; auto: rotated if the index has it. Hits and "
        "scores are the same, bit for bit",
        group="compute",
        choices=DENSE_INDEXES,
        only_with="!impact and !bm25 and !server",
    )
    impact_search: str = option(
        "auto",
        "postings, which encode writes: the same hits as Lucene without Java, and faster; lucene; "
        "auto: postings if the index has them and the extra speed is installed, otherwise lucene",
        choices=IMPACT_SEARCHES,
        group="compute",
        only_with="!bm25 and !dense and !server",
    )

    rerank: str | None = option(
        None,
        "model that reads the texts of the first candidates and orders them anew: a cross-encoder (a sequence "
        "classifier), or a BGE-M3 folder, by MaxSim of its vectors of single tokens",
        group="second look",
        metavar="FOLDER",
        only_with="!bm25 and !fusion",
    )
    rerank_depth: int = rerank_option(50, "candidates that it reads", at_least=1)
    rerank_seconds: float | None = rerank_option(
        None,
        "time for a query; candidates not read by then keep their order below. 0 = no limit (default: 10, or 0 with "
        "--topics, whose run must not depend on the machine)",
        at_least=0,
    )
    rerank_weight: float | None = rerank_option(
        None,
        "sort by the search's score plus X times the reranker's (default: by the reranker's score alone)",
        above=0,
        at_most=_LARGEST,
    )

    server: str | None = option(
        None,
        "URL of a server that 'dupmae-ir servers load' filled, which proposes the candidates, such as "
        "postgresql://host/database; hits and scores are the same as without it",
        group="server",
        metavar="URL",
        only_with="!bm25 and !bm25_index",
    )
    table: str | None = server_option(
        None,
        "name of the table on the server (default: from the name of the index folder)",
        metavar="NAME",
    )
    approximate: bool = server_option(
        False,
        "use the approximate indexes of the server: faster on large collections, may miss documents, never certified",
    )
    timeout: float = server_option(60.0, "seconds to wait for an answer of the server", above=0)

    @property
    def workers(self) -> int:
        """Threads for faiss, Lucene and the postings."""
        return self.threads or processors()


@dataclass(frozen=True, kw_only=True)
class SearchConfig(SearchSettings, FusionOptions, ComputeOptions, OutputOptions):
    """Search an index folder. --topics writes a run file; --query prints the hits of one query; --interactive answers
    one query after the other, with the model and the index kept in memory (:help lists its commands).

    Hybrid search ranks by the exact sum <cls_q, cls_d> + <ot_q, ot_d>: every candidate is scored exactly on both sides,
    and the lists are deepened until no unseen document can be among the hits. --within and --filter restrict the search
    to some documents; the guarantee then is about these. With --bm25-index, BM25 scores of the same documents are a
    third part of the sum, with the same guarantee. Scores are in real units in every mode, so hybrid = dense + impact.
    Equal scores are in docid order, here and in trec_eval's reading of the run.

    Examples:
        dupmae-ir search --index I --topics queries.jsonl --output run.trec
        dupmae-ir search --index I --topics queries.jsonl --impact --hits 100 --output impact.trec
        dupmae-ir search --index I --topics queries.jsonl --bm25-index I2 --bm25-weight 0.6 --output run.trec
        dupmae-ir search --index I --query "how do I wait for a thread to end" --corpus corpus.jsonl
        dupmae-ir search --index I --interactive
        dupmae-ir search --index I --query "release notes" --filter 'year >= 2020 and lang = "en"'
        dupmae-ir search --index I --query "how do I wait for a thread to end" --explain threading.Thread.join
    """

    RULES: ClassVar[tuple[OneOf | Requires, ...]] = (
        OneOf(("topics", "query", "interactive")),
        OneOf((*MODES, "bm25", "fusion"), required=False),
        Requires("topics", ("output",)),
    )

    index: tuple[str, ...] = what_option(
        help="index folder or its URL (s3://bucket/index); several, of one model and one scale, are searched as one",
        metavar="FOLDER",
    )
    topics: str | None = what_option(
        None,
        "topics: qid<tab>text, JSON lines (BEIR's queries.jsonl), .gz of these, or a Pyserini topics name",
        metavar="FILE",
    )
    query: str | None = what_option(
        None, "a single query; hits are printed on standard output", metavar="TEXT"
    )
    interactive: bool = what_option(
        False,
        "answer queries from standard input, one a line; :help lists the commands",
        only_with="!bm25",
    )
    hits: int | None = what_option(
        None,
        f"documents per query (default: {RUN_HITS} with --topics, otherwise {QUERY_HITS})",
        at_least=1,
    )

    within: str | None = what_option(
        None,
        "search only the documents with these ids, one a line; lists are exact ones of these documents",
        metavar="FILE",
        only_with="!explain",
    )

    filter: str | None = what_option(
        None,
        "search only documents whose metadata satisfy this condition, such as 'year >= 2020 and lang = \"en\"' "
        "(comparisons, in, contains, is missing, and, or, not, parentheses)",
        metavar="CONDITION",
        only_with="!explain and !bm25",
    )

    hybrid: bool = mode_option(
        False,
        "the exact sum of both inner products (DupMAE Eq. 12); the default if the index has both parts",
    )
    dense: bool = mode_option(False, "inner products of the [CLS] vectors only")
    impact: bool = mode_option(False, "inner products of the OT weights only")
    bm25: bool = mode_option(False, "BM25, on a folder made by 'dupmae-ir index bm25'")
    fusion: str | None = mode_option(
        None,
        "fuse a dense and an impact list instead of summing scores: by reciprocal ranks or by interpolating scores",
        choices=METHODS,
    )

    output: str | None = run_option(None, "run file to write", metavar="FILE")
    format: str = run_option("trec", "format of the run file", choices=("trec", "msmarco"))
    tag: str | None = run_option(
        None, "last column of a TREC run (default: dupmae-ir-MODE)", metavar="WORD"
    )
    qrels: str | None = run_option(
        None, "search only the topics that this file has judgements for", metavar="FILE"
    )
    remove_query: bool = run_option(
        False, "remove the document with the topic's own id (sets of BEIR)"
    )
    max_passage: bool = run_option(
        False, "ids are DOCUMENT#PASSAGE (encode.passages): rank documents by their best passage"
    )
    passage_hits: int | None = run_option(
        None,
        "passages retrieved per query (default: ten times --hits)",
        at_least=1,
        only_with="max_passage",
    )
    report: str | None = run_option(
        None,
        "JSON lines to write, one per topic: whether the list is certified exact, its depths and its bound",
        metavar="FILE",
        only_with="topics and !bm25 and !fusion",
    )

    explain: str | None = query_option(
        None,
        "explain the score of this document instead of searching",
        metavar="DOCID",
        only_with="query and !bm25",
    )
    corpus: str | None = query_option(
        None,
        "the collection, to show titles and texts of the hits of an index that does not store them (read once)",
        metavar="PATH",
    )
    terms: int = query_option(5, "matched terms shown per hit, strongest first", at_least=0)

    raw_impacts: bool = option(
        False,
        "impact: print integer sums; otherwise they are divided by the squared scale of the index",
        group="scores",
        only_with="impact",
    )
    fusion_depth: int | None = fusion_option(
        None, "documents taken from each list (default: --hits)", at_least=1, only_with="fusion"
    )

    model: str | None = encoder_option(
        None,
        "model folder (default: the one recorded in the index; a model with other weights is rejected)",
        metavar="FOLDER",
    )
    query_length: int | None = encoder_option(
        None,
        "word pieces per query, including [CLS] and [SEP] (default: as recorded in the index)",
        above=0,
    )
    dtype: str | None = option(
        None,
        "precision of the query encoder: float32, mixed, bfloat16, float16 or auto (default: as recorded in the index)",
        group="compute",
        choices=("auto", "float32", "mixed", "bfloat16", "float16"),
        only_with="!bm25",
    )

    @property
    def where(self) -> str:
        """The index folders, for messages and results."""
        return " ".join(self.index)

    def __post_init__(self) -> None:
        if isinstance(self.index, str):  # from Python
            object.__setattr__(self, "index", (self.index,))
        super().__post_init__()
        if self.query is not None and not self.query.strip():
            raise UsageError("`query` is blank")
        if self.passage_hits is not None and self.passage_hits < (self.hits or RUN_HITS):
            raise UsageError(
                f"`passage_hits` {self.passage_hits} must be at least `hits` ({self.hits or RUN_HITS}): every document "
                "needs at least one passage"
            )

    @property
    def mode(self) -> str | None:
        """The requested mode; None selects the default of the index."""
        return next((mode for mode in (*MODES, "bm25") if getattr(self, mode)), None)
