"""Options of ``dupmae-ir eval.case``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dupmae_ir.config import ComputeOptions, OneOf, OutputOptions, Requires, option
from dupmae_ir.errors import UsageError
from dupmae_ir.eval.reports.tally import FINDS


@dataclass(frozen=True, kw_only=True)
class CaseConfig(ComputeOptions, OutputOptions):
    r"""The case study of the DupMAE paper's appendix for your own queries: what the [CLS] vectors retrieve, what the OT
    weights retrieve, what their sum retrieves, the terms that each document matched, and the rank of every judged
    answer in the three lists. As in the paper, a list succeeds if an answer is among its first 10. --find searches all
    judged topics for queries that one part answers and the other does not (DupMAE, Tables 5 and 6), counts them and
    shows the clearest; --published shows the paper's own four queries beside the ranks that it prints.

    Examples:
        python -m dupmae_ir.eval.case --index I --query "how do I wait for a thread to end" --corpus corpus.jsonl
        dupmae-ir eval.case --index runs/demo/index --topics runs/demo/collection/queries.jsonl --qid q069 q091 \
            --qrels runs/demo/collection --corpus runs/demo/collection --format html --output cases.html
        python -m dupmae_ir.eval.case --index runs/demo/index --topics runs/demo/collection/queries.jsonl \
            --qrels runs/demo/collection --corpus runs/demo/collection --find cls-hit-ot-miss --most 3
        python -m dupmae_ir.eval.case --index indexes/dupmae-msmarco --published --corpus msmarco-passage/corpus.jsonl
    """

    RULES: ClassVar[tuple[OneOf | Requires, ...]] = (
        OneOf(("query", "topics", "published")),
        OneOf(("qid", "find"), required=False),
        OneOf(("qid", "published"), required=False),
        Requires("topics", ("qid", "find")),
        Requires("qrels", ("qid", "find", "published")),
        Requires("find", ("topics",)),
        Requires("find", ("qrels",)),
        Requires("remove_query", ("qid", "find", "published")),
    )

    index: str = option(help="index folder with both parts", group="input", metavar="FOLDER")
    query: str | None = option(None, "text of one query", group="input", metavar="TEXT")
    topics: str | None = option(None, "topics file; select queries with --qid or --find", group="input", metavar="FILE")
    qid: tuple[str, ...] = option(
        (), "queries of --topics; with --query, the id of the query in --qrels", group="input", metavar="QID"
    )
    published: bool = option(
        False,
        "the four queries of DupMAE's Tables 5 and 6 (MS MARCO dev), with the ranks that the paper prints",
        group="input",
    )
    qrels: str | None = option(
        None, "judgements (TREC, BEIR, or a BEIR folder), to report the ranks of answers", group="input", metavar="PATH"
    )
    split: str = option("test", "which qrels/SPLIT.tsv of a BEIR folder", group="input", metavar="SPLIT")
    corpus: str | None = option(
        None, "the collection, to show titles and texts (read once)", group="input", metavar="PATH"
    )
    find: str | None = option(
        None,
        "search all judged topics and show those that [CLS], OT and their sum answer in this way, best rank first",
        group="study",
        choices=tuple(FINDS),
    )
    most: int = option(2, "cases shown of those found", group="study", at_least=1, only_with="find")
    rel_level: int = option(1, "smallest grade of an answer", group="study", at_least=1)
    within: int = option(10, "ranks within which an answer counts as found", group="study", at_least=1)
    depth: int = option(1000, "length of the lists in which ranks are looked up", group="study", at_least=1)
    hits: int = option(
        3, "documents shown per list; the first answer within --within is always shown", group="study", at_least=1
    )
    terms: int = option(6, "matched terms shown per document, strongest first", group="study", at_least=0)
    remove_query: bool = option(False, "remove the document with the topic's own id (ArguAna, Quora)", group="study")
    model: str | None = option(
        None, "model folder (default: the one recorded in the index)", group="query encoder", metavar="FOLDER"
    )
    format: str = option("text", "output format", group="output", choices=("text", "markdown", "html", "json"))
    output: str | None = option(None, "file to write instead of printing", group="output", metavar="FILE")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.query is not None and not self.query.strip():
            raise UsageError("--query is blank")
        if self.query is not None and len(self.qid) > 1:
            raise UsageError("--query is one query; give at most one --qid with it")
        if self.depth < max(self.within, self.hits):
            raise UsageError(f"--depth {self.depth} is less than --within {self.within} or --hits {self.hits}")
