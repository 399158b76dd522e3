"""Messages of Outlook, made in memory: a compound file whose streams are the properties of the message."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

_FREE = 0xFFFFFFFF
_END = 0xFFFFFFFE
_FAT = 0xFFFFFFFD
_SMALL = 4096
"""Bytes of a stream below which it is in small sectors."""
Tree = Mapping[str, "bytes | Tree"]
Value = str | bytes | int


class _Sectors:
    """Data in sectors of one size, and the table that says which one follows each."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.data = b""
        self.table: list[int] = []

    def store(self, data: bytes) -> int:
        """Append data, and return its first sector."""
        start = len(self.table)
        count = -(-len(data) // self.size)
        self.data += data.ljust(count * self.size, b"\0")
        self.table += [*range(start + 1, start + count), _END][: max(count, 0)]
        return start if count else _END


def compound_file(tree: Tree) -> bytes:
    """A compound file (MS-CFB) with streams and storages."""
    entries: list[list] = []
    sectors = _Sectors(512)
    small = _Sectors(64)

    def add(name: str, content: bytes | Tree, kind: int) -> int:
        number = len(entries)
        entries.append([name, kind, _FREE, _FREE, _END, 0])
        if isinstance(content, bytes):
            where = small if len(content) < _SMALL else sectors
            entries[number][4:] = where.store(content), len(content)
            return number
        following = _FREE
        for child, inner in reversed(content.items()):
            child_number = add(child, inner, 2 if isinstance(inner, bytes) else 1)
            entries[child_number][2] = following
            following = child_number
        entries[number][3] = following
        return number

    add("Root Entry", tree, 5)
    entries[0][4:] = sectors.store(small.data), len(small.data)
    small_table = sectors.store(_table(small.table))
    directory = b""
    for name, kind, right, child, start, size in entries:
        encoded = name.encode("utf-16-le")
        directory += encoded.ljust(64, b"\0") + struct.pack(
            "<HBBIII16xI16xIII", len(encoded) + 2, kind, 1, _FREE, right, child, 0, start, size, 0
        )
    directory_start = sectors.store(directory)
    count = 1
    while count * 128 < len(sectors.table) + count:
        count += 1
    table_start = len(sectors.table)
    header = struct.pack(
        "<8s16xHHHHH6xIIIIIIIII109I",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        *(0x3E, 3, 0xFFFE, 9, 6),
        *(0, count, directory_start, 0, _SMALL),
        *(small_table, len(_table(small.table)) // 512, _END, 0),
        *range(table_start, table_start + count),
        *[_FREE] * (109 - count),
    )
    return header + sectors.data + _table(sectors.table + [_FAT] * count)


def _table(following: Sequence[int]) -> bytes:
    padded = [*following, *[_FREE] * (-len(following) % 128)]
    return struct.pack(f"<{len(padded)}I", *padded)


def _properties(values: Mapping[int, Value], header: bytes) -> dict[str, bytes | Tree]:
    streams: dict[str, bytes | Tree] = {}
    table = header
    for number, value in values.items():
        if isinstance(value, int):
            table += struct.pack("<HHIq", 3, number, 6, value)
            continue
        kind, data = (31, value.encode("utf-16-le")) if isinstance(value, str) else (258, value)
        table += struct.pack("<HHIII", kind, number, 6, len(data) + 2 * (kind == 31), 0)
        streams[f"__substg1.0_{number:04X}{kind:04X}"] = data
    streams["__properties_version1.0"] = table
    return streams


def outlook_tree(
    values: Mapping[int, Value],
    recipients: Sequence[Mapping[int, Value]] = (),
    attachments: Sequence[Mapping[int, Value | Tree]] = (),
    header_size: int = 32,
) -> Tree:
    """The storage of a message; an attachment may have another message (with a header of 24 bytes) as its data."""
    counts = struct.pack(
        "<8x4I", len(recipients), len(attachments), len(recipients), len(attachments)
    )
    tree = _properties(values, counts.ljust(header_size, b"\0"))
    for number, recipient in enumerate(recipients):
        tree[f"__recip_version1.0_#{number:08X}"] = _properties(recipient, bytes(8))
    for number, attachment in enumerate(attachments):
        plain = {key: value for key, value in attachment.items() if not isinstance(value, Mapping)}
        storage = _properties(plain, bytes(8))
        for key, value in attachment.items():
            if isinstance(value, Mapping):
                storage[f"__substg1.0_{key:04X}000D"] = value
        tree[f"__attach_version1.0_#{number:08X}"] = storage
    return tree
