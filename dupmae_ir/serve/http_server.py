"""uvicorn with a limit on slow request heads, and a graceful stop that is no error."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from dupmae_ir.serve.config import ServeConfig

LONGEST_HEAD = 65536
KEEP_ALIVE = 60


class TimedProtocol(H11Protocol):
    """HTTP/1.1 whose clients must finish a request's head within ``head_seconds`` of its first byte (or of
    connecting); others are disconnected."""

    head_seconds = 10.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time for the first head."""
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        """Start or end the time for a head."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._arm()
        else:
            self._disarm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._disarm()
        super().connection_lost(exc)

    def _arm(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.head_seconds, self._give_up)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's server. SIGTERM and Ctrl-C let the running requests finish; a second one ends at once."""

    def __init__(self, config: uvicorn.Config, on_reload: Callable[[], None]) -> None:
        super().__init__(config)
        self.on_reload = on_reload

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop gracefully at the first signal, without waiting for the running requests at the second."""
        if self.should_exit:
            self.force_exit = True
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)  # tracebacks of the cancelled requests
        super().handle_exit(sig, frame)

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


def make_server(app: ASGIApp, config: ServeConfig, on_reload: Callable[[], None]) -> Server:
    """A server of ``app`` with the limits of ``config``."""
    protocol = type("Protocol", (TimedProtocol,), {"head_seconds": config.slow_client})
    settings = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(config.stop_seconds)),
        limit_concurrency=config.connections,
        h11_max_incomplete_event_size=LONGEST_HEAD,
        proxy_headers=False,
    )
    return Server(settings, on_reload)
