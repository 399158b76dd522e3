"""Folders and files of documents as a collection of passages."""

from __future__ import annotations

import glob
import hashlib
import os
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from dupmae_ir.console import megabytes
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.collections import DocumentSource, FileReport, Input
from dupmae_ir.io.documents.files import (
    DEFAULT_OPTIONS,
    FileOptions,
    FilePart,
    FoundFile,
    find_files,
    kind_of,
    need_extra,
    read_file,
    read_file_parts,
)
from dupmae_ir.io.documents.garbage import garbage_kind
from dupmae_ir.io.documents.names import ending_of, is_at, path_id, shown_name
from dupmae_ir.io.documents.passages import EstimatedTokens, TokenMeasure, structured_passages
from dupmae_ir.io.documents.readers.extracted import Extracted, Unreadable, time_text
from dupmae_ir.types import (
    LONGEST_METADATA,
    PASSAGE_DELIMITER,
    Document,
    Metadata,
    MetadataScalar,
    MetadataValue,
)

LENGTH = 300
"""Tokens of a passage at most."""
OVERLAP = 40
"""Tokens that two passages of a section share."""
MAX_NAMED_FILES = 1000
"""Unreadable files that a record names; their number is always recorded."""
DOMINATING_BYTES = 2_000_000
"""Bytes of a file that is named if it has half of a collection's."""
MAX_LIST = 5_000
"""Characters of a list in a passage's metadata: 50 addresses of a mail have about 1,500."""
_MAX_TITLE = 300


class DocumentCollection(DocumentSource):
    """The passages of all documents below some folders and files, in a fixed order.

    A passage's id is its file's path, ``#`` and a number from 0; blanks, ``%``, ``#`` and control characters are
    written as in URLs. A file inside a file, such as an attachment, has the path ``mail.eml/invoice.pdf``. The title is
    the document's, with the nearest heading. Metadata: ``path`` (of the file on the disk), ``member`` (the name inside
    it), ``type``, ``title``, what the format knows of the document, ``encoding`` if it was guessed, ``heading``,
    ``start`` and ``end`` (places in the document's text), the place (``page`` of a PDF), ``modified`` (UTC).

    Set ``measure`` before iterating: it counts the tokens, and knows how many of them fit beside a title.

    Passages of base64, hexadecimal data, minified code and numbers are left out; their numbers stay free. Files that
    cannot be read are collected in ``unreadable`` (name -> reason) and stop nothing. Iterate once; then
    ``inputs`` and ``report`` are complete.
    """

    unit = "passages"

    def __init__(
        self,
        sources: Sequence[str],
        length: int = LENGTH,
        overlap: int = OVERLAP,
        exclude: Sequence[str] = (),
        options: FileOptions = DEFAULT_OPTIONS,
        follow_links: bool = False,
    ) -> None:
        if overlap * 2 > length:
            raise UsageError(
                f"`passage_overlap` {overlap} must be at most half of `passage_length` {length}"
            )
        super().__init__(" ".join(sources))
        self.length = length
        self.overlap = overlap
        self.exclude = tuple(exclude)
        self.options = options
        self.follow_links = follow_links
        self.measure: TokenMeasure = EstimatedTokens()
        walk = find_files([Path(source) for source in sources], exclude, follow_links)
        self.base = walk.base
        self.files = walk.files
        self._is_restricted = False
        self.total_bytes = sum(map(self.size_of, self.files))
        self.unreadable = dict(walk.unreadable)
        self._unread = {f"{path_id(folder)}/" for folder in walk.unreadable}  #: beginnings of ids
        self.skipped: Counter[str] = Counter()
        if walk.links:
            self.skipped["links out of the folder"] = len(walk.links)
        self.kinds: Counter[str] = Counter()
        self.guessed: dict[str, str] = {}
        self.garbage: dict[str, Counter[str]] = {}
        self.waiting: dict[str, int] = {}  #: name -> pages that are pictures without text
        self.opened = 0  #: files, in their order
        self.read = 0  #: files that had text
        self._digests: list[str] = []

    @property
    def settings(self) -> dict[str, object]:
        return {
            "read_as": "documents",
            "passage_length": self.length,
            "passage_overlap": self.overlap,
            "exclude": list(self.exclude) or None,
            "archives": self.options.archives or None,
            "ocr": self.options.ocr or None,
            "follow_links": self.follow_links or None,
        }

    @property
    def report(self) -> FileReport | None:
        most_frequent_first = sorted(self.skipped.items(), key=lambda item: (-item[1], item[0]))
        return {
            "files": self.read,
            "kinds": dict(sorted(self.kinds.items())),
            "guessed": dict(list(self.guessed.items())[:MAX_NAMED_FILES]),
            "guessed_files": len(self.guessed),
            "garbage": self._garbage_by_file(),
            "garbage_passages": sum(counts.total() for counts in self.garbage.values()),
            "waiting": dict(list(self.waiting.items())[:MAX_NAMED_FILES]),
            "waiting_pages": sum(self.waiting.values()),
            "waiting_files": len(self.waiting),
            "skipped": dict(most_frequent_first),
            "unreadable": dict(list(self.unreadable.items())[:MAX_NAMED_FILES]),
            "unreadable_files": len(self.unreadable),
        }

    @property
    def has_problems(self) -> bool:
        return bool(self.unreadable or self.guessed or self.garbage or self.waiting)

    def _garbage_by_file(self) -> dict[str, str]:
        """The files with the most passages that are no text, first, and what these have instead."""
        most_first = sorted(self.garbage.items(), key=lambda item: (-item[1].total(), item[0]))
        by_file = {}
        for name, counts in most_first[:MAX_NAMED_FILES]:
            kinds = [f"{count:,} of {kind}" for kind, count in counts.most_common()]
            by_file[name] = ", ".join(kinds)
        return by_file

    @property
    def dominating(self) -> str | None:
        """A sentence about the file that has most of the bytes, and the flag that leaves it out; None without one."""
        if len(self.files) < 2 or not self.total_bytes:
            return None
        largest = max(self.files, key=self.size_of)
        size = self.size_of(largest)
        if size < DOMINATING_BYTES or size * 2 < self.total_bytes:
            return None
        pattern = shlex.quote(glob.escape(shown_name(largest.name)))
        return (
            f"{shown_name(largest.name)} has {megabytes(size)} of {megabytes(self.total_bytes)}, so it takes most of "
            f"the time; --exclude {pattern} leaves it out"
        )

    def restrict(self, paths: Collection[str]) -> tuple[str, ...]:
        """Leave only the files at some absolute paths and below them, which may be none.

        Returns the names of these paths in the collection; files that are gone have one, too.
        """
        names = []
        for path in paths:
            names.append(shown_name(os.path.relpath(path, self.base).replace(os.sep, "/")))
        restricted = tuple(sorted(names))
        self.files = [file for file in self.files if is_at(shown_name(file.name), restricted)]
        self.total_bytes = sum(map(self.size_of, self.files))
        self._is_restricted = True
        return restricted

    def check(self) -> None:
        """Raise unless there is a document that can be read, and every package that some file needs is installed."""
        need_extra(self.files, self.source, self.options)
        for file in self.files:
            for part in self._parts(file, self._read(file)):
                # The first document with text is enough; iterating reads them all.
                if part.extracted is not None and part.extracted.text.strip():
                    return
                if part.problem:
                    self.unreadable[shown_name(part.shown)] = part.problem
        raise self._nothing()

    def __iter__(self) -> Iterator[Document]:
        need_extra(self.files, self.source, self.options)
        for file in self.files:
            before = self.bytes_read
            yield from self._passages(file)
            self.bytes_read = before + self.size_of(file)
        if not self.documents and not self._is_restricted:
            raise self._nothing()
        self.inputs.append(Input(self.source, self._digest(), self.documents))

    def may_have(self, docid: str) -> bool:
        """Whether a document is of a file, or below a folder, that could not be read."""
        return any(docid.startswith(beginning) for beginning in self._unread)

    def digests(self) -> dict[str, str]:
        return {"corpus": self._digest()}

    def read_digests(self) -> dict[str, str]:
        self._digests = []
        for file in self.files:
            self._add_digest(file, self._read(file))
        return self.digests()

    def _digest(self) -> str:
        lines = "\n".join(self._digests)
        # Names of files may have bytes that are not UTF-8.
        return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()

    def _add_digest(self, file: FoundFile, data: bytes | Unreadable | None) -> None:
        if data is None:
            return
        digest = hashlib.sha256(data).hexdigest() if isinstance(data, bytes) else "unreadable"
        self._digests.append(f"{file.name}\0{digest}")

    def _passages(self, file: FoundFile) -> Iterator[Document]:
        self.opened += 1
        data = self._read(file)
        # The digest is of the bytes, also of those that no reader understands.
        self._add_digest(file, data)
        has_text = False
        for part in self._parts(file, data):
            extracted = part.extracted
            if extracted is None:
                self._note_unread(part)
                continue
            if extracted.problems:
                problems = "; ".join(extracted.problems[:3])
                self.unreadable[shown_name(part.shown)] = f"read in part: {problems}"
            if extracted.waiting_pages:
                self.waiting[shown_name(part.shown)] = extracted.waiting_pages
            if not extracted.text.strip():
                # A mail or a slide show may have no text beside that of its attachments.
                if not extracted.members and not extracted.waiting_pages:
                    self.skipped[f"{ending_of(part.shown)} without text"] += 1
                continue
            if extracted.guess is not None:
                encoding, certainty = extracted.guess
                self.guessed[shown_name(part.shown)] = f"{encoding}, {certainty:.0%} certain"
            passages = 0
            for passage in self._documents(file, part, extracted):
                passages += 1
                self.documents += 1
                yield passage
            # A file of nothing but garbage is named as such.
            if passages:
                self.kinds[str(part.kind)] += 1
                has_text = True
        self.read += has_text

    def _read(self, file: FoundFile) -> bytes | Unreadable | None:
        """The bytes of a file, or why there are none; None for one that is no document by its name."""
        if kind_of(file.name, self.options) is None:
            return None
        try:
            return read_file(file)
        except Unreadable as e:
            return e

    def _parts(self, file: FoundFile, data: bytes | Unreadable | None) -> Iterator[FilePart]:
        """The documents of a file, and what cannot be read of it."""
        if data is None:
            yield FilePart(file.name, "")
        elif isinstance(data, Unreadable):
            yield FilePart(file.name, "", problem=str(data))
        else:
            yield from read_file_parts(file.name, data, self.options)

    def _note_unread(self, part: FilePart) -> None:
        if part.problem:
            self.unreadable[shown_name(part.shown)] = part.problem
            # Documents of it, or inside it, that an index has stay there.
            name = path_id(part.shown)
            self._unread |= {f"{name}{PASSAGE_DELIMITER}", f"{name}/"}
        else:
            self.skipped[ending_of(part.shown)] += 1

    def _documents(
        self, file: FoundFile, part: FilePart, extracted: Extracted
    ) -> Iterator[Document]:
        prefix = path_id(part.shown)
        title = extracted.title[:_MAX_TITLE] or _short_name(Path(shown_name(part.shown)))
        about_file: dict[str, MetadataValue] = {"path": shown_name(file.name)}
        if part.member:
            about_file["member"] = shown_name(part.member)
        about_file["type"] = str(part.kind)
        about_file["title"] = title
        about_file |= _bounded(extracted.metadata)
        if extracted.guess is not None:
            about_file["encoding"] = extracted.guess.encoding
        modified = _modified(file.path)
        bytes_before = self.bytes_read
        # Those of the members count when they are read, so that the file's bytes count once.
        size = 0 if part.member else self.size_of(file)

        def length(heading: str) -> int:
            return self.measure.room(_passage_title(title, heading), self.length)

        spans = structured_passages(extracted, length, self.overlap, self.measure)
        for number, span in enumerate(spans):
            # The order of the keys is that of the metadata in an index.
            metadata = dict(about_file)
            if span.heading:
                metadata["heading"] = span.heading
            metadata["start"] = span.start
            metadata["end"] = span.end
            metadata |= _bounded(extracted.place(span.start))
            metadata["modified"] = modified
            # Progress inside a file: its bytes in proportion to the characters so far.
            self.bytes_read = bytes_before + size * span.end // len(extracted.text)
            text = extracted.text[span.start : span.end]
            garbage = garbage_kind(text)
            if garbage is not None:
                self.garbage.setdefault(shown_name(part.shown), Counter())[garbage] += 1
                continue
            docid = f"{prefix}{PASSAGE_DELIMITER}{number}"
            passage_title = self.measure.fitted(_passage_title(title, span.heading))
            yield Document(docid, text, passage_title, metadata)

    def size_of(self, file: FoundFile) -> int:
        """Bytes of a file; 0 for one that is no document by its name."""
        if kind_of(file.name, self.options) is None:
            return 0
        try:
            return file.path.stat().st_size
        except OSError:
            return 0

    def _nothing(self) -> InputError:
        if not self.files:
            return InputError(f"{self.source}: no files in it (hidden ones are left out)")
        if len(self.files) == len(self.unreadable) == 1 and self.files[0].path == Path(self.source):
            return InputError(
                f"{self.source}: cannot be read: {next(iter(self.unreadable.values()))}"
            )
        reasons = [f"{name}: {reason}" for name, reason in list(self.unreadable.items())[:3]]
        why = f" ({'; '.join(reasons)})" if reasons else ""
        return InputError(f"{self.source}: no text in any of its {len(self.files):,} files{why}")


def _bounded(metadata: Metadata) -> dict[str, MetadataValue]:
    """Metadata with long values cut: each passage has them again, so a header of a megabyte would be a gigabyte."""
    bounded: dict[str, MetadataValue] = {}
    for name, value in metadata.items():
        if isinstance(value, str):
            bounded[name] = value[:LONGEST_METADATA]
        elif isinstance(value, list):
            bounded[name] = _first_items(value)
        else:
            bounded[name] = value
    return bounded


def _first_items(values: list[MetadataScalar]) -> list[MetadataScalar]:
    """The first values of a list, such as the addresses of a mail, as many as fit."""
    room = MAX_LIST
    items: list[MetadataScalar] = []
    for value in values:
        item = value[:LONGEST_METADATA] if isinstance(value, str) else value
        room -= len(str(item)) + 1
        if room < 0:
            break
        items.append(item)
    return items


def _short_name(path: Path) -> str:
    """The title of a document without one: its last folder and its name without endings."""
    name = path.name.partition(".")[0] or path.name
    return "/".join([*path.parent.parts[-1:], name])


def _passage_title(title: str, heading_path: str) -> str:
    """The title of the document, with the nearest heading unless that is the title."""
    nearest = heading_path.rpartition(" > ")[2]
    if not nearest or nearest == title:
        return title
    return f"{title}: {nearest}"


def _modified(path: Path) -> str:
    try:
        seconds = path.stat().st_mtime
    except OSError:
        seconds = 0.0
    return time_text(datetime.fromtimestamp(int(seconds), UTC))
