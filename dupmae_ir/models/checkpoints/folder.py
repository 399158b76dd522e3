"""Model folders: a Hugging Face checkpoint, plus ``cls_projection.safetensors`` and ``dupmae_config.json``.

A folder without the two extra files is read as what it is: RetroMAE, MASTER or plain BERT, whose [CLS] vector
is used as it stands and whose OT part exists only where a trained masked-LM head does. transformers fills a
missing head with random numbers and a warning; here that is an error. Nothing is ever unpickled with code:
``.bin`` weights are read by transformers with ``weights_only``. A model with one encoder for queries and another
for documents is a folder of two: ``query_model`` and ``passage_model``. Other people's layouts are in
:mod:`~dupmae_ir.models.checkpoints.released`.
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

from dupmae_ir.errors import CheckpointError, HeadMissing
from dupmae_ir.io.publishing import move_into_place, sha256_file, write_json
from dupmae_ir.models.checkpoints import released
from dupmae_ir.models.checkpoints.released import SIDES, UNTIED, one_line
from dupmae_ir.registry import suggest

CONFIG = "dupmae_config.json"
PROJECTION = "cls_projection.safetensors"
_HEADS = ("cls.predictions.transform", "vocab_transform", "lm_head.dense", "generator_predictions")


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
    include_cls: bool = False  #: let [CLS] speak, as SPLADE does
    normalize: bool = False  #: [CLS] vectors of unit length, as SimLM was trained


def default_model_path() -> Path:
    """The checkpoint inside the package. Raises :class:`CheckpointError` when the installation lacks it."""
    folder = Path(__file__).resolve().parents[2] / "default_model"
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


def load_model(
    folder: str | Path, need_ot: bool = True, activation: str | None = None, normalize: bool | None = None
) -> tuple[Any, Any, ModelConfig]:
    """(model in eval mode and float32, tokenizer, config) of a model folder, or of a DPR checkpoint file.

    The model is a :class:`~dupmae_ir.models.retriever.Retriever`, or an
    :class:`~dupmae_ir.models.retriever.UntiedRetriever` where queries and documents differ. ``need_ot=False`` also
    accepts checkpoints without a masked-LM head, for the [CLS] part alone. ``activation`` and ``normalize`` replace
    the checkpoint's own. Raises :class:`CheckpointError` for anything that is not a usable checkpoint.
    """
    import torch

    path = Path(folder)
    with quiet_transformers():
        homes, lms = _load_sides(path, need_ot)
        home = path.parent if path.is_file() else path
        config = _config_of(home, homes)
        tokenizer = _one_tokenizer(path, [_load_tokenizer(homes[s], home) for s in SIDES], lms)
    given: dict[str, Any] = {"activation": activation, "normalize": normalize}
    config = replace(config, **{k: v for k, v in given.items() if v is not None})
    projections = _load_projections(home, homes, lms)
    return _retriever(path, lms, projections, tokenizer, config).to(torch.float32).eval(), tokenizer, config


def _load_sides(path: Path, need_ot: bool) -> tuple[dict[str, Path], dict[str, Any]]:
    """(folder, language model) of each side; the same objects twice where one encoder serves both."""
    if path.is_file():
        if path.name.endswith((".gz", ".tgz", ".tar", ".zip")):
            raise CheckpointError(f"{path}: is an archive; unpack it and name the folder")
        encoders = released.read_dpr(path)
        if need_ot:
            raise CheckpointError(f"{path}: a DPR checkpoint has no masked-LM head, so no OT part; use --parts cls")
        return dict.fromkeys(SIDES, path.parent), encoders
    if path.is_dir() and (folders := released.untied_folders(path)):
        return folders, {side: _load_lm(_checked_folder(folders[side]), need_ot) for side in SIDES}
    return dict.fromkeys(SIDES, _checked_folder(path)), dict.fromkeys(SIDES, _load_lm(path, need_ot))


def _config_of(home: Path, homes: dict[str, Path]) -> ModelConfig:
    """The model's own config; an untied model without one has that of its sides, which must agree."""
    if (home / CONFIG).is_file():
        return read_config(home)
    query, document = (read_config(homes[side]) for side in SIDES)
    if query != document:
        raise CheckpointError(f"{home}: its two sides have different {CONFIG}; write one that serves both into it")
    return document


def _one_tokenizer(path: Path, tokenizers: list[Any], lms: dict[str, Any]) -> Any:
    query, document = tokenizers
    if query.get_vocab() != document.get_vocab():
        raise CheckpointError(f"{path}: its two sides have different vocabularies; they do not belong together")
    for lm in lms.values():
        if len(document) > lm.config.vocab_size:
            raise CheckpointError(
                f"{path}: the tokenizer has {len(document)} entries but the model {lm.config.vocab_size}; "
                "they do not belong together"
            )
    return document


def _load_tokenizer(folder: Path, home: Path) -> Any:
    """Of the side's own folder; Tevatron keeps one tokenizer beside both sides."""
    from transformers import AutoTokenizer

    own = any((folder / name).is_file() for name in _TOKENIZERS)
    try:
        return AutoTokenizer.from_pretrained(folder if own else home, local_files_only=True)
    except Exception as e:
        raise CheckpointError(f"{folder}: the tokenizer does not load: {one_line(e)}") from None


_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model")


def _load_projections(home: Path, homes: dict[str, Path], lms: dict[str, Any]) -> dict[str, Any]:
    """W_cls of each side, or None: Tevatron's ``pooler.pt`` or our own file, never both."""
    hidden = {side: int(lms[side].config.hidden_size) for side in SIDES}
    if pooler := released.read_pooler(home, hidden["document"]):
        if any((homes[side] / PROJECTION).is_file() for side in SIDES):
            raise CheckpointError(f"{home}: has both {released.POOLER} and {PROJECTION}; remove the wrong one")
        return pooler
    query = _load_projection(homes["query"], hidden["query"])
    tied = homes["query"] == homes["document"]
    return {"query": query, "document": query if tied else _load_projection(homes["document"], hidden["document"])}


def _retriever(
    path: Path, lms: dict[str, Any], projections: dict[str, Any], tokenizer: Any, config: ModelConfig
) -> Any:
    from dupmae_ir.models.retriever import Retriever, UntiedRetriever

    silent, quiet = silent_ids(tokenizer, config.include_sep, config.include_cls)
    query, document = (
        Retriever(lms[side], projections[side], silent, quiet, config.activation, config.normalize) for side in SIDES
    )
    if query.lm is document.lm and query.projection is document.projection:
        return document
    if query.dim != document.dim or query.lm.config.vocab_size != document.lm.config.vocab_size:
        raise CheckpointError(
            f"{path}: its query side makes {query.dim} dimensions and {query.lm.config.vocab_size} terms, its document "
            f"side {document.dim} and {document.lm.config.vocab_size}; they do not belong together"
        )
    return UntiedRetriever(query, document)


def save_model(
    folder: str | Path, model: Any, tokenizer: Any, config: ModelConfig, half: bool = False, card: str | None = None
) -> Path:
    """Write a checkpoint folder, whole or not at all. ``half`` stores float16; ``card`` becomes README.md.

    An :class:`~dupmae_ir.models.retriever.UntiedRetriever` becomes ``query_model`` and ``passage_model``, each a
    model folder of its own.
    """
    folder = Path(folder)
    aside = folder.with_name(f".{folder.name}.writing")
    if aside.exists():
        import shutil

        shutil.rmtree(aside)
    query, document = (model.side(side) for side in SIDES)
    if query is document:
        _write_side(aside, document, tokenizer, config, half)
    else:
        for side, name in UNTIED.items():
            _write_side(aside / name, model.side(side), tokenizer, config, half)
        # Tevatron looks for the tokenizer here.
        tokenizer.save_pretrained(aside)
        write_json(aside / CONFIG, asdict(config))
    if card is not None:
        (aside / "README.md").write_text(card, encoding="utf-8")
    for path in aside.rglob("*"):
        # safetensors makes its files private; a model folder is shared like any other result.
        if path.is_file():
            path.chmod(0o644)
    move_into_place(aside, folder)
    return folder


def _write_side(folder: Path, model: Any, tokenizer: Any, config: ModelConfig, half: bool) -> None:
    import copy

    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    lm = copy.deepcopy(model.lm).half() if half else model.lm
    with quiet_transformers():
        lm.save_pretrained(folder, safe_serialization=True)
        tokenizer.save_pretrained(folder)
    if model.projection is not None:
        dtype = torch.float16 if half else torch.float32
        state = {k: v.detach().to(dtype).contiguous() for k, v in model.projection.state_dict().items()}
        save_file(state, folder / PROJECTION)
    write_json(folder / CONFIG, asdict(config))


def folder_digest(folder: str | Path) -> str:
    """sha256 over the names and bytes of everything that decides the numbers: weights, tokenizer, configs.

    Of an untied model that is both sides, and of a DPR checkpoint the file and what lies beside it.
    """
    path = Path(folder)
    whole = hashlib.sha256()
    if path.is_file():
        deciding = [path, *(p for p in _deciding(path.parent) if p.suffix not in {".safetensors", ".bin", ".pt"})]
        named = [(p.name, p) for p in dict.fromkeys(deciding)]
    else:
        named = [(p.name, p) for p in _deciding(path)]
        sides = released.untied_folders(path) or {}
        named += [(f"{UNTIED[side]}/{p.name}", p) for side, part in sides.items() for p in _deciding(part)]
    for name, file in named:
        whole.update(f"{name} {sha256_file(file)}\n".encode())
    return whole.hexdigest()


def _deciding(folder: Path) -> list[Path]:
    suffixes = {".safetensors", ".bin", ".json", ".txt", ".model"}
    return sorted(
        p for p in folder.iterdir() if (p.suffix in suffixes and p.name != "training.json") or p.name == released.POOLER
    )


def silent_ids(tokenizer: Any, include_sep: bool = False, include_cls: bool = False) -> tuple[list[int], list[int]]:
    """(ids left out of the OT vector, ids of tokens that do not speak).

    Out of the vector: special tokens and, for BERT vocabularies, ``[unusedN]``. Not speaking: special tokens
    ([MASK] excepted: a masked word is an ordinary token), [SEP] unless ``include_sep``, [CLS] unless ``include_cls``.
    """
    special = set(tokenizer.all_special_ids)
    unused = {i for token, i in tokenizer.get_vocab().items() if token.startswith("[unused")}
    speaking = {tokenizer.mask_token_id, tokenizer.unk_token_id}
    speaking |= {tokenizer.sep_token_id} if include_sep else set()
    speaking |= {tokenizer.cls_token_id} if include_cls else set()
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

    from dupmae_ir.models.masked_lm import has_head

    _refuse_reranker(folder)
    try:
        lm, info = AutoModelForMaskedLM.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    except Exception as e:
        raise CheckpointError(f"{folder}: the model does not load: {one_line(e)}") from None
    missing = sorted(info["missing_keys"])
    lost_head = [k for k in missing if any(h in k for h in _HEADS)]
    lost_body = [k for k in missing if "pooler" not in k and not any(h in k for h in (*_HEADS, *_TIED))]
    if lost_body:
        raise CheckpointError(
            f"{folder}: {len(lost_body)} encoder weights are missing (first: {lost_body[0]}); "
            "the file is incomplete or of another architecture"
        )
    readable = has_head(lm)
    if readable and not lost_head:
        return lm
    if need_ot:
        why = f"{lost_head[0]} is missing" if lost_head else f"{type(lm).__name__}'s is not read"
        raise HeadMissing(
            f"{folder}: has no trained masked-LM head ({why}), so there is no OT part; "
            "use --parts cls, or a checkpoint with a head"
        )
    encoder = AutoModel.from_pretrained(folder, local_files_only=True)
    if getattr(encoder, "pooler", None) is not None:
        # Random in most retrievers' files, and used by none.
        encoder.pooler = None
    return encoder


_TIED = ("cls.predictions", "vocab_layer_norm", "vocab_projector", "lm_head", "generator_lm_head")


def _refuse_reranker(folder: Path) -> None:
    try:
        made = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures") or []
    except (ValueError, AttributeError):
        return  # transformers will say what is wrong with it
    if any(str(name).endswith("ForSequenceClassification") for name in made):
        raise CheckpointError(
            f"{folder}: is a reranker ({made[0]}), which makes scores of pairs and no vectors; use it as a teacher"
        )


def _load_projection(folder: Path, hidden: int) -> Any:
    from safetensors.torch import load_file

    path = folder / PROJECTION
    if not path.is_file():
        return None
    try:
        state = load_file(path)
    except Exception as e:
        raise CheckpointError(f"{path}: not readable as safetensors: {one_line(e)}") from None
    return released.linear(state, hidden, str(path))


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
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
