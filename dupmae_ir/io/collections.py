"""Reads collections as :class:`Document`, streamed, with every line checked and the bytes digested on the way.

Formats, and how they are recognised:

* JSON lines, from names ending in ``.jsonl``, ``.json`` or ``.ndjson``: BEIR (``_id``, ``title``, ``text``) and
  Pyserini (``id`` or ``docid``, ``contents``); what ``metadata`` and other keys contain (strings, numbers, true and
  false, lists of these, of at most 1,000 characters) becomes the metadata of the document;
* tab-separated lines, from names ending in ``.tsv``: MS MARCO passages (id, text), MS MARCO documents (id, url,
  title, body), or any columns that a header line or ``fields`` names; the URL becomes metadata;
* any other name and standard input: JSON lines when the first line starts with ``{``, else tab-separated;
* gzip of all these, recognised by its first two bytes and not by its name;
* a folder: its ``corpus.jsonl`` when it has one (BEIR), else every file with one of the endings above, in natural
  order (``docs2`` before ``docs10``), without hidden files and the records that our commands leave
  (``NAME.meta.json``);
* a URL of a file or folder of these (:mod:`dupmae_ir.io.remote`), streamed.

A byte order mark, Windows line ends and blank lines are accepted. Any other defect raises :class:`InputError` with
``file:line``; nothing is skipped silently. The JSON is parsed here and not by ``jsonlines``, whose reader adds a
Python call per line and cannot report the column of an error.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast
from unicodedata import category

from dupmae_ir.errors import InputError
from dupmae_ir.io.remote import Remote, is_url
from dupmae_ir.types import LONGEST_METADATA, Document, MetadataValue, is_metadata_value

STDIN = "-"
LONGEST_LINE = 64 << 20  #: bytes; a longer line means a binary file, not a collection

_JSON_ENDINGS = (".jsonl", ".json", ".ndjson")
_TSV_ENDINGS = (".tsv",)
LONGEST_ID = 32766
"""Lucene's limit on an id, in UTF-8 bytes."""
_DOCID_FIELDS = ("id", "_id", "docid")  #: in Pyserini's order
_CONTENTS = ("title", "text", "contents", "vector", "metadata")  #: keys with a meaning of their own
_UNUSABLE = ("Cc", "Cs")  #: Unicode's control characters and surrogates; joiners and the like are valid in titles
_IGNORED = "_"  #: in ``fields``: a column to skip
_TSV_LAYOUTS = {2: ("text",), 4: (_IGNORED, "title", "text")}
_HEADER_NAMES = {
    "text": "text",
    "contents": "text",
    "body": "text",
    "passage": "text",
    "title": "title",
    "url": _IGNORED,
}
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


def read_collection(
    source: str | Path, fields: Sequence[str] | None = None, docid_field: str | None = None, delimiter: str = "\n"
) -> Iterator[Document]:
    """Stream the documents of a file, a folder or ``-`` (standard input). See :class:`Collection` for the settings."""
    return iter(Collection(source, fields, docid_field, delimiter))


@dataclass(frozen=True)
class Input:
    """One file as it was read: ``sha256`` is of its bytes on disk (compressed, if it is)."""

    path: str
    sha256: str
    documents: int


class Collection:
    """A collection, and the counts and digests of what has been read of it.

    ``fields`` are the parts of a document in order: names of JSON keys (or, when those are absent, the pieces of
    ``contents`` split by ``delimiter``, as Pyserini does) or the columns of a tsv after the id. ``title`` becomes the
    title, ``_`` is ignored, the others joined by a space are the text. ``docid_field`` names another key for the id.
    Missing files are reported here, malformed content while iterating. Iterate once; then ``inputs`` is complete.
    """

    report: dict[str, object] | None = None  #: what became of the files, for collections that may leave some out

    def __init__(
        self,
        source: str | Path | Sequence[str | Path],
        fields: Sequence[str] | None = None,
        docid_field: str | None = None,
        delimiter: str = "\n",
    ) -> None:
        sources = [source] if isinstance(source, str | Path) else list(source)
        self.source = " ".join(map(str, sources))
        self.fields = tuple(fields or ())
        self.docid_field = docid_field
        self.delimiter = delimiter
        self.settings: dict[str, object] = {}
        self.paths = [] if self.source == STDIN else [path for one in sources for path in list_files(one)]
        self.total_bytes = _total_bytes(self.paths)  #: None when unknown (standard input, a pipe)
        self.bytes_read = 0
        self.documents = 0
        self.inputs: list[Input] = []
        if not delimiter:
            raise InputError("the delimiter between fields is empty; leave it out or give at least one character")

    def __iter__(self) -> Iterator[Document]:
        seen = Seen()
        paths: Sequence[Path | Remote | None] = self.paths or [None]
        for path in paths:
            before = self.documents
            name = "<standard input>" if path is None else str(path)
            with _opened(path, name) as raw:
                tap = _Tap(raw)
                for document, line in self._parsed(tap, name):
                    if seen.add(document.docid):
                        raise InputError(f"{name}:{line}: duplicate id {document.docid!r}; ids must be unique")
                    self.documents += 1
                    yield document
                    self.bytes_read += tap.fresh()
                self.bytes_read += tap.fresh()
            shown = STDIN if path is None else str(path)
            self.inputs.append(Input(shown, tap.sha256.hexdigest(), self.documents - before))
        if not self.documents:
            where = "<standard input>" if self.source == STDIN else self.source
            raise InputError(f"{where}: no documents in it ({self.bytes_read} bytes read)")

    def check(self) -> None:
        """Parse the first document of each file. Raises :class:`InputError`; pipes are not touched."""
        for path in self.paths:
            if path.is_file():
                with _opened(path, str(path)) as raw:
                    next(self._parsed(_Tap(raw), str(path)), None)

    def may_have(self, docid: str) -> bool:  # noqa: ARG002 (see io.sources.Source)
        """False: every document is read, or an error is raised."""
        return False

    def digests(self) -> dict[str, str]:
        """The digest of all bytes read, under the name of the flag; complete after iteration."""
        return {"corpus": combined_digest([i.sha256 for i in self.inputs])}

    def read_digests(self) -> dict[str, str]:
        """The same without parsing: reads all files; standard input is read to its end."""
        paths: Sequence[Path | Remote | None] = self.paths or [None]
        return {"corpus": combined_digest([_digest(path, STDIN if path is None else str(path)) for path in paths])}

    def _parsed(self, tap: _Tap, name: str) -> Iterator[tuple[Document, int]]:
        parser: RecordReader | _Tsv | None = None
        for number, line in _lines(tap, name):
            where = f"{name}:{number}"
            if parser is None:
                parser = self._parser(name, line, where)
                if isinstance(parser, _Tsv) and parser.header:
                    continue
            yield parser(line, where), number

    def _parser(self, name: str, first: str, where: str) -> RecordReader | _Tsv:
        plain = name.lower().removesuffix(".gz")
        as_json = plain.endswith(_JSON_ENDINGS) or (not plain.endswith(_TSV_ENDINGS) and first.lstrip()[:1] in "{[")
        if as_json and first.lstrip().startswith("["):
            raise InputError(
                f"{where}: a JSON array; expected one JSON object per line (convert it with: jq -c '.[]', or read it "
                "as a document with --read-as documents)"
            )
        if as_json:
            return RecordReader(self.fields, self.docid_field, self.delimiter)
        if "\t" not in first:
            raise InputError(f"{where}: neither a JSON object nor tab-separated columns: {_short(first)}")
        return _Tsv(first, self.fields, where)


def list_files(source: str | Path) -> Sequence[Path | Remote]:
    """The files of a collection in reading order; the module's docstring gives the rule."""
    if is_url(source):
        return _list_remote(Remote(str(source)))
    path = Path(source)
    if path.is_dir():
        beir = [p for p in (path / "corpus.jsonl", path / "corpus.jsonl.gz") if p.is_file()]
        found = beir[:1] or sorted((p for p in _entries(path) if is_lines_file(p)), key=lambda p: natural_key(p.name))
        if not found:
            raise InputError(f"{path}: no collection in this folder (no .jsonl, .json or .tsv file, gzipped or not)")
        return found
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    return [path]


def _list_remote(source: Remote) -> list[Remote]:
    """The same of a URL. Raises :class:`InputError` where there is nothing."""
    if (entries := source.files()) is None:
        return [source]
    named = {entry.name: entry for entry in entries if _is_lines_entry(entry.name)}
    beir = [named[name] for name in ("corpus.jsonl", "corpus.jsonl.gz") if name in named]
    if not (found := beir[:1] or [named[name] for name in sorted(named, key=natural_key)]):
        raise InputError(f"{source}: no collection in this folder (no .jsonl, .json or .tsv file, gzipped or not)")
    return found


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key in which digits count as numbers: ``part2`` before ``part10``."""
    pieces = re.split(r"(\d+)", name)
    return [(0, int(p), p) if p.isdecimal() else (1, 0, p) for p in pieces if p]


def count_and_digest(source: str | Path) -> list[tuple[str, str]]:
    """(path, sha256) of every file of a collection without parsing it; standard input is read to its end."""
    if str(source) == STDIN:
        return [(STDIN, _digest(None, STDIN))]
    return [(str(path), _digest(path, str(path))) for path in list_files(source)]


def combined_digest(digests: Sequence[str]) -> str:
    """One hex digest for several files in order; that of a single file is its own."""
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


class RecordReader:
    """Makes a document of a record: of one line of JSON, or of named values."""

    id_names = _DOCID_FIELDS

    def __init__(self, fields: tuple[str, ...], docid_field: str | None, delimiter: str) -> None:
        self.fields, self.docid_field, self.delimiter = fields, docid_field, delimiter

    def __call__(self, line: str, where: str) -> Document:
        try:
            record = json.loads(line)
        except json.JSONDecodeError as e:
            raise InputError(f"{where}: broken JSON: {e.msg} at column {e.colno}") from None
        except (RecursionError, ValueError) as e:
            raise InputError(f"{where}: broken JSON: {e}") from None
        if not isinstance(record, dict):
            kinds: dict[type, str] = {list: "an array", str: "a string"}
            kind = kinds.get(type(record), "a single value")
            raise InputError(f"{where}: {kind}; expected one JSON object per line")
        return self.document(record, where)

    def document(self, record: dict[str, Any], where: str) -> Document:
        """The document of a record. Raises :class:`InputError`, naming ``where``."""
        docid = checked_docid(self._docid(record, where), where)
        text, title = self._title_last(record, where)
        return Document(docid, text, title, self._metadata(record))

    def _metadata(self, record: dict[str, Any]) -> dict[str, MetadataValue] | None:
        """The values under ``metadata`` and under all other keys that can be metadata; None without any."""
        if len(record) <= 2:
            return None
        inner = record.get("metadata")
        used = (*_DOCID_FIELDS, self.docid_field, *_CONTENTS, *self.fields)
        values = {key: value for key, value in record.items() if key not in used}
        values |= inner if isinstance(inner, dict) else {}
        return metadata_of(values)

    def _docid(self, record: dict[str, Any], where: str) -> str:
        names = (self.docid_field,) if self.docid_field else _DOCID_FIELDS
        name = next((n for n in names if n in record), None)
        if name is None:
            hint = "" if self.docid_field else "; name its key with --docid-field"
            raise InputError(f"{where}: no id: expected {_or(names)}, found {_keys(record)}{hint}")
        value = record[name]
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            raise InputError(f"{where}: the id {name!r} is {json.dumps(value)[:40]}; expected a string or an integer")
        return value

    def _title_last(self, record: dict[str, Any], where: str) -> tuple[str, str]:
        if self.fields:
            return _composed(self.fields, self._values(record, where))
        if "text" in record:
            title = _text(record.get("title"), "title", where)
            return _text(record["text"], "text", where), title
        if "contents" in record:
            return _text(record["contents"], "contents", where), ""
        raise InputError(
            f"{where}: no text: expected 'text' or 'contents', found {_keys(record)}; name its keys with --fields"
        )

    def _values(self, record: dict[str, Any], where: str) -> list[str]:
        """Values by key when every key is present, else the pieces of ``contents``, as in Pyserini."""
        wanted = [f for f in self.fields if f != _IGNORED]
        if all(f in record for f in wanted):
            return ["" if f == _IGNORED else _text(record[f], f, where) for f in self.fields]
        if "contents" not in record:
            missing = next(f for f in wanted if f not in record)
            raise InputError(f"{where}: no text: expected {missing!r} or 'contents', found {_keys(record)}")
        contents = _text(record["contents"], "contents", where, strip=False)
        # A trailing delimiter ends the last field; it does not start an empty one.
        if contents.count(self.delimiter) == len(self.fields):
            contents = contents.removesuffix(self.delimiter)
        values = [piece.strip() for piece in contents.split(self.delimiter)]
        if len(values) != len(self.fields):
            raise InputError(
                f"{where}: 'contents' has {len(values)} field(s) split by {self.delimiter!r}, "
                f"--fields names {len(self.fields)} ({' '.join(self.fields)})"
            )
        return values


class _Tsv:
    """Parses one tab-separated line into one document; the first line of a file determines the columns."""

    def __init__(self, first: str, fields: tuple[str, ...], where: str) -> None:
        cells = [c.strip().lower() for c in first.split("\t")]
        self.header = cells[0] in (*_DOCID_FIELDS, "pid") and all(c in _HEADER_NAMES for c in cells[1:])
        width = len(cells)
        self.url = cells.index("url") if self.header and "url" in cells else 0  #: column of a URL; 0 without one
        if self.header:
            self.columns: tuple[str, ...] = tuple(_HEADER_NAMES[c] for c in cells[1:])
        elif fields:
            self.columns = fields
            width = len(fields) + 1
        elif width in _TSV_LAYOUTS:
            self.columns = _TSV_LAYOUTS[width]
            self.url = 1 if width == 4 else 0
        else:
            raise InputError(
                f"{where}: {width} columns; expected 2 (id, text) or 4 (id, url, title, body), "
                f"or --fields to name the columns after the id ('_' ignores one)"
            )
        self.width = width

    def __call__(self, line: str, where: str) -> Document:
        cells = line.split("\t")
        if len(cells) != self.width:
            tip = "; a tab is missing" if len(cells) < self.width else "; a text contains a tab"
            raise InputError(f"{where}: {len(cells)} column(s), expected {self.width}{tip}")
        text, title = _composed(self.columns, [c.strip() for c in cells[1:]])
        url = cells[self.url].strip() if self.url else ""
        metadata = {"url": url} if url and can_be_metadata(url) else None
        return Document(checked_docid(cells[0], where), text, title, metadata)


class _Tap(io.RawIOBase):
    """A file whose bytes are counted and digested as they are read."""

    def __init__(self, raw: IO[bytes]) -> None:
        self.sha256 = hashlib.sha256()
        self._raw = raw
        self._count = self._reported = 0

    def readable(self) -> bool:
        """Always True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into ``buffer`` and return how many bytes."""
        block = self._raw.read(len(buffer))
        buffer[: len(block)] = block
        self.sha256.update(block)
        self._count += len(block)
        return len(block)

    def fresh(self) -> int:
        """Bytes read since the last call."""
        new, self._reported = self._count - self._reported, self._count
        return new


class Seen:
    """A set of strings that stores a 64-bit hash of each: 11 to 23 bytes a string where a Python set needs 100.

    About one in 4 million collections of the size of MS MARCO has two strings that collide.
    """

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 << 12))
        self._used = 0

    def add(self, text: str) -> bool:
        """Add ``text``; True when it was already in the set."""
        if self._used * 10 > len(self._slots) * 7:
            self._grow()
        return self._put(hash(text) & 0xFFFFFFFFFFFFFFFF or 1)

    def _put(self, key: int) -> bool:
        slots, mask = self._slots, len(self._slots) - 1
        at = key & mask
        while slots[at]:
            if slots[at] == key:
                return True
            at = (at + 1) & mask
        slots[at] = key
        self._used += 1
        return False

    def _grow(self) -> None:
        old, self._used = self._slots, 0
        self._slots = array("Q", bytes(len(old) * 16))
        for key in old:
            if key:
                self._put(key)


def _lines(tap: _Tap, name: str) -> Iterator[tuple[int, str]]:
    """(line number from 1, text) of every line that is not blank."""
    number = 0
    try:
        for number, line in enumerate(_byte_lines(tap), start=1):
            if len(line) > LONGEST_LINE:
                raise InputError(f"{name}:{number}: a line of more than {LONGEST_LINE >> 20} MiB; not a collection")
            if number == 1:
                line = _without_bom(line, name)
            line = line.rstrip(b"\r\n")
            if line.strip():
                yield number, _decoded(line, f"{name}:{number}")
    except EOFError:
        raise InputError(f"{name}: the gzip data end after line {number}; the file is truncated") from None
    except (gzip.BadGzipFile, zlib.error) as e:
        raise InputError(f"{name}: damaged gzip data after line {number}: {e}") from None
    except OSError as e:
        raise InputError(f"{name}: cannot be read: {e.strerror or e}") from None


def _byte_lines(tap: _Tap) -> Iterator[bytes]:
    buffered = io.BufferedReader(tap, 1 << 18)
    zipped = buffered.peek(2)[:2] == _GZIP
    stream = gzip.GzipFile(fileobj=buffered) if zipped else buffered
    while line := stream.readline(LONGEST_LINE + 1):
        yield line


def _without_bom(line: bytes, name: str) -> bytes:
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{name}:1: UTF-16 text; save the file as UTF-8")
    return line.removeprefix(_BOM)


def _decoded(line: bytes, where: str) -> str:
    if b"\0" in line:
        raise InputError(f"{where}: binary data (a NUL byte); expected text in UTF-8")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as e:
        raise InputError(f"{where}: not UTF-8 text: byte 0x{line[e.start]:02x} at position {e.start + 1}") from None


def checked_docid(docid: str, where: str) -> str:
    """The id. Raises :class:`InputError`, naming ``where``, for one that run files or Lucene cannot represent."""
    if not docid:
        raise InputError(f"{where}: empty id")
    if (" " in docid or not docid.isprintable()) and any(c.isspace() or category(c) in _UNUSABLE for c in docid):
        # Columns of run files and qrels are separated by white space.
        raise InputError(
            f"{where}: the id {docid!r} contains white space or a control character, which run files cannot represent"
        )
    if len(docid) > LONGEST_ID // 4 and (size := len(docid.encode("utf-8", "replace"))) > LONGEST_ID:
        raise InputError(f"{where}: the id {docid[:40]!r}... has {size:,} bytes; Lucene takes at most {LONGEST_ID:,}")
    return docid


def _text(value: Any, name: str, where: str, strip: bool = True) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{where}: {name!r} is {json.dumps(value)[:40]}; expected a string")
    # JSON can contain half of a surrogate pair, which UTF-8 cannot encode.
    text = value.encode("utf-8", "replace").decode("utf-8") if not value.isascii() else value
    return text.strip() if strip else text


def metadata_of(values: dict[str, Any]) -> dict[str, MetadataValue] | None:
    """The values that can be metadata, by name; None without any."""
    return {name: value for name, value in values.items() if name and can_be_metadata(value)} or None


def can_be_metadata(value: object) -> bool:
    """Whether a value can be metadata: a string, a finite number, true or false, or a list of these, not too long."""
    if not is_metadata_value(value):
        return False
    return not isinstance(value, str | list) or len(json.dumps(value, ensure_ascii=False)) <= LONGEST_METADATA


def _composed(names: Sequence[str], values: Sequence[str]) -> tuple[str, str]:
    """(text, title) from named values."""
    pairs = list(zip(names, values, strict=True))
    title = " ".join(v for n, v in pairs if n == "title" and v)
    return " ".join(v for n, v in pairs if n not in ("title", _IGNORED) and v), title


def _digest(path: Path | Remote | None, name: str) -> str:
    sha256 = hashlib.sha256()
    with _opened(path, name) as f:
        try:
            while block := f.read(1 << 20):
                sha256.update(block)
        except OSError as e:
            raise InputError(f"{name}: cannot be read: {e.strerror or e}") from None
    return sha256.hexdigest()


@contextmanager
def _opened(path: Path | Remote | None, name: str) -> Iterator[IO[bytes]]:
    if path is None:
        yield sys.stdin.buffer
        return
    if isinstance(path, Remote):
        with path.open() as stream:
            yield cast("IO[bytes]", stream)
        return
    try:
        file = path.open("rb", buffering=0)
    except OSError as e:
        raise InputError(f"{name}: cannot be read: {e.strerror or e}") from None
    with file:
        yield file


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as e:
        raise InputError(f"{folder}: cannot be read: {e.strerror or e}") from None


def is_lines_name(name: str) -> bool:
    """Whether a name says that each line is a document: ``.jsonl``, ``.json``, ``.ndjson``, ``.tsv``, or ``.gz``."""
    return name.lower().removesuffix(".gz").endswith(_JSON_ENDINGS + _TSV_ENDINGS)


def is_lines_file(path: Path) -> bool:
    """Whether a file of a folder is one of its files of lines; records (``.meta.json``) and hidden files are none."""
    return _is_lines_entry(path.name) and path.is_file()


def _is_lines_entry(name: str) -> bool:
    record = name.lower().removesuffix(".gz").endswith(".meta.json")
    return is_lines_name(name) and not record and not name.startswith(".")


def _total_bytes(paths: Sequence[Path | Remote]) -> int | None:
    sizes = [_size(path) for path in paths]
    return sum(s for s in sizes if s) if paths and None not in sizes else None


def _size(path: Path | Remote) -> int | None:
    if isinstance(path, Remote):
        return path.size()
    return path.stat().st_size if path.is_file() else None


def _or(names: Sequence[str]) -> str:
    return " or ".join(repr(n) for n in names)


def _keys(record: dict[str, Any]) -> str:
    return ", ".join(repr(k) for k in list(record)[:8]) or "nothing"


def _short(line: str) -> str:
    return repr(line[:40] + ("..." if len(line) > 40 else ""))
