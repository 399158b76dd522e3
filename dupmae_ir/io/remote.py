"""Files and folders behind URLs: ``s3://``, ``gs://``, ``https://`` and whatever else fsspec opens.

    file = Remote("s3://bucket/corpus.jsonl.gz")
    with file.open() as stream: ...        # bytes, streamed
    file.send(Path("local"), sha256)       # whole objects; object stores have no rename
    file.fetch(Path("local"))              # continued where an earlier call ended

Everything that waits for a network runs in a thread of its own, which :func:`watched` gives up when no byte has moved
for :func:`patience` seconds: libraries wait for a stalled connection without end, or try again for many minutes.

Credentials are those that the library of the scheme finds: in the environment, in its own files, on the machine. A URL
that contains some is refused, because other users of the machine can see it.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import queue
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol, TypeVar, cast
from urllib.parse import SplitResult, parse_qsl, urlsplit

from dupmae_ir.console import one_line
from dupmae_ir.device import need_packages
from dupmae_ir.errors import DupmaeError, EnvironmentProblem, InputError, UsageError

T = TypeVar("T")

PATIENCE_VARIABLE = "DUPMAE_IR_PATIENCE"
PATIENCE = 60.0
"""Seconds without a byte after which a transfer is given up, unless ``$DUPMAE_IR_PATIENCE`` says otherwise."""
_BLOCK = 8 << 20
_MOST_PIECES = 9000
"""Blocks of an object; S3 takes 10,000."""
_PACKAGES = {"s3": ("fsspec", "s3fs"), "s3a": ("fsspec", "s3fs")}
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_SECRET = re.compile(r"pass|token|secret|key|auth|credential|signature", re.IGNORECASE)
_USER = re.compile(r"//[^/?#\s]*@")


class FileSystem(Protocol):
    """What is used of fsspec's file systems."""

    def open(self, path: str, mode: str, **settings: object) -> AbstractContextManager[IO[bytes]]:
        """A stream of an object's bytes."""

    def info(self, path: str) -> dict[str, object]:
        """``type`` (file or directory) and ``size``."""

    def ls(self, path: str, detail: bool) -> list[dict[str, object]]:
        """What is in a folder."""

    def cat_file(self, path: str) -> bytes:
        """The bytes of an object."""

    def pipe_file(self, path: str, value: bytes) -> None:
        """Write an object."""

    def rm_file(self, path: str) -> None:
        """Remove an object."""


def is_url(text: object) -> bool:
    """Whether ``text`` is a URL and not a path."""
    return isinstance(text, str) and _URL.match(text) is not None


def has_credentials(parts: SplitResult) -> bool:
    """Whether a URL contains a password, or a query that looks like a key."""
    return bool(parts.password or any(_SECRET.search(name) and value for name, value in parse_qsl(parts.query)))


def without_credentials(text: str) -> str:
    """``text`` with the users and passwords of its URLs removed."""
    return _USER.sub("//", text)


def patience() -> float:
    """Seconds without a byte after which a transfer is given up. Raises :class:`UsageError` for no number."""
    given = os.environ.get(PATIENCE_VARIABLE)
    try:
        seconds = float(given) if given else PATIENCE
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise UsageError(f"{PATIENCE_VARIABLE}={given}: expected a number of seconds greater than 0")
    return seconds


Moved = Callable[[int], None]
"""Called with a number of bytes whenever some have moved."""


def watched(what: str, job: Callable[[Moved], T], moved: Moved | None = None) -> T:
    """Run ``job`` in a thread and return its result; it calls its argument for the bytes that it moves.

    Raises :class:`EnvironmentProblem`, beginning with ``what``, when nothing moves for :func:`patience` seconds and for
    every error of a library; :class:`FileNotFoundError` and :class:`DupmaeError` are raised as they are, as is a full
    disk. A thread that is given up ends with its next byte, or with the process.
    """
    said: queue.SimpleQueue[int | tuple[T | None, BaseException | None]] = queue.SimpleQueue()
    given_up = threading.Event()

    def report(count: int) -> None:
        if given_up.is_set():
            raise TimeoutError
        said.put(count)

    def run() -> None:
        try:
            said.put((job(report), None))
        except BaseException as e:  # whatever it is, the caller must learn it
            said.put((None, e))

    threading.Thread(target=run, daemon=True).start()
    seconds = patience()
    try:
        while isinstance(message := said.get(timeout=seconds), int):
            if moved:
                moved(message)
    except queue.Empty:
        raise EnvironmentProblem(
            f"{what}: no byte for {seconds:g} s ({PATIENCE_VARIABLE}); check the network and run the same command again"
        ) from None
    finally:
        given_up.set()
    result, error = message
    if error is not None:
        raise _translated(what, error)
    return cast(T, result)


def _translated(what: str, error: BaseException) -> BaseException:
    local = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if local or isinstance(error, FileNotFoundError | DupmaeError) or not isinstance(error, Exception):
        return error
    reason = without_credentials(one_line(error, 300)) or type(error).__name__
    if isinstance(error, PermissionError) or "credentials" in reason.lower():
        reason += "; check the credentials in the environment, or in the files of the store's own tools"
    return EnvironmentProblem(f"{what}: {reason}")


class Remote:
    """A file or folder behind a URL. ``str()`` is the URL for messages."""

    def __init__(self, url: str) -> None:
        """Raises :class:`UsageError` for a URL with credentials and for an unknown scheme, :class:`EnvironmentProblem`
        for a scheme whose package is not installed. Nothing is requested yet."""
        self.url = url.rstrip("/")
        self.parts = _parsed(url)
        self._fs, self._path = _opened(self)

    def __str__(self) -> str:
        return without_credentials(self.url)

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """The last part of the path; the host's where there is no path."""
        return PurePosixPath(self.parts.path).name or self.parts.netloc.rpartition("@")[2]

    def is_file(self) -> bool:
        """True: only folders are listed, by :meth:`files`."""
        return True

    def size(self) -> int | None:
        """Bytes; None where there is no such object, or the server does not say."""
        try:
            size = watched(str(self), lambda _: self._fs.info(self._path)).get("size")
        except FileNotFoundError:
            return None
        return size if isinstance(size, int) else None

    def files(self) -> list[Remote] | None:
        """The files of a folder, not of folders in it; None for a file. Raises :class:`InputError` where there is
        neither."""
        try:
            if watched(str(self), lambda _: self._fs.info(self._path)).get("type") != "directory":
                return None
            found = watched(str(self), lambda _: self._fs.ls(self._path, detail=True))
        except FileNotFoundError:
            raise InputError(f"{self}: no such file or folder") from None
        return [self / PurePosixPath(str(row["name"])).name for row in found if row["type"] == "file"]

    def read(self) -> bytes | None:
        """The bytes of a small object; None where there is none."""
        try:
            return watched(str(self), lambda _: self._fs.cat_file(self._path))
        except FileNotFoundError:
            return None

    def write(self, contents: bytes) -> None:
        """Write a small object; it is there whole, or not at all, in stores of objects."""
        watched(str(self), lambda _: self._fs.pipe_file(self._path, contents))

    def write_json(self, value: Mapping[str, Any]) -> None:
        """:meth:`write` of a JSON object."""
        self.write(json.dumps(value, ensure_ascii=False).encode())

    def remove(self) -> None:
        """Remove an object; one that is missing is no error."""
        try:
            watched(str(self), lambda _: self._fs.rm_file(self._path))
        except FileNotFoundError:
            return

    def open(self) -> RemoteStream:
        """The bytes, streamed. Raises :class:`InputError` for an object that is missing."""
        try:
            stream = watched(str(self), lambda _: self._fs.open(self._path, "rb", block_size=_BLOCK).__enter__())
        except FileNotFoundError:
            raise InputError(f"{self}: no such file or folder") from None
        return RemoteStream(stream, str(self))

    def send(self, source: Path, moved: Moved | None = None) -> str:
        """Write the file ``source`` as this object and return the sha256 of what was sent."""
        size = source.stat().st_size

        def run(report: Moved) -> str:
            sha256 = hashlib.sha256()
            block_size = max(_BLOCK, size // _MOST_PIECES)
            with open(source, "rb") as f, self._fs.open(self._path, "wb", block_size=block_size) as to:
                while block := f.read(_BLOCK):
                    sha256.update(block)
                    to.write(block)
                    report(len(block))
            return sha256.hexdigest()

        return watched(str(self), run, moved)

    def fetch(self, target: Path, moved: Moved | None = None) -> str:
        """Write this object to ``target``, after the bytes that are there already; returns the sha256 of all.

        Raises :class:`FileNotFoundError` for an object that is missing.
        """

        def run(report: Moved) -> str:
            sha256 = hashlib.sha256()
            with self._fs.open(self._path, "rb", block_size=_BLOCK, cache_type="none") as f, open(target, "a+b") as to:
                if not f.seekable():
                    to.truncate(0)
                to.seek(0)
                while block := to.read(_BLOCK):
                    sha256.update(block)
                    report(len(block))
                if to.tell():
                    f.seek(to.tell())
                while block := f.read(_BLOCK):
                    sha256.update(block)
                    to.write(block)
                    report(len(block))
            return sha256.hexdigest()

        return watched(str(self), run, moved)


class RemoteStream(io.RawIOBase):
    """A stream each of whose reads is :func:`watched`."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._stream, self._name = stream, name

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes; none at the end."""
        return watched(self._name, lambda _: self._stream.read(size))

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()
        super().close()


def json_object(raw: bytes | None) -> dict[str, Any]:
    """The JSON object in a remote file; empty where there is none."""
    try:
        found = json.loads(raw or b"")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _parsed(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        secret = has_credentials(parts)
    except ValueError as e:
        raise UsageError(f"{without_credentials(url)}: not a URL: {e}") from None
    if secret:
        raise UsageError(
            f"{parts.scheme}: a URL must not contain credentials, which other users of this machine can see; set them "
            "in the environment, or write them into the files of the store's own tools"
        )
    return parts


def _opened(remote: Remote) -> tuple[FileSystem, str]:
    scheme = remote.parts.scheme
    need_packages(f"{scheme}://", _PACKAGES.get(scheme, ("fsspec",)), "s3")
    from fsspec.core import url_to_fs  # takes 0.1 s to import

    # Listings are remembered otherwise, and what another process writes is not seen.
    settings = {"use_listings_cache": False} | ({"auto_mkdir": True} if scheme in ("file", "local") else {})
    try:
        return cast("tuple[FileSystem, str]", url_to_fs(remote.url, **settings))
    except ImportError as e:
        raise EnvironmentProblem(f"{remote}: {one_line(e)}") from None
    except ValueError as e:
        raise UsageError(f"{remote}: {one_line(e)}") from None
