"""An S3-compatible server in this process, and a network to it that can stop."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait  # select() refuses descriptors above 1,023

BLOCK = 1 << 14


@contextmanager
def s3_server() -> Iterator[str]:
    """Yields the URL of a moto server."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


class Network:
    """A TCP proxy that passes ``limit`` bytes in both directions together, and then nothing, without closing."""

    def __init__(self, port: int, limit: int) -> None:
        self.to = port
        self.limit = limit
        self.stalled = threading.Event()
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://{}:{}".format(*self._listener.getsockname())
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """Close every connection, and wait."""
        self._end.set()
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _accept(self) -> None:
        while not self._end.is_set():
            if wait([self._listener], 0.1):
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.to)) as server:
            other = {client: server, server: client}
            while not self._end.is_set():
                for source in wait(list(other), 0.1):
                    if not self._pass(source, other[source]):
                        return

    def _pass(self, source: socket.socket, to: socket.socket) -> bool:
        """Pass what has arrived; False at the end of the stream."""
        if self.stalled.is_set():
            self._end.wait(0.1)
            return True
        block = source.recv(BLOCK)
        with self._lock:
            self.limit -= len(block)
            if self.limit < 0:
                self.stalled.set()
                return True
        to.sendall(block)
        return bool(block)
