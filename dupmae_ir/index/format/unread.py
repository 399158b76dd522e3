"""An index of words that waits for its vectors: ``encode`` publishes it first, and replaces it by the complete index.

Its manifest has ``"meaning": "unread"``. How much has been read is in the work folder of the job that encodes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dupmae_ir.errors import IndexMismatch
from dupmae_ir.io.jobs import work_folder
from dupmae_ir.io.publishing import read_json_object, write_json

UNREAD = {"meaning": "unread"}
"""What the manifest of such an index has."""
_STATE = "meaning.json"
_SECONDS = 1.0
"""Time between two records of the progress."""


def is_unread(meta: Mapping[str, Any]) -> bool:
    """Whether this is the manifest of such an index."""
    return UNREAD.items() <= meta.items()


def share_read(index: Path) -> float:
    """The share of the documents of such an index whose vectors are encoded, 0 to 1."""
    share = read_json_object(work_folder(index.resolve()) / _STATE).get("share")
    return float(share) if isinstance(share, int | float) else 0.0


def check_read(index: Path, meta: Mapping[str, Any]) -> None:
    """Raise :class:`IndexMismatch` for such an index."""
    if is_unread(meta):
        raise IndexMismatch(
            f"{index}: its meaning is {share_read(index):.0%} read; run the encode command to its end first"
        )


class MeaningProgress:
    """Records how many of the ``documents`` of an index have vectors, in the ``work`` folder of the job."""

    def __init__(self, work: Path, documents: int) -> None:
        self._path = work / _STATE
        self._documents = documents
        self._recorded = -_SECONDS

    def at(self, documents: float) -> None:
        """So many documents have vectors; a part of one that is at work counts."""
        now = time.monotonic()
        if now - self._recorded >= _SECONDS:
            self._recorded = now
            write_json(self._path, {"share": round(documents / max(1, self._documents), 4)})
