"""The texts of a run: which rows of the corpora are trained on, and which are held out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.pretrain.collate import Draw, usable
from dupmae_ir.pretrain.recipes import Recipe
from dupmae_ir.pretrain.tokens import Corpus

HELD_OUT_NUMBERS = 1 << 40
"""First draw number of held-out texts; training draws never reach it."""


def usable_rows(corpora: Sequence[Corpus], sources: Sequence[str], method: str, recipe: Recipe) -> list[np.ndarray]:
    """Rows of each corpus that the method can train on; ``sources`` are the names for errors.

    Raises :class:`InputError` for a corpus without any, because it would be ignored silently.
    """
    rows = [usable(corpus, method, recipe) for corpus in corpora]
    for corpus, kept, source in zip(corpora, rows, sources, strict=True):
        if not len(kept):
            raise InputError(f"{source}: {_missing(recipe)}")
        if "gpt2" in (recipe.tasks or ()) and not len(corpus.following):
            raise InputError(
                f'{source}: none of its texts has a generated continuation ("next"); add them with dupmae-ir '
                "pretrain.augment --task continuation, or remove gpt2 from `tasks`"
            )
    return rows


def _missing(recipe: Recipe) -> str:
    if recipe.context in ("nearby", "random"):
        return (
            "no document of it has two texts; set `documents` to group lines into documents, split documents with "
            "`unit` blocks, or use `context` overlap"
        )
    advice = ", or remove doc2query from `tasks`" if recipe.tasks else ""
    return f"none of its texts has generated queries; add them with dupmae-ir pretrain.augment{advice}"


def hold_out(
    corpora: Sequence[Corpus], rows: Sequence[np.ndarray], count: int, seed: int
) -> tuple[list[Draw], list[np.ndarray]]:
    """(draws of about ``count`` held-out texts, rows left to train on).

    Whole documents are held out, from each corpus in proportion to its size. Raises :class:`UsageError` if that leaves
    nothing to train on.
    """
    total = sum(map(len, rows))
    if count >= total:
        raise UsageError(f"`held_out` {count}: there are only {total:,} texts; hold out fewer")
    held: list[Draw] = []
    left = []
    for number, (corpus, usable_here) in enumerate(zip(corpora, rows, strict=True)):
        out = _held_out_here(corpus.document[usable_here], count * len(usable_here) / total, [seed, 4711, number])
        first = HELD_OUT_NUMBERS + len(held)
        held += [Draw(first + i, number, int(row)) for i, row in enumerate(usable_here[out])]
        left.append(usable_here[~out])
    if any(not len(r) for r in left):
        raise UsageError(f"`held_out` {count} leaves a corpus without texts to train on; hold out fewer")
    return held[: 2 * count], left


def _held_out_here(documents: np.ndarray, share: float, seed: list[int]) -> np.ndarray:
    """(texts,) bool: those of random documents that have at least ``share`` texts together."""
    order = np.random.default_rng(seed).permutation(np.unique(documents))
    sizes = np.bincount(documents, minlength=int(documents.max()) + 1)[order]
    chosen = order[: int(np.searchsorted(np.cumsum(sizes), share, "left")) + 1] if share else order[:0]
    out = np.isin(documents, chosen)
    if out.all():
        # A single document (such as a file as a whole): hold out its last texts instead.
        out = np.arange(len(documents)) >= len(documents) - max(1, round(share))
    return out
