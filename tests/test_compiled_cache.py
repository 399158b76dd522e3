"""numba's cache, from which it runs machine code: used only where nobody else can write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

pytest.importorskip("numba")

import numba

from dupmae_ir import compiled as module
from dupmae_ir.compiled import cache_problem, compiled

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no permissions of this kind")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder for numba's cache, and a source file next to it."""
    (tmp_path / "source").mkdir(mode=0o755)
    (tmp_path / "source" / "loops.py").write_text("")
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder))
    module._problem.cache_clear()
    yield folder
    module._problem.cache_clear()


def problem(folder: Path) -> str | None:
    return cache_problem(folder, folder.parent / "source" / "loops.py")


def add(a, b):
    return a + b


def kept_files(folder: Path) -> list[str]:
    return sorted({path.suffix for path in folder.rglob("*.nb*")})


def test_a_private_cache_is_used_and_an_open_one_is_not(folder, capfd):
    loop = compiled(add)
    assert loop(1, 2) == 3
    assert kept_files(folder) == [".nbc", ".nbi"]
    where = next(folder.rglob("*.nbi")).parent
    again = compiled(add)
    assert again(1, 2) == 3
    assert sum(again.stats.cache_hits.values()) == 1
    where.chmod(0o777)
    module._problem.cache_clear()
    for _ in range(2):
        fresh = compiled(add)
        assert fresh(1, 2) == 3
        assert sum(fresh.stats.cache_hits.values()) == 0
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert f"compiled code is not kept: others can write to {where}" in error
    assert "set NUMBA_CACHE_DIR to a folder of your own" in error


def test_who_can_write(folder, tmp_path):
    assert problem(folder) is None
    assert problem(folder / "missing") is None
    folder.chmod(0o1777)
    assert f"others can write to {folder}" in str(problem(folder))
    folder.chmod(0o755)
    planted = folder / "loops.add-1.py311.1.nbc"
    planted.write_bytes(b"code")
    planted.chmod(0o666)
    assert f"others can write to {planted}" in str(problem(folder))
    planted.chmod(0o644)
    assert problem(folder) is None
    link = tmp_path / "link"
    link.symlink_to(folder)
    folder.chmod(0o777)
    assert f"others can write to {folder}" in str(problem(link))
    folder.chmod(0o755)
    # A folder above it is as good: others can move the cache away, and put another one there.
    tmp_path.chmod(0o777)
    assert f"because they can write to {tmp_path}" in str(problem(folder))
    tmp_path.chmod(0o1777)
    assert problem(folder) is None
    tmp_path.chmod(0o755)
    # Whoever can write the source code needs no cache.
    folder.chmod(0o777)
    (tmp_path / "source").chmod(0o777)
    assert problem(folder) is None


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
def test_files_of_another_user(folder, tmp_path):
    planted = folder / "loops.add-1.py311.nbi"
    planted.write_bytes(b"index")
    os.chown(planted, 65534, 65534)
    assert f"others can write to {planted}" in str(problem(folder))
    planted.unlink()
    os.chown(folder, 65534, 65534)
    assert f"others can write to {folder}" in str(problem(folder))
    # The owner of the source code is trusted anyway.
    os.chown(tmp_path / "source", 65534, 65534)
    assert problem(folder) is None


def test_a_folder_of_a_group(folder):
    status = folder.stat()
    folder.chmod(0o775)
    assert problem(folder) is None
    if os.geteuid() == 0:
        os.chown(folder, status.st_uid, 65534)
        folder.chmod(0o775)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o775
        assert f"others can write to {folder}" in str(problem(folder))


def test_without_a_folder_that_numba_can_write_to(monkeypatch):
    def refuse(*_: object, **keywords: object) -> object:
        if "cache" in keywords:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(module, "njit", refuse)
    assert compiled(add) is add
