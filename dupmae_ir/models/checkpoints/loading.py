"""Loading models from folders.

transformers fills a missing head with random weights and a warning; here that is an error. Nothing that is loaded can
run code: ``.bin`` weights are read with ``weights_only``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from dupmae_ir.console import one_line
from dupmae_ir.errors import CheckpointError, HeadMissing, UsageError
from dupmae_ir.models.checkpoints import released
from dupmae_ir.models.checkpoints.layout import (
    COMPACT,
    CONFIG,
    POOLER,
    PROJECTION,
    SIDES,
    TOKENIZER,
    WEIGHTS,
    is_compact,
    untied_folders,
)
from dupmae_ir.models.checkpoints.model_config import ModelConfig, read_config
from dupmae_ir.models.checkpoints.plain import read_plain
from dupmae_ir.models.checkpoints.plain_files import PlainTokenizer, vocabulary_gap
from dupmae_ir.models.checkpoints.sentence_modules import read_modules
from dupmae_ir.models.checkpoints.transformers_state import LOADING, quiet_transformers
from dupmae_ir.models.heads.masked_lm import ExcludedIds, excluded_ids, has_head, longest
from dupmae_ir.models.retriever import Retriever, UntiedRetriever

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from dupmae_ir.models.checkpoints.plain import PlainBert
    from dupmae_ir.models.checkpoints.sentence_modules import Modules

Model: TypeAlias = "PreTrainedModel | PlainBert"
Tokenizer: TypeAlias = "PreTrainedTokenizerBase | PlainTokenizer"

Projections = dict[str, torch.nn.Linear | None]
"""Side -> W_cls."""

_ARCHIVES = (".gz", ".tgz", ".tar", ".zip")
# Parts of the weights' names.
_HEADS = ("cls.predictions.transform", "vocab_transform", "lm_head.dense", "generator_predictions")
_TIED = ("cls.predictions", "vocab_layer_norm", "vocab_projector", "lm_head", "generator_lm_head")


def load_model(
    folder: str | Path,
    need_ot: bool = True,
    activation: str | None = None,
    normalize: bool | None = None,
    published: bool = False,
    plain: bool = False,
) -> tuple[Retriever | UntiedRetriever, Any, ModelConfig]:
    """Load a retriever, its tokenizer and its configuration; the retriever is in eval mode and in float32.

    Can be called from several threads at once; they load one after another.

    Args:
        folder: a model folder, or a DPR checkpoint file.
        need_ot: if False, accept checkpoints without a masked-LM head, for the [CLS] part alone.
        activation: replaces the checkpoint's own.
        normalize: replaces the checkpoint's own.
        published: honour the modules of a sentence-transformers folder (pooling, Dense, Normalize, length), as encoding
            does. Training starts from [CLS] and leaves them out.
        plain: read a plain BERT folder without transformers (:mod:`dupmae_ir.models.checkpoints.plain`), for packed
            inference alone.

    Returns:
        An :class:`UntiedRetriever` if queries and documents have different encoders, a :class:`Retriever` otherwise.

    Raises:
        CheckpointError: ``folder`` is not a usable checkpoint. :class:`HeadMissing` if it only lacks a masked-LM head.
    """
    path = Path(folder)
    if plain and read_config(path).ot_pooling == "max":
        with LOADING:
            if one := read_plain(path, need_ot):
                sides = dict.fromkeys(SIDES, path), dict.fromkeys(SIDES, one.lm)
                return _assemble(path, *sides, [one.tokenizer] * 2, None, activation, normalize)
    with quiet_transformers():
        homes, lms = _load_sides(path, need_ot)
        home = path.parent if path.is_file() else path
        modules = read_modules(home) if published and path.is_dir() else None
        tokenizers = [_load_tokenizer(homes[s], home) for s in SIDES]
        return _assemble(path, homes, lms, tokenizers, modules, activation, normalize)


def check_dense(model: str | Path, config: ModelConfig, needed: bool = True) -> None:
    """Raise :class:`UsageError` if a dense part is ``needed`` and the model is a SparseEncoder."""
    if needed and config.sparse_encoder:
        raise UsageError(f"{model}: is a SparseEncoder, without a dense part; use `parts` ot")


def _assemble(
    path: Path,
    homes: dict[str, Path],
    lms: Mapping[str, Model],
    tokenizers: Sequence[Tokenizer],
    modules: Modules | None,
    activation: str | None,
    normalize: bool | None,
) -> tuple[Retriever | UntiedRetriever, Any, ModelConfig]:
    """The retriever of language models that were read, with the other files of its folder."""
    home = path.parent if path.is_file() else path
    config = _read_configs(home, homes)
    tokenizer = _common_tokenizer(path, tokenizers, lms)
    if modules is not None:
        lm = lms["document"]
        limit = min(longest(lm), int(getattr(tokenizer, "model_max_length", longest(lm))))
        config = modules.applied(config, limit, int(lm.config.vocab_size))
        modules.check_case(tokenizer)
        projections: Projections = dict.fromkeys(SIDES, modules.projection(int(lm.config.hidden_size)))
    else:
        projections = _load_projections(home, homes, lms)
    config = replace(
        config,
        activation=config.activation if activation is None else activation,
        normalize=config.normalize if normalize is None else normalize,
    )
    retriever = _build_retriever(path, lms, projections, tokenizer, config)
    return retriever.to(torch.float32).eval(), tokenizer, config


def _load_sides(path: Path, need_ot: bool) -> tuple[dict[str, Path], dict[str, PreTrainedModel]]:
    """Folder and language model of each side; the same objects twice if one encoder serves both."""
    if path.is_file():
        if path.name.endswith(_ARCHIVES):
            raise CheckpointError(f"{path}: is an archive; unpack it and give the folder")
        encoders = released.read_dpr(path)
        if need_ot:
            raise CheckpointError(f"{path}: a DPR checkpoint has no masked-LM head, so no OT part; use `parts` cls")
        return dict.fromkeys(SIDES, path.parent), encoders
    if path.is_dir() and (folders := untied_folders(path)):
        return folders, {side: _load_lm(_check_folder(folders[side]), need_ot) for side in SIDES}
    return dict.fromkeys(SIDES, _check_folder(path)), dict.fromkeys(SIDES, _load_lm(path, need_ot))


def _check_folder(folder: Path) -> Path:
    if not folder.exists():
        raise CheckpointError(
            f"{folder}: no such model folder; give one with config.json and model.safetensors (nothing is downloaded, "
            "but by dupmae-ir models get)"
        )
    if not folder.is_dir() or not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder}: not a model folder (no config.json)")
    if not any((folder / n).is_file() for n in WEIGHTS):
        raise CheckpointError(f"{folder}: no weights (looked for {', '.join(WEIGHTS)})")
    return folder


def _load_lm(folder: Path, need_ot: bool) -> PreTrainedModel:
    """The masked LM if the checkpoint contains its head, otherwise the bare encoder if ``need_ot`` is False."""
    _refuse_reranker(folder)
    from transformers import AutoModel, AutoModelForMaskedLM  # importing it takes seconds, and plain models need none

    try:
        lm, info = _from_pretrained(AutoModelForMaskedLM, folder)
    except CheckpointError:
        raise
    except Exception as e:
        raise CheckpointError(f"{folder}: the model does not load: {one_line(e, 300)}") from None
    missing = sorted(info["missing_keys"])
    lost_head = [k for k in missing if any(h in k for h in _HEADS)]
    lost_body = [k for k in missing if "pooler" not in k and not any(h in k for h in (*_HEADS, *_TIED))]
    if lost_body:
        raise CheckpointError(
            f"{folder}: {len(lost_body)} encoder weights are missing (first: {lost_body[0]}); "
            "the file is incomplete or of another architecture"
        )
    supported = has_head(lm)
    if supported and not lost_head:
        return lm
    if need_ot:
        why = f"{lost_head[0]} is missing" if lost_head else f"the head of {type(lm).__name__} is not supported"
        raise HeadMissing(
            f"{folder}: has no trained masked-LM head ({why}), so there is no OT part; "
            "use `parts` cls, or a checkpoint with a head"
        )
    encoder, _ = _from_pretrained(AutoModel, folder)
    if getattr(encoder, "pooler", None) is not None:
        # Untrained in most retrievers' checkpoints, and never used.
        encoder.pooler = None
    return encoder


def _from_pretrained(kind: Any, folder: Path) -> tuple[Any, Mapping[str, Any]]:
    """The model of an Auto class and transformers' report on its weights, which may be stored in 8 bits."""
    if not is_compact(folder):
        return kind.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    from transformers import AutoConfig

    state = released.read_tensors(folder / COMPACT)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        architecture: Any = type(kind.from_config(config))  # the Auto classes take no weights without a folder
    return architecture.from_pretrained(
        None, config=config, state_dict=state, dtype=torch.float32, output_loading_info=True
    )


def _refuse_reranker(folder: Path) -> None:
    try:
        names = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures") or []
    except (ValueError, AttributeError):
        return  # from_pretrained reports what is wrong with it
    if any(str(name).endswith("ForSequenceClassification") for name in names):
        raise CheckpointError(
            f"{folder}: is a reranker ({names[0]}), which scores pairs and has no vectors; use it as a teacher"
        )


def _read_configs(home: Path, homes: dict[str, Path]) -> ModelConfig:
    """The model's own configuration; if an untied model has none, that of its sides, which must agree."""
    if (home / CONFIG).is_file():
        return read_config(home)
    query, document = (read_config(homes[side]) for side in SIDES)
    if query != document:
        raise CheckpointError(f"{home}: its two sides have different {CONFIG}; write one for both into this folder")
    return document


def _load_tokenizer(folder: Path, home: Path) -> PreTrainedTokenizerBase:
    """The side's own tokenizer, or the one in the model's folder: Tevatron stores one for both sides there."""
    from transformers import AutoTokenizer

    own = any((folder / name).is_file() for name in TOKENIZER)
    try:
        return AutoTokenizer.from_pretrained(folder if own else home, local_files_only=True)
    except Exception as e:
        raise CheckpointError(f"{folder}: the tokenizer does not load: {one_line(e, 300)}") from None


def _common_tokenizer(path: Path, tokenizers: Sequence[Tokenizer], lms: Mapping[str, Model]) -> Tokenizer:
    query, document = tokenizers
    if query.get_vocab() != document.get_vocab():
        raise CheckpointError(f"{path}: its two sides have different vocabularies; they do not belong together")
    for lm in lms.values():
        if len(document) > lm.config.vocab_size:
            raise CheckpointError(
                f"{path}: the tokenizer has {len(document)} entries but the model {lm.config.vocab_size}; "
                "they do not belong together"
            )
    if problem := vocabulary_gap(document.get_vocab().values(), lms["document"].config.vocab_size):
        raise CheckpointError(f"{path}: {problem}; restore the tokenizer that the model was trained with")
    return document


def _load_projections(home: Path, homes: dict[str, Path], lms: Mapping[str, Model]) -> Projections:
    """W_cls of each side or None, from Tevatron's ``pooler.pt`` or from our own file, but not from both."""
    hidden = {side: int(lms[side].config.hidden_size) for side in SIDES}
    if pooler := released.read_pooler(home, hidden["document"]):
        if any((homes[side] / PROJECTION).is_file() for side in SIDES):
            raise CheckpointError(f"{home}: has both {POOLER} and {PROJECTION}; remove the wrong one")
        return {**pooler}
    query = _load_projection(homes["query"], hidden["query"])
    tied = homes["query"] == homes["document"]
    return {"query": query, "document": query if tied else _load_projection(homes["document"], hidden["document"])}


def _load_projection(folder: Path, hidden: int) -> torch.nn.Linear | None:
    path = folder / PROJECTION
    return released.linear(released.read_tensors(path), hidden, str(path)) if path.is_file() else None


def _build_retriever(
    path: Path, lms: Mapping[str, Model], projections: Projections, tokenizer: Tokenizer, config: ModelConfig
) -> Retriever | UntiedRetriever:
    excluded = ExcludedIds([], [])
    if not config.sparse_encoder:
        excluded = excluded_ids(tokenizer, config.include_sep, config.include_cls)
    scale = config.lexical.head_scale or None if config.lexical else None
    query, document = (
        Retriever(
            lms[side],
            projections[side],
            *excluded,
            activation=config.activation,
            normalize=config.normalize,
            pooling=config.pooling,
            head_scale=scale,
            ot_pooling=config.ot_pooling,
        )
        for side in SIDES
    )
    if query.lm is document.lm and query.projection is document.projection:
        return document
    if query.dim != document.dim or query.lm.config.vocab_size != document.lm.config.vocab_size:
        raise CheckpointError(
            f"{path}: its query side has {query.dim} dimensions and {query.lm.config.vocab_size} terms, its document "
            f"side {document.dim} and {document.lm.config.vocab_size}; they do not belong together"
        )
    return UntiedRetriever(query, document)
