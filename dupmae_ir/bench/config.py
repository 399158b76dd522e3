"""Options of ``dupmae-ir bench``."""

from __future__ import annotations

from dataclasses import dataclass

from dupmae_ir.config import OutputOptions, option

DOCUMENTS, ROUNDS = 2000, 5


@dataclass(frozen=True, kw_only=True)
class BenchConfig(OutputOptions):
    """Measure this machine in about two minutes: encoding, the first answer, one query, both impact engines, and a
        thousand
    hits of many queries. Documents and queries are those of the embedded collection, so every machine does the same
    work; those of recorded machines are printed beside them. Close other programs first. --json prints a record of this
    machine.

    Examples:
        python -m dupmae_ir.bench
        python -m dupmae_ir.bench --json > this-machine.json
    """

    documents: int = option(
        DOCUMENTS, "documents to encode; recorded machines are compared for the default alone", group="what", at_least=1
    )
    rounds: int = option(ROUNDS, "times that each search is repeated; the median counts", group="what", at_least=1)
    model: str | None = option(
        None, "model folder; without it, the embedded default model", group="what", metavar="FOLDER"
    )
