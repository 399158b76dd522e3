"""Model folders: a Hugging Face checkpoint, plus ``cls_projection.safetensors`` and ``dupmae_config.json``.

A folder without the two extra files is read as what it is: RetroMAE, MASTER or plain BERT, whose [CLS] vector
is used as it stands and whose OT part exists only where a trained masked-LM head does. transformers fills a
missing head with random numbers and a warning; here that is an error. Nothing is ever unpickled with code:
``.bin`` weights are read by transformers with ``weights_only``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from dupmae_ir.errors import CheckpointError
from dupmae_ir.io.atomic import replace_folder, sha256_file, write_json
from dupmae_ir.registry import suggest

CONFIG = "dupmae_config.json"
PROJECTION = "cls_projection.safetensors"
_HEADS = ("cls.predictions.transform", "vocab_transform", "lm_head.dense")


@dataclass(frozen=True)
class ModelConfig:
    """What a checkpoint needs to be used as it was trained; ``dupmae_config.json``."""

    format: int = 1
    method: str = "dupmae"
    activation: str = "relu"
    document_length: int = 256
    query_length: int = 64
    top_k: int = 384
    title_separator: str = " "
    impact_scale: float | None = None
    include_sep: bool = False  #: let [SEP] speak, as the released DupMAE code does; the paper says ordinary tokens


def default_model_path() -> Path:
    """The checkpoint inside the package. Raises :class:`CheckpointError` when the installation lacks it."""
    folder = Path(__file__).resolve().parents[1] / "default_model"
    if not (folder / CONFIG).is_file():
        raise CheckpointError("this installation has no embedded model; name one with --model FOLDER")
    return folder


def read_config(folder: str | Path) -> ModelConfig:
    """The folder's ``dupmae_config.json``, or the defaults of plain BERT retrievers when there is none."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        return ModelConfig(method="plain")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as e:
        raise CheckpointError(f"{path}: not valid JSON: {e}") from None
    known = {f.name for f in fields(ModelConfig)}
    for key in data:
        if key not in known:
            raise CheckpointError(f"{path}: unknown setting {key!r}.{suggest(key, known)}")
    config = ModelConfig(**data)
    if config.format != 1:
        raise CheckpointError(f"{path}: format {config.format} is newer than this dupmae_ir reads (1); upgrade it")
    return config


def load_model(folder: str | Path, need_ot: bool = True, activation: str | None = None) -> tuple[Any, Any, ModelConfig]:
    """(Retriever in eval mode and float32, tokenizer, config) of a model folder.

    ``need_ot=False`` also accepts checkpoints without a masked-LM head, for the [CLS] part alone.
    Raises :class:`CheckpointError` for anything that is not a usable checkpoint.
    """
    import torch
    from transformers import AutoTokenizer

    from dupmae_ir.models.retriever import Retriever

    folder = _checked_folder(folder)
    config = read_config(folder)
    if activation is not None:
        config = replace(config, activation=activation)
    with _quiet_transformers():
        lm = _load_lm(folder, need_ot)
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as e:
            raise CheckpointError(f"{folder}: the tokenizer does not load: {_one_line(e)}") from None
    if len(tokenizer) > lm.config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {len(tokenizer)} entries but the model {lm.config.vocab_size}; "
            "they do not belong together"
        )
    silent, quiet = silent_ids(tokenizer, config.include_sep)
    model = Retriever(lm, _load_projection(folder, lm.config.hidden_size), silent, quiet, config.activation)
    return model.to(torch.float32).eval(), tokenizer, config


def save_model(
    folder: str | Path, model: Any, tokenizer: Any, config: ModelConfig, half: bool = False, card: str | None = None
) -> Path:
    """Write a checkpoint folder, whole or not at all. ``half`` stores float16; ``card`` becomes README.md."""
    import copy

    import torch
    from safetensors.torch import save_file

    folder = Path(folder)
    aside = folder.with_name(f".{folder.name}.writing")
    if aside.exists():
        import shutil

        shutil.rmtree(aside)
    aside.mkdir(parents=True)
    lm = copy.deepcopy(model.lm).half() if half else model.lm
    with _quiet_transformers():
        lm.save_pretrained(aside, safe_serialization=True)
        tokenizer.save_pretrained(aside)
    if model.projection is not None:
        dtype = torch.float16 if half else torch.float32
        state = {k: v.detach().to(dtype).contiguous() for k, v in model.projection.state_dict().items()}
        save_file(state, aside / PROJECTION)
    write_json(aside / CONFIG, asdict(config))
    if card is not None:
        (aside / "README.md").write_text(card, encoding="utf-8")
    for path in aside.iterdir():
        # safetensors makes its files private; a model folder is shared like any other result.
        path.chmod(0o644)
    replace_folder(aside, folder)
    return folder


def folder_digest(folder: str | Path) -> str:
    """sha256 over the names and bytes of everything that decides the numbers: weights, tokenizer, configs."""
    names = sorted(
        p for p in Path(folder).iterdir()
        if p.suffix in {".safetensors", ".bin", ".json", ".txt", ".model"} and p.name != "training.json"
    )
    whole = hashlib.sha256()
    for path in names:
        whole.update(f"{path.name} {sha256_file(path)}\n".encode())
    return whole.hexdigest()


def silent_ids(tokenizer: Any, include_sep: bool = False) -> tuple[list[int], list[int]]:
    """(ids left out of the OT vector, ids of tokens that do not speak).

    Out of the vector: special tokens and, for BERT vocabularies, ``[unusedN]``. Not speaking: special tokens
    ([MASK] excepted: a masked word is an ordinary token), [SEP] unless ``include_sep``.
    """
    special = set(tokenizer.all_special_ids)
    unused = {i for token, i in tokenizer.get_vocab().items() if token.startswith("[unused")}
    speaking = {tokenizer.mask_token_id, tokenizer.unk_token_id} | ({tokenizer.sep_token_id} if include_sep else set())
    return sorted(special | unused), sorted(special - speaking)


def _checked_folder(folder: str | Path) -> Path:
    folder = Path(folder)
    if not folder.exists():
        raise CheckpointError(
            f"{folder}: no such model folder; give one with config.json and model.safetensors (nothing is downloaded)"
        )
    if not folder.is_dir() or not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder}: not a model folder (it holds no config.json)")
    if not any((folder / n).is_file() for n in _WEIGHTS):
        raise CheckpointError(f"{folder}: no weights (looked for {', '.join(_WEIGHTS)})")
    return folder


_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def _load_lm(folder: Path, need_ot: bool) -> Any:
    """A masked LM where the head is really in the file, else the bare encoder; refuses when OT needs the head."""
    from transformers import AutoModel, AutoModelForMaskedLM

    try:
        lm, info = AutoModelForMaskedLM.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    except Exception as e:
        raise CheckpointError(f"{folder}: the model does not load: {_one_line(e)}") from None
    missing = sorted(info["missing_keys"])
    lost_head = [k for k in missing if any(h in k for h in _HEADS)]
    lost_body = [k for k in missing if "pooler" not in k and not any(h in k for h in (*_HEADS, *_TIED))]
    if lost_body:
        raise CheckpointError(
            f"{folder}: {len(lost_body)} encoder weights are missing (first: {lost_body[0]}); "
            "the file is incomplete or of another architecture"
        )
    if not lost_head:
        return lm
    if need_ot:
        raise CheckpointError(
            f"{folder}: has no trained masked-LM head ({lost_head[0]} is missing), so there is no OT part; "
            "use --parts cls, or a checkpoint with a head"
        )
    return AutoModel.from_pretrained(folder, local_files_only=True, add_pooling_layer=False)


_TIED = ("cls.predictions", "vocab_layer_norm", "vocab_projector", "lm_head")


def _load_projection(folder: Path, hidden: int) -> Any:
    import torch
    from safetensors.torch import load_file

    path = folder / PROJECTION
    if not path.is_file():
        return None
    try:
        state = load_file(path)
    except Exception as e:
        raise CheckpointError(f"{path}: not readable as safetensors: {_one_line(e)}") from None
    weight = state.get("weight")
    if weight is None or weight.ndim != 2 or weight.shape[1] != hidden:
        raise CheckpointError(f"{path}: wants a weight of shape (d', {hidden}), got "
                              f"{None if weight is None else tuple(weight.shape)}")
    projection = torch.nn.Linear(hidden, weight.shape[0], bias="bias" in state)
    projection.load_state_dict({k: v.float() for k, v in state.items()})
    return projection


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Loading reports and bars are ours to show; what transformers would warn about is checked above."""
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
