"""Archives of files, which are read like folders if that is asked for."""

from __future__ import annotations

import io
import tarfile
import zipfile

from dupmae_ir.io.documents.names import is_hidden_or_temporary, is_skipped_folder
from dupmae_ir.io.documents.readers.archive import open_archive
from dupmae_ir.io.documents.readers.extracted import LARGEST, Extracted, Member, Unreadable, reason


def read_zip(data: bytes) -> Extracted:
    """The files of a zip archive; a damaged or encrypted one is a member with a problem."""
    members = []
    with open_archive(data) as archive:
        for entry in archive.infolist():
            if not entry.is_dir() and not _is_left_out(entry.filename):
                members.append(_zip_member(archive, entry))
    return Extracted("", members=members)


def _zip_member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Member:
    try:
        # By its entry: several may have the same name.
        return Member(entry.filename, archive.read(entry))
    except Exception as e:  # what the libraries for compressed data raise is not documented
        return Member(entry.filename, b"", reason(e))


def read_tar(data: bytes) -> Extracted:
    """The regular files of a tar archive; links and devices are left out. A damaged archive has those before it."""
    members: list[Member] = []
    problems: list[str] = []
    size = 0
    try:
        # Not compressed: gzip is unpacked before, within a limit, and other compression is not read.
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for entry in archive:
                if entry.size < 0:
                    # The next entry would be before this one, without end.
                    raise tarfile.ReadError(f"the size of {entry.name} is below zero")
                if not entry.isreg() or _is_left_out(entry.name):
                    continue
                # A sparse file is larger than what the archive has of it.
                size += entry.size
                if size > LARGEST:
                    raise Unreadable(
                        f"unpacks to more than {LARGEST >> 20} MiB, the limit, with {entry.name}"
                    )
                contents = archive.extractfile(entry)
                if contents is not None:
                    members.append(Member(entry.name, contents.read()))
    except Unreadable:
        raise
    except Exception as e:  # damaged archives raise errors of many kinds
        if not members:
            raise Unreadable(f"damaged tar archive: {reason(e)}") from None
        problems.append(f"damaged tar archive: {reason(e)}")
    return Extracted("", members=members, problems=problems)


def _is_left_out(name: str) -> bool:
    """Whether a file would be left out of a folder."""
    *folders, own_name = name.split("/")
    return is_hidden_or_temporary(own_name) or any(map(_is_skipped, folders))


def _is_skipped(folder: str) -> bool:
    return folder not in ("", ".", "..") and is_skipped_folder(folder)
