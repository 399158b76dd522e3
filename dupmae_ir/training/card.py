"""The model card of a training run, ``README.md`` in the model folder: data, recipe, settings, curves, scores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dupmae_ir import __version__

CARD = "README.md"


@dataclass(frozen=True)
class Card:
    """What a card says about a model beside its record."""

    command: str  #: verb of the command that made it
    title: str
    what: str  #: one sentence that describes it
    use: str  #: Markdown: how it is used; FOLDER stands for its folder
    kept: str  #: subfolder with the log and the plot

    def text(self, settings: Mapping[str, object], inputs: Mapping[str, str], result: Mapping[str, object]) -> str:
        """The card in Markdown, with the metadata that the Hugging Face hub reads.

        Arguments are those of the record, so equal runs have equal cards.
        """
        tags = ["information-retrieval", "dupmae-ir", self.command]
        data = [[name, _value(settings.get(name)), f"`{digest[:16]}`"] for name, digest in inputs.items()]
        scores = [[name, _value(value)] for name, value in _flat(result) if value is not None]
        chosen = [[f"`{name}`", _value(value)] for name, value in settings.items()]
        parts = [
            "\n".join(["---", "tags:", *(f"- {tag}" for tag in tags), "---"]),
            f"# {self.title}",
            f"{self.what} Made by `dupmae-ir {self.command}` {__version__}; the record is beside it.",
            f"## Use\n\n{self.use}",
            "## Data\n\nWhat it was made from, with the first digits of each SHA-256. Its licences apply.",
            _rows(["input", "name", "digest"], data),
            f"## Curves\n\n![Losses by update]({self.kept}/losses.png)",
            f"`{self.kept}/log.jsonl` has the values.",
            "## Scores and counts",
            _rows(["", "value"], scores),
            "## Settings",
            _rows(["setting", "value"], chosen),
        ]
        return "\n\n".join(parts) + "\n"


def write_card(
    folder: Path, card: Card, settings: Mapping[str, object], inputs: Mapping[str, str], result: Mapping[str, object]
) -> None:
    """Write the card into ``folder``, a model that is about to be published."""
    (folder / CARD).write_text(card.text(settings, inputs, result), encoding="utf-8")


def _flat(values: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """(name, value) of nested mappings; names are joined by spaces."""
    found: list[tuple[str, object]] = []
    for name, value in values.items():
        words = f"{prefix}{name}".replace("_", " ")
        found += _flat(value, f"{words} ") if isinstance(value, Mapping) else [(words, value)]
    return found


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return " ".join(map(_value, value))
    text = value if isinstance(value, str) else json.dumps(value)
    return " ".join(text.replace("|", "\\|").split())


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [head, [":--"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
