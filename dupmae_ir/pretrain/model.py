"""The model of a run: a base model, an earlier run's model or new weights; its objective; the files of both."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dupmae_ir.console import one_line
from dupmae_ir.errors import CheckpointError, HeadMissing, UsageError
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.model_config import ModelConfig, read_config
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.experts import FOLDERS, Experts, load_experts, save_experts
from dupmae_ir.models.heads.calibration import SAMPLE, load_with_calibrated_head
from dupmae_ir.models.heads.masked_lm import excluded_ids
from dupmae_ir.models.names import lexicon_path, model_folder
from dupmae_ir.models.objectives.bottleneck import Anchor, Bottleneck, PlainMLM
from dupmae_ir.models.objectives.cot_mae import CoTMAE
from dupmae_ir.models.objectives.cot_mote import CoTMoTE
from dupmae_ir.models.objectives.dupmae import DupMAE
from dupmae_ir.models.objectives.master import MASTER
from dupmae_ir.models.objectives.retromae import RetroMAE
from dupmae_ir.models.retriever import Retriever, UntiedRetriever
from dupmae_ir.pretrain.config import PretrainConfig
from dupmae_ir.pretrain.recipes import Recipe, choices

TRAINS_OT = ("dupmae", "cot-mote")
"""Methods that train weights of words, as opposed to [CLS] alone."""


def load_base(
    config: PretrainConfig, passages: Iterator[str], quiet: bool
) -> tuple[Retriever, PreTrainedTokenizerBase]:
    """(retriever in training mode, without a [CLS] projection; tokenizer).

    ``passages`` is read only if a masked-LM head has to be calibrated. Raises :class:`CheckpointError` for a base model
    without a head unless --add-head is given.
    """
    if config.from_config:
        return _from_scratch(Path(config.from_config), Path(str(config.tokenizer)))
    folder = model_folder(str(config.model or config.init_from))
    if (folder / FOLDERS["passage"]).is_dir():
        folder = folder / FOLDERS["passage"]
    try:
        model, tokenizer, _ = load_model(folder)
    except HeadMissing:
        if not (config.add_head or config.model == "minilm"):
            raise CheckpointError(
                f"{folder}: has no trained masked-LM head, which every objective needs; calibrate one on the corpus "
                "with `add_head`, or use a masked language model"
            ) from None
        sample = list(islice(passages, 10 * SAMPLE))
        model, tokenizer = load_with_calibrated_head(
            folder, sample, cls_dim=None, for_pretraining=True, seed=config.seed, quiet=quiet
        )
    if isinstance(model, UntiedRetriever):
        raise CheckpointError(f"{folder}: holds two encoders; pre-training starts from one")
    # W_cls is learned in fine-tuning; pre-training uses the [CLS] vector itself.
    model.projection = None
    return model.train().requires_grad_(True), tokenizer


def load_continued_experts(config: PretrainConfig) -> Experts | None:
    """Both experts of the CoT-MoTE model that --init-from continues; None for any other run."""
    query_folder = Path(config.init_from or "") / FOLDERS["query"]
    if config.method != "cot-mote" or not query_folder.is_dir():
        return None
    recipe = config.recipe
    if recipe.experts != "ffn":
        raise UsageError(
            f"`init_from` {config.init_from}: contains two encoders, which require `experts` ffn"
        )
    experts, _, _ = load_experts(str(config.init_from), bool(recipe.shared_norm))
    return experts.train().requires_grad_(True)


def load_anchor(
    config: PretrainConfig, retriever: Retriever, tokenizer: PreTrainedTokenizerBase
) -> Anchor | None:
    """The frozen model that keeps [CLS] near its vectors, with its pooling; None without --anchor or with weight 0.

    Raises :class:`CheckpointError` for a folder that does not load, and :class:`UsageError` if the width of its vectors
    or its vocabulary differs from the base model's.
    """
    if not config.anchored:
        return None
    model, anchor_tokenizer, _ = load_model(
        model_folder(config.anchor), need_ot=False, published=True
    )
    if isinstance(model, UntiedRetriever):
        raise UsageError(f"`anchor` {config.anchor}: holds two encoders; give a model with one")
    if model.dim != retriever.dim:
        raise UsageError(
            f"`anchor` {config.anchor}: its vectors are {model.dim} wide, [CLS] of the base is {retriever.dim} wide; "
            "they must be equal"
        )
    # The anchor reads the same ids.
    if anchor_tokenizer.get_vocab() != tokenizer.get_vocab():
        raise UsageError(
            f"`anchor` {config.anchor}: its vocabulary is not that of the base; they must be equal"
        )
    return Anchor(model, config.anchor_weight)


def _from_scratch(path: Path, tokenizer_dir: Path) -> tuple[Retriever, PreTrainedTokenizerBase]:
    """A retriever with random weights, of the configuration ``path``."""
    try:
        settings = AutoConfig.from_pretrained(path)
        lm = AutoModelForMaskedLM.from_config(settings)
    except Exception as e:
        raise CheckpointError(
            f"{path}: not the configuration of a masked language model: {one_line(str(e))[:200]}"
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir, local_files_only=True)
    except Exception as e:
        raise CheckpointError(
            f"{tokenizer_dir}: cannot load the tokenizer: {one_line(str(e))[:200]}"
        ) from None
    if len(tokenizer) > settings.vocab_size:
        raise UsageError(
            f"{path}: vocab_size is {settings.vocab_size}, but the tokenizer has {len(tokenizer)} tokens; they must fit"
        )
    return Retriever(lm, None, *excluded_ids(tokenizer)).train(), tokenizer


KEPT = "pretraining"
"""Folder in a model folder, with decoders, log, plots and TensorBoard's files."""
DECODERS = "decoders.safetensors"

ENCODERS = ("lm.", "experts.")
"""Prefixes of the parameters that are not a decoder's."""


def build_objective(method: str, lm: PreTrainedModel | Experts, recipe: Recipe) -> Bottleneck:
    """The objective of ``method`` around ``lm``, with the choices of a resolved recipe."""
    values = choices(recipe)
    if method == "mlm":
        return PlainMLM(lm)
    if method == "retromae":
        return RetroMAE(lm, values["decoding"], values["decoder_layers"], values["query_stream"])
    if method == "dupmae":
        return DupMAE(
            lm,
            values["bow_weight"],
            values["ot_head"],
            values["query_stream"],
            values["decoding"],
            values["decoder_layers"],
            values["decoder_weight"],
        )
    if method == "master":
        return MASTER(
            lm,
            tuple(values["tasks"]),
            values["decoder_layers"],
            values["encoder_losses"],
            values["shared_decoder"],
        )
    if method == "cot-mae":
        return CoTMAE(lm, values["decoder_layers"], values["causal_layers"], values["window"])
    return CoTMoTE(
        lm,
        layers=values["causal_layers"],
        decode=values["decode"],
        sparse_head=values["sparse_head"],
        spr_to_hidden=values["spr_to_hidden"],
        window=values["window"],
        shared_norm=values["shared_norm"],
        experts=values["experts"],
        switched=values["switched"],
    )


def lexical_base(config: PretrainConfig) -> tuple[ModelConfig, Path] | None:
    """Configuration and lexicon of a base model with lexical word weights, which the trained model keeps; None if the
    base has none, or the method trains an OT part."""
    base = config.model or config.init_from
    if base is None or config.method in TRAINS_OT:
        return None
    folder = model_folder(str(base))
    words = read_config(folder)
    if words.ot != "lexical":
        return None
    return words, lexicon_path(folder, words.embedded_lexicon)


def save_encoder(
    folder: Path,
    objective: Bottleneck,
    retriever: Retriever,
    tokenizer: PreTrainedTokenizerBase,
    config: ModelConfig,
    lexicon: Path | None = None,
) -> None:
    """Write the trained encoder as a model folder; CoT-MoTE with separate experts has two encoders in it.

    ``lexicon``: the file of word weights, for a configuration with a lexical OT part.
    """
    shutil.rmtree(folder, ignore_errors=True)
    retriever.ot_projection = None
    if isinstance(objective, DupMAE):
        retriever.ot_projection = objective.ot_projection
    if not isinstance(objective, CoTMoTE):
        save_model(folder, retriever, tokenizer, config, lexicon=lexicon)
        return
    config = replace(config, activation="log1p")
    if objective.experts.query is objective.experts.passage:
        save_model(folder, retriever, tokenizer, config)
    else:
        save_experts(folder, objective.experts, tokenizer, config)


def save_decoders(objective: Bottleneck, path: Path) -> None:
    """Write the objective's parameters other than the encoder's."""
    # safetensors refuses tensors that are not contiguous.
    state = {name: weight.contiguous() for name, weight in _decoder_state(objective).items()}
    save_file(state, path)


def load_decoders(objective: Bottleneck, path: Path) -> str:
    """Load the decoder weights that fit the objective and return a line that reports how many.

    The decoders of another method do not fit; those of ``objective`` then keep their initial weights. Raises
    :class:`CheckpointError` for a file that is not safetensors.
    """
    if not path.is_file():
        return f"{path} does not exist: the decoders are newly initialised"
    try:
        saved = load_file(path)
    except Exception as e:
        raise CheckpointError(
            f"{path}: not readable as safetensors: {one_line(str(e))[:200]}"
        ) from None
    state = _decoder_state(objective)
    fitting = {}
    for name, weight in saved.items():
        if name in state and weight.shape == state[name].shape:
            fitting[name] = weight
    objective.load_state_dict(fitting, strict=False)

    report = f"{len(fitting)} decoder weights loaded from {path}"
    new_count = len(state) - len(fitting)
    if new_count:
        report += f", {new_count} newly initialised"
    return report


def _decoder_state(objective: Bottleneck) -> dict[str, Tensor]:
    state = {}
    for name, weight in objective.state_dict().items():
        if not name.startswith(ENCODERS):
            state[name] = weight.detach()
    return state
