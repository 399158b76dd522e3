"""Options of ``dupmae-ir eval.space``."""

from __future__ import annotations

from dataclasses import dataclass

from dupmae_ir.config import ComputeOptions, OutputOptions, option
from dupmae_ir.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class SpaceConfig(ComputeOptions, OutputOptions):
    r"""CoT-MoTE's analysis of a dual encoder (section 5.3, Figure 4): a t-SNE picture of the [CLS] vectors of queries
    and passages under cosine distance, and the average KL and JS divergence of their distance distributions (Eq.
    14-19). Pairs are drawn at random, 400 as in the paper, several times; averages are reported with their standard
    deviation.

    Several models make the paper's Figure 4: one panel each with kernel densities (A), and bars of KL and JS with
    paired two-tailed t-tests over the draws (B); their table is its Table 1 (MRR@10 comes from eval). All models get
    the same pairs.

    The paper's sums run over the whole matrix of distances, so the divergences depend on the number of pairs; compare
    models on the same pairs and the same number of pairs.

    Examples:
        dupmae-ir eval.space --queries scifact/queries.jsonl --passages scifact --qrels scifact --output space.html
        python -m dupmae_ir.eval.space --model my/model --queries q.tsv --passages p.tsv --pairs 200 --draws 5 --json
        python -m dupmae_ir.eval.space --model siamese mote separate --name Siamese MoTE "Fully separate" \
            --queries msmarco-passage/queries.dev.tsv --passages msmarco-passage --qrels msmarco-passage --split dev \
            --output figure4.html
    """

    queries: str = option(help="topics file, or a Pyserini topics name", group="input", metavar="FILE")
    passages: str = option(help="collection: JSON lines, tsv, .gz of these, or a folder", group="input", metavar="PATH")
    qrels: str | None = option(
        None,
        "judgements that pair a query with its first passage of the highest grade (default: the n-th query is paired "
        "with the n-th passage)",
        group="input",
        metavar="PATH",
    )
    split: str = option("test", "which qrels/SPLIT.tsv of a BEIR folder", group="input", metavar="SPLIT")
    model: tuple[str, ...] = option(
        (),
        "model folders, one panel each, compared on the same pairs (default: the embedded model)",
        group="input",
        metavar="FOLDER",
    )
    name: tuple[str, ...] = option(
        (),
        "names of the models in tables and pictures, in order (default: their folders)",
        group="input",
        metavar="NAME",
        only_with="model",
    )
    pairs: int = option(400, "query-passage pairs per draw", group="measurement", at_least=2)
    draws: int = option(
        10,
        "random draws over which the divergences are averaged and tested; disjoint if the data has enough pairs; one "
        "draw if it contains all pairs",
        group="measurement",
        at_least=1,
    )
    perplexity: float = option(
        30.0,
        "perplexity of t-SNE (effective number of neighbours), less than the number of points",
        group="measurement",
    )
    seed: int = option(0, "seed of the draws and of t-SNE", group="measurement", at_least=0)
    output: str | None = option(
        None,
        "picture of the first draw, with bars for several models: .html page or .svg (default: numbers only)",
        group="output",
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        names = self.name or self.model
        if len(names) != len(self.model) or len(set(names)) < len(names):
            flag = "--name" if self.name else "--model"
            raise UsageError(f"{flag} {' '.join(names)}: there must be one name per model, and all must differ")
        if self.output and not self.output.lower().endswith((".html", ".svg")):
            raise UsageError(f"--output {self.output}: name a file that ends in .html or .svg")
