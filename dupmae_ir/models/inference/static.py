"""Encoders of static embeddings, without torch: a vector is the mean of the embeddings of a text's tokens.

Read are ``StaticEmbedding`` of sentence-transformers (the tensor ``embedding.weight``) and model2vec (``embeddings``,
with ``mapping`` and ``weights`` if its vocabulary is quantised). Each is encoded as its own package does: model2vec
leaves unknown tokens out and reads 512 tokens, or ``max_length`` of its ``config.json``; the other has no limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dupmae_ir.device import MIXED
from dupmae_ir.errors import CheckpointError, HeadMissing, UsageError
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.modules import TABLE, Modules, read_json, read_modules
from dupmae_ir.models.checkpoints.plain_files import PlainTokenizer
from dupmae_ir.models.checkpoints.stored import StoredWeights
from dupmae_ir.models.inference.term_encoder import (
    PARTS,
    TermEncoder,
    TokenisedTexts,
    count_truncated,
    encoder_settings,
    with_head,
)
from dupmae_ir.models.names import model_folder
from dupmae_ir.types import EncoderOptions, Representation

NO_LIMIT = 1 << 20
"""Tokens of a text that a StaticEmbedding reads."""


class StaticEncoder(TermEncoder):
    """Use :func:`load_static`. ``embeddings``: (V, d) float32; ``unknown``: the token that is left out, or None."""

    def __init__(
        self,
        name: str | Path | None,
        config: ModelConfig,
        options: EncoderOptions,
        tokenizer: PlainTokenizer,
        embeddings: np.ndarray,
        unknown: int | None,
        max_characters: int | None,
    ) -> None:
        settings = encoder_settings(config, config.document_length, options, "float32", "cpu")
        digest = folder_digest(model_folder(name))
        parts = tuple(options.get("parts") or PARTS)
        super().__init__(name, digest, config, settings, tokenizer, len(embeddings), parts)
        self._embeddings = embeddings[:, : settings.dimensions]
        self._unknown = unknown
        self._max_characters = max_characters
        self.dim: int | None = self._embeddings.shape[1] if "cls" in self.parts else None

    @property
    def running(self) -> dict[str, str]:
        """What was chosen for this machine: device, dtype and kernel."""
        return {
            "device": "cpu",
            "dtype": "float32",
            "kernel": "means of token embeddings, in numpy",
        }

    def _tokenise(
        self,
        texts: Sequence[str],
        prompt: str,
        length: int,
        special: bool = True,  # noqa: ARG002
    ) -> TokenisedTexts:
        texts = [(prompt + text)[: self._max_characters] for text in texts]
        out = self.tokenizer(texts, max_length=length, add_special_tokens=False)
        pieces = out["input_ids"]
        truncated = count_truncated(out.encodings, length)
        if self._unknown is None:
            return TokenisedTexts(pieces, truncated)
        known_pieces = []
        for text_pieces in pieces:
            known_pieces.append([piece for piece in text_pieces if piece != self._unknown])
        return TokenisedTexts(known_pieces, truncated)

    def _encode(self, pieces: list[list[int]], side: str, keep: int) -> Representation:  # noqa: ARG002
        if self.dim is None:
            return Representation(None, None)
        vectors = np.zeros((len(pieces), self.dim), np.float32)
        for row, tokens in enumerate(pieces):
            if tokens:
                vectors[row] = self._embeddings[tokens].mean(0)
        if self.settings.normalize:
            # The vector of a text without tokens is zero and stays zero.
            lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            vectors *= self.settings.normalize / lengths
        return Representation(vectors, None)


def load_static(model: str | Path | None, options: EncoderOptions) -> StaticEncoder | None:
    """The encoder of a folder with static embeddings; None for any other model.

    Raises :class:`CheckpointError` for missing or damaged files, and :class:`UsageError` for an invalid choice.
    """
    folder = model_folder(model)
    if not folder.is_dir():
        return None
    modules = read_modules(folder)
    if modules is None or not modules.static:
        return None
    if options.get("dtype") not in (None, "auto", "float32", MIXED):
        raise UsageError(f"{model}: static embeddings are encoded in float32; leave `dtype` out")
    parts = options.get("parts") or PARTS
    if "ot" in parts and options.get("head") is None:
        raise HeadMissing(
            f"{model}: has static embeddings and no OT part; use `parts` cls, or `head` lexical for word weights in "
            "closed form"
        )
    tokenizer = PlainTokenizer.read_any(modules.encoder)
    table = _read_embeddings(modules, len(tokenizer))
    length = NO_LIMIT
    max_characters = None
    unknown = None
    if table.is_model2vec:
        # model2vec cuts texts to as many characters as the tokens would have at their median length.
        length = int(read_json(folder / "config.json").get("max_length") or 512)
        token_lengths = [len(token) for token in tokenizer.get_vocab()]
        max_characters = length * int(np.median(token_lengths))
        unknown = tokenizer.unk_token_id
    settings = {"document_length": length, "query_length": length, **modules.settings}
    if options.get("normalize") is not None:
        settings["normalize"] = options.get("normalize")
    config = with_head(ModelConfig(method="static", **settings), options)
    return StaticEncoder(
        model, config, options, tokenizer, table.embeddings, unknown, max_characters
    )


class _EmbeddingTable(NamedTuple):
    embeddings: np.ndarray  #: (V, d) float32
    is_model2vec: bool


def _read_embeddings(modules: Modules, tokens: int) -> _EmbeddingTable:
    """The embeddings of a folder, one for each of ``tokens`` tokens."""
    path = modules.encoder / TABLE
    if not path.is_file():
        raise CheckpointError(
            f"{path}: is missing; static embeddings are read from safetensors, never from a pickle"
        )
    stored = StoredWeights(path)
    is_model2vec = "embedding.weight" not in stored
    name = "embeddings" if is_model2vec else "embedding.weight"
    if name not in stored:
        raise CheckpointError(
            f"{path}: expected the tensor embedding.weight or embeddings, got {', '.join(stored)}"
        )
    embeddings = np.asarray(stored[name], np.float32)
    # A quantised vocabulary: tokens share embeddings, each scaled by the token's weight.
    if "mapping" in stored:
        embeddings = embeddings[np.asarray(stored["mapping"])]
    if "weights" in stored:
        embeddings = embeddings * np.asarray(stored["weights"], np.float32)[:, None]
    if embeddings.ndim != 2 or len(embeddings) != tokens:
        raise CheckpointError(
            f"{path}: expected embeddings of the tokenizer's {tokens:,} tokens, got {embeddings.shape}"
        )
    return _EmbeddingTable(embeddings, is_model2vec)
