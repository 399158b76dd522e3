"""Encoders of static embeddings, without torch: a vector is the mean of the embeddings of a text's tokens.

Read are ``StaticEmbedding`` of sentence-transformers (the tensor ``embedding.weight``) and model2vec (``embeddings``,
with ``mapping`` and ``weights`` if its vocabulary is quantised). Each is encoded as its own package does: model2vec
leaves unknown tokens out and reads 512 tokens, or ``max_length`` of its ``config.json``; the other has no limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dupmae_ir.device import MIXED
from dupmae_ir.errors import CheckpointError, HeadMissing, UsageError
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.modules import TABLE, Modules, read_json, read_modules
from dupmae_ir.models.checkpoints.plain_files import PlainTokenizer
from dupmae_ir.models.checkpoints.stored import StoredWeights
from dupmae_ir.models.inference.term_encoder import PARTS, TermEncoder, encoder_settings, with_head
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
        super().__init__(
            name, config, settings, tokenizer, len(embeddings), tuple(options.get("parts") or PARTS)
        )
        self._embeddings = embeddings[:, : settings.dimensions]
        self._unknown, self._max_characters = unknown, max_characters
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
    ) -> list[list[int]]:
        cut = self._max_characters
        texts = [(prompt + text)[:cut] for text in texts]
        pieces = self.tokenizer(texts, max_length=length, add_special_tokens=False)["input_ids"]
        return (
            pieces
            if self._unknown is None
            else [[p for p in one if p != self._unknown] for one in pieces]
        )

    def _encode(self, pieces: list[list[int]], side: str, keep: int) -> Representation:  # noqa: ARG002
        if self.dim is None:
            return Representation(None, None)
        vectors = np.zeros((len(pieces), self.dim), np.float32)
        for row, tokens in enumerate(pieces):
            if tokens:
                vectors[row] = self._embeddings[tokens].mean(0)
        if self.settings.normalize:
            vectors *= self.settings.normalize / np.maximum(
                np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12
            )
        return Representation(vectors, None)


def load_static(model: str | Path | None, options: EncoderOptions) -> StaticEncoder | None:
    """The encoder of a folder with static embeddings; None for any other model.

    Raises :class:`CheckpointError` for missing or damaged files, and :class:`UsageError` for an invalid choice.
    """
    folder = model_folder(model)
    modules = read_modules(folder) if folder.is_dir() else None
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
    embeddings, own = _read_embeddings(modules, len(tokenizer))
    length, characters = NO_LIMIT, None
    if own:
        length = int(read_json(folder / "config.json").get("max_length") or 512)
        characters = length * int(np.median([len(token) for token in tokenizer.get_vocab()]))
    own_settings = {"document_length": length, "query_length": length, **modules.settings}
    if options.get("normalize") is not None:
        own_settings["normalize"] = options.get("normalize")
    config = with_head(ModelConfig(method="static", **own_settings), options)
    return StaticEncoder(
        model,
        config,
        options,
        tokenizer,
        embeddings,
        tokenizer.unk_token_id if own else None,
        characters,
    )


def _read_embeddings(modules: Modules, tokens: int) -> tuple[np.ndarray, bool]:
    """The (V, d) embeddings, and whether they are model2vec's."""
    path = modules.encoder / TABLE
    if not path.is_file():
        raise CheckpointError(
            f"{path}: is missing; static embeddings are read from safetensors, never from a pickle"
        )
    stored = StoredWeights(path)
    own = "embedding.weight" not in stored
    name = "embeddings" if own else "embedding.weight"
    if name not in stored:
        raise CheckpointError(
            f"{path}: expected the tensor embedding.weight or embeddings, got {', '.join(stored)}"
        )
    embeddings = np.asarray(stored[name], np.float32)
    if "mapping" in stored:
        embeddings = embeddings[np.asarray(stored["mapping"])]
    if "weights" in stored:
        embeddings = embeddings * np.asarray(stored["weights"], np.float32)[:, None]
    if embeddings.ndim != 2 or len(embeddings) != tokens or not np.isfinite(embeddings).all():
        raise CheckpointError(
            f"{path}: expected finite embeddings of the tokenizer's {tokens:,} tokens, got {embeddings.shape}"
        )
    return embeddings, own
