"""``python -m dupmae_ir.encode.queries``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.encode.config import QueriesConfig

PURPOSE = "Encode topics with the encoder of an index, into the files that stock Pyserini commands read."
EXAMPLES = """
python -m dupmae_ir.encode.queries --topics queries.tsv --index indexes/mine --output encoded
python -m dupmae_ir.pyserini pyserini.search.lucene --impact --index indexes/mine/ot --topics encoded/topics.tsv \\
    --encoder encoded/queries.jsonl --min-idf -1 --output impact.trec
python -m dupmae_ir.pyserini pyserini.search.faiss --index indexes/mine/cls --topics encoded/topics.tsv \\
    --encoded-queries encoded --output dense.trec
"""


def summarize(config: QueriesConfig, result: dict[str, Any]) -> str:
    """How many queries there are, and the files."""
    return f"{result['queries']} queries in {', '.join(f'{config.output}/{name}' for name in result['files'])}"


main = Command(
    "encode.queries", PURPOSE, EXAMPLES, QueriesConfig, "dupmae_ir.encode.query_files:run", summarize=summarize
)

if __name__ == "__main__":
    main.exit()
