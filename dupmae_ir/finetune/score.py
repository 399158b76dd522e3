"""``dupmae-ir finetune.score``: its settings and command line; the work is in ``scoring``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dupmae_ir.command import Command
from dupmae_ir.config import compute_option, input_option, option, output_option
from dupmae_ir.finetune.cross_encoder import MinedOptions
from dupmae_ir.finetune.mine import PARTS, SearchOptions
from dupmae_ir.search.fusion import RRF_K, fusion_option

TEACHERS = ("cross-encoder", "fused")


@dataclass(frozen=True, kw_only=True)
class ScoreConfig(MinedOptions, SearchOptions):
    """Score every query of a file of mined negatives with each of its positives and negatives, for distillation. The
    teacher is a cross-encoder (one that finetune.cross_encoder trained, or any sequence classifier with one or two
    labels), or fused: the lists of BM25 and of a retriever over the complete collection, which needs no training.
    Writes a line per query, {"qid": ..., "scores": {docid: score}}. If interrupted, run the same command to resume.

    Examples:
        dupmae-ir finetune.score --mined mined/stage1.jsonl --model models/teacher --output mined/teacher.jsonl
        dupmae-ir finetune.score --mined mined/both.jsonl --teacher fused --model minilm --output mined/fused.jsonl
    """

    model: str = input_option(
        help="folder of the cross-encoder; with --teacher fused, of a retriever, or minilm"
    )
    teacher: str = input_option(
        "cross-encoder",
        "what scores a pair: a cross-encoder, or BM25's and a retriever's lists over the complete collection, fused",
        choices=TEACHERS,
    )
    output: str = output_option(
        help="JSON lines to write; OUTPUT.meta.json records the settings", metavar="FILE"
    )
    fusion: str = fusion_option(
        "min-max",
        "mean of both scores, each scaled to [0, 1] over its list; reciprocal ranks; or the sum of the raw scores, "
        "BM25's and --dense-weight times the retriever's",
        choices=("min-max", "rrf", "sum"),
        only_with="teacher=fused",
    )
    depth: int = fusion_option(
        1000,
        "hits of each list; a passage that a list lacks gets 0 from it",
        above=0,
        only_with=("fusion=min-max and teacher=fused", "fusion=rrf"),
    )
    rrf_k: int = fusion_option(RRF_K, "added to every rank", at_least=0, only_with="fusion=rrf")
    dense_weight: float = fusion_option(
        25.0, "weight of the retriever's score", above=0, only_with="fusion=sum"
    )
    parts: str = option(
        "dense",
        "parts of the retriever",
        group="search",
        choices=tuple(PARTS),
        only_with="teacher=fused",
    )
    batch_tokens: int = compute_option(
        8192,
        "word pieces per forward pass, padding included",
        above=0,
        only_with="teacher=cross-encoder",
    )


def summarize(config: ScoreConfig, result: Mapping[str, object]) -> str:
    """The closing line: pairs, queries and time."""
    time = f" in {result['seconds']:,.0f} s" if "seconds" in result else ""
    return f"{config.output}: {result['pairs']:,} pairs of {result['queries']:,} queries{time}"


main = Command(
    "finetune.score",
    ScoreConfig,
    "dupmae_ir.finetune.scoring:run",
    summarize=summarize,
    resumes=True,
)

if __name__ == "__main__":
    main.exit()
