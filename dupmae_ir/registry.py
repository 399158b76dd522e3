"""Things are named, and found by exact name; a near miss gets a suggestion. Nothing is guessed from a path."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from dupmae_ir.errors import UnknownName

T = TypeVar("T")

SHOWN = 12
"""Names that an error lists."""


def lookup(kind: str, name: str, known: Mapping[str, T]) -> T:
    """``known[name]``, or an :class:`UnknownName` that lists what there is and the nearest name."""
    if name in known:
        return known[name]
    names = sorted(known)
    # Pyserini knows hundreds of topics: enough to see what names look like, and the nearest.
    listed = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    raise UnknownName(f"no {kind} named {name!r}; known: {listed}.{suggest(name, known)}")


def suggest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` or nothing; starts with a space so that it can end any sentence."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
