"""One shard of a collection to the bytes of its part file: the function that every way of encoding runs.

A shard is one window of documents (:mod:`~dupmae_ir.encode.windows`), so the list of shards depends on the collection
and ``--window`` only. :func:`encode_shard` depends on nothing but the shard, the encoder and the impact scale: in this
process, in one process for each device and on a Ray cluster, the same shard becomes the same bytes. Whoever receives
them writes them to the work folder (:class:`~dupmae_ir.encode.window_files.PartStore`), which is what commits the
shard.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dupmae_ir import __version__
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.window_files import part_bytes, quantised
from dupmae_ir.encode.windows import document_digest
from dupmae_ir.index.format.quantisation import Scale, choose_scale
from dupmae_ir.index.format.texts import stored
from dupmae_ir.models import load_encoder
from dupmae_ir.types import (
    SEPARATORS,
    Document,
    Encoder,
    EncoderOptions,
    EncoderSettings,
    LexicalEncoder,
    Representation,
)


@dataclass(frozen=True)
class Shard:
    """``digest``: of the documents. ``scale``: None for the first shard, which chooses it. ``keep``: False where only
    the scale is needed."""

    number: int
    documents: list[Document]
    digest: str
    scale: Scale | None
    keep: bool = True

    def __str__(self) -> str:
        first, last = self.documents[0].docid, self.documents[-1].docid
        return f"shard {self.number} (documents {first} to {last})"


@dataclass(frozen=True)
class Encoded:
    """``part``: the contents of the part's file; None where only the scale was needed. ``seconds``: in the encoder."""

    number: int
    part: bytes | None
    scale: Scale | None
    seconds: float
    worker: str = ""  #: which worker encoded it, for the progress bar


@dataclass(frozen=True)
class EncoderFacts:
    """What is recorded of an encoder; known without loading it here."""

    name: str
    digest: str
    dim: int | None
    terms: list[str] | None
    settings: EncoderSettings
    running: Mapping[str, str] = field(default_factory=dict)
    version: str = __version__  #: of this package

    @classmethod
    def of(cls, encoder: Encoder) -> EncoderFacts:
        """The facts of a loaded encoder."""
        running = getattr(encoder, "running", {})
        return cls(encoder.name, encoder.digest, encoder.dim, encoder.terms, encoder.settings, running)

    def difference(self, other: EncoderFacts) -> str:
        """How ``other`` would encode otherwise, in words; empty where it would not."""
        if self.digest != other.digest:
            return f"the model {other.name} ({other.digest[:12]}) instead of {self.name} ({self.digest[:12]})"
        if self.version != other.version:
            return f"dupmae_ir {other.version} instead of {self.version}"
        for name, mine in dataclasses.asdict(self.settings).items():
            theirs = getattr(other.settings, name)
            if name != "device" and mine != theirs:
                return f"{name} {theirs} instead of {mine}"
        return ""


@dataclass(frozen=True)
class EncoderChoice:
    """What a worker needs to know: the encoder to load, and what is stored of a shard."""

    model: str | None
    settings: EncoderOptions  #: without the device
    title_separator: str | None
    scale: float | None
    store_texts: bool
    threads: int

    @classmethod
    def of(cls, config: EncodeConfig) -> EncoderChoice:
        """The choice that the flags make."""
        settings = EncoderOptions(
            dtype=config.dtype,
            document_length=config.document_length,
            top_k=config.top_k,
            activation=config.activation,
            normalize=config.normalize,
            parts=tuple(config.parts.split(",")),
        )
        return cls(config.model, settings, config.title_separator, config.scale, config.store_texts, config.threads)

    def load(self, device: str) -> Encoder:
        """The encoder, on a device."""
        return load_encoder(self.model, **self.settings | {"device": device})

    def separator(self, settings: EncoderSettings) -> str:
        """What joins title and text: --title-separator, else the model's own."""
        return SEPARATORS[self.title_separator] if self.title_separator else settings.title_separator


def encode_shard(encoder: Encoder, shard: Shard, choice: EncoderChoice) -> Encoded:
    """Encode one shard.

    Raises :class:`IndexMismatch`, naming the document, where the encoder returns a value that is not finite.
    """
    started = time.monotonic()
    representation = represent(encoder, shard.documents, choice.separator(encoder.settings))
    seconds = time.monotonic() - started
    scale = shard.scale
    if scale is None and encoder.terms is not None:
        scale = choose_scale(choice.scale, encoder.settings.impact_scale, representation)
    if not shard.keep:
        return Encoded(shard.number, None, scale, seconds)
    texts = stored(shard.documents) if choice.store_texts else None
    docids = [document.docid for document in shard.documents]
    part = quantised(docids, representation, scale and scale.value, texts)
    part = dataclasses.replace(part, digests=list(map(document_digest, shard.documents)))
    return Encoded(shard.number, part_bytes(part, shard.digest, encoder.digest), scale, seconds)


def represent(encoder: Encoder, documents: Sequence[Document], separator: str) -> Representation:
    """The representation of documents; ``separator`` is put between title and text."""
    if isinstance(encoder, LexicalEncoder):
        return encoder.encode_collection(documents, separator)
    return encoder.encode_documents([document.joined(separator) for document in documents])
