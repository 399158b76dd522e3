"""``python -m dupmae_ir.encode.queries``: see ``--help``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from dupmae_ir.command import Command
from dupmae_ir.config import OutputOptions, compute_option, input_option, output_option


class QueriesResult(TypedDict):
    """Number of queries, and the names of the files."""

    queries: int
    files: list[str]


@dataclass(frozen=True, kw_only=True)
class QueriesConfig(OutputOptions):
    r"""Encode topics with the encoder of an index, into the files that stock Pyserini commands read.

    Examples:
        dupmae-ir encode.queries --topics queries.tsv --index indexes/mine --output encoded
        python -m dupmae_ir.pyserini pyserini.search.lucene --impact --index indexes/mine/ot \
            --topics encoded/topics.tsv --encoder encoded/queries.jsonl --min-idf -1 --output impact.trec
        python -m dupmae_ir.pyserini pyserini.search.faiss --index indexes/mine/cls --topics encoded/topics.tsv \
            --encoded-queries encoded --output dense.trec
    """

    topics: str = input_option(
        help="topics file (tsv, jsonl, BEIR queries.jsonl) or a Pyserini name", metavar="TOPICS"
    )
    index: str = input_option(
        help="index folder that will be searched, or its URL", metavar="FOLDER"
    )
    model: str | None = input_option(
        None, "model folder, when it is no longer where the index was made", metavar="FOLDER"
    )
    output: str = output_option(help="folder for the files", metavar="FOLDER")
    cap: int = compute_option(
        1024, "strongest impacts kept of each query; Lucene takes at most 1,024", above=0
    )
    device: str = compute_option("auto", "auto, cpu, cuda, cuda:N or mps", metavar="NAME")


def summarize(config: QueriesConfig, result: QueriesResult) -> str:
    """How many queries there are, and the files."""
    return f"{result['queries']} queries in {', '.join(f'{config.output}/{name}' for name in result['files'])}"


main = Command(
    "encode.queries", QueriesConfig, "dupmae_ir.encode.pyserini_files:run", summarize=summarize
)

if __name__ == "__main__":
    main.exit()
