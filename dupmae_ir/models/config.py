"""Options of ``dupmae-ir models list`` and ``get``."""

from __future__ import annotations

from dataclasses import dataclass

from dupmae_ir.config import OutputOptions, option


@dataclass(frozen=True, kw_only=True)
class ListConfig(OutputOptions):
    """List the models that every command accepts by name: the embedded one, those of installed packages, and those in
    the Hugging Face cache. Folders are accepted everywhere, too.

    Examples:
        dupmae-ir models list
    """


@dataclass(frozen=True, kw_only=True)
class GetConfig(OutputOptions):
    """Download a model of the Hugging Face hub into its cache. This is the only command that downloads a model. An
    interrupted download is resumed by the same command. Safetensors are preferred; code in the repository is neither
    fetched nor run.

    Examples:
        dupmae-ir models get Shitao/RetroMAE_MSMARCO_finetune
        dupmae-ir encode --model Shitao/RetroMAE_MSMARCO_finetune --corpus corpus.jsonl --index indexes/mine
    """

    name: str = option(
        help="a model of the Hugging Face hub: ORGANISATION/MODEL", group="input", metavar="NAME", positional=True
    )
    revision: str | None = option(None, "branch, tag or commit (default: the main branch)", group="input")
