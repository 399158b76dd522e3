"""The files of a model folder: their names, its subfolders, and the digest that identifies a model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

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
"""Entry of config.json -> a limit that no real model reaches."""

SIDES = ("query", "document")
UNTIED = {"query": "query_model", "document": "passage_model"}
"""Subfolders of an untied model, by side."""


def untied_folders(folder: Path) -> dict[str, Path] | None:
    """The model folder of each side of an untied model; None for a model with one encoder."""
    subfolders = {side: folder / name for side, name in UNTIED.items() if (folder / name).is_dir()}
    if len(subfolders) == 1:
        raise CheckpointError(
            f"{folder}: has only one of {' and '.join(UNTIED.values())}; an untied model needs both"
        )
    return subfolders or None


def is_compact(folder: Path) -> bool:
    """Whether the weights in ``folder`` are stored in 8 bits.

    Raises :class:`CheckpointError` if it also contains weights of another format.
    """
    if not (folder / COMPACT).is_file():
        return False
    for name in WEIGHTS:
        if name != COMPACT and (folder / name).is_file():
            raise CheckpointError(f"{folder}: has both {COMPACT} and {name}; remove the wrong one")
    return True


class ModuleEntry(NamedTuple):
    """One module of sentence-transformers."""

    kind: str  #: class name, without its package
    path: str  #: subfolder; empty or ``.`` for the model's folder


Chain = list[ModuleEntry]
"""The modules that a text passes through, in the order of computation."""


def module_folders(folder: Path) -> list[Path]:
    """The existing subfolders of a sentence-transformers folder's modules; none for any other folder."""
    try:
        chains = module_chains(folder)
    except CheckpointError:
        return []  # reported when the model is loaded
    # Keys of a dictionary: without repetitions, and in a fixed order, since the digest depends on it.
    paths: dict[str, None] = {}
    for chain in chains.values():
        for module in chain:
            if module.path not in ("", ".") and (folder / module.path).is_dir():
                paths[module.path] = None
    return [folder / path for path in paths]


def module_chains(folder: Path) -> dict[str, Chain]:
    """The modules of queries and of documents; empty for any folder but one of sentence-transformers.

    Raises :class:`CheckpointError` for a file of another form.
    """
    path = folder / MODULES
    if not path.is_file() or (folder / CONFIG).is_file():
        return {}
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        modules = [_module_entry(entry["type"], entry["path"]) for entry in entries]
        if not modules:
            return {}
        if modules[0].kind != "Router":
            return dict.fromkeys(SIDES, modules)

        # A Router contains a chain for each side; the modules after it follow both.
        router = Path(modules[0].path)
        path = folder / router / ROUTER
        routes = json.loads(path.read_text(encoding="utf-8"))
        types = routes["types"]
        structure = routes["structure"]
        chains = {}
        for side in SIDES:
            chain = [_module_entry(types[key], router / key) for key in structure[side]]
            chains[side] = chain + modules[1:]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise CheckpointError(f"{path}: not a list of modules: {one_line(e, 300)}") from None
    return chains


def _module_entry(class_path: object, folder: object) -> ModuleEntry:
    return ModuleEntry(str(class_path).rpartition(".")[2], str(folder))


_RELEVANT_SUFFIXES = {".safetensors", ".bin", ".json", ".txt", ".model"}
_PICKLED_LAYERS = {POOLER, SPARSE_LINEAR, COLBERT_LINEAR}
_DIGEST_BLOCK = 32 << 20
"""Bytes that are read and hashed at once: the weights of the embedded model are one block."""
RECORDS = {"training.json", "made.json"}
"""Records of how a model was made, which do not affect its output."""


def check_files(folder: Path) -> None:
    """Raise :class:`CheckpointError` for a model folder with files that cannot be read to their end (pipes, devices),
    or with sizes in ``config.json`` that no model has: loading them would take all memory or never return."""
    if folder.is_dir():
        for path in _relevant_files(folder):
            if not path.is_file():
                raise CheckpointError(f"{path}: not a regular file")

    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise CheckpointError(f"{path}: nested too deeply") from None
    except (OSError, ValueError):
        return  # reported when the model is loaded
    if not isinstance(config, dict):
        return  # reported when the model is loaded
    for name, limit in LARGEST_SIZES.items():
        value = config.get(name)
        if isinstance(value, int | float) and not 0 < value <= limit:
            raise CheckpointError(f"{path}: {name} is {value}; it must be from 1 to {limit:,}")


def folder_digest(folder: str | Path) -> str:
    """SHA-256 over the names and contents of all files that affect a model's representations.

    These are weights, tokenizer and configuration, of both encoders for an untied model. For a DPR checkpoint file,
    they are the file itself and the configuration and tokenizer in the same folder.

    Raises :class:`CheckpointError` for a missing folder.
    """
    path = Path(folder)
    if not path.exists():
        raise CheckpointError(
            f"{path}: no such model folder (nothing is downloaded, but by dupmae-ir models get)"
        )

    # Names and their order are part of the digest, which indexes record: changing either makes every index appear to
    # have been built with another model.
    named_files: list[tuple[str, Path]] = []
    if path.is_file():
        files = [path]
        for file in _relevant_files(path.parent):
            if file != path and file.suffix not in {".safetensors", ".bin", ".pt"}:
                files.append(file)
        named_files += [(file.name, file) for file in files]
    else:
        named_files += [(file.name, file) for file in _relevant_files(path)]
        for subfolder in (*module_folders(path), *(untied_folders(path) or {}).values()):
            for file in _relevant_files(subfolder):
                named_files.append((f"{subfolder.name}/{file.name}", file))

    digest = hashlib.sha256()
    for name, file in named_files:
        digest.update(f"{name} {sha256_file(file, _DIGEST_BLOCK)}\n".encode())
    return digest.hexdigest()


def _relevant_files(folder: Path) -> list[Path]:
    """The files of a folder that affect representations, sorted."""
    files = []
    for path in folder.iterdir():
        if path.name in RECORDS:
            continue
        if path.suffix in _RELEVANT_SUFFIXES or path.name in _PICKLED_LAYERS:
            files.append(path)
    return sorted(files)
