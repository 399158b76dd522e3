"""Options of ``dupmae-ir adapt``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NotRequired, TypedDict

from dupmae_ir.adapt.queries import KINDS
from dupmae_ir.config import changed, option
from dupmae_ir.io.sources import CorpusOptions
from dupmae_ir.training.config import TrainerOptions


class AdaptResult(TypedDict):
    """What a run reports."""

    kept: Literal["adapted", "start"]
    start: dict[str, float]  #: nDCG@10 on the held-out pseudo-queries, by part
    adapted: dict[str, float]
    p: float | None  #: of the paired t-test; None if it is undefined
    documents: int  #: trained on
    held_out: int  #: pseudo-queries
    pool: int  #: documents that they are searched among
    kinds: dict[str, int]  #: held-out pseudo-queries of each kind
    steps: int
    seconds: NotRequired[int]  #: if it was trained by this call


@dataclass(frozen=True, kw_only=True)
class AdaptConfig(CorpusOptions, TrainerOptions):
    """Adapt a model to a collection from its text alone, without queries or judgements: masked auto-encoding on the
    text (DupMAE), and contrastive training on pseudo-queries (titles, headings, sentences), with both parts of the
    representation held to those of the start. Held-out pseudo-queries decide: without a gain beyond chance the output
    is the start, unchanged. The number of updates decides how long it takes. If interrupted, run the same command to
    resume.

    Examples:
        dupmae-ir adapt --corpus corpus.jsonl --output models/adapted
        dupmae-ir adapt --corpus corpus.jsonl --output models/adapted --model models/mine --steps 400 --dtype bfloat16
    """

    model: str = option(
        "default", "model to start from: a folder, or default, the model in this package", group="input"
    )
    limit: int = option(0, "use a random sample of N documents; 0 = all", group="input", at_least=0)
    kinds: tuple[str, ...] = option(
        KINDS,
        "what becomes a pseudo-query: a title, a heading of Markdown, a sentence, or a run of words of a text "
        "without sentences; it is removed from its passage",
        group="input",
        choices=KINDS,
    )
    steps: int = option(100, "number of updates, which decides how long it takes", group="training", above=0)
    batch_size: int = option(16, "pseudo-queries, and texts to auto-encode, per update", group="training", above=1)
    learning_rate: float = option(1e-5, "peak learning rate; linear warm-up and decay", group="training", above=0)
    length: int = option(96, "word pieces kept per passage in training", group="training", above=4)
    query_length: int = option(32, "word pieces kept per pseudo-query in training", group="training", above=4)
    masked_weight: float = option(
        0.1, "weight of masked auto-encoding (DupMAE Eq. 9); 0 = leave it out", group="loss", at_least=0
    )
    query_weight: float = option(
        1.0, "weight of the contrastive loss on pseudo-queries (Eq. 13); 0 = leave it out", group="loss", at_least=0
    )
    anchor_weight: float = option(
        10.0, "weight of the distance of both parts from those of the start", group="loss", at_least=0
    )
    held_out: int = option(
        200, "documents kept out of training, whose pseudo-queries decide", group="selection", above=1
    )
    pool: int = option(1000, "other documents that these are searched among", group="selection", at_least=0)
    level: float = option(
        0.05, "keep the adapted model if its gain has a p value below this", group="selection", above=0, at_most=1
    )
    seed: int = option(0, "random seed of sampling, masks and dropout", group="training", at_least=0)
    save_steps: int = changed(TrainerOptions, "save_steps", 20)
