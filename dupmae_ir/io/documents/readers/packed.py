"""Archives of files, which are read like folders if that is asked for."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator

from dupmae_ir.io.documents.names import is_hidden_or_temporary, is_skipped_folder
from dupmae_ir.io.documents.readers.archive import open_archive, read_member
from dupmae_ir.io.documents.readers.extracted import LARGEST, Member, Unreadable


def zip_members(data: bytes) -> Iterator[Member]:
    """The files of a zip archive."""
    with open_archive(data) as archive:
        for entry in archive.infolist():
            if not entry.is_dir() and not _is_left_out(entry.filename):
                yield Member(entry.filename.lstrip("/"), read_member(archive, entry.filename))


def tar_members(data: bytes) -> Iterator[Member]:
    """The regular files of a tar archive; links and devices are left out."""
    try:
        # Not compressed: gzip is unpacked before, within a limit, and other compression is not read.
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for entry in archive:
                if not entry.isreg() or _is_left_out(entry.name):
                    continue
                if entry.size > LARGEST:
                    raise Unreadable(
                        f"{entry.name}: {entry.size >> 20:,} MiB; the limit is {LARGEST >> 20} MiB"
                    )
                contents = archive.extractfile(entry)
                if contents is not None:
                    yield Member(entry.name.lstrip("/"), contents.read())
    except tarfile.TarError as e:
        raise Unreadable(f"damaged tar archive: {e}") from None


def _is_left_out(name: str) -> bool:
    """Whether a file would be left out of a folder."""
    *folders, own_name = name.split("/")
    return is_hidden_or_temporary(own_name) or any(map(_is_skipped, folders))


def _is_skipped(folder: str) -> bool:
    return folder not in ("", ".", "..") and is_skipped_folder(folder)
