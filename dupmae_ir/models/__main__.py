"""``python -m dupmae_ir.models list|get``: see ``--help``."""

from __future__ import annotations

import sys

from dupmae_ir.command import Command, dispatch
from dupmae_ir.console import megabytes, table
from dupmae_ir.models.names import GetModelConfig, ListModelsConfig, NamedModel


def _show_list(_: ListModelsConfig, models: list[NamedModel]) -> str:
    return table(
        [[m["name"], m["source"], megabytes(m["bytes"])] for m in models],
        ["model", "source", "size"],
    )


def _show_model(_: GetModelConfig, model: NamedModel) -> str:
    return f"{model['name']}: {megabytes(model['bytes'])}\n  in {model['folder']}"


list_command = Command(
    "models list", ListModelsConfig, "dupmae_ir.models.names:list_models", show=_show_list
)
get_command = Command(
    "models get", GetModelConfig, "dupmae_ir.models.names:get_model", show=_show_model, resumes=True
)
VERBS = {
    "list": ("list the models that commands accept by name", list_command),
    "get": ("download a model of the Hugging Face hub; run again to resume", get_command),
}


def main(argv: list[str] | None = None) -> int:
    """Run one of the two commands and return its exit status."""
    return dispatch("models", VERBS, argv)


if __name__ == "__main__":
    sys.exit(main())
