"""The text store of an index: titles, texts and metadata of the documents, compressed, with random access.

    I/texts/blocks.bin              blocks of documents, each compressed with zlib
    I/texts/blocks.npy              (b, 3) int64: end of a block in blocks.bin, rows up to its end, its CRC-32
    I/texts/columns.json            name of a metadata column -> its distinct values
    I/texts/column-NUMBER.npy       (n,) uint32: position of each row's value in that list, from 1; 0 for no value
    I/texts/part.json               the index id

A block is the JSON of ``[docid, title, text, metadata]`` of about 64 KiB of documents; the last 32 blocks that were
read stay in memory. ``blocks.bin`` is memory-mapped unless it is small. The CRC-32 of a block is compared when it is
read, and the sha256 of the other files when the store is opened (see :mod:`dupmae_ir.index.format.integrity`). The same
documents give the same bytes with the same version of zlib.

zlib and not SQLite: SQLite does not compress, and a file that several of its versions write differs byte by byte.
"""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from dupmae_ir.errors import IndexMismatch, UnknownName, UsageError
from dupmae_ir.index.format.forward import NpyWriter, PartWriter, map_bytes, mapped
from dupmae_ir.index.format.integrity import AGAIN
from dupmae_ir.registry import suggest
from dupmae_ir.types import Metadata, MetadataValue, is_metadata_value

FOLDER = "texts"
BLOCKS = "blocks.bin"
TABLE = "blocks.npy"
COLUMNS = "columns.json"
MOST_COLUMNS = 400
"""Names of metadata in an index; each is an open file while the index is written."""
_BLOCK = 1 << 16
"""Characters of JSON compressed together; also the codes of a column that are written at a time."""
_CACHED_BLOCKS = 32
"""Blocks kept decompressed, about 64 KiB each."""
_LEVEL = 6
"""Compression level of zlib."""


class StoredDocument(NamedTuple):
    """A document as an index keeps it."""

    docid: str
    title: str
    text: str
    metadata: Metadata


class Column(NamedTuple):
    """One metadata column of all documents. A condition is evaluated once for each distinct value:
    ``np.array([holds(v) for v in column.values])[column.codes]``."""

    values: list[
        MetadataValue | None
    ]  #: distinct values; the first is None, for rows without a value
    codes: np.ndarray  #: (n,) uint32, the position of each row's value in ``values``, memory-mapped


class TextWriter(PartWriter):
    """Writes a text store row by row into ``folder``, which it creates. Blocks are streamed; only the distinct values
    of each column are kept in memory."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir()
        self.rows = 0
        self._blocks: IO[bytes] = open(self.folder / BLOCKS, "wb")  # noqa: SIM115 (closed by close)
        self._table: list[
            tuple[int, int, int]
        ] = []  # of each block: its end, the rows up to there, its CRC-32
        self._pending: list[str] = []  # JSON of the documents of the next block
        self._pending_size = 0
        self._end = 0
        self._columns: dict[str, _ColumnWriter] = {}

    def add(self, documents: Iterable[StoredDocument]) -> None:
        """Append documents. Raises :class:`UsageError` for metadata that JSON or a column cannot represent."""
        for document in documents:
            for name, value in document.metadata.items():
                self._column(name, document.docid).add(self.rows, value, document.docid)
            values = [document.docid, document.title, document.text, dict(document.metadata)]
            text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
            self._pending.append(text)
            self._pending_size += len(text)
            self.rows += 1
            if self._pending_size >= _BLOCK:
                self._flush()

    def close(self) -> None:
        """Write the last block, the table and the columns."""
        if self._pending:
            self._flush()
        self._blocks.close()
        table = np.array(self._table, np.int64).reshape(-1, 3)
        np.save(self.folder / TABLE, table, allow_pickle=False)
        columns = []
        for name, column in self._columns.items():
            column.close(self.rows)
            columns.append({"name": name, "file": column.path.name, "values": column.values})
        text = json.dumps({"rows": self.rows, "columns": columns}, ensure_ascii=False) + "\n"
        (self.folder / COLUMNS).write_bytes(text.encode("utf-8", "replace"))

    def _column(self, name: str, docid: str) -> _ColumnWriter:
        if not isinstance(name, str) or not name:
            raise UsageError(
                f"document {docid!r}: a metadata name must be a string that is not empty, got {name!r}"
            )
        if name not in self._columns:
            if len(self._columns) == MOST_COLUMNS:
                raise UsageError(
                    f"document {docid!r}: {name!r} is a metadata name beyond {MOST_COLUMNS}, the limit"
                )
            # By number: a name of metadata need not be a possible file name.
            path = self.folder / f"column-{len(self._columns):04d}.npy"
            self._columns[name] = _ColumnWriter(path)
        return self._columns[name]

    def _flush(self) -> None:
        text = f"[{','.join(self._pending)}]"
        # A text may contain half of a surrogate pair, which UTF-8 cannot represent.
        block = zlib.compress(text.encode("utf-8", "replace"), _LEVEL)
        self._blocks.write(block)
        self._end += len(block)
        self._table.append((self._end, self.rows, zlib.crc32(block)))
        self._pending = []
        self._pending_size = 0

    def abandon(self) -> None:
        """Close all files."""
        self._blocks.close()
        for column in self._columns.values():
            column.codes.abandon()


class _ColumnWriter:
    """Writes the codes of one column; rows that are skipped have no value."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._codes_of: dict[str, int] = {}  # by the JSON of the value
        self.codes = NpyWriter(path, np.uint32)
        self._pending: list[int] = []

    @property
    def values(self) -> list[MetadataValue]:
        """The distinct values in the order of their first use."""
        return [json.loads(text) for text in self._codes_of]

    def add(self, row: int, value: MetadataValue, docid: str) -> None:
        if not is_metadata_value(value):
            raise UsageError(
                f"document {docid!r}: metadata must be strings, numbers, true or false, or lists of these, got "
                f"{value!r}"
            )
        self._fill(row)
        # The text tells 1, 1.0 and true apart, which are equal as keys. Code 0 is for no value.
        code = self._codes_of.setdefault(json.dumps(value), len(self._codes_of) + 1)
        self._pending.append(code)

    def close(self, rows: int) -> None:
        self._fill(rows)
        self._flush()
        self.codes.close()

    def _fill(self, row: int) -> None:
        """Write code 0 for the rows before ``row`` that were skipped."""
        skipped = row - self.codes.count - len(self._pending)
        if skipped:
            self._flush()
            self.codes.add(np.zeros(skipped, np.uint32))
        if len(self._pending) >= _BLOCK:
            self._flush()

    def _flush(self) -> None:
        self.codes.add(np.array(self._pending, np.uint32))
        self._pending = []


class TextStore:
    """The text store of an index, opened. Safe for several threads; :attr:`Index.texts` opens one.

    Every method raises :class:`IndexMismatch` for damage in what it reads.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        with _reading(self.folder / TABLE) as path:
            self._table = np.load(path, allow_pickle=False)
            steps = np.diff(self._table[:, :2], axis=0, prepend=0)
            if self._table.dtype != np.int64 or self._table.shape[1:] != (3,) or (steps <= 0).any():
                raise ValueError("it is no table of blocks")
        with _reading(self.folder / COLUMNS) as path:
            self._described = json.loads(path.read_text(encoding="utf-8"))
            is_object = isinstance(self._described, dict)
            if not is_object or not isinstance(self._described.get("columns"), list):
                raise ValueError("it lists no columns")
        with _reading(self.folder / BLOCKS) as path:
            blocks = _Blocks(path, self._table, map_bytes(path))
        self._read_block = blocks.read
        # The cache refers to the blocks and not to this store: in a cycle, both would keep their files open until
        # Python's collector comes, and a watcher opens a store with every change.
        self._block = functools.lru_cache(_CACHED_BLOCKS)(blocks.read)
        self._opened_columns: dict[str, Column] = {}
        blocks_end = int(self._table[-1, 0]) if len(self._table) else len(blocks.data)
        if len(self) != self._described["rows"] or blocks_end != len(blocks.data):
            raise _damaged(self.folder / COLUMNS, "its number of rows is not that of the blocks")

    def __len__(self) -> int:
        if not len(self._table):
            return 0
        return int(self._table[-1, 1])

    @property
    def columns(self) -> list[str]:
        """Names of the metadata columns, in the order of their first use."""
        return list(self._columns)

    @functools.cached_property
    def _columns(self) -> Mapping[str, Mapping[str, object]]:
        return {str(column["name"]): column for column in self._described["columns"]}

    def get(self, row: int) -> StoredDocument:
        """The document of a row; decompresses one block of about 64 KiB, or none if it was read shortly before."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        number = int(np.searchsorted(self._table[:, 1], row, "right"))
        first = int(self._table[number - 1, 1]) if number else 0
        docid, title, text, metadata = self._block(number)[row - first]
        return StoredDocument(docid, title, text, dict(metadata))

    def get_all(self, rows: Sequence[int]) -> list[StoredDocument]:
        """The documents of several rows, in their order."""
        return [self.get(row) for row in rows]

    def column(self, name: str) -> Column:
        """One metadata column of all documents. Raises :class:`UnknownName` for a name that no document has."""
        if name not in self._columns:
            names = ", ".join(self.columns) or "none"
            raise UnknownName(
                f"{self.folder.parent} has no metadata {name!r}; known: {names}.{suggest(name, self.columns)}"
            )
        if name not in self._opened_columns:
            self._opened_columns[name] = self._read_column(name)
        return self._opened_columns[name]

    def verify(self) -> str | None:
        """Read every block and column. Returns a message about the first problem; None for an undamaged store."""
        try:
            rows = 0
            for number in range(len(self._table)):
                rows += len(self._read_block(number))
                if rows != self._table[number, 1]:
                    return f"{self.folder / TABLE}: block {number} has another number of rows"
            for name in self.columns:
                self.column(name)
        except IndexMismatch as e:
            return str(e)
        return None

    def _read_column(self, name: str) -> Column:
        described = self._columns[name]
        path = self.folder / str(described["file"])
        values = described["values"]
        assert isinstance(values, list)
        codes = mapped(path, AGAIN)
        belongs = codes.shape == (len(self),) and codes.dtype == np.uint32
        if not belongs or codes.max(initial=0) > len(values):
            raise _damaged(path, "it does not belong to this store")
        return Column([None, *values], codes)


class _Blocks(NamedTuple):
    """The compressed blocks of a store."""

    path: Path
    table: np.ndarray
    data: mmap.mmap | bytes

    def read(self, number: int) -> list[tuple[str, str, str, Metadata]]:
        """The documents of a block."""
        start = int(self.table[number - 1, 0]) if number else 0
        end, _, checksum = map(int, self.table[number])
        block = self.data[start:end]
        if zlib.crc32(block) != checksum:
            raise _damaged(self.path, f"block {number} is not the one that was written")
        records: list[tuple[str, str, str, Metadata]] = json.loads(zlib.decompress(block))
        return records


def _damaged(path: Path, problem: str) -> IndexMismatch:
    return IndexMismatch(f"{path} is damaged: {problem}; {AGAIN}")


def stored(documents: Iterable[tuple[str, str, str, Metadata | None]]) -> list[StoredDocument]:
    """``(docid, text, title, metadata)``, the order of :class:`~dupmae_ir.types.Document`, as stored documents."""
    stored_documents = []
    for docid, text, title, metadata in documents:
        stored_documents.append(StoredDocument(docid, title, text, metadata or {}))
    return stored_documents


def pack(documents: Sequence[StoredDocument]) -> np.ndarray:
    """Documents as (bytes,) uint8, compressed: for files of unfinished work."""
    text = json.dumps(documents, ensure_ascii=False, separators=(",", ":"))
    # The fastest level: these files are read once and removed.
    return np.frombuffer(zlib.compress(text.encode("utf-8", "replace"), 1), np.uint8)


def unpack(packed: np.ndarray) -> list[StoredDocument]:
    """The documents that :func:`pack` packed."""
    return [StoredDocument(*record) for record in json.loads(zlib.decompress(packed.tobytes()))]


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[Path]:
    """Report errors in the block as a damaged file."""
    try:
        yield path
    except (OSError, ValueError, KeyError, IndexError, TypeError) as e:
        raise IndexMismatch(f"{path} is damaged: {e}; {AGAIN}") from None
