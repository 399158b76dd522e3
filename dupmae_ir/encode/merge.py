"""``python -m dupmae_ir.encode.merge I.0 I.1 I.2 --index I``: see ``--help``."""

from __future__ import annotations

from dataclasses import dataclass

from dupmae_ir.command import Command
from dupmae_ir.config import OutputOptions, option, output_option
from dupmae_ir.encode.config import IndexSummary


class MergeResult(IndexSummary):
    """The index, and the folders that it was joined from."""

    shards: list[str]


@dataclass(frozen=True, kw_only=True)
class MergeConfig(OutputOptions):
    """Join the indexes of all shards of one collection into the index of the whole.

    Examples:
        dupmae-ir encode.merge I.0 I.1 I.2 I.3 --index I
        dupmae-ir encode.merge shards/I.* --index I
    """

    shards: tuple[str, ...] = option(
        help="index folders made with --shard, in any order, or their URLs",
        positional=True,
        metavar="SHARD",
    )
    index: str = output_option(
        help="index folder to make, or a URL to make one at: s3://bucket/index", metavar="FOLDER"
    )
    overwrite: bool = output_option(False, "replace an older index")


def summarize(config: MergeConfig, result: MergeResult) -> str:
    """How many documents and shards there are."""
    return f"{config.index}: {result['documents']:,} documents from {len(result['shards'])} shards"


main = Command("encode.merge", MergeConfig, "dupmae_ir.encode.merging:run", summarize=summarize)

if __name__ == "__main__":
    main.exit()
