"""Loading models from folders.

transformers fills a missing head with random weights and a warning; here that is an error. Nothing that is loaded can
run code: ``.bin`` weights are read with ``weights_only``.

Importing transformers takes longer than everything else in the first answer of a search. A folder that is in every
respect an ordinary BERT checkpoint is therefore read without it by :func:`read_plain`, into modules of the same names.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dupmae_ir.console import one_line
from dupmae_ir.errors import CheckpointError, HeadMissing, UsageError
from dupmae_ir.models.checkpoints import released
from dupmae_ir.models.checkpoints.layout import (
    COLBERT_LINEAR,
    COMPACT,
    CONFIG,
    OT_PROJECTION,
    POOLER,
    PROJECTION,
    SIDES,
    SPARSE_LINEAR,
    TOKENIZER,
    WEIGHTS,
    is_compact,
    untied_folders,
)
from dupmae_ir.models.checkpoints.model_config import ModelConfig, read_config
from dupmae_ir.models.checkpoints.modules import Modules, read_modules
from dupmae_ir.models.checkpoints.plain_files import (
    PADDING,
    BertShape,
    PlainTokenizer,
    read_plain_files,
    vocabulary_gap,
    weight_shapes,
    with_biases,
)
from dupmae_ir.models.checkpoints.released import read_tensors
from dupmae_ir.models.heads.masked_lm import (
    ExcludedIds,
    excluded_ids,
    has_head,
    is_decoder,
    longest,
    unweighted_ids,
)
from dupmae_ir.models.retriever import DenseLayers, Retriever, UntiedRetriever

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


Model: TypeAlias = "PreTrainedModel | PlainBert"
Tokenizer: TypeAlias = "PreTrainedTokenizerBase | PlainTokenizer"

Projections = dict[str, nn.Linear | DenseLayers | None]
"""Side -> W_cls."""

_DENSE_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_ARCHIVES = (".gz", ".tgz", ".tar", ".zip")
LOADING = threading.RLock()
"""Held while a model is loaded."""
# Parts of the weights' names.
_HEADS = ("cls.predictions.transform", "vocab_transform", "head.dense", "generator_predictions")
_TIED = (
    "cls.predictions",
    "vocab_layer_norm",
    "vocab_projector",
    "lm_head",
    "head.norm",
    "decoder.bias",
)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Load models inside this context: one thread at a time, without transformers' warnings and progress bars.

    ``from_pretrained`` replaces functions of ``torch.nn.init`` and creates modules on the meta device; two threads
    that load at once leave each other with weights on the meta device ("Cannot copy out of meta tensor"). The
    verbosity and the progress bars are process-wide settings too. What transformers would warn about, missing and
    unexpected weights, is checked by the callers.
    """
    with LOADING:
        import transformers

        bars = transformers.utils.logging.is_progress_bar_enabled()
        level = transformers.utils.logging.get_verbosity()
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity(logging.ERROR)
        try:
            yield
        finally:
            transformers.utils.logging.set_verbosity(level)
            if bars:
                transformers.utils.logging.enable_progress_bar()


def load_model(
    folder: str | Path,
    need_ot: bool = True,
    activation: str | None = None,
    normalize: float | None = None,
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
        plain: read a plain BERT folder without transformers (:func:`read_plain`), for packed
            inference alone.

    Returns:
        An :class:`UntiedRetriever` if queries and documents have different encoders, a :class:`Retriever` otherwise.

    Raises:
        CheckpointError: ``folder`` is not a usable checkpoint. :class:`HeadMissing` if it only lacks a masked-LM head.
    """
    path = Path(folder)
    if plain and read_config(path).ot_pooling == "max":
        with LOADING:
            plain_model = read_plain(path, need_ot)
            if plain_model:
                # One encoder for both sides.
                homes = dict.fromkeys(SIDES, path)
                lms = dict.fromkeys(SIDES, plain_model.lm)
                tokenizers = [plain_model.tokenizer] * len(SIDES)
                return _assemble(path, homes, lms, tokenizers, None, activation, normalize)
    with quiet_transformers():
        modules = read_modules(path) if published and path.is_dir() else None
        if modules is not None and modules.static:
            raise CheckpointError(
                f"{path}: has static embeddings and no encoder; encode and search with it only"
            )
        homes, lms = _load_sides(path if modules is None else modules.encoder, need_ot)
        home = path.parent if path.is_file() else path
        tokenizers = [_load_tokenizer(homes[s], home) for s in SIDES]
        return _assemble(path, homes, lms, tokenizers, modules, activation, normalize)


def check_dense(model: str | Path, config: ModelConfig, needed: bool = True) -> None:
    """Raise :class:`UsageError` if a dense part is ``needed`` and the model has none."""
    if needed and not config.has_dense:
        raise UsageError(f"{model}: is a SparseEncoder, without a dense part; use `parts` ot")


def _assemble(
    path: Path,
    homes: dict[str, Path],
    lms: Mapping[str, Model],
    tokenizers: Sequence[Tokenizer],
    modules: Modules | None,
    activation: str | None,
    normalize: float | None,
) -> tuple[Retriever | UntiedRetriever, Any, ModelConfig]:
    """The retriever of language models that were read, with the other files of its folder."""
    home = path.parent if path.is_file() else path
    # An untied model without a configuration of its own has that of its sides, which must agree.
    asked, config = (
        read_config(home if (home / CONFIG).is_file() else homes[side]) for side in SIDES
    )
    if asked != config:
        raise CheckpointError(
            f"{home}: its two sides have different {CONFIG}; write one for both into this folder"
        )
    tokenizer = _common_tokenizer(path, tokenizers, lms)
    if modules is not None:
        lm = lms["document"]
        limit = min(longest(lm), int(getattr(tokenizer, "model_max_length", longest(lm))))
        config = modules.applied(config, limit, int(lm.config.vocab_size))
        modules.check_case(tokenizer)
        projections: Projections = dict.fromkeys(
            SIDES, _load_dense(modules, int(lm.config.hidden_size))
        )
    else:
        projections = _load_projections(home, homes, lms)
    config = replace(
        config,
        activation=config.activation if activation is None else activation,
        normalize=config.normalize if normalize is None else normalize,
    )
    retriever = _build_retriever(path, lms, projections, tokenizer, config)
    for side in SIDES:
        encoder = retriever.side(side)
        if config.ot_head == "linear" and encoder.ot_projection is None:
            encoder.ot_projection = _load_ot_projection(homes[side], lms[side])
        if config.ot == "token_weight" and encoder.token_weight is None:
            layers = _load_token_layers(homes[side], lms[side])
            encoder.token_weight, encoder.token_vectors = layers
    return retriever.to(torch.float32).eval(), tokenizer, config


def _load_sides(path: Path, need_ot: bool) -> tuple[dict[str, Path], dict[str, PreTrainedModel]]:
    """Folder and language model of each side; the same objects twice if one encoder serves both."""
    if path.is_file():
        if path.name.endswith(_ARCHIVES):
            raise CheckpointError(f"{path}: is an archive; unpack it and give the folder")
        encoders = released.read_dpr(path)
        if need_ot:
            raise CheckpointError(
                f"{path}: a DPR checkpoint has no masked-LM head, so no OT part; use `parts` cls"
            )
        return dict.fromkeys(SIDES, path.parent), encoders
    folders = untied_folders(path) if path.is_dir() else None
    if folders:
        return folders, {side: _load_lm(_check_folder(folders[side]), need_ot) for side in SIDES}
    _check_folder(path)
    return dict.fromkeys(SIDES, path), dict.fromkeys(SIDES, _load_lm(path, need_ot))


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
    # Importing it takes seconds, and plain models need none.
    from transformers import (
        MODEL_FOR_MASKED_LM_MAPPING,
        AutoConfig,
        AutoModel,
        AutoModelForMaskedLM,
    )

    try:
        masked = (
            type(AutoConfig.from_pretrained(folder, local_files_only=True))
            in MODEL_FOR_MASKED_LM_MAPPING
        )
        lm, info = _from_pretrained(AutoModelForMaskedLM if masked else AutoModel, folder)
    except CheckpointError:
        raise
    except Exception as e:
        reason = one_line(e, 300)
        if "Weights only load failed" in reason:
            # The library's advice would run what the file contains.
            reason = (
                "its weights hold more than tensors, which could run code; save only its tensors"
            )
        raise CheckpointError(f"{folder}: the model does not load: {reason}") from None

    lost_head = []
    lost_body = []
    for name in sorted(info["missing_keys"]):
        if any(part in name for part in _HEADS):
            lost_head.append(name)
        elif "pooler" not in name and not any(part in name for part in _TIED):
            lost_body.append(name)
    if lost_body:
        raise CheckpointError(
            f"{folder}: {len(lost_body)} encoder weights are missing (first: {lost_body[0]}); "
            "the file is incomplete or of another architecture"
        )
    supported = has_head(lm)
    if supported and not lost_head:
        return lm
    if need_ot:
        why = f"the head of {type(lm).__name__} is not supported"
        if lost_head:
            why = f"{lost_head[0]} is missing"
        raise HeadMissing(
            f"{folder}: has no trained masked-LM head ({why}), so there is no OT part; "
            "use `parts` cls, `head` lexical for word weights in closed form, or a checkpoint with a head"
        )
    encoder = lm
    if masked:
        encoder, _ = _from_pretrained(AutoModel, folder)
    # Decoders would keep the keys of every text.
    encoder.config.use_cache = False
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
        # The Auto classes take no weights without a folder, but the class that they choose does.
        architecture: Any = type(kind.from_config(config))
    return architecture.from_pretrained(
        None, config=config, state_dict=state, dtype=torch.float32, output_loading_info=True
    )


def _refuse_reranker(folder: Path) -> None:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        names = list(config.get("architectures") or [])
    except (ValueError, AttributeError, TypeError):
        return  # from_pretrained reports what is wrong with it
    if any(str(name).endswith("ForSequenceClassification") for name in names):
        raise CheckpointError(
            f"{folder}: is a reranker ({names[0]}), which scores pairs and has no vectors; use it as a teacher"
        )


def _load_tokenizer(folder: Path, home: Path) -> PreTrainedTokenizerBase:
    """The side's own tokenizer, or the one in the model's folder: Tevatron stores one for both sides there."""
    from transformers import AutoTokenizer

    own = any((folder / name).is_file() for name in TOKENIZER)
    try:
        return AutoTokenizer.from_pretrained(folder if own else home, local_files_only=True)
    except Exception as e:
        raise CheckpointError(
            f"{folder}: the tokenizer does not load: {one_line(e, 300)}"
        ) from None


def _common_tokenizer(
    path: Path, tokenizers: Sequence[Tokenizer], lms: Mapping[str, Model]
) -> Tokenizer:
    query, document = tokenizers
    if query.get_vocab() != document.get_vocab():
        raise CheckpointError(
            f"{path}: its two sides have different vocabularies; they do not belong together"
        )
    decoder = all(is_decoder(lm) for lm in lms.values())
    for lm in lms.values():
        # A decoder's tokenizer has a few tokens of other modalities; encoding reads them as unknown.
        if len(document) > lm.config.vocab_size + (PADDING if decoder else 0):
            raise CheckpointError(
                f"{path}: the tokenizer has {len(document)} entries but the model {lm.config.vocab_size}; "
                "they do not belong together"
            )
    if decoder:
        return document
    problem = vocabulary_gap(document.get_vocab().values(), lms["document"].config.vocab_size)
    if problem:
        raise CheckpointError(
            f"{path}: {problem}; restore the tokenizer that the model was trained with"
        )
    return document


def _load_projections(home: Path, homes: dict[str, Path], lms: Mapping[str, Model]) -> Projections:
    """W_cls of each side or None, from Tevatron's ``pooler.pt`` or from our own file, but not from both."""
    hidden = {side: int(lms[side].config.hidden_size) for side in SIDES}
    if pooler := released.read_pooler(home, hidden["document"]):
        if any((homes[side] / PROJECTION).is_file() for side in SIDES):
            raise CheckpointError(
                f"{home}: has both {POOLER} and {PROJECTION}; remove the wrong one"
            )
        return {**pooler}
    query = _load_projection(homes["query"], hidden["query"])
    tied = homes["query"] == homes["document"]
    return {
        "query": query,
        "document": query if tied else _load_projection(homes["document"], hidden["document"]),
    }


def _load_dense(modules: Modules, width: int) -> nn.Linear | DenseLayers | None:
    """The Dense modules for states of ``width``. Raises :class:`CheckpointError` for a missing or damaged file."""
    layers: list[tuple[nn.Linear, nn.Module]] = []
    for module in modules.dense:
        path = next((p for p in map(module.folder.joinpath, _DENSE_WEIGHTS) if p.is_file()), None)
        if path is None:
            raise CheckpointError(
                f"{module.folder}: no weights (looked for {' and '.join(_DENSE_WEIGHTS)})"
            )
        state = {name.removeprefix("linear."): value for name, value in read_tensors(path).items()}
        layer = released.linear(state, width, str(path))
        width = layer.out_features
        layers.append((layer, getattr(nn, module.activation)()))
    if not layers:
        return None
    if [module.activation for module in modules.dense] == ["Identity"]:
        return layers[0][0]
    return DenseLayers(*(part for pair in layers for part in pair))


def _load_projection(folder: Path, hidden: int) -> torch.nn.Linear | None:
    path = folder / PROJECTION
    return (
        released.linear(released.read_tensors(path), hidden, str(path)) if path.is_file() else None
    )


def _load_ot_projection(folder: Path, lm: Model) -> torch.nn.Linear:
    """W^O of a model whose OT part does not use the masked-LM head."""
    path, terms = folder / OT_PROJECTION, int(lm.config.vocab_size)
    if not path.is_file():
        raise CheckpointError(f"{path}: missing, but ot_head is linear in {CONFIG}; restore it")
    layer = released.linear(released.read_tensors(path), int(lm.config.hidden_size), str(path))
    if layer.out_features != terms:
        raise CheckpointError(
            f"{path}: expected weights of {terms} terms, got {layer.out_features}"
        )
    return layer


def _load_token_layers(folder: Path, lm: Model) -> tuple[torch.nn.Linear, torch.nn.Linear | None]:
    """BGE-M3's layers for token weights and, if there is one, for the vectors of single tokens."""
    path, vectors, width = (
        folder / SPARSE_LINEAR,
        folder / COLBERT_LINEAR,
        int(lm.config.hidden_size),
    )
    if not path.is_file():
        raise CheckpointError(
            f"{path}: missing, so no token has a weight; restore it, or remove {COLBERT_LINEAR}"
        )
    weight = released.linear(released.read_tensors(path), width, str(path))
    if weight.out_features != 1:
        raise CheckpointError(
            f"{path}: expected one weight for each token, got {weight.out_features}"
        )
    if not vectors.is_file():
        return weight, None
    return weight, released.linear(released.read_tensors(vectors), width, str(vectors))


def _build_retriever(
    path: Path,
    lms: Mapping[str, Model],
    projections: Projections,
    tokenizer: Tokenizer,
    config: ModelConfig,
) -> Retriever | UntiedRetriever:
    excluded = ExcludedIds([], [])
    if config.ot == "token_weight":
        excluded = unweighted_ids(tokenizer)
    elif not config.sparse_encoder:
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
            tied_ot=config.ot_head == "tied",
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


_TRANSFORM, _DECODER = "cls.predictions.transform", "cls.predictions.decoder"


class PlainBert(nn.Module):
    """The weights of a BERT encoder, and of its masked-LM head if it has one, in modules named as in a checkpoint.

    It has no forward pass: :class:`~dupmae_ir.models.inference.packed.PackedRetriever` computes on these modules, and
    on transformers' own, which have the same names.

    Args:
        config: the sizes.
        state: the weights by name; ``bert.`` is the prefix of the encoder's if there is a head.
    """

    def __init__(self, config: BertShape, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        for path in dict.fromkeys(name.rpartition(".")[0] for name in state):
            owner, (*containers, last) = self, path.split(".")
            modules: Any = owner._modules
            for name in containers:
                if name not in modules:
                    modules[name] = {"layer": nn.ModuleList, "transform": _Transform}.get(
                        name, nn.Module
                    )()
                modules = modules[name]._modules
            weight, bias = state[f"{path}.weight"], state.get(f"{path}.bias")
            if bias is None:
                modules[last] = nn.Embedding(weight.shape[0], weight.shape[1], _weight=weight)
                continue
            layer = (
                nn.LayerNorm(len(weight), eps=config.layer_norm_eps)
                if last == "LayerNorm"
                else nn.Module()
            )
            layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
            modules[last] = layer
        if "cls" in self._modules:
            model: Any = self
            model.cls.predictions.decoder.weight = model.bert.embeddings.word_embeddings.weight


class _Transform(nn.Module):
    """The head's transform."""

    def forward(self, hidden: Tensor) -> Tensor:
        layers: Any = self
        return layers.LayerNorm(F.gelu(F.linear(hidden, layers.dense.weight, layers.dense.bias)))


class Plain(NamedTuple):
    """A model and its tokenizer."""

    lm: PlainBert
    tokenizer: PlainTokenizer


def read_plain(folder: Path, need_ot: bool) -> Plain | None:
    """The model in ``folder``; None if it is not a plain BERT folder. ``need_ot``: it must have a masked-LM head."""
    files = read_plain_files(folder)
    if files is None:
        return None
    try:
        if is_compact(folder):
            weights = COMPACT
        elif [name for name in WEIGHTS if (folder / name).is_file()] == ["model.safetensors"]:
            weights = "model.safetensors"
        else:
            return None
        lm = _build(files.shape, read_tensors(folder / weights), need_ot)
        if lm is None:
            return None
        return Plain(lm, files.tokenizer)
    except (CheckpointError, OSError, ValueError, KeyError):
        return None  # reported by the reader that follows


def _build(bert: BertShape, state: Mapping[str, Tensor], need_ot: bool) -> PlainBert | None:
    """A model with the weights of ``state`` in float32; None unless every weight is there, once, in its shape."""
    # Bare encoders are stored without the prefix.
    prefixed = {}
    for name, value in state.items():
        if not name.startswith(("bert.", "cls.")):
            name = f"bert.{name}"
        prefixed[name] = value
    state = prefixed
    shapes = weight_shapes(bert)
    width = bert.hidden_size
    if f"{_TRANSFORM}.dense.weight" in state:
        words = state["bert.embeddings.word_embeddings.weight"]
        bias = "cls.predictions.bias" if "cls.predictions.bias" in state else f"{_DECODER}.bias"
        tied = {f"{_DECODER}.weight": words, f"{_DECODER}.bias": state[bias]}
        if not all(torch.equal(state.get(name, value), value) for name, value in tied.items()):
            return None
        state |= tied
        head = {
            f"{_TRANSFORM}.dense": (width, width),
            f"{_TRANSFORM}.LayerNorm": (width,),
            _DECODER: words.shape,
        }
        shapes = {f"bert.{name}": shape for name, shape in shapes.items()} | with_biases(head)
    elif need_ot:
        return None
    else:
        state = {name.removeprefix("bert."): value for name, value in state.items()}
    for name, shape in shapes.items():
        if state[name].shape != shape or not state[name].is_floating_point():
            return None
    return PlainBert(bert, {name: state[name].float() for name in shapes}).eval()
