"""Folders and files of documents as a collection of passages.

:func:`structured_passages` cuts along headings and sentences, with an overlap inside a section. Lengths are in tokens,
a cheap estimate of an encoder's word pieces: words of up to six letters or digits (longer ones count several times),
other characters one by one. A passage is a slice of the text, so its offsets say where it is. Collections of lines are
cut by :func:`dupmae_ir.encode.passages.word_passages`.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shlex
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from dupmae_ir.console import megabytes
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.collections import DocumentSource, FileReport, Input
from dupmae_ir.io.documents.extracted import Extracted, Heading, Unreadable
from dupmae_ir.io.documents.files import (
    FoundFile,
    ending_of,
    extract,
    find_files,
    kind_of,
    need_extra,
    read_file,
)
from dupmae_ir.types import PASSAGE_DELIMITER, Document, MetadataValue

LENGTH, OVERLAP = 300, 40
"""Tokens of a passage, and of what two passages share."""
MOST_NAMED = 1000
"""Unreadable files that a record names; their number is always recorded."""
DOMINATING_BYTES = 2_000_000
"""Bytes of a file that is named if it has half of a collection's."""
_LONGEST_TITLE = 300
_UNSAFE = re.compile(rf"[\s%{PASSAGE_DELIMITER}\x00-\x1f\x7f\ud800-\udfff]")
_WIDE = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_TOKEN = re.compile(rf"[{_WIDE}]|[^\W_{_WIDE}]{{1,6}}|\S")
_SENTENCE_END = re.compile(
    r"(?<=[.!?])[\"'\u201d\u2019)\]]{0,3}\s+(?=[\"'\u201c\u2018(\[]?[^\W_a-z])"
    r"|(?<=[\u3002\uff01\uff1f])|\n[ \t]*\n|\n(?=[ \t]*(?:[-*\u2022+]|\d{1,3}[.)])[ \t])"
)
_LINE_END = re.compile(r"\n")
_BLANK_LINE = re.compile(r"[ \t]*\n[ \t]*\n")
_STOPS = ".!?\u3002\uff01\uff1f"
_LONGEST_HEADING = 300


class DocumentCollection(DocumentSource):
    """The passages of all documents below some folders and files, in a fixed order.

    A passage's id is its file's path, ``#`` and a number from 0; blanks, ``%``, ``#`` and control characters are
    written as in URLs. Its title is the document's, with the nearest heading. Metadata: ``path``, ``type``,
    ``title``, ``heading``, ``start`` and ``end`` (places in the document's text), ``page`` (PDF), ``modified`` (UTC).

    Files that cannot be read are collected in ``unreadable`` (name -> reason) and stop nothing. Iterate once; then
    ``inputs`` and ``report`` are complete.
    """

    unit = "passages"

    def __init__(
        self,
        sources: Sequence[str],
        length: int = LENGTH,
        overlap: int = OVERLAP,
        exclude: Sequence[str] = (),
    ) -> None:
        if overlap * 2 > length:
            raise UsageError(
                f"`passage_overlap` {overlap} must be at most half of `passage_length` {length}"
            )
        super().__init__(" ".join(sources))
        self.length, self.overlap, self.exclude = length, overlap, tuple(exclude)
        walk = find_files([Path(source) for source in sources], exclude)
        self.files = walk.files
        self.total_bytes = sum(map(text_size, self.files))
        self.unreadable = dict(walk.unreadable)
        self._unread = {f"{path_id(folder)}/" for folder in walk.unreadable}  #: beginnings of ids
        self.skipped: Counter[str] = Counter()
        self.read = 0
        self._digests: list[str] = []

    @property
    def settings(self) -> dict[str, object]:
        return {
            "read_as": "documents",
            "passage_length": self.length,
            "passage_overlap": self.overlap,
            "exclude": list(self.exclude) or None,
        }

    @property
    def report(self) -> FileReport | None:
        return {
            "files": self.read,
            "skipped": dict(sorted(self.skipped.items(), key=lambda item: (-item[1], item[0]))),
            "unreadable": dict(list(self.unreadable.items())[:MOST_NAMED]),
            "unreadable_files": len(self.unreadable),
        }

    @property
    def dominating(self) -> str | None:
        """A sentence about the file that has most of the bytes, and the flag that leaves it out; None without one."""
        if len(self.files) < 2 or not self.total_bytes:
            return None
        largest = max(self.files, key=text_size)
        size = text_size(largest)
        if size < DOMINATING_BYTES or size * 2 < self.total_bytes:
            return None
        pattern = shlex.quote(glob.escape(shown_name(largest.name)))
        return (
            f"{shown_name(largest.name)} has {megabytes(size)} of {megabytes(self.total_bytes)}, so it takes most of "
            f"the time; --exclude {pattern} leaves it out"
        )

    def check(self) -> None:
        """Raise unless there is a document that can be read, and every package that some file needs is installed."""
        need_extra(self.files, self.source)
        for file in self.files:
            try:
                if (found := extract(file.name, read_file(file.path))) and found[1].text.strip():
                    return
            except Unreadable as e:
                self.unreadable[shown_name(file.name)] = str(e)
        raise self._nothing()

    def __iter__(self) -> Iterator[Document]:
        need_extra(self.files, self.source)
        for file in self.files:
            before = self.bytes_read
            yield from self._passages(file)
            self.bytes_read = before + text_size(file)
        if not self.documents:
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
            try:
                data: bytes | None = read_file(file.path)
            except Unreadable:
                data = None
            self._add_digest(file, data)
        return self.digests()

    def _digest(self) -> str:
        return hashlib.sha256(
            "\n".join(self._digests).encode("utf-8", "surrogateescape")
        ).hexdigest()

    def _add_digest(self, file: FoundFile, data: bytes | None) -> None:
        if kind_of(file.name) is not None:
            digest = "unreadable" if data is None else hashlib.sha256(data).hexdigest()
            self._digests.append(f"{file.name}\0{digest}")

    def _passages(self, file: FoundFile) -> Iterator[Document]:
        data = None
        try:
            if kind_of(file.name) is not None:
                data = read_file(file.path)
            found = None if data is None else extract(file.name, data)
        except Unreadable as e:
            self.unreadable[shown_name(file.name)] = str(e)
            self._unread.add(f"{path_id(file.name)}{PASSAGE_DELIMITER}")
            found = None
        else:
            if found is None:
                self.skipped[ending_of(file.name)] += 1
        self._add_digest(file, data)
        if found is None:
            return
        kind, extracted = found
        if extracted.problems:
            self.unreadable[shown_name(file.name)] = (
                f"read in part: {'; '.join(extracted.problems[:3])}"
            )
        if not extracted.text.strip():
            self.skipped[f"{ending_of(file.name)} without text"] += 1
            return
        self.read += 1
        for passage in self._documents(file, kind, extracted):
            self.documents += 1
            yield passage

    def _documents(self, file: FoundFile, kind: str, extracted: Extracted) -> Iterator[Document]:
        name = shown_name(file.name)
        prefix = path_id(file.name)
        path = Path(name)
        # A document without a title has its last folder and its name without endings.
        short_name = "/".join([*path.parent.parts[-1:], path.name.partition(".")[0] or path.name])
        title = extracted.title[:_LONGEST_TITLE] or short_name
        modified = _modified(file.path)
        before, size = self.bytes_read, text_size(file)
        for number, (start, end, heading) in enumerate(
            structured_passages(extracted, self.length, self.overlap)
        ):
            nearest = heading.rpartition(" > ")[2]
            metadata: dict[str, MetadataValue] = {"path": name, "type": kind, "title": title}
            if heading:
                metadata["heading"] = heading
            metadata |= {"start": start, "end": end}
            if (page := extracted.page(start)) is not None:
                metadata["page"] = page
            metadata["modified"] = modified
            full = title if not nearest or nearest == title else f"{title}: {nearest}"
            self.bytes_read = before + size * end // len(extracted.text)
            yield Document(
                f"{prefix}{PASSAGE_DELIMITER}{number}", extracted.text[start:end], full, metadata
            )

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


def path_id(name: str) -> str:
    """The id of a file: its path, with ``%XX`` for white space, ``%``, ``#``, control characters and bytes that are not
    UTF-8."""
    return _UNSAFE.sub(lambda m: "".join(f"%{byte:02X}" for byte in os.fsencode(m.group())), name)


def shown_name(name: str) -> str:
    """A path as text, with ``?`` for undecodable bytes."""
    return os.fsencode(name).decode("utf-8", "replace")


def text_size(file: FoundFile) -> int:
    """Bytes of a file; 0 for one that is no document by its name."""
    try:
        return 0 if kind_of(file.name) is None else file.path.stat().st_size
    except OSError:
        return 0


def _modified(path: Path) -> str:
    try:
        seconds = path.stat().st_mtime
    except OSError:
        seconds = 0.0
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class TextSpan(NamedTuple):
    """A slice of the text, and the headings that it is under, joined by ``>``."""

    start: int
    end: int
    heading: str


class _Unit(NamedTuple):
    """A sentence, a line, or a part of a long one."""

    start: int
    end: int
    tokens: int


def structured_passages(extracted: Extracted, length: int, overlap: int) -> Iterator[TextSpan]:
    """The passages of a text, in order; none is blank. ``length`` and ``overlap`` are in tokens.

    A heading begins a new passage, unless all that the section before it has is less than a quarter of ``length``. A
    passage that ``length`` ends is followed by one that begins with its last sentences, as many as fit ``overlap``. A
    line without a full stop before a blank line, such as a caption, does not end a passage. The heading of a passage
    is the one that most of it is under.
    """
    headings = sorted(extracted.headings)
    borders = [heading.start for heading in headings]
    names = _paths(headings)

    def joined(units: Sequence[_Unit]) -> TextSpan:
        sizes: Counter[int] = Counter()
        for unit in units:
            sizes[bisect_right(borders, unit.start)] += unit.tokens
        place = max(sizes, key=sizes.__getitem__)
        return TextSpan(units[0].start, units[-1].end, names[place - 1] if place else "")

    current: list[_Unit] = []
    size = repeated = 0  # tokens, and units that are also in the passage before
    continued = False
    for begin, end in zip([0, *borders], [*borders, len(extracted.text)], strict=True):
        if current and (continued or size >= length // 4):
            yield joined(current)
            current, size, repeated, continued = [], 0, 0, False
        for unit in _units(extracted, begin, end, length):
            if current and size + unit.tokens > length:
                room, last, moved = length - unit.tokens, current[-1], list[_Unit]()
                if (
                    len(current) - 1 > repeated
                    and last.tokens <= room
                    and _is_caption(extracted, last.end)
                ):
                    moved = [current.pop()]
                    room -= last.tokens
                yield joined(current)
                tail = _tail(current, min(overlap, room))
                current, repeated, continued = [*tail, *moved], len(tail), True
                size = sum(kept.tokens for kept in current)
            current.append(unit)
            size += unit.tokens
    if current:
        yield joined(current)


def _is_caption(extracted: Extracted, end: int) -> bool:
    """Whether a unit that ends at ``end`` is prose without a full stop before a blank line."""
    text = extracted.text
    return (
        not extracted.lines and text[end - 1] not in _STOPS and bool(_BLANK_LINE.match(text, end))
    )


def _tail(units: Sequence[_Unit], room: int) -> list[_Unit]:
    """The last units that together have at most ``room`` tokens."""
    kept = len(units)
    while kept and units[kept - 1].tokens <= room:
        kept -= 1
        room -= units[kept].tokens
    return list(units[kept:])


def _units(extracted: Extracted, begin: int, end: int, length: int) -> Iterator[_Unit]:
    """The sentences or lines between two places; those above ``length`` tokens are cut between words."""
    text, pattern = extracted.text, _LINE_END if extracted.lines else _SENTENCE_END
    start = begin
    for border in (*(m.end() for m in pattern.finditer(text, begin, end)), end):
        piece = text[start:border]
        if stripped := piece.strip():
            first = start + len(piece) - len(piece.lstrip())
            yield from _cut(text, first, first + len(stripped), length)
        start = border


def _cut(text: str, start: int, end: int, length: int) -> Iterator[_Unit]:
    tokens: list[
        int
    ] = []  # beginnings, of one passage and a token more at most: a log can be one long sentence
    for match in _TOKEN.finditer(text, start, end):
        tokens.append(match.start())
        if len(tokens) > length:
            cut = next(
                (i for i in range(length, length // 2, -1) if text[tokens[i] - 1].isspace()), length
            )
            stop = tokens[cut]
            yield _Unit(start, start + len(text[start:stop].rstrip()), cut)
            start, tokens = stop, tokens[cut:]
    yield _Unit(start, end, len(tokens))


def _paths(headings: Sequence[Heading]) -> list[str]:
    """Each heading after the headings above it, outermost first."""
    above: list[Heading] = []
    found = []
    for heading in headings:
        while above and above[-1].level >= heading.level:
            above.pop()
        above.append(heading)
        found.append(" > ".join(h.text for h in above)[-_LONGEST_HEADING:])
    return found
