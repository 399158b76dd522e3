"""``python -m dupmae_ir.models list|get``: see ``--help``."""

from __future__ import annotations

import sys
from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.console import dispatch, megabytes, table
from dupmae_ir.models.config import GetConfig, ListConfig

EXAMPLES = """
dupmae-ir models get Shitao/RetroMAE_MSMARCO_finetune
dupmae-ir encode --model Shitao/RetroMAE_MSMARCO_finetune --corpus corpus.jsonl --index indexes/mine
"""
LIST = """
List the models that every command accepts by name: the embedded one, those of installed packages, and those in the
Hugging Face cache. Folders are accepted everywhere, too.
"""
GET = """
Download a model of the Hugging Face hub into its cache. This is the only command that downloads a model. An interrupted
download is resumed by the same command. Safetensors are preferred; code in the repository is neither fetched nor run.
"""


def _show_list(_: ListConfig, rows: list[dict[str, Any]]) -> str:
    return table([[r["name"], r["source"], megabytes(r["bytes"])] for r in rows], ["model", "source", "size"])


def _show_model(_: GetConfig, model: dict[str, Any]) -> str:
    return f"{model['name']}: {megabytes(model['bytes'])}\n  in {model['folder']}"


list_command = Command(
    "models list", LIST, "dupmae-ir models list", ListConfig, "dupmae_ir.models.hub:list_models", show=_show_list
)
get_command = Command(
    "models get", GET, EXAMPLES, GetConfig, "dupmae_ir.models.hub:get_model", show=_show_model, resumes=True
)
VERBS = {
    "list": ("list the models that commands accept by name", list_command),
    "get": ("download a model of the Hugging Face hub; run again to resume", get_command),
}


def main(argv: list[str] | None = None) -> int:
    """Run one of the two commands and return its exit status."""
    return dispatch("models", VERBS, EXAMPLES, argv)


if __name__ == "__main__":
    sys.exit(main())
