"""What a reader tells the registry about a format."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dupmae_ir.io.documents.readers.extracted import Extracted


class Format(NamedTuple):
    """A format of documents.

    ``kind`` is its name in the metadata of passages. ``endings`` are the endings of file names, without the dot.
    ``packages`` are the modules of the extra that it needs. An ``isolated`` format is read in a separate process with
    limits on time and memory.
    """

    kind: str
    endings: tuple[str, ...]
    read: Callable[[bytes], Extracted]
    packages: tuple[str, ...] = ()
    isolated: bool = False
