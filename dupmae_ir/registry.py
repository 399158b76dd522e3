"""Lookup by exact name, with a suggestion for a near miss."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from dupmae_ir.errors import UnknownName

T = TypeVar("T")

MAX_LISTED = 12
"""Number of names listed in an error."""


def lookup(kind: str, name: str, known: Mapping[str, T]) -> T:
    """``known[name]``, or an :class:`UnknownName` that lists the known names and suggests the nearest."""
    if name in known:
        return known[name]
    names = sorted(known)
    # Pyserini has hundreds of topics; a few show what names look like.
    listed = ", ".join(names[:MAX_LISTED])
    if len(names) > MAX_LISTED:
        listed += f" and {len(names) - MAX_LISTED} more"
    raise UnknownName(f"no {kind} named {name!r}; known: {listed}.{suggest(name, known)}")


def suggest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` or the empty string; starts with a space, to be appended to a sentence."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    if not matches:
        return ""
    return f" Did you mean {matches[0]!r}?"
