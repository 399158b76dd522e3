"""uvicorn and the guard around the application: what a request passes before a route, and the headers of every answer.

* A head must arrive in time, and a graceful stop is no error.
* A body is read completely before the route runs, up to a limit of bytes and of seconds, so a slow client holds a
  connection but no place in the queue. Large bodies go on to the route one after another, with pauses for others.
* Without a token the server listens on loopback only and answers only to a loopback ``Host``, so that a web page whose
  name resolves to 127.0.0.1 (DNS rebinding) reads nothing.
* A request that may change something and comes from a page of another origin is refused, unless the origin is named.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from types import FrameType
from urllib.parse import quote, urlsplit

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dupmae_ir.console import say
from dupmae_ir.serve.config import ServeConfig

MAX_HEAD_BYTES = 65536
LEAST_READ = 65536
"""Bytes of an answer that a client must read in the time of a slow client."""
KEEP_ALIVE = 60
POLL_SECONDS = 0.1
"""How often a server that stops looks for a second signal, as uvicorn does."""
LARGE_BODY = 65536
"""Bytes of a body that takes more than about 5 ms to parse, in which the event loop does nothing else."""
LARGE_BODIES_PER_SECOND = 8 << 20
"""Bytes of large bodies that are parsed in a second, which takes about half of it."""
OPEN_PATHS = ("/health", "/ready", "/login", "/assets/")
"""Paths that need no token: they show nothing of an index."""
COOKIE = "dupmae_ir"
MAX_COOKIE_CHARACTERS = 8192
"""Characters of the cookies that are read, as many as common servers accept of a header: nobody has signed in yet."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Bounds of the times that are counted."""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
CLIENT: ContextVar[str] = ContextVar("client", default="")
"""The address of the client whose request is answered."""
_METHODS = (*SAFE_METHODS, "POST", "PUT", "PATCH", "DELETE")


class TimedProtocol(H11Protocol):
    """HTTP/1.1 whose clients must finish a request's head within ``seconds`` of its first byte (or of connecting), and
    read the rest of an answer, or :data:`LEAST_READ` bytes of it, in the same time; others are disconnected."""

    seconds = 10.0
    _deadline: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time for the first head."""
        super().connection_made(transport)
        # The time for reading begins with the first byte that must wait.
        transport.set_write_buffer_limits(0)
        self._arm()

    def data_received(self, data: bytes) -> None:
        """Start or end the time for a head."""
        super().data_received(data)
        # While a request is answered, the connection may be silent; otherwise what came begins a head.
        if self.cycle is None or self.cycle.response_complete:
            self._arm()
        else:
            self._disarm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadlines."""
        self._disarm()
        self._stop_reading()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the time for reading."""
        super().pause_writing()
        self._stop_reading()
        unread = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(self.seconds, self._check_reading, unread)

    def resume_writing(self) -> None:
        """End the time for reading: everything has been sent."""
        self._stop_reading()
        super().resume_writing()

    def _check_reading(self, before: int) -> None:
        # Nothing is added while writing is paused, so the difference is what the client has read.
        unread = self.transport.get_write_buffer_size()
        if unread > before - LEAST_READ:
            self.transport.abort()
        else:
            self._reading = self.loop.call_later(self.seconds, self._check_reading, unread)

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _arm(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.seconds, self._give_up)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's server. SIGTERM and Ctrl-C let the running requests finish; a second one ends at once. ``seconds``
    after the first, the process ends whatever it does, unless :attr:`ending` is cancelled."""

    def __init__(
        self, config: uvicorn.Config, on_reload: Callable[[], None], seconds: float
    ) -> None:
        super().__init__(config)
        self.on_reload = on_reload
        self.ending = threading.Timer(seconds, _end, [seconds])
        # A timer that is not a daemon would keep a stopped process until its time has come.
        self.ending.daemon = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop gracefully at the first signal, without waiting for the running requests at the second."""
        if self.should_exit:
            self.force_exit = True
            # Silences the tracebacks of the cancelled requests.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
        else:
            self.ending.start()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, and wait for the running requests; not any longer after a second signal."""
        closing = asyncio.ensure_future(self._close_when_forced())
        try:
            await super().shutdown(sockets)
        finally:
            closing.cancel()

    async def _close_when_forced(self) -> None:
        """Close all connections after a second signal: from Python 3.12 on, asyncio's server waits for them."""
        while not self.force_exit:
            await asyncio.sleep(POLL_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving; they are not raised again afterwards, since stopping is what was asked."""
        if threading.current_thread() is not threading.main_thread():
            yield  # signals reach the main thread only
            return
        handlers = {signal.SIGINT: self.handle_exit, signal.SIGTERM: self.handle_exit}
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = lambda *_: self.on_reload()
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _end(seconds: float) -> None:
    say(f"ended {seconds:g} s after the signal, with work unfinished")
    # sys.exit would wait for threads, which are what did not end.
    os._exit(1)


def make_server(app: ASGIApp, config: ServeConfig, on_reload: Callable[[], None]) -> Server:
    """A server of ``app`` with the limits of ``config``."""
    protocol = type("Protocol", (TimedProtocol,), {"seconds": config.slow_client})
    settings = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        # The rest is for closing what is open, before the timer ends the process.
        timeout_graceful_shutdown=0.8 * config.stop_seconds,  # type: ignore[arg-type] # it takes fractions as well
        limit_concurrency=config.connections,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        # X-Forwarded-For is not trusted: any client can send it.
        proxy_headers=False,
    )
    return Server(settings, on_reload, config.stop_seconds)


class Refused(Exception):
    """A request that no route sees."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers or {}


class Guard:
    """ASGI middleware around the whole application.

    Args:
        app: the application.
        token: the bearer token; None for a server on loopback without one.
        loopback: whether only a loopback ``Host`` is answered.
        origins: origins of other pages that may call the API.
        max_bytes: of a body.
        seconds: for a body to arrive.
        observe: called with route, method, status and seconds of each answer.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str | None,
        loopback: bool,
        origins: Sequence[str],
        max_bytes: int,
        seconds: float,
        observe: Callable[[str, str, int, float], None] = lambda *_: None,
    ) -> None:
        self.app = app
        self.loopback = loopback
        self.max_bytes = max_bytes
        self.seconds = seconds
        self.token = token
        self.cookie = cookie_value(token or "")
        self.origins = {origin.rstrip("/").lower() for origin in origins}
        self.observe = observe
        self._large_bodies = Pace(LARGE_BODIES_PER_SECOND)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 499  # as nginx counts clients that left
        CLIENT.set(scope["client"][0] if scope.get("client") else "")

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": _with_headers(message.get("headers", []))}
            await send(message)

        try:
            self._check(scope)
            body = await self._body(scope, receive)
            if len(body) > LARGE_BODY:
                await self._large_bodies.wait(len(body))
            await _unless_gone(self.app(scope, _replayed(body, receive), watched), receive)
        except Refused as e:
            await _refuse(e, watched)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            # A method is any word that a client sends: it must not add a counter of its own.
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self.observe(route, method, status, time.perf_counter() - started)

    def _check(self, scope: Scope) -> None:
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        host = headers.get("host", "")
        if self.loopback and not is_loopback_host(host):
            raise Refused(400, "this server answers to 127.0.0.1 and localhost only")
        self._check_origin(scope, headers, host)
        path = scope["path"]
        # Browsers send no token with the request that asks whether they may send one.
        preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        if self.token is None or preflight or is_open_path(path) or self.allows(headers):
            return
        if path == "/" and "text/html" in headers.get("accept", ""):
            target = quote("/?" + scope["query_string"].decode("latin-1"), safe="")
            raise Refused(303, "sign in", {"location": f"/login?next={target}"})
        raise Refused(
            401, "a bearer token is needed", {"www-authenticate": 'Bearer realm="dupmae-ir"'}
        )

    def _check_origin(self, scope: Scope, headers: dict[str, str], host: str) -> None:
        origin = headers.get("origin")
        if scope["method"] in SAFE_METHODS or origin is None or origin.lower() in self.origins:
            return
        if origin.lower().partition("://")[2] != host.lower():
            raise Refused(
                403,
                "requests from pages of another origin are not allowed; `cors` of the server names origins",
            )

    def allows(self, headers: dict[str, str]) -> bool:
        """Whether the headers carry the token, or the cookie that the login page sets for it."""
        assert self.token is not None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and same(given.strip(), self.token):
            return True
        # Not http.cookies: before Python 3.11.10 its time is quadratic in a quoted value, and nobody has signed in yet.
        for pair in headers.get("cookie", "")[:MAX_COOKIE_CHARACTERS].split(";"):
            name, _, value = pair.strip().partition("=")
            if name == COOKIE and same(value, self.cookie):
                return True
        return False

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        # The declared length refuses a large body before it is sent; what arrives is counted all the same.
        declared = b"0"
        for name, value in scope["headers"]:
            if name.lower() == b"content-length":
                declared = value
                break
        # The connection is closed, since the rest of the body is still on its way.
        too_long = Refused(413, f"the body exceeds {self.max_bytes} bytes", {"connection": "close"})
        if declared.isdigit() and int(declared) > self.max_bytes:
            raise too_long
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "the client closed the connection")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    more = message.get("more_body", False)
                    if size > self.max_bytes:
                        raise too_long
        except TimeoutError:
            raise Refused(408, "the body did not arrive in time", {"connection": "close"}) from None
        return b"".join(parts)


class Pace:
    """Lets through what costs ``rate`` units in a second, so the event loop has time for others in between."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._next = 0.0  # when the next one may go on, by the monotonic clock

    async def wait(self, cost: float) -> None:
        """Return in the order of the calls, ``cost / rate`` seconds before the next call does."""
        now = time.monotonic()
        begin = max(now, self._next)
        self._next = begin + cost / self.rate
        if begin > now:
            await asyncio.sleep(begin - now)


def is_open_path(path: str) -> bool:
    """Whether ``path`` needs no token: it is one of :data:`OPEN_PATHS`, or below one that ends with a slash."""
    for open_path in OPEN_PATHS:
        if path == open_path or (open_path.endswith("/") and path.startswith(open_path)):
            return True
    return False


def is_loopback_host(host: str) -> bool:
    """Whether a ``Host`` header names this machine's loopback."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_local_path(target: str) -> bool:
    """Whether an address leads to this server: a browser reads ``//x`` and ``/\\x`` as another one."""
    # Printable, as a browser drops tabs and line breaks before it reads the address: they could hide a second slash.
    return target.startswith("/") and target[1:2] not in ("/", "\\") and target.isprintable()


def cookie_value(token: str) -> str:
    """What the login page stores in the browser: derived from the token, which it does not reveal."""
    return hmac.new(token.encode(), b"dupmae-ir page", hashlib.sha256).hexdigest()


def same(a: str, b: str) -> bool:
    """Whether two secrets are equal, in a time that does not depend on where they differ."""
    # As bytes, since compare_digest refuses strings that are not ASCII, and a client may send any.
    return hmac.compare_digest(a.encode("utf-8", "replace"), b.encode("utf-8", "replace"))


def _with_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """``headers`` and those of :data:`HEADERS` that an answer does not set itself."""
    complete = list(headers)
    present = {name.lower() for name, _ in complete}
    for name, value in HEADERS.items():
        if name.encode() not in present:
            complete.append((name.encode(), value.encode()))
    return complete


async def _unless_gone(answer: Awaitable[None], receive: Receive) -> None:
    """Wait for ``answer``, and cancel it when the client has closed the connection."""
    answering = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        client_left = leaving.done()
        if not answering.done():
            answering.cancel()
        try:
            await answering
        except asyncio.CancelledError:
            # An answer to a client that has left was cancelled on purpose; otherwise the server itself is stopping.
            if not client_left:
                raise
    finally:
        for task in (answering, leaving):
            task.cancel()


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives the body once and then waits for the client to leave."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        if pending:
            return pending.pop()
        return await receive()

    return replay


async def _refuse(refused: Refused, send: Send) -> None:
    content = json.dumps({"detail": refused.detail}).encode()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(content)),
        **refused.headers,
    }
    await send(
        {
            "type": "http.response.start",
            "status": refused.status,
            "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": content})
