"""The work of ``dupmae-ir serve``."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from typing import TypedDict

from starlette.types import ASGIApp

from dupmae_ir.console import say
from dupmae_ir.device import need_packages, with_torch_threads
from dupmae_ir.errors import EnvironmentProblem
from dupmae_ir.long_running import (
    allow_open_files,
    leave_out_of_collections,
    modules_left_out_of_collections,
)
from dupmae_ir.serve.api import create_app
from dupmae_ir.serve.config import ServeConfig
from dupmae_ir.serve.http_server import make_server
from dupmae_ir.serve.index_changes import writing_routes
from dupmae_ir.serve.page import page_routes
from dupmae_ir.serve.pyserini_routes import pyserini_routes
from dupmae_ir.serve.service import Service


class ServeSummary(TypedDict):
    """What was done: lists returned, how many of them were certified, and the seconds until the stop."""

    lists: int
    certified: int
    seconds: float


@with_torch_threads
def run(config: ServeConfig) -> ServeSummary:
    """Serve until SIGTERM or Ctrl-C, and return what was done.

    Raises :class:`DupmaeError` subclasses for an index that cannot be opened, a missing token and a port in use.
    """
    started = time.perf_counter()
    allow_open_files()
    if config.mcp or config.mcp_http:
        need_packages("the Model Context Protocol", ["mcp"], "mcp")
    if config.watch:
        need_packages("watching a folder", ["watchfiles"], "documents")
    token = config.token()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    logging.getLogger("dupmae_ir.serve").setLevel(logging.WARNING if config.quiet else logging.INFO)
    # Bound before the model is loaded: an address in use is reported at once.
    listener = None if config.mcp else listen(config)
    service = Service(config, token)
    interval = sys.getswitchinterval()
    # An encoding waits after every product for the threads that write large answers and pages. Three of them made it
    # nine times as long with turns of 5 ms, Python's default, and five times with turns of 1 ms.
    sys.setswitchinterval(0.001)
    try:
        with modules_left_out_of_collections():
            if listener is None:
                _serve_stdio(service)
            else:
                with listener:
                    service.open()
                    _serve_http(service, listener)
    finally:
        sys.setswitchinterval(interval)
        service.close()
    answerer = service.answerer
    return {
        "lists": answerer.certified + answerer.uncertified,
        "certified": answerer.certified,
        "seconds": round(time.perf_counter() - started, 1),
    }


def listen(config: ServeConfig) -> socket.socket:
    """A listening socket, bound before the model loads. Raises :class:`EnvironmentProblem` for an address in use."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only for sockets that name TCP. With it, the body of an answer waits for
    # the client's delayed acknowledgement of the head, 40 ms on Linux.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # A restarted server need not wait until the connections of the one before have timed out.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as e:
        listener.close()
        raise EnvironmentProblem(
            f"cannot listen on {config.host}:{config.port}: {e.strerror or e}; try another `port`"
        ) from None
    return listener


def _serve_stdio(service: Service) -> None:
    # The SDK is an extra of its own, so it is imported only here and below.
    from dupmae_ir.serve.mcp import make_tools, stdout_to_stderr

    # What a library prints on standard output would be no message of the protocol.
    with stdout_to_stderr():
        service.open()
    say(f"serving {', '.join(service.catalogue.names)} to standard output", service.config.quiet)
    tools = make_tools(service)
    leave_out_of_collections()
    asyncio.run(tools.run_stdio_async())


def make_app(service: Service) -> ASGIApp:
    """The API, Pyserini's routes, the page and, where it is asked for, the Model Context Protocol."""
    routers = [pyserini_routes(service), page_routes(service)]
    if service.config.writable:
        routers.append(writing_routes(service))
    if not service.config.mcp_http:
        return create_app(service, routers)
    from dupmae_ir.serve.mcp import http_routes, make_tools

    return create_app(service, routers, *http_routes(make_tools(service)))


def _serve_http(service: Service, listener: socket.socket) -> None:
    config = service.config
    server = make_server(make_app(service), config, service.reload_soon)
    # Only now, so that clients are refused while the indexes are opened, instead of waiting without an answer.
    listener.listen(min(config.connections, 2048))
    host = f"[{config.host}]" if ":" in config.host else config.host
    port = listener.getsockname()[1]
    names = service.catalogue.names
    what = names[0]
    if len(names) > 1:
        what = f"{len(names)} indexes ({', '.join(names)})"
    # The routes are more objects than the modules.
    leave_out_of_collections()
    say(f"serving {what} at http://{host}:{port}/ (Ctrl-C stops)", config.quiet)
    asyncio.run(server.serve(sockets=[listener]))
    # The time to end includes the threads of the service, so the timer is cancelled last.
    service.close()
    server.ending.cancel()
