"""Saving model folders."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from dupmae_ir.io.publishing import move_into_place, write_json
from dupmae_ir.models.checkpoints.layout import CONFIG, LEXICON, PROJECTION, SIDES, UNTIED
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.transformers_state import quiet_transformers, save_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from dupmae_ir.models.retriever import Retriever, UntiedRetriever


def save_model(
    folder: str | Path,
    model: Retriever | UntiedRetriever,
    tokenizer: PreTrainedTokenizerBase,
    config: ModelConfig,
    half: bool = False,
    card: str | None = None,
    lexicon: Path | None = None,
) -> Path:
    """Write a model folder atomically and return its path.

    An :class:`~dupmae_ir.models.retriever.UntiedRetriever` is written as two model folders, ``query_model`` and
    ``passage_model``.

    Args:
        folder: the folder to create or replace.
        model: the retriever.
        tokenizer: its tokenizer.
        config: written as ``dupmae_config.json``.
        half: store the weights in float16.
        card: contents of README.md.
        lexicon: the ``lexicon.safetensors`` to copy, for a configuration with a lexical OT part.
    """
    if (config.ot == "lexical") != (lexicon is not None):
        raise ValueError("a lexicon belongs to a lexical OT part, and only to that")
    folder = Path(folder)
    aside = folder.with_name(f".{folder.name}.writing")
    if aside.exists():
        shutil.rmtree(aside)
    query, document = (model.side(side) for side in SIDES)
    if query is document:
        _write_side(aside, document, tokenizer, config, half)
    else:
        for side, name in UNTIED.items():
            _write_side(aside / name, model.side(side), tokenizer, config, half)
        save_tokenizer(tokenizer, aside)  # where Tevatron looks for it
        write_json(aside / CONFIG, config.record())
    if lexicon is not None:
        shutil.copyfile(lexicon, aside / LEXICON)
    if card is not None:
        (aside / "README.md").write_text(card, encoding="utf-8")
    make_readable(aside)
    move_into_place(aside, folder)
    return folder


def make_readable(folder: Path) -> None:
    """Give the files below ``folder`` the usual permissions; safetensors creates files that only the owner can read."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o644)


def _write_side(
    folder: Path, model: Retriever, tokenizer: PreTrainedTokenizerBase, config: ModelConfig, half: bool
) -> None:
    folder.mkdir(parents=True)
    lm = copy.deepcopy(model.lm).half() if half else model.lm
    with quiet_transformers():
        lm.save_pretrained(folder, safe_serialization=True)
        save_tokenizer(tokenizer, folder)
    if model.projection is not None:
        dtype = torch.float16 if half else torch.float32
        state = {k: v.detach().to(dtype).contiguous() for k, v in model.projection.state_dict().items()}
        save_file(state, folder / PROJECTION)
    write_json(folder / CONFIG, config.record())
