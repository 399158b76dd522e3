"""Small indexes, a service over them as a process or within this one, and clients."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.index.config import PostingsConfig
from dupmae_ir.index.run import run_postings
from dupmae_ir.serve.config import ServeConfig
from dupmae_ir.serve.run import make_app
from dupmae_ir.serve.service import Service

ROOT = Path(__file__).resolve().parents[2]
WORDS = [
    "lock",
    "thread",
    "wait",
    "queue",
    "fork",
    "pipe",
    "socket",
    "file",
    "path",
    "open",
    "close",
    "loop",
    "task",
]

LONG = {"query": [f"lock wait {n}" for n in range(128)], "hits": 60, "explain": True, "texts": True}
"""A request that takes long."""


def texts(n: int, seed: int = 0) -> dict[str, str]:
    rng = np.random.default_rng(seed)
    return {
        f"d{i}": " ".join(rng.choice(WORDS, int(rng.integers(3, 12))).tolist()) for i in range(n)
    }


def queries(n: int, seed: int = 1) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 3).tolist()) + f" {i}" for i in range(n)]


def write_index(folder: Path, documents: Mapping[str, str], **settings: Any) -> Path:
    """An index of the hashing encoder with texts and postings, so that searching starts no JVM."""
    corpus = folder.parent / f"{folder.name}.jsonl"
    lines = [
        {"_id": d, "title": f"Title of {d}", "text": text, "year": 2000 + n}
        for n, (d, text) in enumerate(documents.items())
    ]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    encode(
        EncodeConfig(
            corpus=str(corpus),
            index=str(folder),
            model="testing:hashing",
            quiet=True,
            **{"scale": 50, **settings},
        )
    )
    if settings.get("parts", "cls,ot") != "cls":
        run_postings(PostingsConfig(index=str(folder), quiet=True))
    return folder


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


class Client:
    """Calls an ASGI application on one event loop."""

    def __init__(self, app: Any, service: Service) -> None:
        self.app = app
        self.service = service
        self.loop = asyncio.new_event_loop()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def get(self, path: str, **headers: str) -> Reply:
        return self.run(self.call("GET", path, headers=headers))

    def post(self, path: str, content: Any = None, **headers: str) -> Reply:
        return self.run(self.call("POST", path, content, headers=headers))

    async def call(
        self, method: str, path: str, content: Any = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        body = (
            content
            if isinstance(content, bytes)
            else b""
            if content is None
            else json.dumps(content).encode()
        )
        given = {
            "host": "localhost",
            "content-type": "application/json",
            "content-length": str(len(body)),
        }
        given |= {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
        }
        sent: list[Any] = []
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return parts.pop() if parts else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Reply(sent[0]["status"], found, b"".join(m.get("body", b"") for m in sent[1:]))


@contextmanager
def serving(*indexes: str | Path, token: str | None = None, **settings: Any) -> Iterator[Client]:
    """A running service and a client of it."""
    config = ServeConfig(
        **{
            "index": tuple(map(str, indexes)),
            "quiet": True,
            "threads": 1,
            "reload_seconds": 0,
            **settings,
        }
    )
    service = Service(config, token)
    service.open()
    client = Client(make_app(service), service)
    try:
        yield client
    finally:
        service.close()
        client.loop.close()


@dataclass
class Running:
    process: subprocess.Popen[str]
    port: int

    def request(
        self, method: str, path: str, body: Any = None, timeout: float = 30
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"content-type": "application/json"})
        reply = connection.getresponse()
        found = reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()
        connection.close()
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(100)


@contextmanager
def running(folder: Path, *flags: Any) -> Iterator[Running]:
    command = [
        sys.executable,
        "-m",
        "dupmae_ir",
        "serve",
        "--index",
        folder,
        "--port",
        0,
        "--threads",
        1,
        *flags,
    ]
    process = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.search(r"serving docs at http://127\.0\.0\.1:(\d+)/", line)
    if not found:
        process.kill()
        pytest.fail(line + process.stderr.read())
    try:
        yield Running(process, int(found[1]))
    finally:
        process.kill()
        process.communicate()


def wait_until_searching(server: Running) -> None:
    while (
        b"queries_count" not in (found := server.request("GET", "/metrics")[2])
        or b"_queries_count 0" in found
    ):
        time.sleep(0.01)
