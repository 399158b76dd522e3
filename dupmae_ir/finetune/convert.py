"""``dupmae-ir finetune.convert``: its settings and command line; the work is in ``conversion``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dupmae_ir.command import Command
from dupmae_ir.config import OutputOptions, option
from dupmae_ir.errors import UsageError

FORMATS = ("msmarco-qrels", "msmarco-triples", "dpr", "beir", "st-hard-negatives", "tevatron", "tsv", "titles")
REQUIRED: dict[str, tuple[str, ...]] = {
    "msmarco-qrels": ("queries", "collection"),
    "st-hard-negatives": ("queries", "collection"),
    "titles": ("titles",),
}
"""Format -> the options it cannot do without."""

_BY_ID = ("format=msmarco-qrels", "format=msmarco-triples", "format=st-hard-negatives")


@dataclass(frozen=True, kw_only=True)
class ConvertConfig(OutputOptions):
    r"""Convert published training data to the formats that finetune reads: pairs with complete passages or, where
    negatives are ids of a collection, a mined file. Whatever is left out is counted and named. The same input gives the
    same bytes.

    Examples:
        dupmae-ir finetune.convert --format dpr --input biencoder-nq-train.json --negatives 30 --output nq.jsonl.gz
        dupmae-ir finetune.convert --format msmarco-qrels --input qrels.train.tsv --queries queries.train.tsv \
            --collection collection.tsv --titles titles.tsv --output msmarco.jsonl.gz
        dupmae-ir finetune.convert --format st-hard-negatives --input msmarco-hard-negatives.jsonl.gz \
            --queries queries.train.tsv --collection collection.tsv --scores scores.tsv --output mined.jsonl
    """

    format: str = option(
        help="format of the input: msmarco-qrels = judgements (MS MARCO's or any); msmarco-triples = MS MARCO's "
        "triples, of ids (with --queries and --collection) or of texts; dpr = DPR's arrays (NQ, TriviaQA); beir = a "
        "BEIR folder; st-hard-negatives = sentence-transformers' negatives of MS MARCO; tevatron = Tevatron's lines; "
        "tsv = query<TAB>passage; titles = a collection that gets its --titles",
        group="input",
        choices=FORMATS,
    )
    input: str = option(help="the file (for beir the folder), gzipped or not", group="input", metavar="PATH")
    output: str = option(help="JSON lines to write, .jsonl or .jsonl.gz", group="output", metavar="FILE")
    queries: str | None = option(
        None, "texts of the queries, for an input of ids", group="input", metavar="FILE", only_with=_BY_ID
    )
    collection: str | None = option(
        None, "the passages, for an input of ids", group="input", metavar="PATH", only_with=_BY_ID
    )
    titles: str | None = option(
        None,
        "id<TAB>title lines for passages without a title, such as MS MARCO's; for a mined file, convert the collection "
        "with --format titles first",
        group="input",
        metavar="FILE",
        only_with=("format=msmarco-qrels", "format=titles"),
    )
    scores: str | None = option(
        None,
        "a teacher's scores, lines of qid, pid and score or JSON; written to OUTPUT.scores.jsonl in the format of "
        "finetune --scores",
        group="input",
        metavar="FILE",
        only_with=("format=msmarco-triples", "format=st-hard-negatives"),
    )
    split: str = option("train", "split of a BEIR folder's judgements", group="input")
    systems: tuple[str, ...] = option(
        (),
        "systems whose negatives are taken (default: all)",
        group="input",
        metavar="NAME",
        only_with="format=st-hard-negatives",
    )
    positives: int = option(0, "keep at most the first N positives per query; 0 = all", group="output", at_least=0)
    negatives: int = option(
        0, "keep at most the first N negatives per query, hard ones first; 0 = all", group="output", at_least=0
    )
    unknown: str = option(
        "refuse",
        "ids without a text and passages without a score: end with an error, or skip and count them",
        group="input",
        choices=("refuse", "skip"),
    )
    kind: str = option(
        "",
        "stored with every pair, for finetune --cap",
        group="output",
        only_with=tuple(f"format={f}" for f in ("msmarco-qrels", "msmarco-triples", "dpr", "beir", "tevatron", "tsv")),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if missing := next((n for n in REQUIRED.get(self.format, ()) if not getattr(self, n)), None):
            raise UsageError(f"`format` {self.format} requires `{missing}`")
        if not self.output.endswith((".jsonl", ".jsonl.gz")):
            raise UsageError(f"`output` {self.output}: name a file that ends in .jsonl or .jsonl.gz")
        if self.format != "msmarco-triples":
            return
        if bool(self.queries) != bool(self.collection):
            raise UsageError("triples of ids require `queries` and `collection`, triples of texts neither")
        if self.scores and not self.collection:
            raise UsageError("`scores` refer to passages by id; triples of texts have none")
        if self.kind and self.collection:
            raise UsageError("`kind` applies to pairs; triples of ids become a mined file")

    @property
    def result(self) -> str:
        """``pairs``, ``collection``, or ``mined`` where negatives are ids of a collection."""
        if self.format == "titles":
            return "collection"
        by_id = self.format == "st-hard-negatives" or (self.format == "msmarco-triples" and self.collection)
        return "mined" if by_id else "pairs"


def summarize(config: ConvertConfig, result: Mapping[str, object]) -> str:
    """The closing line: lines written, and every count."""
    counts = [f"{n:,} {name.replace('_', ' ')}" for name, n in result.items() if isinstance(n, int) and name != "lines"]
    return f"{config.output}: {result['lines']:,} lines; {', '.join(counts)}"


main = Command("finetune.convert", ConvertConfig, "dupmae_ir.finetune.conversion:run", summarize=summarize)

if __name__ == "__main__":
    main.exit()
