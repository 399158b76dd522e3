"""``dupmae-ir finetune.mine``: its settings and command line; the work is in ``mining``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from dupmae_ir.command import Command
from dupmae_ir.config import (
    ComputeOptions,
    OneOf,
    OutputOptions,
    Requires,
    TitleOptions,
    compute_option,
    input_option,
    option,
)
from dupmae_ir.device import IMPACT_SEARCHES
from dupmae_ir.errors import UsageError

MAX_NAMED_QUERIES = 3
"""Queries without a negative that the closing line names."""
PARTS = {"hybrid": "cls,ot", "dense": "cls", "impact": "ot"}
"""What a model searches by -> the parts that are encoded for it."""

_BY_MODEL = ("by=model", "by=both", "teacher=fused")
_BY_BM25 = ("by=bm25", "by=both", "teacher=fused")

search_option = partial(option, group="search")
negatives_option = partial(option, group="negatives")


@dataclass(frozen=True, kw_only=True)
class SearchOptions(ComputeOptions, OutputOptions):
    """How a retriever and BM25 search the collection, in mining and in scoring with fused lists."""

    parts: str = search_option(
        "hybrid", "parts of the model to search by", choices=tuple(PARTS), only_with=_BY_MODEL
    )
    document_length: int | None = search_option(
        None, "word pieces kept per passage (default: the model's)", above=0, only_with=_BY_MODEL
    )
    query_length: int | None = search_option(
        None, "word pieces kept per query (default: the model's)", above=0, only_with=_BY_MODEL
    )
    k1: float = search_option(
        0.9, "BM25: saturation of term counts", at_least=0, only_with=_BY_BM25
    )
    b: float = search_option(
        0.4, "BM25: length normalisation, 0 to 1", at_least=0, at_most=1, only_with=_BY_BM25
    )
    impact_search: str = compute_option(
        "auto",
        "how impacts are searched; postings are built as needed, and by auto if numba is installed: the same hits, "
        "much faster",
        choices=IMPACT_SEARCHES,
        only_with=_BY_MODEL,
    )


@dataclass(frozen=True, kw_only=True)
class MineConfig(SearchOptions, TitleOptions):
    r"""Mine hard negatives: search with BM25, with a model or with both, and keep the hits that are no positive of the
    query (by id or by text) and no copy of another negative. Reads pairs, or topics with judgements. Writes a line per
    query, and next to it a record that identifies the collection. If interrupted, run the same command to resume.

    Examples:
        dupmae-ir finetune.mine --pairs train.jsonl --by bm25 --output mined/bm25.jsonl
        dupmae-ir finetune.mine --pairs train.jsonl --collection corpus.jsonl --by model --model models/stage1 \
            --output mined/stage1.jsonl
        dupmae-ir finetune.mine --pairs train.jsonl --by both --model minilm --parts dense --output mined/both.jsonl
        dupmae-ir finetune.mine --topics nq/queries.jsonl --qrels nq --collection nq --by bm25 --output mined/nq.jsonl
    """

    RULES: ClassVar[tuple[OneOf | Requires, ...]] = (
        OneOf(("pairs", "topics"), "to name the queries"),
        Requires("topics", ("qrels",)),
        Requires("topics", ("collection",)),
    )

    output: str = input_option(
        help="JSON lines to write; OUTPUT.meta.json records the settings", metavar="FILE"
    )
    by: str = input_option(
        help="search with BM25, with a model, or with both, joined by reciprocal ranks",
        choices=("bm25", "model", "both"),
    )
    pairs: tuple[str, ...] = input_option(
        (), "pairs, in the layouts that finetune reads", metavar="PATH"
    )
    topics: str | None = input_option(
        None, "queries, instead of --pairs; requires --qrels and --collection", metavar="FILE"
    )
    qrels: str | None = input_option(
        None,
        "judgements of --topics (TREC or BEIR file, or a BEIR folder); grades above 0 are positives",
        metavar="PATH",
        only_with="topics",
    )
    split: str = input_option("train", "split of a BEIR folder's judgements", only_with="qrels")
    collection: str | None = input_option(
        None,
        "collection to search, in any format that encode reads; without it, the passages of the pairs, which are "
        "written to OUTPUT.passages.jsonl",
        metavar="PATH",
    )
    unknown: str = input_option(
        "refuse",
        "positives missing from the collection: end with an error, or skip and count them",
        choices=("refuse", "skip"),
    )
    depth: int = negatives_option(200, "hits per query to consider", above=0)
    skip_top: int = negatives_option(
        0, "skip the top N hits, which may be answers without a judgement", at_least=0
    )
    negatives: int = negatives_option(
        0,
        "keep a random sample of N negatives per query; 0 = all, for the trainer to sample from",
        at_least=0,
    )
    remove_query: bool = negatives_option(
        False, "drop the document whose id is the query's (ArguAna, Quora)"
    )
    seed: int = negatives_option(0, "random seed of --negatives", at_least=0)
    model: str | None = search_option(
        None, "model folder", metavar="FOLDER", only_with=("by=model", "by=both")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by != "bm25" and self.model is None:
            raise UsageError(f"`by` {self.by} requires `model` FOLDER")
        if self.by == "bm25" and self.title_separator:
            raise UsageError(
                "`title_separator` applies only with `by` model or both; BM25 ignores punctuation"
            )
        if self.collection == "-":
            raise UsageError("`collection` - (standard input) can be read only once; give a file")
        if self.skip_top >= self.depth:
            raise UsageError(f"`skip_top` {self.skip_top} must be less than `depth` {self.depth}")


def summarize(config: MineConfig, result: Mapping[str, Any]) -> str:
    """The closing line: negatives kept, hits dropped, queries without a negative."""
    count = {name: f"{value:,}" for name, value in result.items() if isinstance(value, int)}
    text = (
        f"{config.output}: {count['negatives']} negatives of {count['queries']} queries; dropped "
        f"{count['dropped_positive_id']} positives, {count['dropped_positive_text']} copies of positives and "
        f"{count['dropped_duplicate']} duplicates"
    )
    without_negative = result["queries_without_negative"]
    if without_negative:
        names = ", ".join(result["without_negative"][:MAX_NAMED_QUERIES])
        if without_negative > MAX_NAMED_QUERIES:
            names += ", ..."
        queries = "query has" if without_negative == 1 else "queries have"
        text += f"\nnote: {without_negative:,} {queries} no negative ({names})"
    return text


main = Command(
    "finetune.mine", MineConfig, "dupmae_ir.finetune.mining:run", summarize=summarize, resumes=True
)

if __name__ == "__main__":
    main.exit()
