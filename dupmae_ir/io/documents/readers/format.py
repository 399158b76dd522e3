"""What the registry says of a format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from dupmae_ir.io.documents.readers.extracted import Extracted, Member


class Format(NamedTuple):
    """A format of files.

    ``kind`` is its name in the metadata of passages. ``endings`` are the endings of file names, without the dot.
    ``reader``, ``splitter`` and ``recogniser`` name functions of this folder's modules, as ``"pdf:read_pdf"``; a module
    is imported when the first file needs it. A reader runs in a separate process with limits on time and memory. A
    mailbox has a splitter instead, which yields the files in it one by one, so that they are not in memory twice; it
    runs in this process, so it must take time and memory in proportion to the bytes. A recogniser says from the first
    bytes whether a file whose name has no known ending is of this format. ``packages`` are the modules of the extra
    that it needs. An ``archive`` is left out unless archives are asked for. A ``recognising_reader`` reads pages that
    are pictures as well (OCR). A ``picture`` has no other text, so it is left out unless OCR is asked for. The reader
    of source code takes its ``language`` as well.
    """

    kind: str
    endings: tuple[str, ...]
    reader: str = ""
    packages: tuple[str, ...] = ()
    splitter: str = ""
    recogniser: str = ""
    archive: bool = False
    recognising_reader: str = ""
    picture: bool = False
    language: str = ""

    def read(self, data: bytes, recognise: bool = False) -> Extracted:
        """The text of a document, with ``recognise`` by the recognising reader.

        Raises :class:`Unreadable`, and what the library for the format raises.
        """
        read = _function(self.recognising_reader if recognise else self.reader)
        extracted: Extracted = read(data, self.language) if self.language else read(data)
        return extracted

    def members(self, data: bytes) -> Iterator[Member]:
        """The files in a container, one by one. Raises :class:`Unreadable`."""
        members: Iterator[Member] = _function(self.splitter)(data)
        return members

    def recognises(self, start: bytes) -> bool:
        """Whether a file that begins with these bytes is of this format; no for a format without a recogniser."""
        return bool(self.recogniser) and _function(self.recogniser)(start)


@cache
def _function(name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    module = import_module(f"{__package__}.{module_name}")
    function: Callable[..., Any] = getattr(module, function_name)
    return function
