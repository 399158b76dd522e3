"""Reads collections as :class:`Document`, streamed, with every line checked and the bytes digested on the way.

Formats, and how they are recognised:

* JSON lines, from names ending in ``.jsonl``, ``.json`` or ``.ndjson``: BEIR (``_id``, ``title``, ``text``) and
  Pyserini (``id`` or ``docid``, ``contents``); what ``metadata`` and other keys contain (strings, numbers, true and
  false, lists of these, of at most 1,000 characters) becomes the metadata of the document;
* tab-separated lines, from names ending in ``.tsv``: MS MARCO passages (id, text), MS MARCO documents (id, url,
  title, body), or any columns that a header line or ``fields`` names; the URL becomes metadata;
* any other name and standard input: JSON lines if the first line starts with ``{``, else tab-separated;
* gzip of all these, recognised by its first two bytes and not by its name;
* a folder: its ``corpus.jsonl`` if it has one (BEIR), else every file with one of the endings above, in natural
  order (``docs2`` before ``docs10``), without hidden files and the records that our commands leave
  (``NAME.meta.json``);
* a URL of a file or folder of these (:mod:`dupmae_ir.io.transfer`), streamed.

A byte order mark, Windows line ends and blank lines are accepted. Any other defect raises :class:`InputError` with
``file:line``; nothing is skipped silently.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypedDict, cast
from unicodedata import category

from dupmae_ir.arguments import checked
from dupmae_ir.errors import InputError
from dupmae_ir.io.lines import json_record, lines_of, usable
from dupmae_ir.io.publishing import combined_digest
from dupmae_ir.io.transfer import Remote, is_url
from dupmae_ir.types import LONGEST_METADATA, Document, MetadataValue, is_metadata_value

STDIN = "-"
_STDIN_NAME = "<standard input>"
JSON_ENDINGS = (".jsonl", ".json", ".ndjson")
ENDINGS = (*JSON_ENDINGS, ".tsv")
"""Names of files with a document on each line, gzipped (``.gz``) or not."""
LONGEST_ID = 32766
"""Lucene's limit on an id, in UTF-8 bytes."""
_DOCID_FIELDS = ("id", "_id", "docid")  #: in Pyserini's order
_NOT_METADATA = ("title", "vector", "metadata")  #: keys with another meaning, beside ids and texts
#: Unicode's control characters and surrogates; joiners and the like are valid in titles
_UNUSABLE = ("Cc", "Cs")
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


@checked
def read_collection(
    source: str | Path,
    fields: Sequence[str] | None = None,
    docid_field: str | None = None,
    delimiter: str = "\n",
) -> Iterator[Document]:
    """Stream the documents of a file, a folder or ``-`` (standard input); see :class:`LinesCollection`."""
    return iter(LinesCollection(source, fields, docid_field, delimiter))


@dataclass(frozen=True)
class Input:
    """One file as it was read: ``sha256`` is of its bytes on disk (compressed, if it is)."""

    path: str
    sha256: str
    documents: int


class FileReport(TypedDict):
    """What became of the files of a collection that may leave some out."""

    files: int  #: that were read
    kinds: dict[str, int]  #: kind -> documents that were read, those inside files included
    guessed: dict[str, str]  #: name -> encoding that had to be guessed, and how certain it is
    guessed_files: int
    garbage: dict[str, str]  #: name -> passages of it that are no text, and what they have instead
    garbage_passages: int
    waiting: dict[str, int]  #: name -> pages of it that are pictures without text
    waiting_pages: int
    waiting_files: int
    skipped: dict[str, int]  #: by ending: those that are no documents, or have no text
    unreadable: dict[str, str]  #: name -> reason
    unreadable_files: int


class DocumentSource(ABC):
    """A collection. Iterate once; then ``inputs``, ``digests`` and ``report`` are complete. ``unit``: what it has."""

    unit = "documents"

    def __init__(self, source: str) -> None:
        self.source = source  #: its name, for messages
        self.total_bytes: int | None = None  #: None if it is not known
        self.bytes_read = 0
        self.documents = 0
        self.inputs: list[Input] = []

    @property
    def settings(self) -> dict[str, object]:
        """What decides the documents beyond the common options, by their names."""
        return {}

    @property
    def report(self) -> FileReport | None:
        """What became of the files, if some may be left out."""
        return None

    @property
    def has_problems(self) -> bool:
        """Whether some files were not read, or not as they are."""
        return False

    @abstractmethod
    def __iter__(self) -> Iterator[Document]:
        """The documents in a fixed order."""

    @abstractmethod
    def check(self) -> None:
        """Raise what reading the first documents raises, without using them up."""

    @abstractmethod
    def digests(self) -> dict[str, str]:
        """The digest of everything read, under the name of the option; complete after iteration."""

    @abstractmethod
    def read_digests(self) -> dict[str, str]:
        """The same without parsing: reads all files."""

    def may_have(self, docid: str) -> bool:  # noqa: ARG002 (a source that leaves no file out has read every document)
        """Whether a document that was not read may be there, in a file that cannot be read now."""
        return False


class LinesCollection(DocumentSource):
    """A collection, and the counts and digests of what has been read of it.

    ``fields`` are the parts of a document in order: names of JSON keys (or, when those are absent, the pieces of
    ``contents`` split by ``delimiter``, as Pyserini does) or the columns of a tsv after the id. ``title`` becomes the
    title, ``_`` is ignored, the others joined by a space are the text. ``docid_field`` names another key for the id.
    Missing files are reported here, malformed content while iterating. Iterate once; then ``inputs`` is complete.
    """

    def __init__(
        self,
        source: str | Path | Sequence[str | Path],
        fields: Sequence[str] | None = None,
        docid_field: str | None = None,
        delimiter: str = "\n",
    ) -> None:
        sources = [source] if isinstance(source, str | Path) else list(source)
        super().__init__(" ".join(map(str, sources)))
        self.fields = tuple(fields or ())
        self.docid_field = docid_field
        self.delimiter = delimiter
        self.paths: list[Path | Remote] = []
        if self.source != STDIN:
            for one in sources:
                self.paths.extend(list_files(one))
        sizes = [_size(path) for path in self.paths]
        if sizes and None not in sizes:
            self.total_bytes = sum(size for size in sizes if size)
        if not delimiter:
            raise InputError(
                "the delimiter between fields is empty; leave it out or give at least one character"
            )

    def __iter__(self) -> Iterator[Document]:
        seen = Seen()
        paths: Sequence[Path | Remote | None] = self.paths or [None]
        for path in paths:
            before = self.documents
            name = str(path or _STDIN_NAME)
            with _opened(path) as raw:
                tap = _Tap(raw)
                for document, line in self._parsed(tap, name):
                    if seen.add(document.docid):
                        raise InputError(
                            f"{name}:{line}: duplicate id {document.docid!r}; ids must be unique"
                        )
                    self.documents += 1
                    yield document
                    self.bytes_read += tap.fresh()
                self.bytes_read += tap.fresh()
            self.inputs.append(
                Input(str(path or STDIN), tap.sha256.hexdigest(), self.documents - before)
            )
        if not self.documents:
            where = _STDIN_NAME if self.source == STDIN else self.source
            raise InputError(f"{where}: no documents in it ({self.bytes_read} bytes read)")

    def check(self) -> None:
        """Parse the first document of each file. Raises :class:`InputError`; pipes are not touched."""
        for path in self.paths:
            if path.is_file():
                with _opened(path) as raw:
                    next(self._parsed(_Tap(raw), str(path)), None)

    def digests(self) -> dict[str, str]:
        return {"corpus": combined_digest([i.sha256 for i in self.inputs])}

    def read_digests(self) -> dict[str, str]:
        paths: Sequence[Path | Remote | None] = self.paths or [None]
        return {"corpus": combined_digest([_digest(path) for path in paths])}

    def _parsed(self, tap: _Tap, name: str) -> Iterator[tuple[Document, int]]:
        parser: RecordReader | _Tsv | None = None
        for number, line in lines_of(tap, name):
            where = f"{name}:{number}"
            if parser is None:
                parser = self._parser(name, line, where)
                if isinstance(parser, _Tsv) and parser.header:
                    continue
            yield parser(line, where), number

    def _parser(self, name: str, first: str, where: str) -> RecordReader | _Tsv:
        as_json = has_ending(name, JSON_ENDINGS)
        if not has_ending(name):
            # Names that say nothing: the first line decides.
            as_json = first.lstrip()[:1] in "{["
        if as_json and first.lstrip().startswith("["):
            raise InputError(
                f"{where}: a JSON array; expected one JSON object per line (convert it with: jq -c '.[]', or read it "
                "as a document with `read_as` documents)"
            )
        if as_json:
            return RecordReader(self.fields, self.docid_field, self.delimiter)
        if "\t" not in first:
            shown = first[:40] + ("..." if len(first) > 40 else "")
            raise InputError(f"{where}: neither a JSON object nor tab-separated columns: {shown!r}")
        return _Tsv(first, self.fields, where)


def list_files(source: str | Path, endings: Sequence[str] = ENDINGS) -> Sequence[Path | Remote]:
    """The files of a collection in reading order; the module's docstring gives the rule.

    ``endings``: which files of a folder belong to it, gzipped or not. A saved Hugging Face dataset is returned as its
    folder. Raises :class:`InputError` if there are none.
    """
    entries: Sequence[Path | Remote]
    if is_url(source):
        remote = Remote(str(source))
        remote_files = remote.files()
        if remote_files is None:
            return [remote]
        entries = remote_files
    else:
        path = Path(source)
        if not path.exists():
            raise InputError(f"{path}: no such file or folder")
        if not path.is_dir() or is_dataset_folder(path):
            return [path]
        try:
            entries = [entry for entry in path.iterdir() if entry.is_file()]
        except OSError as e:
            raise InputError(f"{path}: cannot be read: {e.strerror or e}") from None
    named = {entry.name: entry for entry in entries if is_collection_name(entry.name, endings)}
    if not named:
        expected = ", ".join(endings)
        raise InputError(
            f"{source}: no collection in this folder (no {expected} file, gzipped or not)"
        )
    for name in ("corpus.jsonl", "corpus.jsonl.gz"):
        if name in named:
            return [named[name]]
    return [named[name] for name in sorted(named, key=natural_key)]


def is_dataset_folder(path: Path) -> bool:
    """Whether ``datasets.Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` wrote the folder."""
    if (path / "dataset_dict.json").is_file():
        return True
    return (path / "state.json").is_file() and (path / "dataset_info.json").is_file()


def has_ending(name: str, endings: Sequence[str] = ENDINGS) -> bool:
    """Whether a file's name ends so, without regard to case and ``.gz``."""
    return name.lower().removesuffix(".gz").endswith(tuple(endings))


def is_collection_name(name: str, endings: Sequence[str] = ENDINGS) -> bool:
    """Whether a file of a folder belongs to the collection there; hidden files and records (``.meta.json``) do not."""
    return (
        has_ending(name, endings)
        and not has_ending(name, (".meta.json",))
        and not name.startswith(".")
    )


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key in which digits count as numbers: ``part2`` before ``part10``."""
    key = []
    for piece in re.split(r"(\d+)", name):
        if piece.isdecimal():
            key.append((0, int(piece), piece))
        elif piece:
            key.append((1, 0, piece))
    return key


def file_digests(source: str | Path) -> list[str]:
    """The sha256 of every file of a collection, in reading order; standard input is read to its end."""
    if str(source) == STDIN:
        return [_digest(None)]
    return [_digest(path) for path in list_files(source)]


class RecordReader:
    """Makes a document of a record: of one line of JSON, or of named values."""

    id_names: tuple[str, ...] = _DOCID_FIELDS
    text_names: tuple[str, ...] = ("text", "contents")
    id_advice = "; name its key with `docid_field`"
    text_advice = "; name its keys with `fields`"

    def __init__(self, fields: tuple[str, ...], docid_field: str | None, delimiter: str) -> None:
        self.fields = fields
        self.docid_field = docid_field
        self.delimiter = delimiter

    def __call__(self, line: str, where: str) -> Document:
        return self.document(json_record(line, where), where)

    def document(self, record: Mapping[str, object], where: str) -> Document:
        """The document of a record. Raises :class:`InputError`, naming ``where``."""
        docid = checked_docid(self._docid(record, where), where)
        text, title = self._title_last(record, where)
        if len(record) <= 2:
            return Document(docid, text, title)
        # Metadata are the values under ``metadata`` and under all other keys.
        inner = record.get("metadata")
        used = (*self.id_names, self.docid_field, *self.text_names, *_NOT_METADATA, *self.fields)
        values = {key: value for key, value in record.items() if key not in used}
        if isinstance(inner, dict):
            values |= inner
        return Document(docid, text, title, metadata_of(values))

    def _docid(self, record: Mapping[str, object], where: str) -> str:
        names = (self.docid_field,) if self.docid_field else self.id_names
        name = next((n for n in names if n in record), None)
        if name is None:
            advice = "" if self.docid_field else self.id_advice
            raise InputError(
                f"{where}: no id: expected {' or '.join(map(repr, names))}, found {_keys(record)}{advice}"
            )
        value = record[name]
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            raise InputError(
                f"{where}: the id {name!r} is {_as_json(value)}; expected a string or an integer"
            )
        return value

    def _title_last(self, record: Mapping[str, object], where: str) -> tuple[str, str]:
        if self.fields:
            return _composed(self.fields, self._values(record, where))
        for name in self.text_names:
            if name not in record:
                continue
            text = _text(record[name], name, where)
            # Pyserini's contents include the title.
            title = record.get("title") if name != "contents" else None
            return text, _text(title, "title", where)
        raise InputError(
            f"{where}: no text: expected {' or '.join(map(repr, self.text_names))}, found {_keys(record)}"
            f"{self.text_advice}"
        )

    def _values(self, record: Mapping[str, object], where: str) -> list[str]:
        """Values by key when every key is present, else the pieces of ``contents``, as in Pyserini."""
        wanted = [f for f in self.fields if f != _IGNORED]
        if all(f in record for f in wanted):
            return ["" if f == _IGNORED else _text(record[f], f, where) for f in self.fields]
        if "contents" not in record:
            missing = next(f for f in wanted if f not in record)
            raise InputError(
                f"{where}: no text: expected {missing!r} or 'contents', found {_keys(record)}"
            )
        contents = _text(record["contents"], "contents", where, strip=False)
        # A trailing delimiter ends the last field; it does not start an empty one.
        if contents.count(self.delimiter) == len(self.fields):
            contents = contents.removesuffix(self.delimiter)
        values = [piece.strip() for piece in contents.split(self.delimiter)]
        if len(values) != len(self.fields):
            raise InputError(
                f"{where}: 'contents' has {len(values)} field(s) split by {self.delimiter!r}, "
                f"`fields` names {len(self.fields)} ({' '.join(self.fields)})"
            )
        return values


class _Tsv:
    """Parses one tab-separated line into one document; the first line of a file determines the columns."""

    def __init__(self, first: str, fields: tuple[str, ...], where: str) -> None:
        cells = [cell.strip().lower() for cell in first.split("\t")]
        names_an_id = cells[0] in (*_DOCID_FIELDS, "pid")
        self.header = names_an_id and all(cell in _HEADER_NAMES for cell in cells[1:])
        width = len(cells)
        self.url = 0  #: column of a URL; 0 without one
        if self.header:
            self.columns: tuple[str, ...] = tuple(_HEADER_NAMES[cell] for cell in cells[1:])
            if "url" in cells:
                self.url = cells.index("url")
        elif fields:
            self.columns = fields
            width = len(fields) + 1
        elif width in _TSV_LAYOUTS:
            self.columns = _TSV_LAYOUTS[width]
            self.url = 1 if width == 4 else 0
        else:
            raise InputError(
                f"{where}: {width} columns; expected 2 (id, text) or 4 (id, url, title, body), "
                f"or `fields` to name the columns after the id ('_' ignores one)"
            )
        self.width = width

    def __call__(self, line: str, where: str) -> Document:
        cells = line.split("\t")
        if len(cells) != self.width:
            tip = "; a tab is missing" if len(cells) < self.width else "; a text contains a tab"
            raise InputError(f"{where}: {len(cells)} column(s), expected {self.width}{tip}")
        text, title = _composed(self.columns, [c.strip() for c in cells[1:]])
        url = cells[self.url].strip() if self.url else ""
        return Document(
            checked_docid(cells[0], where), text, title, metadata_of({"url": url} if url else {})
        )


class _Tap(io.RawIOBase):
    """A file whose bytes are counted and digested as they are read."""

    def __init__(self, raw: IO[bytes]) -> None:
        self.sha256 = hashlib.sha256()
        self._raw = raw
        self._count = 0
        self._reported = 0

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
        new = self._count - self._reported
        self._reported = self._count
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
            old = self._slots
            self._used = 0
            self._slots = array("Q", bytes(len(old) * 16))
            for key in filter(None, old):
                self._put(key)
        return self._put(hash(text) & 0xFFFFFFFFFFFFFFFF or 1)

    def _put(self, key: int) -> bool:
        slots = self._slots
        # The number of slots is a power of two, so this is the remainder.
        mask = len(slots) - 1
        slot = key & mask
        while slots[slot]:
            if slots[slot] == key:
                return True
            slot = (slot + 1) & mask
        slots[slot] = key
        self._used += 1
        return False


def checked_docid(docid: str, where: str) -> str:
    """The id. Raises :class:`InputError`, naming ``where``, for one that run files or Lucene cannot represent."""
    if not docid:
        raise InputError(f"{where}: empty id")
    # Nearly every id is printable and has no blank, so its characters are not looked at one by one.
    is_plain = docid.isprintable() and " " not in docid
    if not is_plain and any(c.isspace() or category(c) in _UNUSABLE for c in docid):
        # Columns of run files and qrels are separated by white space.
        raise InputError(
            f"{where}: the id {docid!r} contains white space or a control character, which run files cannot represent"
        )
    # A character has at most four bytes.
    if len(docid) > LONGEST_ID // 4:
        size = len(docid.encode("utf-8", "replace"))
        if size > LONGEST_ID:
            raise InputError(
                f"{where}: the id {docid[:40]!r}... has {size:,} bytes; Lucene takes at most {LONGEST_ID:,}"
            )
    return docid


def _text(value: Any, name: str, where: str, strip: bool = True) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{where}: {name!r} is {_as_json(value)}; expected a string")
    return usable(value).strip() if strip else usable(value)


def _as_json(value: object) -> str:
    """The beginning of a value, as a file shows it."""
    return json.dumps(value, default=repr)[:40]


def metadata_of(values: Mapping[str, object]) -> dict[str, MetadataValue] | None:
    """The values that can be metadata, by name: strings, finite numbers, true and false, and lists of these, none of
    them too long. None without any."""
    usable_values = {
        name: value for name, value in values.items() if name and is_metadata_value(value)
    }
    short = {
        name: cast("MetadataValue", value)
        for name, value in usable_values.items()
        if not isinstance(value, str | list)
        or len(json.dumps(value, ensure_ascii=False)) <= LONGEST_METADATA
    }
    return short or None


def _composed(names: Sequence[str], values: Sequence[str]) -> tuple[str, str]:
    """(text, title) from named values."""
    pairs = list(zip(names, values, strict=True))
    title = " ".join(v for n, v in pairs if n == "title" and v)
    return " ".join(v for n, v in pairs if n not in ("title", _IGNORED) and v), title


def _digest(path: Path | Remote | None) -> str:
    sha256 = hashlib.sha256()
    with _opened(path) as f:
        try:
            while block := f.read(1 << 20):
                sha256.update(block)
        except OSError as e:
            raise InputError(f"{path or _STDIN_NAME}: cannot be read: {e.strerror or e}") from None
    return sha256.hexdigest()


@contextmanager
def _opened(path: Path | Remote | None) -> Iterator[IO[bytes]]:
    """The bytes of a file; those of standard input without one."""
    if path is None:
        yield sys.stdin.buffer
    elif isinstance(path, Remote):
        with path.open() as stream:
            yield cast("IO[bytes]", stream)
    else:
        try:
            file = path.open("rb", buffering=0)
        except OSError as e:
            raise InputError(f"{path}: cannot be read: {e.strerror or e}") from None
        with file:
            yield file


def _size(path: Path | Remote) -> int | None:
    if isinstance(path, Remote):
        return path.size()
    return path.stat().st_size if path.is_file() else None


def _keys(record: Mapping[str, object]) -> str:
    return ", ".join(repr(k) for k in list(record)[:8]) or "nothing"
