"""The files of a model folder: their names, its subfolders, and the digest that identifies a model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from dupmae_ir.console import one_line
from dupmae_ir.errors import CheckpointError
from dupmae_ir.io.publishing import sha256_file

CONFIG = "dupmae_config.json"
PROJECTION = "cls_projection.safetensors"
OT_PROJECTION = "ot_projection.safetensors"  #: W^O of Eq. 6, of a model with ``ot_head`` linear
LEXICON = "lexicon.safetensors"  #: document frequencies of a lexical OT part
SPARSE_LINEAR = "sparse_linear.pt"  #: BGE-M3's layer for token weights
COLBERT_LINEAR = "colbert_linear.pt"  #: BGE-M3's layer for the vectors of single tokens
POOLER = "pooler.pt"  #: Tevatron's projections
MODULES = "modules.json"  #: sentence-transformers' list of modules
ROUTER = "router_config.json"  #: the modules of queries and those of documents, in a folder whose module is a Router
IDF = "idf.json"  #: OpenSearch's query weights, by token
COMPACT = "model.compact.safetensors"  #: weights in 8 bits
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    COMPACT,
)
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "vocab.json",
    "sentencepiece.bpe.model",
)

LARGEST_SIZES = {
    "hidden_size": 1 << 16,
    "intermediate_size": 1 << 20,
    "num_hidden_layers": 1000,
    "num_attention_heads": 1000,
    "max_position_embeddings": 1 << 24,
    "vocab_size": 10_000_000,
}
"""Entry of config.json -> what is above the sizes of any model."""

SIDES = ("query", "document")
UNTIED = {"query": "query_model", "document": "passage_model"}
"""Subfolders of an untied model, by side."""


def untied_folders(folder: Path) -> dict[str, Path] | None:
    """The model folder of each side of an untied model; None for a model with one encoder."""
    found = {side: folder / name for side, name in UNTIED.items() if (folder / name).is_dir()}
    if len(found) == 1:
        raise CheckpointError(
            f"{folder}: has only one of {' and '.join(UNTIED.values())}; an untied model needs both"
        )
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


Chain = list[tuple[str, str]]
"""Class name and subfolder of each module of a text, in the order of computation."""


def module_folders(folder: Path) -> list[Path]:
    """The existing subfolders of a sentence-transformers folder's modules; none for any other folder."""
    try:
        chains = module_chains(folder)
    except CheckpointError:
        return []  # reported when the model is loaded
    paths = dict.fromkeys(path for chain in chains.values() for _, path in chain)
    return [folder / path for path in paths if path not in ("", ".") and (folder / path).is_dir()]


def module_chains(folder: Path) -> dict[str, Chain]:
    """The modules of queries and of documents; none for anything but a model of sentence-transformers.

    Raises :class:`CheckpointError` for a file of another form.
    """
    path = folder / MODULES
    if not path.is_file() or (folder / CONFIG).is_file():
        return {}
    try:
        listed = [(m["type"], m["path"]) for m in json.loads(path.read_text(encoding="utf-8"))]
        chains = dict.fromkeys(SIDES, _chain(listed)) if listed else {}
        if chains and chains["query"][0][0] == "Router":
            home, rest = Path(chains["query"][0][1]), chains["query"][1:]
            path = folder / home / ROUTER
            routes = json.loads(path.read_text(encoding="utf-8"))
            types, structure = routes["types"], routes["structure"]
            chains = {
                part: _chain(
                    [(types[key], str(home / key) if key else str(home)) for key in structure[part]]
                )
                + rest
                for part in SIDES
            }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise CheckpointError(f"{path}: not a list of modules: {one_line(e, 300)}") from None
    return chains


def _chain(listed: list[tuple[str, str]]) -> Chain:
    return [(str(kind).rpartition(".")[2], str(path)) for kind, path in listed]


_SUFFIXES = {".safetensors", ".bin", ".json", ".txt", ".model"}
_LAYERS = {POOLER, SPARSE_LINEAR, COLBERT_LINEAR}
RECORDS = {
    "training.json",
    "made.json",
}  #: records of how a model was made, which do not affect its output


def check_files(folder: Path) -> None:
    """Raise :class:`CheckpointError` for a model folder with files that cannot be read to their end, or with sizes in
    ``config.json`` that no model has: what reads them would take all memory or never return."""
    for path in _relevant_files(folder) if folder.is_dir() else []:
        if not path.is_file():
            raise CheckpointError(f"{path}: not a regular file")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except RecursionError:
        raise CheckpointError(f"{folder / 'config.json'}: nested too deeply") from None
    except (OSError, ValueError):
        return  # reported when the model is loaded
    for name, most in LARGEST_SIZES.items():
        value = config.get(name) if isinstance(config, dict) else None
        if isinstance(value, int | float) and not 0 < value <= most:
            raise CheckpointError(
                f"{folder / 'config.json'}: {name} is {value}; it must be from 1 to {most:,}"
            )


def folder_digest(folder: str | Path) -> str:
    """SHA-256 over the names and contents of all files that affect a model's representations.

    These are weights, tokenizer and configuration; of both sides for an untied model; and for a DPR checkpoint file,
    the file itself with the configuration and tokenizer beside it.

    Raises :class:`CheckpointError` for a missing folder.
    """
    path = Path(folder)
    if not path.exists():
        raise CheckpointError(
            f"{path}: no such model folder (nothing is downloaded, but by dupmae-ir models get)"
        )
    whole = hashlib.sha256()
    if path.is_file():
        beside = (
            p
            for p in _relevant_files(path.parent)
            if p.suffix not in {".safetensors", ".bin", ".pt"}
        )
        named = [(p.name, p) for p in dict.fromkeys([path, *beside])]
    else:
        named = [(p.name, p) for p in _relevant_files(path)]
        named += [
            (f"{part.name}/{p.name}", p)
            for part in module_folders(path)
            for p in _relevant_files(part)
        ]
        sides = untied_folders(path) or {}
        named += [
            (f"{UNTIED[side]}/{p.name}", p)
            for side, part in sides.items()
            for p in _relevant_files(part)
        ]
    for name, file in named:
        whole.update(f"{name} {sha256_file(file)}\n".encode())
    return whole.hexdigest()


def _relevant_files(folder: Path) -> list[Path]:
    return sorted(
        p
        for p in folder.iterdir()
        if (p.suffix in _SUFFIXES and p.name not in RECORDS) or p.name in _LAYERS
    )
