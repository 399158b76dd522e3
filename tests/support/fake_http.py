"""A loopback server for the stand-ins of servers."""

from __future__ import annotations

import gzip
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Refused(Exception):
    """A request that a server would refuse."""


class StandIn(Protocol):
    """What answers the requests."""

    def answer(self, method: str, path: str, body: str) -> tuple[Any, ...]:
        """Status and JSON, and headers as pairs. ``path`` includes the query string."""


@contextmanager
def served(standin: StandIn, password: str = "") -> Iterator[int]:
    """The port of a loopback server; with ``password``, it wants this Authorization header."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            headers: list[tuple[str, str]] = []
            given = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = (gzip.decompress(given) if self.headers.get("Content-Encoding") == "gzip" else given).decode()
            if password and self.headers.get("Authorization") != password:
                status, found = 401, {"error": "missing authentication credentials"}
            else:
                try:
                    status, found, *headers = standin.answer(self.command, self.path, body)
                except Refused as e:
                    status, found = 400, {"message": str(e)}
            data = json.dumps(found).encode()
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_DELETE = do_POST

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()
