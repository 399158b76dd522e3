"""Loops that numba compiles, and the folder in which it keeps their machine code. Needs numba, which is optional;
import modules with such loops inside functions only.

numba reads its cache by pickle and runs the machine code in it, so whoever can write there runs code as the user. The
cache is used only if everybody who can write there could also change the source code. Otherwise the loops are
compiled in each process: the results are the same, and the process starts later.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.base import BaseContext

from dupmae_ir.console import say


def compiled(loop: Callable[..., object]) -> Any:
    """``loop``, compiled when it is first called and run without Python's lock. Other processes use the machine code,
    too, if nobody else can write to numba's cache."""
    try:
        kept = njit(nogil=True, cache=True)(loop)
    except RuntimeError:
        # numba found no folder that it can write to.
        return njit(nogil=True)(loop)
    if _problem(Path(kept.stats.cache_path), Path(loop.__code__.co_filename)):
        return njit(nogil=True)(loop)
    return kept


def has_vnni(context: BaseContext) -> bool:
    """Whether numba compiles for a processor with AVX-512 VNNI; ``NUMBA_CPU_FEATURES`` can say that it has none."""
    return "+avx512vnni" in context.codegen().magic_tuple()[2]


@cache
def _problem(folder: Path, source: Path) -> str | None:
    """:func:`cache_problem`, which is reported once for each folder."""
    problem = cache_problem(folder, source)
    if problem:
        say(
            f"note: compiled code is not kept: {problem}; set NUMBA_CACHE_DIR to a folder of your own"
        )
    return problem


def cache_problem(folder: Path, source: Path) -> str | None:
    """Why a cache of compiled code must not be used; None if only those can write to it who can change ``source``.

    ``folder``: of the cache. ``source``: the file that was compiled.
    """
    if not hasattr(os, "geteuid") or not folder.exists():
        # Windows has no such permissions, and what does not exist has no contents.
        return None
    folder = folder.resolve()
    source = source.resolve()
    own = source.parent.stat()
    owners = {0, os.geteuid(), own.st_uid}
    open_to = own.st_mode & (stat.S_IWGRP | stat.S_IWOTH)

    def is_open(path: Path, sticky: bool = False) -> bool:
        status = path.stat()
        if status.st_uid not in owners:
            return True
        writers = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) & ~open_to
        # On systems that give each user a group, files of a user may be writable by it.
        if status.st_gid == os.getegid():
            writers &= ~stat.S_IWGRP
        # In a sticky folder such as /tmp, others can replace only what is theirs.
        return bool(writers) and not (sticky and status.st_mode & stat.S_ISVTX)

    if is_open(folder):
        return f"others can write to {folder}"
    for parent in folder.parents:
        if is_open(parent, sticky=True):
            return f"others can replace {folder}, because they can write to {parent}"
    for path in folder.glob("*.nb[ic]"):
        try:
            if is_open(path):
                return f"others can write to {path}"
        except FileNotFoundError:
            continue  # another process replaced it
    return None
