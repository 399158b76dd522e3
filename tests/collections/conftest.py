"""A local mirror with synthetic stand-ins of every collection."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.fakes import write_standins


@dataclass
class Mirror:
    """A server of ``folder``; ``requested`` collects the paths of all requests."""

    folder: Path
    catalogue: Path
    url: str = ""
    requested: list[str] = field(default_factory=list)
    half: threading.Event = field(
        default_factory=threading.Event
    )  #: set: send half of a file, then stall


class _Handler(SimpleHTTPRequestHandler):
    mirror: Mirror

    def do_GET(self) -> None:
        self.mirror.requested.append(self.path)
        if not self.mirror.half.is_set():
            return super().do_GET()
        content = Path(self.translate_path(self.path)).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        self.wfile.flush()
        while self.mirror.half.is_set():
            threading.Event().wait(0.02)
        return None

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="session")
def standins(tmp_path_factory, shared_data) -> Path:
    """The folder written by ``python tests/support/fakes.py``."""
    folder = tmp_path_factory.mktemp("standins")
    write_standins(folder, shared_data / "topics-and-qrels")
    return folder


@pytest.fixture
def mirror(standins) -> Iterator[Mirror]:
    """A mirror for one test."""
    mirror = Mirror(standins, standins / "catalogue.toml")
    handler = type("Handler", (_Handler,), {"mirror": mirror})
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *a: handler(*a, directory=str(mirror.folder))
    )  # type: ignore[arg-type]
    mirror.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield mirror
    mirror.half.clear()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    """Removes environment variables of the person who runs the tests."""
    for name in (
        "DUPMAE_IR_CATALOGUE",
        "DUPMAE_IR_MIRROR",
        "DUPMAE_IR_CACHE",
        "DUPMAE_IR_OFFLINE",
        "HF_HUB_OFFLINE",
    ):
        monkeypatch.delenv(name, raising=False)
