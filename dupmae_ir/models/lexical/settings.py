"""The constants of a lexical OT part, as ``dupmae_config.json`` stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dupmae_ir.errors import CheckpointError
from dupmae_ir.registry import suggest

HASH = "blake2b-8 little-endian of the UTF-8 stem"
WHOLE_WORDS, WITH_PARTS = "anserini-english", "anserini-english, parts of identifiers"
_CHOICES = {"hash": (HASH,), "analyzer": (WHOLE_WORDS, WITH_PARTS)}


@dataclass(frozen=True)
class LexicalSettings:
    """Constants of the weights; see :mod:`dupmae_ir.models.lexical.lexicon` for the formulas."""

    buckets: int = 1 << 17  #: dimensions of stems; a stem's is its hash modulo this number
    hash: str = HASH
    analyzer: str = WITH_PARTS  #: stems of words, or also those of the parts of identifiers
    k1: float = 0.9  #: saturation of term frequencies
    b: float = 0.2  #: how much the length of a document counts
    average_stems: int = 60  #: a document's length in stems at which b has no effect
    average_pieces: int = 100  #: the same in word pieces
    title_times: int = 2  #: how often a word of the title counts
    pieces_weight: float = 0.15  #: weight of a query's word pieces; its stems have 1
    query_power: float = 0.5  #: a query's weights are divided by their sum to this power
    prior_documents: int = 1000  #: documents of the model's own text added to those of the collection
    document_scale: int = 255  #: the impact scale, unless there is a head
    head_scale: float = 0.0  #: learned factor of the masked-LM head's weights (Eq. 6-7), which are added; 0 = no head


def lexical_settings(values: Mapping[str, Any], source: object) -> LexicalSettings:
    """The settings from JSON. Raises :class:`CheckpointError`, naming ``source``, for any that cannot be used."""
    known = {f.name: f.default for f in fields(LexicalSettings)}
    for key, value in values.items():
        if key not in known:
            raise CheckpointError(f"{source}: unknown setting lexical.{key}.{suggest(key, known)}")
        if isinstance(known[key], str):
            if value not in _CHOICES[key]:
                choices = " or ".join(map(repr, _CHOICES[key]))
                raise CheckpointError(f"{source}: lexical.{key} is {value!r}; this version reads {choices}")
        elif isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise CheckpointError(f"{source}: lexical.{key} must be a number of at least 0, got {value!r}")
        elif isinstance(known[key], int) and (not isinstance(value, int) or value < 1):
            raise CheckpointError(f"{source}: lexical.{key} must be a positive whole number, got {value!r}")
    return LexicalSettings(**values)
