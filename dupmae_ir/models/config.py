"""Options of ``dupmae-ir models list`` and ``get``."""

from __future__ import annotations

from dataclasses import dataclass

from dupmae_ir.config import OutputOptions, option


@dataclass(frozen=True, kw_only=True)
class ListConfig(OutputOptions):
    """Options of ``dupmae-ir models list``."""


@dataclass(frozen=True, kw_only=True)
class GetConfig(OutputOptions):
    """Options of ``dupmae-ir models get``."""

    name: str = option(
        help="a model of the Hugging Face hub: ORGANISATION/MODEL", group="input", metavar="NAME", positional=True
    )
    revision: str | None = option(None, "branch, tag or commit (default: the main branch)", group="input")
