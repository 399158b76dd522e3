"""Which files below some folders are documents, and the text of each one and of the files inside it."""

from __future__ import annotations

import errno
import fnmatch
import gzip
import io
import os
import stat
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from dupmae_ir.device import need_packages
from dupmae_ir.errors import InputError
from dupmae_ir.io.collections import natural_key
from dupmae_ir.io.documents.isolation import ISOLATION, described
from dupmae_ir.io.documents.names import (
    UniqueNames,
    is_hidden_or_temporary,
    is_skipped_folder,
    member_name,
)
from dupmae_ir.io.documents.readers.encodings import SNIFFED_BYTES, looks_like_text
from dupmae_ir.io.documents.readers.extracted import (
    LARGEST,
    MAX_CHARACTERS_PER_BYTE,
    Extracted,
    Member,
    Unreadable,
)
from dupmae_ir.io.documents.readers.registry import FORMATS, KINDS, PACKAGES

EXTRA = "documents"
# A list for what is no document: any other ending may be text.
_OTHER_ENDING_WORDS = """
    gif ico svg mp3 mp4 wav ogg au aif aiff flac m4a mid avi mov mkv webm zip
    tar bz2 xz zst 7z rar jar whl so o a pyc pyo class exe dll bin dat db sqlite pickle pkl npy npz pt
    safetensors parquet arrow woff woff2 ttf otf eot ps eps dvi mo gmo lock
"""
_OTHER_ENDINGS = frozenset(_OTHER_ENDING_WORDS.split())
MAX_DEPTH = 5
"""Files in files: a mail in a mailbox in an archive has depth 2."""
MAX_MEMBERS = 200_000
"""Files that are read inside one file."""
MAX_UNPACKED = 1 << 30
"""Bytes that are read inside one file, in all its members together, also after gzip."""
MAX_NAME_BYTES = 4096
"""Bytes of a member's name, which is part of its passages' ids; Linux has the same limit for paths."""


_SHOWN_NAME = 100
"""Characters of a name that is too long, in the message that says so."""
_GZIP_MAGIC = b"\x1f\x8b"

OCR_EXTRA = "ocr"
_OCR_PACKAGES = ("rapidocr", "onnxruntime", "pypdfium2")


class FileOptions(NamedTuple):
    """Which files are read: also those in ``archives``, and pages that are pictures, by ``ocr``."""

    archives: bool = False
    ocr: bool = False


DEFAULT_OPTIONS = FileOptions()


class FilePart(NamedTuple):
    """What became of a file, or of a file inside it.

    ``name`` is that of the file on the disk, ``member`` the name inside it, empty for the file itself. ``kind`` is None
    for what is no document. ``extracted`` is None for that, and for what cannot be read, which has a ``problem``.
    """

    name: str
    member: str
    kind: str | None = None
    extracted: Extracted | None = None
    problem: str = ""

    @property
    def shown(self) -> str:
        """The name for messages and for the endings in a report."""
        return f"{self.name}/{self.member}" if self.member else self.name


class FoundFile(NamedTuple):
    """A file: where it is, and its name among the collection's files, with ``/`` between folders.

    ``root`` is the folder below which it is reached without links; None if links may lead to it.
    """

    path: Path
    name: str
    root: Path | None = None


@dataclass
class Walk:
    """The files below some roots, and what is no file of a collection. Names are relative to ``base``."""

    base: str = ""
    files: list[FoundFile] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)  #: name -> reason
    links: list[str] = field(default_factory=list)  #: names of links that lead out of the roots


def find_files(
    roots: Sequence[Path], exclude: Sequence[str] = (), follow_links: bool = False
) -> Walk:
    """All regular files of some folders and files, in natural order of their names.

    Names are relative to the folder, or, with several roots, to the folder that contains them all. Hidden files,
    version control, caches, indexes of this package, temporary files of editors and what matches ``exclude`` are left
    out. Links to folders are not followed. A link to a file is left out too: a file inside the roots is read under its
    own name, and one outside of them may be private (``/etc/shadow``); with ``follow_links``, those outside are read.
    What becomes a link later is not followed either (:func:`read_file`).
    Raises :class:`InputError` for a root that does not exist.
    """
    seen: set[str] = set()
    if len(roots) == 1 and roots[0].is_dir():
        base = str(roots[0])
    else:
        base = os.path.commonpath([os.path.abspath(root.parent) for root in roots])  # noqa: PTH100 (links stay)
    walk = Walk(base)
    real_roots = [os.path.realpath(root) for root in roots]
    for root in roots:
        if not root.exists():
            raise InputError(f"{root}: no such file or folder")
        entries = _entries(root, walk, base) if root.is_dir() else iter([str(root)])
        for path in entries:
            name = os.path.relpath(path, base).replace(os.sep, "/")
            if path in seen or any(fnmatch.fnmatch(name, pattern) for pattern in exclude):
                continue
            seen.add(path)
            if path != str(root) and os.path.islink(path):  # noqa: PTH114
                real = os.path.realpath(path)
                if any(real == top or real.startswith(top + os.sep) for top in real_roots):
                    continue  # it is read under its own name
                if not follow_links:
                    walk.links.append(name)
                    continue
            if _is_regular(path):
                is_below = root.is_dir() and not follow_links
                walk.files.append(FoundFile(Path(path), name, root if is_below else None))
    walk.files.sort(key=lambda found: [natural_key(part) for part in found.name.split("/")])
    return walk


def _entries(root: Path, walk: Walk, base: str) -> Iterator[str]:
    def failed(error: OSError) -> None:
        name = os.path.relpath(error.filename, base)
        walk.unreadable[name] = error.strerror or str(error)

    for folder, folders, names in os.walk(root, onerror=failed):
        if "meta.json" in names and ("docid" in names or "segments" in folders):
            folders.clear()  # an index of this package
            continue
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]  # noqa: PTH114, PTH118
        # In place: `os.walk` goes into the folders that stay in its list.
        folders[:] = [name for name in folders if name not in links and not is_skipped_folder(name)]
        for name in names:
            if not is_hidden_or_temporary(name):
                yield os.path.join(folder, name)  # noqa: PTH118


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116
    except OSError as e:
        return e.errno == errno.EACCES  # reported when it is read


def kind_of(name: str, options: FileOptions = DEFAULT_OPTIONS) -> str | None:
    """The kind of a file by its name; empty for one whose contents decide, None for no document.

    ``.gz`` is ignored: ``guide.html.gz`` is HTML.
    """
    plain_name = name.lower().removesuffix(".gz").rpartition("/")[2]
    ending = plain_name.rpartition(".")[2] if "." in plain_name else ""
    kind = KINDS.get(ending)
    if kind is None:
        return None if ending in _OTHER_ENDINGS else ""
    if FORMATS[kind].archive and not options.archives:
        return None
    if FORMATS[kind].picture and not options.ocr:
        return None
    return kind


def read_file(file: FoundFile) -> bytes:
    """The bytes of a file as they are on the disk. Raises :class:`Unreadable`.

    A file below a root is opened folder by folder, so that a link that has taken the place of a folder or of the file
    since they were listed leads nowhere.
    """
    try:
        with open(file.path, "rb", opener=partial(_opened, root=file.root)) as f:
            about = os.fstat(f.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise Unreadable("is no file any more")
            if about.st_size > LARGEST:
                raise Unreadable(f"{about.st_size >> 20:,} MiB; the limit is {LARGEST >> 20} MiB")
            return f.read(LARGEST + 1)  # bounded, as the file may grow
    except OSError as e:
        if e.errno == errno.ELOOP:
            raise Unreadable(
                "has become a link, or is behind one; links are not followed"
            ) from None
        raise Unreadable(e.strerror or str(e)) from None


def _opened(path: str, flags: int, root: Path | None) -> int:
    """The descriptor of a file; of one below ``root`` only without a link on the way, else ``ELOOP``."""
    # A pipe that has taken the place of a file would be waited for.
    flags |= getattr(os, "O_NONBLOCK", 0)
    if root is None or os.open not in os.supports_dir_fd:
        return os.open(path, flags)
    flags |= os.O_NOFOLLOW
    *folders, name = Path(path).relative_to(root).parts
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for inner_name in folders:
            # With O_DIRECTORY, the error for a link would be that it is no folder.
            inner = os.open(inner_name, flags, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(name, flags, dir_fd=folder)
    finally:
        os.close(folder)


def read_file_parts(
    name: str, data: bytes, options: FileOptions = DEFAULT_OPTIONS
) -> Iterator[FilePart]:
    """The document that a file is, then those inside it: attachments, mails of a mailbox, files of an archive.

    Nothing is raised for a file that cannot be read: its part has the problem.
    """
    yield from _Unpacking(name, options).parts("", name, data, 0)


class _Unpacking:
    """The parts of one file on the disk, with limits on how much is inside it."""

    def __init__(self, name: str, options: FileOptions) -> None:
        self.name = name
        self.options = options
        self.members = 0
        self.bytes = 0
        self._names = UniqueNames()

    def parts(self, member: str, own_name: str, data: bytes, depth: int) -> Iterator[FilePart]:
        """The parts of a file or a member; ``own_name`` decides what kind it is."""
        kind = None
        try:
            kind = kind_of(own_name, self.options)
            if kind is not None:
                data = self._unzipped(data, depth)
                kind = kind or _kind_by_contents(data)
            if kind is None:
                yield FilePart(self.name, member)
                return
            if FORMATS[kind].splitter:
                members = FORMATS[kind].members(data)
            else:
                extracted = _read(kind, data, self.options.ocr)
                yield FilePart(self.name, member, kind, extracted)
                members = iter(extracted.members)
            for inner in members:
                yield from self._member(member, inner, depth)
        except Exception as e:  # what libraries raise for damaged files is not documented
            yield FilePart(self.name, member, kind, problem=described(e))

    def _member(self, outer: str, inner: Member, depth: int) -> Iterator[FilePart]:
        own_name = member_name(inner.name)
        name = f"{outer}/{own_name}" if outer else own_name
        self.members += 1
        self._count(len(inner.data))
        if self.members > MAX_MEMBERS:
            raise Unreadable(f"more than {MAX_MEMBERS:,} files in it")
        if len(os.fsencode(name)) > MAX_NAME_BYTES:
            problem = f"its name has more than {MAX_NAME_BYTES:,} bytes"
            yield FilePart(self.name, f"{name[:_SHOWN_NAME]}...", problem=problem)
            return
        name = self._names.add(name)
        if inner.problem:
            yield FilePart(self.name, name, problem=inner.problem)
        elif depth == MAX_DEPTH:
            yield FilePart(self.name, name, problem=f"more than {MAX_DEPTH} files deep")
        else:
            yield from self.parts(name, own_name, inner.data, depth + 1)

    def _unzipped(self, data: bytes, depth: int) -> bytes:
        """The bytes of a file or a member, unpacked if they are gzip data."""
        if data[:2] != _GZIP_MAGIC:
            return data
        unpacked = unzipped(data)
        # A file on the disk may be as large as it is; what is inside it counts.
        if depth:
            self._count(len(unpacked))
        return unpacked

    def _count(self, size: int) -> None:
        self.bytes += size
        if self.bytes > MAX_UNPACKED:
            raise Unreadable(f"unpacks to more than {MAX_UNPACKED >> 20:,} MiB, the limit")


def _kind_by_contents(data: bytes) -> str | None:
    """The kind of a file whose name does not say it; None for no document."""
    start = data[:SNIFFED_BYTES]
    for kind, document_format in FORMATS.items():
        if document_format.recognises(start):
            return kind
    return "text" if looks_like_text(start) else None


def _read(kind: str, data: bytes, ocr: bool) -> Extracted:
    """The text of a document. Raises :class:`Unreadable`, and what the library for its format raises."""
    # Files of the folder were checked before the first was read, but not what is inside them.
    if _lacks_packages(kind):
        raise Unreadable(f"reading {kind} files needs: pip install 'dupmae-ir[{EXTRA}]'")
    extracted = _read_isolated(kind, data)
    # How many pages are to be recognised decides how long it may take.
    if ocr and extracted.waiting_pages:
        extracted = ISOLATION.read(kind, data, recognised_pages=extracted.waiting_pages)
    characters = len(extracted.text)
    if characters > max(1 << 20, MAX_CHARACTERS_PER_BYTE * len(data)):
        raise Unreadable(
            f"{len(data):,} bytes become {characters:,} characters; {MAX_CHARACTERS_PER_BYTE} a byte are allowed"
        )
    return extracted


def _read_isolated(kind: str, data: bytes) -> Extracted:
    """The text of a document; that of source code also without its grammar."""
    try:
        return ISOLATION.read(kind, data)
    except Unreadable:
        if not FORMATS[kind].language:
            raise
    return ISOLATION.read("code", data)


@cache
def _lacks_packages(kind: str) -> bool:
    """Whether a package that a kind of files needs is not installed; finding out takes longer than reading a mail."""
    return any(find_spec(package) is None for package in FORMATS[kind].packages)


def need_extra(files: Sequence[FoundFile], source: str, options: FileOptions) -> None:
    """Raise :class:`EnvironmentProblem` where some files, or OCR, need a package that is not installed."""
    if options.ocr:
        need_packages(f"{source}: reading scanned pages", _OCR_PACKAGES, OCR_EXTRA)
    counts = Counter(kind_of(file.name, options) for file in files)
    for package, kinds in PACKAGES.items():
        needed = [f"{counts[kind]:,} {kind}" for kind in kinds if counts[kind]]
        if needed:
            need_packages(f"{source}: reading {' and '.join(needed)} files", [package], EXTRA)


def unzipped(data: bytes) -> bytes:
    """The contents of gzip data. Raises :class:`Unreadable` if they are damaged, or too large."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as f:
            unpacked = f.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as e:
        raise Unreadable(f"damaged gzip data: {e}") from None
    if len(unpacked) > LARGEST:
        raise Unreadable(f"unpacks to more than {LARGEST >> 20} MiB, the limit")
    return unpacked
