"""Parameters of the fusion methods, and ``python -m dupmae_ir.search.fusion``; see ``--help``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.config import Config, OutputOptions, option
from dupmae_ir.errors import UsageError

METHODS = ("rrf", "interpolation", "pyserini")
MISSING = ("zero", "min", "exact")
RRF_K = 60  #: Cormack, Clarke and Buettcher (SIGIR 2009)


@dataclass(frozen=True, kw_only=True)
class FusionOptions(Config):
    """Parameters of the fusion methods; shared by ``search``, ``search.fusion`` and :class:`Fusion`."""

    rrf_k: int = option(
        RRF_K, "rrf: added to every rank", group="fusion", at_least=0, only_with=("fusion=rrf", "method=rrf")
    )
    alpha: float | None = option(
        None,
        "interpolation: weight of the dense list (the first run), 1 - alpha of the impact list (default: 0.5); "
        "pyserini: weight of the impact list (the second run) (default: 0.1)",
        group="fusion",
        only_with=("fusion=interpolation", "fusion=pyserini", "method=interpolation", "method=pyserini"),
    )
    normalize: bool = option(
        False,
        "scale the scores of each list to one range first",
        group="fusion",
        only_with=("fusion=interpolation", "fusion=pyserini", "method=interpolation", "method=pyserini"),
    )
    missing: str = option(
        "zero",
        "interpolation: score of a document that a list lacks: 0, the list's lowest score, or its true score (needs "
        "an index); rrf adds nothing, pyserini takes the lowest",
        choices=MISSING,
        group="fusion",
        only_with=("fusion=interpolation", "method=interpolation"),
    )
    weight_on_dense: bool = option(
        False,
        "pyserini: alpha weighs the dense list instead",
        group="fusion",
        only_with=("fusion=pyserini", "method=pyserini"),
    )


@dataclass(frozen=True)
class Fusion(FusionOptions):
    """A fusion method and its parameters. ``alpha`` None is the method's default."""

    method: str = option("rrf", "fusion method", choices=METHODS, group="fusion")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method == "interpolation" and self.alpha is not None and not 0 <= self.alpha <= 1:
            raise UsageError(f"`alpha` must be between 0 and 1 for interpolation, got {self.alpha:g}")


@dataclass(frozen=True, kw_only=True)
class FusionConfig(Fusion, OutputOptions):
    """Fuse run files into one by reciprocal ranks, interpolation, or Pyserini's hybrid arithmetic.

    The exact sum of inner products cannot be computed from run files: use dupmae-ir search --hybrid.

    Examples:
        dupmae-ir search.fusion dense.trec impact.trec --output rrf.trec
        dupmae-ir search.fusion dense.trec impact.trec --method interpolation --normalize --missing min --output x.trec
    """

    runs: tuple[str, ...] = option(
        help="run files, TREC or MS MARCO format; for interpolation and pyserini two: dense first, impact second",
        positional=True,
        group="input and output",
        metavar="RUN",
    )
    output: str = option(help="run file to write", group="input and output", metavar="FILE")
    format: str = option("trec", "format of the output", choices=("trec", "msmarco"), group="input and output")
    tag: str = option("dupmae-fusion", "run tag, the last column of a TREC run", group="input and output")
    hits: int = option(1000, "documents kept per query", group="fusion", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.runs) < 2:
            raise UsageError("fusion needs two or more run files")
        if self.method != "rrf" and len(self.runs) != 2:
            raise UsageError(f"{self.method} joins exactly two runs, got {len(self.runs)}; rrf joins any number")


def summarize(config: FusionConfig, result: dict[str, Any]) -> str:
    """The line about the fused run for standard error."""
    incomplete = result["queries_missing_in_a_run"]
    note = f"; {incomplete} of them not in every run" if incomplete else ""
    return f"{config.output}: {result['queries']} queries by {config.method} from {len(config.runs)} runs{note}"


main = Command("search.fusion", FusionConfig, "dupmae_ir.search.exact.fused:run", summarize=summarize)

if __name__ == "__main__":
    main.exit()
