"""The files of a Lucene index without what differs between two writers of the same documents.

Lucene draws 16 random bytes when it is loaded and counts up from them: one such id is in the header of every file, and
some are repeated inside. The ids, the checksum at the end of each file (which covers them) and the time of a segment
are blanked; everything else must be equal, so postings, lengths, stored ids and their order are compared.
"""

from __future__ import annotations

import re
from pathlib import Path

_MAGIC = bytes.fromhex("3fd76c17")
_ID = 16
_COUNTED = 4
_CHECKSUM = 8
_TIME = re.compile(rb"(timestamp.)\d{13}", re.DOTALL)


def is_lucene(folder: Path) -> bool:
    """Whether ``folder`` holds a Lucene index."""
    return any(folder.glob("segments_*"))


def comparable(folder: Path) -> dict[str, bytes]:
    """Name -> contents of every file that Lucene wrote into ``folder``, comparable between writers."""
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
    files = {name: data for name, data in files.items() if data.startswith(_MAGIC)}
    drawn = {_id(data)[:-_COUNTED] for data in files.values()}
    blanked = {name: _blank(data, drawn) for name, data in files.items()}
    # A segment's description lists its files and attributes in the order of a set, which Java draws for each process.
    return {
        name: bytes(sorted(data)) if name.endswith(".si") else data
        for name, data in blanked.items()
    }


def _id(data: bytes) -> bytes:
    """After the magic number: the codec's name with its length, 4 bytes of version, the id."""
    start = len(_MAGIC) + 1 + data[len(_MAGIC)] + 4
    return data[start : start + _ID]


def _blank(data: bytes, drawn: set[bytes]) -> bytes:
    for start in drawn:
        data = re.sub(re.escape(start) + b"." * _COUNTED, bytes(_ID), data, flags=re.DOTALL)
    return _TIME.sub(rb"\1", data)[:-_CHECKSUM]
