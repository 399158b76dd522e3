"""The server as a process: slow clients, signals, kills under load, and the errors of the command."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.serving import LONG, Running, running, wait_until_searching

from dupmae_ir.serve.__main__ import main
from dupmae_ir.serve.config import ServeConfig
from dupmae_ir.serve.http_server import make_server
from dupmae_ir.serve.run import listen


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[Running]:
    with running(folders["docs"], "--slow-client", 0.5, "--connections", 40) as server:
        yield server


def test_it_answers(server: Running) -> None:
    status, headers, body = server.request(
        "POST", "/api/search", {"query": "lock queue", "hits": 2}
    )
    assert (status, len(json.loads(body)["results"][0]["hits"])) == (200, 2)
    assert "server" not in headers


def test_an_answer_does_not_wait_for_acknowledgements(folders: dict[str, Path]) -> None:
    """asyncio sets TCP_NODELAY on the connections of this listener. Without it each answer takes 40 ms more."""
    accepted: list[int] = []

    class Greeting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            connection = transport.get_extra_info("socket")
            accepted.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            transport.close()

    async def connect() -> None:
        with listen(ServeConfig(index=(str(folders["docs"]),), port=0)) as listener:
            listener.listen()
            server = await asyncio.get_running_loop().create_server(Greeting, sock=listener)
            async with server:
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                await reader.read()
                writer.close()

    asyncio.run(connect())
    assert [bool(found) for found in accepted] == [True]


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET /health HT",
        b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{",
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_slow_clients_are_disconnected(server: Running, start: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(start)
        began = time.monotonic()
        reply = client.recv(4096)
        assert 0.3 < time.monotonic() - began < 8
        assert reply == b"" or reply.startswith(b"HTTP/1.1 408 ")
    assert server.request("GET", "/health")[0] == 200


@contextmanager
def answering(size: int, **settings: Any) -> Iterator[int]:
    """The port of a server in this process whose every answer has ``size`` bytes."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for state in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{state}.complete"})
            return
        headers = [(b"content-length", str(size).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": bytes(size)})

    config = ServeConfig(index=("I",), port=0, **settings)
    with listen(config) as listener:
        listener.listen()
        server = make_server(app, config, lambda: None)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def read_after(port: int, wait: float) -> int:
    """Bytes that arrive at a client with a small buffer that waits before it reads."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(20)
        client.connect(("127.0.0.1", port))
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        time.sleep(wait)
        found = 0
        with suppress(ConnectionResetError):
            while part := client.recv(1 << 20):
                found += len(part)
        return found


def test_a_client_that_does_not_read_its_answer_is_disconnected() -> None:
    with answering(size := 32 << 20, slow_client=0.5) as port:
        assert read_after(port, 3) < size
        assert read_after(port, 0) > size


def test_a_head_that_drips_is_disconnected(server: Running) -> None:
    """Each byte comes in time, the whole does not; also on a connection that has been answered before."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        assert drip(client, 8) < 8


def drip(client: socket.socket, most: float) -> float:
    """Send a byte every 0.1 s until the server closes the connection; returns the seconds that took."""
    began = time.monotonic()
    try:
        while time.monotonic() - began < most:
            client.sendall(b"G")
            time.sleep(0.1)
    except ConnectionError:
        pass
    return time.monotonic() - began


def test_too_many_connections_get_503(server: Running) -> None:
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(45)]
    try:
        time.sleep(0.1)
        assert server.request("GET", "/health")[0] == 503
    finally:
        for connection in idle:
            connection.close()
    time.sleep(0.2)
    assert server.request("GET", "/health")[0] == 200


@pytest.mark.parametrize(
    "head",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 70000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["binary", "version", "endless", "http2"],
)
def test_what_is_not_http_gets_400(server: Running, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(head)
        reply = client.recv(4096)
    assert reply == b"" or reply.startswith(b"HTTP/1.1 400")
    assert server.request("GET", "/health")[0] == 200


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)]
)
def test_a_stop_answers_what_is_running(folders: dict[str, Path], number: int) -> None:
    """Requests that arrived before the signal are answered; the exit status is 0 and a line says what was done."""
    with (
        running(folders["docs"], "--stop-seconds", 100, "--request-timeout", 100) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        replies = [pool.submit(server.request, "POST", "/api/search", LONG, 100) for _ in range(2)]
        wait_until_searching(server)
        assert server.stop(number) == 0
        assert [reply.result()[0] for reply in replies] == [200] * 2
        assert server.process.stderr is not None
        assert "stopped after" in server.process.stderr.read()


def test_a_second_signal_does_not_wait(folders: dict[str, Path]) -> None:
    with running(folders["docs"], "--batch-size", 1) as server, ThreadPoolExecutor(4) as pool:
        replies = [pool.submit(server.request, "POST", "/api/search", LONG) for _ in range(4)]
        wait_until_searching(server)
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert server.stop(signal.SIGINT) == 0
        assert any(reply.exception() or reply.result()[0] == 500 for reply in replies)
        assert server.process.stderr is not None
        assert "Traceback" not in (said := server.process.stderr.read())
        assert "stopped after" in said


@pytest.mark.nightly
def test_a_kill_under_load_leaves_an_index_that_can_be_served_again(
    folders: dict[str, Path],
) -> None:
    for _ in range(3):
        with running(folders["docs"]) as server:
            answered = []
            stop = threading.Event()

            def load(
                server: Running = server,
                answered: list[int] = answered,
                stop: threading.Event = stop,
            ) -> None:
                while not stop.is_set():
                    try:
                        answered.append(server.request("POST", "/api/search", {"query": "lock"})[0])
                    except (OSError, http.client.HTTPException):
                        return

            clients = [threading.Thread(target=load) for _ in range(4)]
            for client in clients:
                client.start()
            while len(answered) < 20:
                time.sleep(0.01)
            assert server.stop(signal.SIGKILL) == -signal.SIGKILL
            stop.set()
            for client in clients:
                client.join(30)
                assert not client.is_alive()
            assert set(answered) == {200}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--index", "nowhere"], "nowhere: no such index"),
        (["--index", "x", "--host", "0.0.0.0"], "needs a token"),
        (["--index", "x", "--token-file", "none"], "none: no such file"),
        ([], "give one of --index, --indexes"),
    ],
)
def test_misuse_is_one_line(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--port", "0", *flags]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_port_in_use_is_one_line(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--index", "x", "--port", str(server.port)]) == 1
    err = capsys.readouterr().err
    assert "try another --port" in err
    assert err.count("\n") == 1
