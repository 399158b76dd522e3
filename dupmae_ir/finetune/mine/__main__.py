"""``python -m dupmae_ir.finetune.mine``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.finetune.mine.config import MineConfig

PURPOSE = """
Mine hard negatives: search with BM25, with a model or with both, and keep the hits that are no positive of the query
(by id or by text) and no copy of another negative. Reads pairs, or topics with judgements. Writes a line per query, and
beside it a record that identifies the collection. If interrupted, run the same command to resume.
"""
EXAMPLES = """
python -m dupmae_ir.finetune.mine --pairs train.jsonl --by bm25 --output mined/bm25.jsonl
python -m dupmae_ir.finetune.mine --pairs train.jsonl --collection corpus.jsonl --by model --model models/stage1 \\
    --output mined/stage1.jsonl
python -m dupmae_ir.finetune.mine --pairs train.jsonl --by both --model minilm --parts dense --output mined/both.jsonl
python -m dupmae_ir.finetune.mine --topics nq/queries.jsonl --qrels nq --collection nq --by bm25 --output mined/nq.jsonl
"""


def summarize(config: MineConfig, result: dict[str, Any]) -> str:
    """The closing line: negatives kept, hits dropped, queries without a negative."""
    count = {name: f"{value:,}" for name, value in result.items() if isinstance(value, int)}
    text = (
        f"{config.output}: {count['negatives']} negatives of {count['queries']} queries; dropped "
        f"{count['dropped_positive_id']} positives, {count['dropped_positive_text']} copies of positives and "
        f"{count['dropped_duplicate']} duplicates"
    )
    if bare := result["queries_without_negative"]:
        names = ", ".join(result["without_negative"][:3]) + (", ..." if bare > 3 else "")
        text += f"\nnote: {bare:,} {'query has' if bare == 1 else 'queries have'} no negative ({names})"
    return text


main = Command(
    "finetune.mine", PURPOSE, EXAMPLES, MineConfig, "dupmae_ir.finetune.mine.run:run", summarize=summarize, resumes=True
)

if __name__ == "__main__":
    main.exit()
