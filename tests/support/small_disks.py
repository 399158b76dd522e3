"""Disks that fill up."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[None]:
    """A file system of its own, so small that it fills up; needs the right to mount."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield
    finally:
        busy = subprocess.run(["umount", folder], capture_output=True, text=True).stderr
        if busy:
            subprocess.run(["umount", "--lazy", folder], check=True)
        assert not busy, f"a failed run left a file open: {busy}"


def enlarge(folder: Path) -> None:
    """Give a small disk 10 MiB."""
    subprocess.run(["mount", "-o", "remount,size=10m", folder], check=True)
