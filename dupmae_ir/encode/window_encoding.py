"""Encoding of one window: the function that every executor runs.

The result depends on nothing but the window, the encoder and the impact scale: in this process, in one process for each
device and on a Ray cluster, the same window becomes the same bytes. Whoever receives them writes them to the
work folder (:class:`~dupmae_ir.encode.windows.WindowFiles`), which is what commits the window.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from dupmae_ir import __version__
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.document_languages import (
    documents_for_reading,
    measured_factors,
    weighted,
    weighted_excerpts,
    with_languages,
)
from dupmae_ir.encode.excerpts import encode_excerpts, excerpt_measure
from dupmae_ir.encode.reading import Reading, measure
from dupmae_ir.encode.windows import EncodedWindow, Window
from dupmae_ir.index.format.excerpts import Excerpts
from dupmae_ir.index.format.quantisation import Scale, choose_scale
from dupmae_ir.io.documents.passages import TokenMeasure
from dupmae_ir.models import load_encoder
from dupmae_ir.types import (
    SEPARATORS,
    Document,
    Encoder,
    EncoderOptions,
    EncoderSettings,
    LexicalEncoder,
    ReportingEncoder,
    Representation,
)

_DOCUMENTS = 0.45
"""Share of the work for documents with excerpts that the documents are, roughly."""


@dataclass(frozen=True)
class WindowResult:
    """What a worker returns for a window.

    ``contents``: of the window's file; None if only the scale was needed. ``seconds``: in the encoder. ``reading``: of
    the window that chooses the scale, if :func:`~dupmae_ir.encode.reading.measure` measured it. ``factors``: of the
    vectors of languages that no window had before.
    """

    number: int
    contents: bytes | None
    scale: Scale | None
    seconds: float
    worker: str = ""  #: which worker encoded it, for the progress bar
    reading: Reading | None = None
    factors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EncoderFacts:
    """What is recorded of an encoder. Workers send it, so that the collecting process need not load the model."""

    name: str
    digest: str
    dim: int | None
    terms: Sequence[str] | None
    settings: EncoderSettings
    running: Mapping[str, str] = field(default_factory=dict)
    version: str = __version__  #: of this package

    @classmethod
    def of(cls, encoder: Encoder) -> EncoderFacts:
        """The facts of a loaded encoder."""
        running = getattr(encoder, "running", {})
        return cls(
            encoder.name, encoder.digest, encoder.dim, encoder.terms, encoder.settings, running
        )

    def difference(self, other: EncoderFacts) -> str:
        """How ``other`` would encode otherwise; empty if it would not."""
        if self.digest != other.digest:
            return f"the model {other.name} ({other.digest[:12]}) instead of {self.name} ({self.digest[:12]})"
        if self.version != other.version:
            return f"dupmae_ir {other.version} instead of {self.version}"
        for name, mine in dataclasses.asdict(self.settings).items():
            theirs = getattr(other.settings, name)
            # Workers on different devices are the purpose of a pool.
            if name != "device" and mine != theirs:
                return f"{name} {theirs} instead of {mine}"
        return ""


@dataclass(frozen=True)
class EncoderChoice:
    """What a worker needs to know: the encoder to load, and what is stored of a window."""

    model: str | None
    settings: EncoderOptions  #: without the device
    title_separator: str | None
    scale: float | None
    store_texts: bool
    excerpts: bool
    threads: int

    @classmethod
    def of(cls, config: EncodeConfig, language: str | None = None) -> EncoderChoice:
        """The choice that the flags make; ``language``: of the collection."""
        settings = EncoderOptions(
            dtype=config.dtype,
            document_length=config.document_length,
            top_k=config.top_k,
            activation=config.activation,
            normalize=config.normalize,
            dimensions=config.dimensions,
            head=config.head,
            fold_terms=config.fold_terms,
            parts=tuple(config.parts.split(",")),
            language=language,
        )
        return cls(
            config.model,
            settings,
            config.title_separator,
            config.scale,
            config.store_texts,
            config.excerpts,
            config.threads,
        )

    def load(self, device: str) -> Encoder:
        """The encoder, on a device."""
        return load_encoder(self.model, **self.settings | {"device": device})

    def measure(self) -> TokenMeasure | None:
        """What measures excerpts; None for an index without them. Raises :class:`UsageError` for a model that has no
        word pieces."""
        return excerpt_measure(self.model) if self.excerpts else None

    def separator(self, settings: EncoderSettings) -> str:
        """What joins title and text: the separator of the options, or else that of the model."""
        if self.title_separator:
            return SEPARATORS[self.title_separator]
        return settings.title_separator


def encode_window(
    encoder: Encoder, window: Window, choice: EncoderChoice, worker: str = ""
) -> WindowResult:
    """Encode one window.

    Raises :class:`IndexMismatch`, naming the document, if the encoder returns a value that is not finite.
    """
    started = time.monotonic()
    documents = window.documents
    languages = window.languages
    usual = encoder.settings.language
    separator = choice.separator(encoder.settings)
    representation, excerpts = represent_with_excerpts(
        encoder, documents, separator, languages, choice.measure()
    )
    seconds = time.monotonic() - started
    scale = window.scale
    reading = None
    # Only the first window has no scale; the others get the one that it chose.
    if scale is None and encoder.terms is not None:
        scale = choose_scale(choice.scale, encoder.settings.impact_scale, representation)
        reading = measure(encoder, documents_for_reading(documents, languages, usual), usual)
    usual_weight = reading.weight if reading else window.usual_weight
    factors = measured_factors(encoder, documents, languages, window.factors, usual_weight)
    if not window.keep:
        return WindowResult(window.number, None, scale, seconds, worker, reading, factors)
    scale_value = None if scale is None else scale.value
    all_factors = {**window.factors, **factors}
    encoded = quantised_window(
        documents,
        representation,
        scale_value,
        choice.store_texts,
        usual,
        languages,
        all_factors,
        excerpts,
    )
    contents = encoded.to_bytes(window.digest, encoder.digest)
    return WindowResult(window.number, contents, scale, seconds, worker, reading, factors)


def quantised_window(
    documents: Sequence[Document],
    representation: Representation,
    scale: float | None,
    texts: bool,
    usual: str,
    languages: Sequence[str] | None,
    factors: Mapping[str, float],
    excerpts: Excerpts | None = None,
) -> EncodedWindow:
    """What an index stores of documents; ``usual``: the language of the index, ``languages``: of the documents, if they
    are recognised, ``factors``: of the vectors of each but the usual one."""
    return EncodedWindow.of(
        documents,
        weighted(representation, languages, factors),
        scale,
        texts=texts,
        recorded=with_languages(documents, languages, usual),
        excerpts=None if excerpts is None else weighted_excerpts(excerpts, languages, factors),
    )


def represent(
    encoder: Encoder,
    documents: Sequence[Document],
    separator: str,
    languages: Sequence[str] | None = None,
) -> Representation:
    """The representation of documents; ``separator`` is put between title and text. ``languages``: of the documents, if
    they are not all that of the encoder."""
    # A lexical encoder weights the words of the title apart, so it gets documents instead of joined texts.
    if isinstance(encoder, LexicalEncoder):
        return encoder.encode_collection(documents, separator, languages)
    return encoder.encode_documents([document.joined(separator) for document in documents])


def represent_with_excerpts(
    encoder: Encoder,
    documents: Sequence[Document],
    separator: str,
    languages: Sequence[str] | None,
    measure_excerpts: TokenMeasure | None,
) -> tuple[Representation, Excerpts | None]:
    """As :func:`represent`, and the excerpts. ``measure_excerpts``: None for documents without them."""
    if measure_excerpts is None:
        return represent(encoder, documents, separator, languages), None
    with _reporting(encoder, 0.0, _DOCUMENTS):
        representation = represent(encoder, documents, separator, languages)
    with _reporting(encoder, _DOCUMENTS, 1.0):
        excerpts = encode_excerpts(encoder, documents, measure_excerpts, separator)
    return representation, excerpts


@contextmanager
def _reporting(encoder: Encoder, start: float, end: float) -> Iterator[None]:
    """Within the block, an encoder reports its progress as that from ``start`` to ``end``."""
    if not isinstance(encoder, ReportingEncoder):
        yield
        return
    report = encoder.on_share
    encoder.on_share = lambda share: report(start + share * (end - start))
    try:
        yield
    finally:
        encoder.on_share = report
