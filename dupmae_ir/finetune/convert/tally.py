"""Counts of what a conversion keeps and leaves out."""

from __future__ import annotations

from dupmae_ir.errors import InputError

SHOWN = 3
"""Examples named of everything left out."""


class Tally:
    """Counts by name, with a few examples of what is left out."""

    UNKNOWN = ("unknown_queries", "unknown_positives", "unknown_negatives", "without_score")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}

    def add(self, name: str, count: int = 1) -> None:
        """Add ``count`` to the count ``name``."""
        if count:
            self.counts[name] = self.counts.get(name, 0) + count

    def note(self, name: str, example: str) -> None:
        """Add one, with an example."""
        self.add(name)
        examples = self._examples.setdefault(name, [])
        if len(examples) < SHOWN:
            examples.append(example)

    def refuse_unknown(self, source: str) -> None:
        """Raise :class:`InputError` where an id had no text or a passage no score."""
        if unknown := ", ".join(self._described(u) for u in self.UNKNOWN if u in self.counts):
            raise InputError(f"{source}: {unknown}; give the files they belong to, or --unknown skip")

    def __str__(self) -> str:
        return ", ".join(map(self._described, self.counts))

    def __bool__(self) -> bool:
        return bool(self.counts)

    def _described(self, name: str) -> str:
        count, examples = self.counts[name], self._examples.get(name)
        more = ", ..." if examples and count > len(examples) else ""
        return f"{count:,} {name.replace('_', ' ')}" + (f" ({', '.join(examples)}{more})" if examples else "")
