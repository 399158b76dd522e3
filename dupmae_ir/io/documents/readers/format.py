"""What a reader tells the registry about a format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from dupmae_ir.io.documents.readers.extracted import Extracted, Member


class Format(NamedTuple):
    """A format of files.

    ``kind`` is its name in the metadata of passages. ``endings`` are the endings of file names, without the dot.
    ``read`` gives the text of a document. A container, such as a mailbox, has ``members`` instead, which yields the
    files in it one by one; each is read as a file of its own. ``packages`` are the modules of the extra that it needs.
    An ``isolated`` format is read in a separate process with limits on time and memory; a container is not, so its
    ``members`` must take time and memory in proportion to the bytes. ``recognise`` says from the first bytes whether a
    file whose name has no known ending is of this format. An ``archive`` is left out unless archives are asked for.
    """

    kind: str
    endings: tuple[str, ...]
    read: Callable[[bytes], Extracted] | None = None
    packages: tuple[str, ...] = ()
    isolated: bool = False
    members: Callable[[bytes], Iterator[Member]] | None = None
    recognise: Callable[[bytes], bool] | None = None
    archive: bool = False
