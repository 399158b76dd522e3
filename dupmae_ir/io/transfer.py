"""Transfers: downloads, and files and folders behind URLs (``s3://``, ``gs://`` and whatever else fsspec opens).

    download(RemoteFile("https://host/a.zip", sha256=...), Path("a.zip"))   # once, resumed, verified

    file = Remote("s3://bucket/corpus.jsonl.gz")
    with file.open() as stream: ...        # bytes, streamed
    file.send(Path("local"))               # complete objects; object stores have no rename
    file.fetch(Path("local"))              # continued where an earlier call ended

Downloads are shared by all processes. Files next to ``NAME``, for as long as they are needed: ``NAME.part``, the bytes
received so far; ``.NAME.part.json``, the version of the file that they belong to (ETag, Last-Modified, length);
``.NAME.lock``, held by the process that downloads; ``.NAME.json``, the digests of the finished file with its size and
time, so that a large file is not digested at every start. No file appears under its name before it is complete and
verified. Environment: ``DUPMAE_IR_CACHE`` is the cache folder, ``DUPMAE_IR_MIRROR`` the base URL of a mirror,
``DUPMAE_IR_OFFLINE=1`` (or ``HF_HUB_OFFLINE=1``) forbids the network.

What a library of fsspec does runs in a thread, which :func:`watched` gives up when no byte has moved for
:func:`patience` seconds: libraries wait for a stalled connection without end, or try again for many minutes.

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
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urljoin, urlsplit

from dupmae_ir import __version__
from dupmae_ir.console import byte_bar, megabytes, one_line, say
from dupmae_ir.device import need_packages
from dupmae_ir.errors import DupmaeError, EnvironmentProblem, InputError, OutputError, UsageError
from dupmae_ir.io.locks import exclusive, lock_path
from dupmae_ir.io.publishing import (
    disk_full_is_one_line,
    fsync_folder,
    read_json_object,
    write_json,
)

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from requests import Response, Session

#: seconds between attempts; restarted whenever an attempt gets further than all before
WAITS = (1.0, 2.0, 4.0, 8.0)
TIMEOUT = (10.0, 60.0)  #: seconds to connect, seconds without a byte

_RECEIVED = 1 << 17
_TRY_AGAIN = {408, 425, 429, *range(500, 600)}
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


def is_url(text: object) -> bool:
    """Whether ``text`` is a URL and not a path."""
    return isinstance(text, str) and _URL.match(text) is not None


def has_credentials(parts: SplitResult) -> bool:
    """Whether a URL contains a password, or a query that looks like a key."""
    if parts.password:
        return True
    return any(_SECRET.search(name) and value for name, value in parse_qsl(parts.query))


def without_credentials(text: str) -> str:
    """``text`` with the users and passwords of its URLs removed."""
    return _USER.sub("//", text)


@dataclass(frozen=True)
class RemoteFile:
    """A file to download, and its hex digests and ``size`` in bytes if they are known."""

    url: str
    md5: str | None = None
    sha256: str | None = None
    size: int | None = None

    @property
    def name(self) -> str:
        """The last part of the URL's path, percent-decoded."""
        name = PurePosixPath(unquote(urlsplit(self.url).path)).name
        if name in ("", "..") or "\0" in name:
            raise UsageError(f"{self.url}: names no file")
        return name

    @property
    def digests(self) -> dict[str, str]:
        """Kind -> expected hex digest, of the kinds that are known."""
        known = {"md5": self.md5, "sha256": self.sha256}
        return {kind: digest.lower() for kind, digest in known.items() if digest}


def cache_folder() -> Path:
    """``$DUPMAE_IR_CACHE``, else ``$XDG_CACHE_HOME/dupmae_ir``, else ``~/.cache/dupmae_ir``."""
    folder = os.environ.get("DUPMAE_IR_CACHE")
    if folder:
        return Path(folder)
    user_caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user_caches) / "dupmae_ir"


def offline_by() -> str | None:
    """The environment variable that forbids the network; None if it is permitted."""
    for name in ("DUPMAE_IR_OFFLINE", "HF_HUB_OFFLINE"):
        if os.environ.get(name, "").strip().lower() in ("1", "on", "yes", "true"):
            return name
    return None


def download(
    source: RemoteFile, target: Path, *, mirror: str | None = None, quiet: bool = False
) -> Path:
    """Download ``source`` to ``target``, verify it, and return ``target``.

    A file that exists (downloaded earlier or copied there) is verified and not downloaded. The next call resumes an
    interrupted one. ``mirror`` (default ``$DUPMAE_IR_MIRROR``) is a base URL: ``https://host/path/file`` is
    then fetched from ``{mirror}/host/path/file``.

    Raises :class:`EnvironmentProblem` when it cannot be downloaded or is not the expected file, :class:`InputError`
    when the existing file is not the expected one, :class:`OutputError` when the disk is full.
    """
    target = Path(target)
    url = _address(source, os.environ.get("DUPMAE_IR_MIRROR") if mirror is None else mirror)
    if target.is_dir():
        raise UsageError(f"{target}: is a folder; name the file to write")
    if not target.exists():
        what = f"downloading {target.name}"
        with (
            disk_full_is_one_line(target),
            exclusive(lock_path(target), what, wait=True, quiet=quiet),
        ):
            # Another process may have downloaded it while this one waited for the lock.
            if not target.exists():
                _Transfer(source, url, target, quiet).bring()
    return _verified(source, target, quiet)


def _address(source: RemoteFile, mirror: str | None) -> str:
    """The URL to request: the source's own, or the corresponding one of the mirror."""
    if not _scheme(source.url):
        raise UsageError(f"{source.url}: only http and https can be fetched")
    if not mirror:
        return source.url
    if not _scheme(mirror):
        raise UsageError(f"{mirror}: a mirror is an http or https URL")
    parts = urlsplit(source.url)
    _, _, host = parts.netloc.rpartition("@")
    address = f"{mirror.rstrip('/')}/{host}{parts.path}"
    if parts.query:
        address += f"?{parts.query}"
    return address


def _scheme(url: str) -> str:
    """http or https; empty for any other or malformed URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    if parts.scheme in ("http", "https") and parts.hostname:
        return parts.scheme
    return ""


class _Broken(Exception):
    """An attempt failed, and the next one may succeed."""


class _Unreachable(_Broken):
    """The host cannot be reached. Worth another attempt only when it was reached before."""


class _Mismatch(Exception):
    """A file is not the expected one; the message names the difference."""


@dataclass(frozen=True)
class _Transfer:
    """The download of one file from ``url`` to ``target``, by the holder of the lock."""

    source: RemoteFile
    url: str
    target: Path
    quiet: bool

    @property
    def part(self) -> Path:
        """The bytes received so far."""
        return self.target.with_name(f"{self.target.name}.part")

    @property
    def note(self) -> Path:
        """The version that the part belongs to."""
        return self.target.with_name(f".{self.target.name}.part.json")

    def bring(self) -> None:
        """Fetch what is missing, verify it, and move it to the target."""
        # The part may have been complete when the last call was stopped.
        if not self.part.exists() or self._resumable() != read_json_object(self.note).get("length"):
            variable = offline_by()
            if variable:
                raise self._by_hand(f"{self.target.name} is missing and {variable} is set")
            self._fetch()
        try:
            digests = _check_digests(self.source, self.part, self.quiet)
        except _Mismatch as e:
            self._discard()
            raise EnvironmentProblem(
                f"{self.target.name} from {self.shown}: {e}; the download was removed. Run the same command "
                "again; if the error repeats, the file on the server has changed"
            ) from None
        # Renamed before the note is removed: a part without a note would be downloaded again.
        self.part.replace(self.target)
        fsync_folder(self.target.parent)
        self.note.unlink(missing_ok=True)
        _remember(self.source, self.target, digests, self.quiet)

    @property
    def shown(self) -> str:
        """The URL for messages."""
        return without_credentials(self.url)

    def _failed(self, problem: str) -> EnvironmentProblem:
        return self._by_hand(f"{self.shown}: {problem}")

    def _by_hand(self, problem: str) -> EnvironmentProblem:
        return EnvironmentProblem(
            f"{one_line(problem)}; put {self.source.name} (from {without_credentials(self.source.url)}) at "
            f"{self.target} and run the same command again"
        )

    def _fetch(self) -> None:
        """Retry until the part is complete: as long as attempts make progress, and a few times more."""
        from requests import Session

        start = furthest = _size(self.part)
        waits = iter(WAITS)
        while True:
            try:
                with Session() as session:
                    return self._try(session)
            except _Broken as e:
                problem = e
            if _size(self.part) > furthest:
                furthest = _size(self.part)
                waits = iter(WAITS)
            # A host that was never reached is not asked again.
            hopeless = isinstance(problem, _Unreachable) and furthest == start
            wait = next(waits, None)
            if hopeless or wait is None:
                raise self._failed(str(problem))
            say(f"{self.target.name}: {problem}; trying again in {wait:g} s", self.quiet)
            time.sleep(wait)

    def _try(self, session: Session) -> None:
        """One request, from where the last one ended, or from the start when the server cannot resume."""
        offset = self._resumable()
        with self._ask(session, offset) as response:
            if response.status_code == 200:
                return self._receive(response, 0)
            if offset and response.status_code == 206 and self._continues(response, offset):
                return self._receive(response, offset)
            if offset and response.status_code == 416 and _content_range(response)[1] == offset:
                return None  # it was already complete
            if response.status_code in _TRY_AGAIN:
                raise _Broken(_status(response))
            if not offset or response.status_code not in (206, 416):
                raise self._failed(_status(response))
        self._discard()
        return self._try(session)

    def _ask(self, session: Session, offset: int) -> Response:
        from requests.exceptions import RequestException

        # With a content encoding, lengths and ranges would not be those of the file.
        headers = {"User-Agent": f"dupmae-ir/{__version__}", "Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
            note = read_json_object(self.note)
            etag = note.get("etag") or ""
            # If-Range does not accept a weak ETag; _continues compares it.
            version = etag if etag.startswith('"') else note.get("last_modified")
            if version:
                headers["If-Range"] = version
        try:
            return session.get(
                self.url,
                headers=headers,
                stream=True,
                timeout=TIMEOUT,
                hooks={"response": self._check_redirect},
            )
        except RequestException as e:
            raise self._failure(e) from e

    def _failure(self, error: Exception) -> Exception:
        """The exception for an error before the first byte: one to retry, or a final one."""
        from requests import exceptions as kinds
        from urllib3.exceptions import NewConnectionError

        chain = list(_chain(error))
        cause = chain[-1]
        problem = one_line(getattr(cause, "strerror", None) or str(cause) or type(cause).__name__)
        if isinstance(error, kinds.SSLError | kinds.ProxyError | kinds.ConnectTimeout):
            return _Unreachable(problem)
        if any(isinstance(e, NewConnectionError) for e in chain):
            return _Unreachable(problem)
        if isinstance(error, kinds.ConnectionError | kinds.Timeout):
            return _Broken(problem)
        return self._failed(problem)

    def _check_redirect(self, response: Response, *_: Any, **__: Any) -> None:
        """Refuse redirects from https to anything else, and from http to anything but http and https."""
        if not response.is_redirect:
            return
        target = response.headers["location"]
        with suppress(ValueError):  # malformed: refused below
            target = urljoin(response.url, target)
        allowed = {"http", "https"}
        if _scheme(response.url) == "https":
            allowed = {"https"}
        if _scheme(target) not in allowed:
            raise self._failed(f"redirects to {without_credentials(target)}, which is not followed")

    def _receive(self, response: Response, offset: int) -> None:
        """Write the body of ``response`` to the part from ``offset`` on, and sync it."""
        total = self._checked_total_size(response, offset)
        with open(self.part, "r+b" if offset else "wb") as f:
            # After truncation: bytes of an older version must never lie beside the note of a newer one.
            write_json(self.note, {"url": self.source.url, **_version(response), "length": total})
            free = shutil.disk_usage(self.part.parent).free
            if total is not None and total - offset > free:
                raise OutputError(
                    f"{self.target}: {megabytes(total - offset)} to download, but the disk has only "
                    f"{megabytes(free)} free; free some space and run the same command again"
                )
            f.seek(offset)
            self._copy(response, f, offset, total)
            os.fsync(f.fileno())
        if total is not None and _size(self.part) != total:
            raise _Broken(f"the connection broke after {_size(self.part)} bytes")

    def _checked_total_size(self, response: Response, offset: int) -> int | None:
        """Bytes of the complete file, as the server or the source says; None if neither does, but a cut would show: the
        server sends it in chunks, the last of which is marked, or there is a checksum. Raises what :meth:`_failed`
        makes for a response that is not the file, or whose end could not be told."""
        encoding = response.headers.get("Content-Encoding", "identity")
        # Some servers name the compression of a file that is compressed itself.
        if encoding != "identity" and not self.source.name.endswith((".gz", ".tgz")):
            raise self._failed(f"sent as {encoding}, which was not requested")
        if offset:
            total = _content_range(response)[1]
        else:
            total = _number(response.headers.get("Content-Length"))
        expected = self.source.size
        if total is None:
            is_chunked = getattr(response.raw, "chunked", False)
            if expected is None and not self.source.digests and not is_chunked:
                raise self._failed("no length and no checksum, so truncation could not be detected")
            return expected
        if expected is not None and total != expected:
            self._discard()
            raise self._failed(f"the server has {total} bytes, expected {expected}")
        return total

    def _copy(self, response: Response, to: IO[bytes], done: int, total: int | None) -> None:
        from urllib3.exceptions import HTTPError

        of_total = "" if total is None else f" of {megabytes(total)}"
        say(
            f"{'resuming' if done else 'downloading'} {self.shown}: {megabytes(done)}{of_total} here",
            self.quiet,
        )
        with byte_bar(self.target.name, total, self.quiet, done) as moved:
            try:
                for block in response.raw.stream(_RECEIVED, decode_content=False):
                    to.write(block)
                    to.flush()  # received bytes survive a kill
                    done += len(block)
                    moved(len(block))
                    if total is not None and done > total:
                        raise _Broken(f"more than the {total} bytes that were announced")
            except (HTTPError, OSError) as e:
                if isinstance(e, OSError) and e.errno is not None:
                    raise  # an error of the disk; urllib3 wraps those of the network
                raise _Broken(f"the connection broke after {done} bytes") from e

    def _resumable(self) -> int:
        """How many bytes of the part can be kept: all, if the version of the rest can be compared, else none."""
        note = read_json_object(self.note)
        comparable = note.get("etag") or note.get("last_modified") or self.source.digests
        if comparable and note.get("url") == self.source.url:
            return _size(self.part)
        return 0

    def _continues(self, response: Response, offset: int) -> bool:
        """Whether the response continues the same version of the file."""
        note = read_json_object(self.note)
        start, total = _content_range(response)
        if start != offset:
            return False
        for name, value in {**_version(response), "length": total}.items():
            # What either side does not say cannot be compared.
            if value is not None and note.get(name) not in (None, value):
                return False
        return True

    def _discard(self) -> None:
        self.part.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)


def _version(response: Response) -> dict[str, str | None]:
    """The headers that identify a version of the file on the server."""
    return {
        "etag": response.headers.get("ETag"),
        "last_modified": response.headers.get("Last-Modified"),
    }


def _content_range(response: Response) -> tuple[int | None, int | None]:
    """(first byte, length of the whole file); None for what is missing."""
    header = response.headers.get("Content-Range", "").strip()
    match = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", header)
    if not match:
        return None, None
    return _number(match[1]), _number(match[2])


def _number(text: str | None) -> int | None:
    if text and text.isdecimal():
        return int(text)
    return None


def _status(response: Response) -> str:
    return f"the server returned {response.status_code} {response.reason or ''}".rstrip()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error of requests and the errors it wraps, the first cause last."""
    while error is not None:
        yield error
        # Not __context__, which leads to whatever our caller was handling.
        wrapped = (error.__cause__, getattr(error, "reason", None), *error.args)
        error = next((e for e in wrapped if isinstance(e, BaseException)), None)


# --- verifying ---------------------------------------------------------------------------------------------------


def _verified(source: RemoteFile, target: Path, quiet: bool) -> Path:
    """``target`` if it is the file that ``source`` describes; digests are cached for its size and time."""
    remembered = _remembered_digests(target)
    if remembered is not None and not remembered.keys() >= source.digests.keys():
        remembered = None
    try:
        digests = _check_digests(source, target, quiet, remembered)
    except _Mismatch as e:
        raise InputError(
            f"{target}: {e}; delete it and run the same command, which downloads {source.url}"
        ) from None
    if remembered is None:
        _remember(source, target, digests, quiet)
    return target


def _remembered_digests(target: Path) -> dict[str, str] | None:
    """The digests that were recorded of a file, if it has the same size and time still."""
    record = read_json_object(_memory(target))
    digests = record.get("digests")
    if record.get("file") == _stamp(target) and isinstance(digests, dict):
        return digests
    return None


def _check_digests(
    source: RemoteFile, file: Path, quiet: bool, remembered: Mapping[str, str] | None = None
) -> Mapping[str, str]:
    """The digests of ``file``, ``remembered`` or computed. Raises :class:`_Mismatch` for others, or another size."""
    size = file.stat().st_size
    if source.size is not None and size != source.size:
        raise _Mismatch(f"{size} bytes, expected {source.size}")
    digests = remembered or _digests(file, {"sha256", *source.digests}, quiet)
    for kind, expected in source.digests.items():
        if digests[kind] != expected:
            raise _Mismatch(f"{kind} {digests[kind]}, expected {expected}")
    return digests


def _digests(file: Path, kinds: set[str], quiet: bool) -> dict[str, str]:
    """Kind -> hex digest of ``file``, which is read once."""
    sums = {kind: hashlib.new(kind, usedforsecurity=False) for kind in sorted(kinds)}
    with open(file, "rb") as f, byte_bar(f"checking {file.name}", _size(file), quiet) as moved:
        while block := f.read(_BLOCK):
            for one in sums.values():
                one.update(block)
            moved(len(block))
    return {kind: one.hexdigest() for kind, one in sums.items()}


def _remember(source: RemoteFile, target: Path, digests: Mapping[str, str], quiet: bool) -> None:
    """Record the digests of ``target`` beside it, and log them when there was nothing to compare them with."""
    if not source.digests:
        say(
            f"{target}: not verified, because no checksum is known; sha256 {digests['sha256']}",
            quiet,
        )
    with suppress(OSError):  # a read-only cache is verified every time
        write_json(_memory(target), {"url": source.url, "file": _stamp(target), "digests": digests})


def _memory(target: Path) -> Path:
    return target.with_name(f".{target.name}.json")


def _stamp(file: Path) -> list[int]:
    """Size in bytes and time of the last change in ns."""
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]


def _size(path: Path) -> int:
    """Bytes of a file, 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


def patience() -> float:
    """Seconds without a byte after which a transfer is given up. Raises :class:`UsageError` for no number."""
    text = os.environ.get(PATIENCE_VARIABLE)
    if not text:
        return PATIENCE
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    # Written so that NaN is refused.
    if not seconds > 0:
        raise UsageError(f"{PATIENCE_VARIABLE}={text}: expected a number of seconds greater than 0")
    return seconds


Moved = Callable[[int], None]
"""Called with a number of bytes whenever some have moved."""


def watched(what: str, job: Callable[[Moved], T], moved: Moved | None = None) -> T:
    """Run ``job`` in a thread and return its result; it calls its argument for the bytes that it moves.

    Raises :class:`EnvironmentProblem`, beginning with ``what``, when nothing moves for :func:`patience` seconds and for
    every error of a library; :class:`FileNotFoundError` and :class:`DupmaeError` are raised as they are, as is a full
    disk. A thread that is given up ends with its next byte, or with the process.
    """
    # Numbers of bytes, and then the result or the error.
    messages: queue.SimpleQueue[int | tuple[T | None, BaseException | None]] = queue.SimpleQueue()
    given_up = threading.Event()

    def report(count: int) -> None:
        if given_up.is_set():
            raise TimeoutError
        messages.put(count)

    def run() -> None:
        try:
            messages.put((job(report), None))
        except BaseException as e:  # whatever it is, the caller must learn it
            messages.put((None, e))

    threading.Thread(target=run, daemon=True).start()
    seconds = patience()
    try:
        message = messages.get(timeout=seconds)
        while isinstance(message, int):
            if moved:
                moved(message)
            message = messages.get(timeout=seconds)
    except queue.Empty:
        raise EnvironmentProblem(
            f"{what}: no byte for {seconds:g} s ({PATIENCE_VARIABLE}); check the network and run the same command again"
        ) from None
    finally:
        given_up.set()
    result, error = message
    if error is not None:
        raise _translate_error(what, error)
    return cast(T, result)


def _translate_error(what: str, error: BaseException) -> BaseException:
    """An :class:`EnvironmentProblem` for an error of a library; other errors as they are."""
    if isinstance(error, FileNotFoundError | DupmaeError) or not isinstance(error, Exception):
        return error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return error
    reason = without_credentials(one_line(error, 300)) or type(error).__name__
    if isinstance(error, PermissionError) or "credentials" in reason.lower():
        reason += (
            "; check the credentials in the environment, or in the files of the store's own tools"
        )
    return EnvironmentProblem(f"{what}: {reason}")


class Remote:
    """A file or folder behind a URL. ``str()`` is the URL for messages."""

    def __init__(self, url: str) -> None:
        """Raises :class:`UsageError` for a URL with credentials and for an unknown scheme, :class:`EnvironmentProblem`
        for a scheme whose package is not installed. Nothing is requested yet."""
        self.url = url.rstrip("/")
        self.parts = _parsed(url)
        scheme = self.parts.scheme
        need_packages(f"{scheme}://", _PACKAGES.get(scheme, ("fsspec",)), "s3")
        from fsspec.core import url_to_fs  # takes 0.1 s to import

        # Listings are remembered otherwise, and what another process writes is not seen.
        settings = {"use_listings_cache": False}
        if scheme in ("file", "local"):
            settings["auto_mkdir"] = True
        self._fs: AbstractFileSystem
        self._path: str
        try:
            self._fs, self._path = url_to_fs(self.url, **settings)
        except ImportError as e:
            raise EnvironmentProblem(f"{self}: {one_line(e)}") from None
        except ValueError as e:
            raise UsageError(f"{self}: {one_line(e)}") from None

    def __str__(self) -> str:
        return without_credentials(self.url)

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """The last part of the path; the host if there is no path."""
        return PurePosixPath(self.parts.path).name or self.parts.netloc.rpartition("@")[2]

    def is_file(self) -> bool:
        """True: only folders are listed, by :meth:`files`."""
        return True

    def size(self) -> int | None:
        """Bytes; None if there is no such object, or the server does not tell."""
        try:
            size = watched(str(self), lambda _: self._fs.info(self._path)).get("size")
        except FileNotFoundError:
            return None
        return size if isinstance(size, int) else None

    def files(self) -> list[Remote] | None:
        """The files of a folder, not of folders in it; None for a file. Raises :class:`InputError` if there is
        neither."""
        try:
            if watched(str(self), lambda _: self._fs.info(self._path)).get("type") != "directory":
                return None
            entries = watched(str(self), lambda _: self._fs.ls(self._path, detail=True))
        except FileNotFoundError:
            raise InputError(f"{self}: no such file or folder") from None
        files = []
        for entry in entries:
            if entry["type"] == "file":
                files.append(self / PurePosixPath(str(entry["name"])).name)
        return files

    def read(self) -> bytes | None:
        """The bytes of a small object; None if there is none."""
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
            stream = watched(
                str(self), lambda _: self._fs.open(self._path, "rb", block_size=_BLOCK).__enter__()
            )
        except FileNotFoundError:
            raise InputError(f"{self}: no such file or folder") from None
        return RemoteStream(stream, str(self))

    def send(self, source: Path, moved: Moved | None = None) -> str:
        """Write the file ``source`` as this object and return the sha256 of what was sent."""
        size = source.stat().st_size

        def run(report: Moved) -> str:
            sha256 = hashlib.sha256()
            block_size = max(_BLOCK, size // _MOST_PIECES)
            with (
                open(source, "rb") as f,
                self._fs.open(self._path, "wb", block_size=block_size) as to,
            ):
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
            with (
                self._fs.open(self._path, "rb", block_size=_BLOCK, cache_type="none") as f,
                open(target, "a+b") as to,
            ):
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
        self._stream = stream
        self._name = name

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes; none at the end."""
        return watched(self._name, lambda _: self._stream.read(size))

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()
        super().close()


def json_object(raw: bytes | None) -> dict[str, Any]:
    """The JSON object in a remote file; empty if there is none."""
    try:
        value = json.loads(raw or b"")
    except ValueError:
        return {}
    if not isinstance(value, dict):
        return {}
    return value


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
