"""Requests to a server's REST interface, with errors in one line and neither proxies nor ``~/.netrc``."""

from __future__ import annotations

import json
from typing import cast
from urllib.parse import SplitResult

import requests
from requests.adapters import HTTPAdapter

from dupmae_ir.errors import UsageError
from dupmae_ir.servers.protocol import ServerFailed
from dupmae_ir.servers.urls import is_loopback, shown

Json = dict[str, object]
CONNECTIONS = 8  #: of one client to a server


class Rest:
    """A server that speaks JSON over HTTP; safe for several threads.

    ``where``: its URL for messages. ``session``: for credentials.
    """

    def __init__(self, parts: SplitResult, port: int, timeout: float) -> None:
        self.where, self._timeout = shown(parts), timeout
        self._secure, self._host = parts.scheme.endswith("+https"), parts.hostname
        self._base = f"{'https' if self._secure else 'http'}://{parts.hostname}:{parts.port or port}"
        self.session = requests.Session()
        self.session.trust_env = False  # no proxies, and no passwords of ~/.netrc for another service
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, HTTPAdapter(pool_connections=1, pool_maxsize=CONNECTIONS))

    def check_secret(self, secure_scheme: str) -> None:
        """Raise :class:`UsageError` if credentials would cross a network without TLS."""
        if not self._secure and not is_loopback(self._host):
            raise UsageError(f"credentials would be sent in the clear to {self._host}; use {secure_scheme}://")

    def call(self, method: str, path: str, body: Json | str | None = None, missing: bool = False) -> Json | None:
        """The answer to a request; None for a 404 if that may be ``missing``. Raises :class:`ServerFailed`."""
        answer = self.send(method, path, body)
        if answer.status_code == 404 and missing:
            return None
        if not answer.ok:
            raise self.refusal(answer)
        return cast(Json, answer.json())

    def post(self, path: str, body: Json | str) -> Json:
        """The answer to a POST."""
        found = self.call("POST", path, body)
        assert found is not None
        return found

    def send(self, method: str, path: str, body: Json | str | None = None) -> requests.Response:
        """The response, whatever its status. ``path`` is quoted; a string is sent as NDJSON."""
        data = body if isinstance(body, str) or body is None else json.dumps(body)
        kind = "application/x-ndjson" if isinstance(body, str) else "application/json"
        try:
            return self.session.request(
                method,
                f"{self._base}/{path}",
                data=data,
                headers={"Content-Type": kind},
                timeout=self._timeout,
                allow_redirects=False,
            )
        except (requests.RequestException, OSError) as e:
            raise ServerFailed(
                f"{self.where}: no answer within {self._timeout:g} s ({type(e).__name__}); raise `timeout`, or check "
                "server and network"
            ) from None

    def refusal(self, answer: requests.Response) -> ServerFailed:
        """The error for a response that is not a success."""
        return ServerFailed(f"{self.where}: {answer.status_code} {answer.reason}: {line(answer.text)}")

    def close(self) -> None:
        """Release the connections."""
        self.session.close()


def line(text: str) -> str:
    """The start of a message, on one line."""
    return " ".join(text.split())[:300]
