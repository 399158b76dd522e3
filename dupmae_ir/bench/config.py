"""Options of ``dupmae-ir bench``."""

from __future__ import annotations

from dataclasses import dataclass

from dupmae_ir.config import OutputOptions, option

DOCUMENTS, ROUNDS = 2000, 5


@dataclass(frozen=True, kw_only=True)
class BenchConfig(OutputOptions):
    """Options of ``dupmae-ir bench``."""

    documents: int = option(
        DOCUMENTS, "documents to encode; recorded machines are compared for the default alone", group="what", at_least=1
    )
    rounds: int = option(ROUNDS, "times that each search is repeated; the median counts", group="what", at_least=1)
    model: str | None = option(
        None, "model folder; without it, the embedded default model", group="what", metavar="FOLDER"
    )
