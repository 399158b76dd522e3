"""File and folder names inside a model folder."""

from __future__ import annotations

from pathlib import Path

from dupmae_ir.errors import CheckpointError

CONFIG = "dupmae_config.json"
PROJECTION = "cls_projection.safetensors"
LEXICON = "lexicon.safetensors"  #: document frequencies of a lexical OT part
POOLER = "pooler.pt"  #: Tevatron's projections
MODULES = "modules.json"  #: sentence-transformers' list of modules
COMPACT = "model.compact.safetensors"  #: weights in 8 bits
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    COMPACT,
)
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model")

SIDES = ("query", "document")
UNTIED = {"query": "query_model", "document": "passage_model"}
"""Subfolders of an untied model, by side."""


def untied_folders(folder: Path) -> dict[str, Path] | None:
    """The model folder of each side of an untied model; None for a model with one encoder."""
    found = {side: folder / name for side, name in UNTIED.items() if (folder / name).is_dir()}
    if len(found) == 1:
        raise CheckpointError(f"{folder}: has only one of {' and '.join(UNTIED.values())}; an untied model needs both")
    return found or None


def is_compact(folder: Path) -> bool:
    """Whether the weights in ``folder`` are stored in 8 bits.

    Raises :class:`CheckpointError` if it also contains weights of another format.
    """
    if not (folder / COMPACT).is_file():
        return False
    if others := [n for n in WEIGHTS if n != COMPACT and (folder / n).is_file()]:
        raise CheckpointError(f"{folder}: has both {COMPACT} and {others[0]}; remove the wrong one")
    return True
