"""Safe, atomic unpacking of zip, tar, tar.gz and gzip archives, recognised by their bytes."""

from __future__ import annotations

import errno
import gzip
import re
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, cast

from dupmae_ir.console import byte_bar, megabytes, one_line, say
from dupmae_ir.errors import InputError, OutputError, UsageError
from dupmae_ir.io.locks import exclusive, lock_path
from dupmae_ir.io.publishing import disk_full_is_one_line, move_into_place

ROOM = 0.95  #: share of the free disk space that one archive may fill
_BLOCK = 1 << 17


class _Member(NamedTuple):
    """One entry of an archive: ``kind`` is file, folder, or a description of it; ``size`` is None if unknown."""

    name: str
    kind: str
    size: int | None
    open: Callable[[], IO[bytes]]


def unpack(
    archive: Path, folder: Path, wanted: Callable[[str], bool] | None = None, quiet: bool = False
) -> Path:
    """Unpack a zip, tar, tar.gz or gzip file into ``folder``, whole or not at all; an older ``folder`` is replaced.

    ``wanted`` selects files by their names in the archive; without it everything is unpacked. A gzip file that is not
    a tar becomes one file of its name without ``.gz``. Only plain files and folders below ``folder`` are accepted, and
    no more bytes than fit the disk. Raises :class:`InputError` for an archive that is damaged or contains anything
    else, :class:`OutputError` when the disk is full; ``folder`` is then unchanged.
    """
    archive = Path(archive)
    folder = Path(folder)
    home = folder.resolve()
    if home.exists() and not home.is_dir():
        raise UsageError(f"{folder}: is a file; name the folder to unpack into")
    aside = home.with_name(f".{home.name}.aside")
    with (
        disk_full_is_one_line(folder),
        exclusive(lock_path(home), f"unpacking into {folder}", wait=True, quiet=quiet),
    ):
        shutil.rmtree(aside, ignore_errors=True)  # left by a killed process
        try:
            aside.mkdir()
            _unpack_into(aside, archive, wanted, quiet)
            move_into_place(aside, home)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
    return folder


def _unpack_into(
    aside: Path, archive: Path, wanted: Callable[[str], bool] | None, quiet: bool
) -> None:
    say(f"unpacking {archive}", quiet)
    room = int(shutil.disk_usage(aside).free * ROOM)
    files = 0
    done = 0
    with (
        byte_bar(f"unpacking {archive.name}", None, quiet) as moved,
        closing(_members(archive)) as members,
    ):
        for member in members:
            name = PurePosixPath(member.name).as_posix()
            if wanted and (member.kind == "folder" or not wanted(name)):
                continue
            _refuse_unsafe(archive, member)
            for size in _place(archive, member, aside / name, room - done):
                done += size
                moved(size)
            files += member.kind == "file"
    if not files:
        raise InputError(f"{archive}: holds no file" + (" of those wanted" if wanted else ""))


def _refuse_unsafe(archive: Path, member: _Member) -> None:
    path = member.name.replace("\\", "/")
    if (
        path.startswith("/")
        or re.match("[A-Za-z]:", path)
        or ".." in path.split("/")
        or "\0" in path
    ):
        raise InputError(
            f"{archive}: {member.name!r} would land outside the folder; nothing was unpacked"
        )
    if member.kind not in ("file", "folder"):
        raise InputError(
            f"{archive}: {member.name!r} is {member.kind}; only plain files and folders are unpacked"
        )


def _place(archive: Path, member: _Member, path: Path, room: int) -> Iterator[int]:
    """Write one member; yields the bytes of each block written."""
    try:
        if member.kind == "folder":
            path.mkdir(parents=True, exist_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        to = open(path, "xb")  # noqa: SIM115
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise InputError(
            f"{archive}: {member.name!r} is in it twice; nothing was unpacked"
        ) from None
    with to:
        yield from _pour(archive, member, to, room)


def _pour(archive: Path, member: _Member, to: IO[bytes], room: int) -> Iterator[int]:
    done = 0
    # The size that the archive states is refused before a byte is written.
    announced = member.size or 0
    with _damage_is_one_line(archive), member.open() as source:
        while max(done, announced) <= room:
            block = source.read(_BLOCK)
            if not block:
                break
            to.write(block)
            done += len(block)
            yield len(block)
    if max(done, announced) > room:
        raise OutputError(
            f"{archive}: {member.name!r} unpacks to more than the disk has room for ({megabytes(room)} left); "
            "free some space, or do not trust this archive"
        )
    if member.size not in (None, done):
        raise _damaged(archive, f"{member.name!r} has {done} bytes, {member.size} announced")


def _members(archive: Path) -> Generator[_Member, None, None]:
    """The entries of an archive in order; its format is recognised by its bytes."""
    if not archive.is_file():
        raise InputError(f"{archive}: no such file")
    with _damage_is_one_line(archive), open(archive, "rb") as f:
        head = f.read(tarfile.BLOCKSIZE)
        if head.startswith(b"PK"):
            with zipfile.ZipFile(f) as z:
                for info in z.infolist():
                    yield _Member(
                        info.filename, _zip_kind(info), info.file_size, partial(z.open, info)
                    )
        elif head.startswith(b"\x1f\x8b"):
            f.seek(0)
            with gzip.GzipFile(fileobj=f) as unzipped:
                plain = cast("IO[bytes]", unzipped)
                if _is_tar(plain.read(tarfile.BLOCKSIZE)):
                    yield from _tar_members(plain)
                else:
                    plain.seek(0)
                    yield _Member(archive.name.removesuffix(".gz"), "file", None, lambda: plain)
        elif _is_tar(head):
            yield from _tar_members(f)
        else:
            raise InputError(
                f"{archive}: not a zip, tar or gzip archive; delete it and fetch it again"
            )


def _is_tar(head: bytes) -> bool:
    """Whether a file that starts with this block is a tar of any version: its header has a valid checksum."""
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    return True


def _zip_kind(info: zipfile.ZipInfo) -> str:
    mode = stat.S_IFMT(info.external_attr >> 16)
    if info.flag_bits & 0x1:
        return "encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"compressed by method {info.compress_type}, which is not read here"
    if mode not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "a symbolic link" if mode == stat.S_IFLNK else "a device"
    return "folder" if info.filename.endswith("/") else "file"


def _tar_members(file: IO[bytes]) -> Generator[_Member, None, None]:
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:") as tar:
        for info in tar:
            opened = cast(
                "Callable[[], IO[bytes]]", partial(tar.extractfile, info)
            )  # None only for what is no file
            yield _Member(info.name, _tar_kind(info), info.size, opened)
        # tarfile treats a damaged or missing header as the end. The true end is a block of zeros, and reading to the
        # last byte makes gzip verify its checksum.
        file.seek(tar.offset)
        end = file.read(tarfile.BLOCKSIZE)
        if any(end) or len(end) < tarfile.BLOCKSIZE:
            raise EOFError("no end of archive")
        while file.read(_BLOCK):
            pass


def _tar_kind(info: tarfile.TarInfo) -> str:
    if info.issym() or info.islnk():
        return "a symbolic link" if info.issym() else "a hard link"
    if info.isdir():
        return "folder"
    return "file" if info.isreg() else "a device"


@contextmanager
def _damage_is_one_line(archive: Path) -> Iterator[None]:
    """Turn the libraries' many errors for damaged bytes into one; for code that only reads the archive."""
    try:
        yield
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        zlib.error,
        struct.error,
        EOFError,
        ValueError,
        IndexError,
        OverflowError,
        MemoryError,
        NotImplementedError,
    ) as e:
        raise _damaged(archive, str(e)) from None
    except OSError as e:
        if e.errno not in (
            None,
            errno.EINVAL,
        ):  # raised by gzip itself; a seek to before the beginning of the file
            raise
        raise _damaged(archive, str(e)) from None


def _damaged(archive: Path, how: str) -> InputError:
    return InputError(
        f"{archive}: a damaged archive ({one_line(how)}); delete it and fetch it again"
    )
