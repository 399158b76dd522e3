"""Things are named, and found by exact name; a near miss gets a suggestion. Nothing is guessed from a path."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from dupmae_ir.errors import UnknownName

T = TypeVar("T")


def lookup(kind: str, name: str, known: Mapping[str, T]) -> T:
    """``known[name]``, or an :class:`UnknownName` that lists what there is and the nearest name."""
    if name in known:
        return known[name]
    raise UnknownName(f"no {kind} named {name!r}; known: {', '.join(sorted(known))}.{suggest(name, known)}")


def suggest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` or nothing; starts with a space so that it can end any sentence."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
