"""Loading models from folders.

transformers fills a missing head with random weights and a warning; here that is an error. Nothing that is loaded can
run code: ``.bin`` weights are read with ``weights_only``.

Importing transformers takes longer than everything else in the first answer of a search. A folder that is in every
respect an ordinary BERT checkpoint is therefore read without it by :func:`read_plain`, into modules of the same names.
"""

from __future__ import annotations

import itertools
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
    max_input_length,
    unweighted_ids,
)
from dupmae_ir.models.retriever import DenseLayers, Retriever, UntiedRetriever

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


Model: TypeAlias = "PreTrainedModel | PlainBert"
Tokenizer: TypeAlias = "PreTrainedTokenizerBase | PlainTokenizer"

Projections = dict[str, nn.Linear | DenseLayers | None]
"""W_cls of each side, or None."""

_DENSE_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_ARCHIVE_SUFFIXES = (".gz", ".tgz", ".tar", ".zip")
LOADING = threading.RLock()
"""Held while a model is loaded."""
_HEAD_TRANSFORMS = (
    "cls.predictions.transform",
    "vocab_transform",
    "head.dense",
    "generator_predictions",
)
"""Parts of the names of a head's weights. A file that lacks one of them has no trained head."""
_REST_OF_HEADS = (
    "cls.predictions",
    "vocab_layer_norm",
    "vocab_projector",
    "lm_head",
    "head.norm",
    "decoder.bias",
)
"""Parts of the names of other weights of a head. Files may lack them: many are tied to the word embeddings."""


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

        had_progress_bars = transformers.utils.logging.is_progress_bar_enabled()
        verbosity = transformers.utils.logging.get_verbosity()
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity(logging.ERROR)
        try:
            yield
        finally:
            transformers.utils.logging.set_verbosity(verbosity)
            if had_progress_bars:
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
        activation: replaces the checkpoint's.
        normalize: replaces the checkpoint's.
        published: honour the modules of a sentence-transformers folder (pooling, Dense, Normalize, length), as encoding
            does. Training starts from [CLS] and leaves them out.
        plain: read a plain BERT folder without transformers (:func:`read_plain`), for packed inference only.

    Returns:
        An :class:`UntiedRetriever` if queries and documents have different encoders, a :class:`Retriever` otherwise.

    Raises:
        CheckpointError: ``folder`` is not a usable checkpoint. :class:`HeadMissing` if it only lacks a masked-LM head.
    """
    path = Path(folder)
    # Packed inference supports the maximum only; a sum needs the forward pass of transformers' model.
    if plain and read_config(path).ot_pooling == "max":
        with LOADING:
            plain_model = read_plain(path, need_ot)
            if plain_model:
                # One encoder for both sides.
                side_folders = dict.fromkeys(SIDES, path)
                lms = dict.fromkeys(SIDES, plain_model.lm)
                tokenizers = [plain_model.tokenizer] * len(SIDES)
                return _assemble(path, side_folders, lms, tokenizers, None, activation, normalize)
    with quiet_transformers():
        modules = None
        encoder_path = path
        if published and path.is_dir():
            modules = read_modules(path)
        if modules is not None:
            encoder_path = modules.encoder
            if modules.static:
                raise CheckpointError(
                    f"{path}: has static embeddings and no encoder; encode and search with it only"
                )
        side_folders, lms = _load_sides(encoder_path, need_ot)
        model_folder = _model_folder(path)
        tokenizers = [_load_tokenizer(side_folders[side], model_folder) for side in SIDES]
        return _assemble(path, side_folders, lms, tokenizers, modules, activation, normalize)


def _model_folder(path: Path) -> Path:
    """The folder of a model, which for a DPR checkpoint file is the folder that contains it."""
    return path.parent if path.is_file() else path


def check_dense(model: str | Path, config: ModelConfig, needed: bool = True) -> None:
    """Raise :class:`UsageError` if a dense part is ``needed`` and the model has none."""
    if needed and not config.has_dense:
        raise UsageError(f"{model}: is a SparseEncoder, without a dense part; use `parts` ot")


def _assemble(
    path: Path,
    side_folders: dict[str, Path],
    lms: Mapping[str, Model],
    tokenizers: Sequence[Tokenizer],
    modules: Modules | None,
    activation: str | None,
    normalize: float | None,
) -> tuple[Retriever | UntiedRetriever, Any, ModelConfig]:
    """The retriever of the loaded language models, with the configuration and the small layers of their folders."""
    model_folder = _model_folder(path)
    config = _common_config(model_folder, side_folders)
    tokenizer = _common_tokenizer(path, tokenizers, lms)
    if modules is not None:
        lm = lms["document"]
        limit = min(
            max_input_length(lm), int(getattr(tokenizer, "model_max_length", max_input_length(lm)))
        )
        config = modules.applied(config, limit, int(lm.config.vocab_size))
        modules.check_case(tokenizer)
        dense = _load_dense(modules, int(lm.config.hidden_size))
        projections: Projections = dict.fromkeys(SIDES, dense)
    else:
        projections = _load_projections(model_folder, side_folders, lms)
    if activation is not None:
        config = replace(config, activation=activation)
    if normalize is not None:
        config = replace(config, normalize=normalize)
    retriever = _build_retriever(path, lms, projections, tokenizer, config)
    for side in SIDES:
        # The same object twice if both sides share an encoder; its layers are then loaded once.
        encoder = retriever.side(side)
        if config.ot_head == "linear" and encoder.ot_projection is None:
            encoder.ot_projection = _load_ot_projection(side_folders[side], lms[side])
        if config.ot == "token_weight" and encoder.token_weight is None:
            layers = _load_token_layers(side_folders[side], lms[side])
            encoder.token_weight = layers.weight
            encoder.token_vectors = layers.vectors
    _check_finite(path, retriever)
    return retriever.to(torch.float32).eval(), tokenizer, config


def _check_finite(path: Path, retriever: nn.Module) -> None:
    """Refuse a model with a weight that is not finite: its texts would get no words, and vectors of NaN."""
    for name, weight in retriever.named_parameters():
        # A sum is not finite if one of its terms is not, and needs no second array of the size of the weights.
        if not torch.isfinite(weight.detach().sum(dtype=torch.float32)):
            raise CheckpointError(
                f"{path}: {name} has a weight that is not finite; restore the file, or train the model again from its "
                "last checkpoint"
            )


def _common_config(model_folder: Path, side_folders: Mapping[str, Path]) -> ModelConfig:
    """The configuration in the model's folder, or else the one in the folders of both sides, which must agree."""
    if (model_folder / CONFIG).is_file():
        return read_config(model_folder)
    query, document = (read_config(side_folders[side]) for side in SIDES)
    if query != document:
        raise CheckpointError(
            f"{model_folder}: its two sides have different {CONFIG}; write one for both into this folder"
        )
    return document


def _load_sides(path: Path, need_ot: bool) -> tuple[dict[str, Path], dict[str, PreTrainedModel]]:
    """Folder and language model of each side; the same objects twice if one encoder serves both."""
    if path.is_file():
        if path.name.endswith(_ARCHIVE_SUFFIXES):
            raise CheckpointError(f"{path}: is an archive; unpack it and give the folder")
        encoders = released.read_dpr(path)
        if need_ot:
            raise CheckpointError(
                f"{path}: a DPR checkpoint has no masked-LM head, so no OT part; use `parts` cls"
            )
        return dict.fromkeys(SIDES, path.parent), encoders
    folders = untied_folders(path) if path.is_dir() else None
    if folders:
        lms = {}
        for side in SIDES:
            _check_folder(folders[side])
            lms[side] = _load_lm(folders[side], need_ot)
        return folders, lms
    _check_folder(path)
    lm = _load_lm(path, need_ot)
    return dict.fromkeys(SIDES, path), dict.fromkeys(SIDES, lm)


def _check_folder(folder: Path) -> None:
    if not folder.exists():
        raise CheckpointError(
            f"{folder}: no such model folder; give one with config.json and model.safetensors (nothing is downloaded, "
            "but by dupmae-ir models get)"
        )
    if not folder.is_dir() or not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder}: not a model folder (no config.json)")
    if not any((folder / name).is_file() for name in WEIGHTS):
        raise CheckpointError(f"{folder}: no weights (looked for {', '.join(WEIGHTS)})")


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
        lm_config = AutoConfig.from_pretrained(folder, local_files_only=True)
        is_masked_lm = type(lm_config) in MODEL_FOR_MASKED_LM_MAPPING
        auto_class = AutoModelForMaskedLM if is_masked_lm else AutoModel
        lm, info = from_folder(auto_class, folder)
    except CheckpointError:
        raise
    except Exception as e:
        reason = one_line(e, 300)
        if "Weights only load failed" in reason:
            # torch advises loading without weights_only, which would run code in the file.
            reason = (
                "its weights hold more than tensors, which could run code; save only its tensors"
            )
        raise CheckpointError(f"{folder}: the model does not load: {reason}") from None

    missing_head = []
    missing_body = []
    for name in sorted(info["missing_keys"]):
        if any(part in name for part in _HEAD_TRANSFORMS):
            missing_head.append(name)
        elif "pooler" not in name and not any(part in name for part in _REST_OF_HEADS):
            missing_body.append(name)
    if missing_body:
        raise CheckpointError(
            f"{folder}: {len(missing_body)} encoder weights are missing (first: {missing_body[0]}); "
            "the file is incomplete or of another architecture"
        )
    if has_head(lm) and not missing_head:
        return lm
    if need_ot:
        why = f"the head of {type(lm).__name__} is not supported"
        if missing_head:
            why = f"{missing_head[0]} is missing"
        raise HeadMissing(
            f"{folder}: has no trained masked-LM head ({why}), so there is no OT part; "
            "use `parts` cls, `head` lexical for word weights in closed form, or a checkpoint with a head"
        )
    encoder = lm
    if is_masked_lm:
        # Again, without the head that transformers has filled with random weights.
        encoder, _ = from_folder(AutoModel, folder)
    # Decoders would keep the keys of every text.
    encoder.config.use_cache = False
    if getattr(encoder, "pooler", None) is not None:
        # Untrained in most retrievers' checkpoints, and never used.
        encoder.pooler = None
    return encoder


def from_folder(auto_class: Any, folder: Path, **options: object) -> tuple[Any, Mapping[str, Any]]:
    """The model of an Auto class and transformers' report on its weights, which may be stored in 8 bits.

    ``options``: of ``from_pretrained``; the values of the configuration among them hold in both cases.
    """
    if not is_compact(folder):
        return auto_class.from_pretrained(
            folder, local_files_only=True, output_loading_info=True, **options
        )
    from transformers import AutoConfig

    state = released.read_tensors(folder / COMPACT)
    config = AutoConfig.from_pretrained(folder, local_files_only=True, **options)
    with torch.device("meta"):
        # The Auto classes take no weights without a folder, but the class that they choose does.
        architecture: Any = type(auto_class.from_config(config))
    return architecture.from_pretrained(
        None, config=config, state_dict=state, dtype=torch.float32, output_loading_info=True
    )


def _refuse_reranker(folder: Path) -> None:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        architectures = list(config.get("architectures") or [])
    except (ValueError, AttributeError, TypeError):
        return  # from_pretrained reports what is wrong with it
    if any(str(name).endswith("ForSequenceClassification") for name in architectures):
        raise CheckpointError(
            f"{folder}: is a reranker ({architectures[0]}), which scores pairs and has no vectors; use it as a teacher"
        )


def _load_tokenizer(folder: Path, model_folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in a side's folder, or the one in the model's: Tevatron stores one for both sides there."""
    from transformers import AutoTokenizer

    source = model_folder
    if any((folder / name).is_file() for name in TOKENIZER):
        source = folder
    try:
        return AutoTokenizer.from_pretrained(source, local_files_only=True)
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
    # A decoder's tokenizer has a few tokens of other modalities; encoding reads them as unknown.
    tolerance = PADDING if decoder else 0
    for lm in lms.values():
        if len(document) > lm.config.vocab_size + tolerance:
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


def _load_projections(
    model_folder: Path, side_folders: Mapping[str, Path], lms: Mapping[str, Model]
) -> Projections:
    """W_cls of each side or None, from Tevatron's ``pooler.pt`` or from this toolkit's file, but not from both."""
    pooler = released.read_pooler(model_folder, int(lms["document"].config.hidden_size))
    if pooler is not None:
        if any((side_folders[side] / PROJECTION).is_file() for side in SIDES):
            raise CheckpointError(
                f"{model_folder}: has both {POOLER} and {PROJECTION}; remove the wrong one"
            )
        return {**pooler}
    query = _load_projection(side_folders["query"], lms["query"])
    # One object for both sides of a tied model, by which it is recognised as tied.
    document = query
    if side_folders["query"] != side_folders["document"]:
        document = _load_projection(side_folders["document"], lms["document"])
    return {"query": query, "document": document}


def _load_dense(modules: Modules, width: int) -> nn.Linear | DenseLayers | None:
    """The Dense modules for states of ``width``. Raises :class:`CheckpointError` for a missing or damaged file."""
    layers: list[tuple[nn.Linear, nn.Module]] = []
    for module in modules.dense:
        paths = [module.folder / name for name in _DENSE_WEIGHTS]
        path = next((path for path in paths if path.is_file()), None)
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
    return DenseLayers(*itertools.chain.from_iterable(layers))


def _read_linear(path: Path, lm: Model) -> torch.nn.Linear:
    """The linear layer in a file, for the states of ``lm``."""
    return released.linear(read_tensors(path), int(lm.config.hidden_size), str(path))


def _load_projection(folder: Path, lm: Model) -> torch.nn.Linear | None:
    path = folder / PROJECTION
    if not path.is_file():
        return None
    return _read_linear(path, lm)


def _load_ot_projection(folder: Path, lm: Model) -> torch.nn.Linear:
    """W^O of a model whose OT part does not use the masked-LM head."""
    path = folder / OT_PROJECTION
    if not path.is_file():
        raise CheckpointError(f"{path}: missing, but ot_head is linear in {CONFIG}; restore it")
    layer = _read_linear(path, lm)
    term_count = int(lm.config.vocab_size)
    if layer.out_features != term_count:
        raise CheckpointError(
            f"{path}: expected weights of {term_count} terms, got {layer.out_features}"
        )
    return layer


class _TokenLayers(NamedTuple):
    """BGE-M3's layers for single tokens."""

    weight: nn.Linear
    vectors: nn.Linear | None


def _load_token_layers(folder: Path, lm: Model) -> _TokenLayers:
    path = folder / SPARSE_LINEAR
    if not path.is_file():
        raise CheckpointError(
            f"{path}: missing, so no token has a weight; restore it, or remove {COLBERT_LINEAR}"
        )
    weight = _read_linear(path, lm)
    if weight.out_features != 1:
        raise CheckpointError(
            f"{path}: expected one weight for each token, got {weight.out_features}"
        )
    vectors = None
    if (folder / COLBERT_LINEAR).is_file():
        vectors = _read_linear(folder / COLBERT_LINEAR, lm)
    return _TokenLayers(weight, vectors)


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
    head_scale = None
    if config.lexical and config.lexical.head_scale:
        head_scale = config.lexical.head_scale
    query, document = (
        Retriever(
            lms[side],
            projections[side],
            *excluded,
            activation=config.activation,
            normalize=config.normalize,
            pooling=config.pooling,
            head_scale=head_scale,
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


_TRANSFORM = "cls.predictions.transform"
_DECODER = "cls.predictions.decoder"


class PlainBert(nn.Module):
    """The weights of a BERT encoder, and of its masked-LM head if it has one, in modules named as in a checkpoint.

    It has no forward pass: :class:`~dupmae_ir.models.inference.packed.PackedRetriever` computes on these modules, and
    on transformers' own, which have the same names.

    Args:
        config: the sizes.
        state: the weights by name; the encoder's have the prefix ``bert.`` if there is a head.
    """

    def __init__(self, config: BertShape, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        container_types: dict[str, type[nn.Module]] = {
            "layer": nn.ModuleList,
            "transform": _Transform,
        }
        # Each path once: a weight and its bias belong to the same module.
        for path in dict.fromkeys(name.rpartition(".")[0] for name in state):
            *containers, last = path.split(".")
            modules: Any = self._modules
            for name in containers:
                if name not in modules:
                    modules[name] = container_types.get(name, nn.Module)()
                modules = modules[name]._modules
            modules[last] = _plain_layer(
                last, state[f"{path}.weight"], state.get(f"{path}.bias"), config.layer_norm_eps
            )
        if "cls" in self._modules:
            # The decoder is tied to the word embeddings.
            model: Any = self
            model.cls.predictions.decoder.weight = model.bert.embeddings.word_embeddings.weight


def _plain_layer(name: str, weight: Tensor, bias: Tensor | None, epsilon: float) -> nn.Module:
    """An embedding (the only layers of BERT without a bias), a LayerNorm, or the parameters of a linear layer."""
    if bias is None:
        return nn.Embedding(weight.shape[0], weight.shape[1], _weight=weight)
    layer: nn.Module = nn.Module()
    if name == "LayerNorm":
        layer = nn.LayerNorm(len(weight), eps=epsilon)
    layer.weight = nn.Parameter(weight)
    layer.bias = nn.Parameter(bias)
    return layer


class _Transform(nn.Module):
    """The transform of the masked-LM head."""

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
        weight_files = [name for name in WEIGHTS if (folder / name).is_file()]
        if is_compact(folder):
            weight_file = COMPACT
        elif weight_files == ["model.safetensors"]:
            weight_file = "model.safetensors"
        else:
            return None
        lm = _build_plain(files.shape, read_tensors(folder / weight_file), need_ot)
    except (CheckpointError, OSError, ValueError, KeyError):
        return None  # transformers reads the folder next and reports what is wrong
    if lm is None:
        return None
    return Plain(lm, files.tokenizer)


def _build_plain(bert: BertShape, stored: Mapping[str, Tensor], need_ot: bool) -> PlainBert | None:
    """A model with the ``stored`` weights in float32; None if one has another shape, or if a tied weight is stored
    twice with different values. Raises :class:`KeyError` for a missing weight."""
    # Bare encoders are stored without the prefix.
    state = {}
    for name, value in stored.items():
        if not name.startswith(("bert.", "cls.")):
            name = f"bert.{name}"
        state[name] = value

    shapes = weight_shapes(bert)
    if f"{_TRANSFORM}.dense.weight" in state:
        words = state["bert.embeddings.word_embeddings.weight"]
        # transformers has one bias under two names; files contain either or both.
        bias_name = f"{_DECODER}.bias"
        if "cls.predictions.bias" in state:
            bias_name = "cls.predictions.bias"
        tied = {f"{_DECODER}.weight": words, f"{_DECODER}.bias": state[bias_name]}
        for name, value in tied.items():
            if name in state and not torch.equal(state[name], value):
                return None
        state |= tied
        width = bert.hidden_size
        head_shapes = {
            f"{_TRANSFORM}.dense": (width, width),
            f"{_TRANSFORM}.LayerNorm": (width,),
            _DECODER: words.shape,
        }
        shapes = {f"bert.{name}": shape for name, shape in shapes.items()}
        shapes |= with_biases(head_shapes)
    elif need_ot:
        return None
    else:
        state = {name.removeprefix("bert."): value for name, value in state.items()}

    for name, shape in shapes.items():
        if state[name].shape != shape or not state[name].is_floating_point():
            return None
    return PlainBert(bert, {name: state[name].float() for name in shapes}).eval()
