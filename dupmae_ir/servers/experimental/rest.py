"""Requests to a server's REST interface, with errors in one line and neither proxies nor ``~/.netrc``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import cast
from urllib.parse import SplitResult

import requests
from requests.adapters import HTTPAdapter

from dupmae_ir.console import one_line
from dupmae_ir.servers.protocol import ServerFailed, ServerTable
from dupmae_ir.types import Metadata, MetadataScalar

Json = dict[str, object]
CONNECTIONS = 8  #: of one client to a server
EXACT = 2**53
"""Integers above are not doubles."""


def kind_of(value: MetadataScalar) -> str:
    """``bool``, ``str`` or ``num``: values of different kinds never compare."""
    return "bool" if isinstance(value, bool) else "str" if isinstance(value, str) else "num"


def scalars(metadata: Metadata) -> Iterator[tuple[str, MetadataScalar]]:
    """The names and single values, without numbers that are infinite or none."""
    for name, value in metadata.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str) or math.isfinite(one):
                yield name, one


class RestTable(ServerTable):
    """A table of a server with JSON over HTTP; safe for several threads. ``session``: for credentials."""

    def __init__(self, parts: SplitResult, name: str, timeout: float, port: int) -> None:
        super().__init__(parts, name, timeout)
        secure = parts.scheme.endswith("+https")
        self._base = f"{'https' if secure else 'http'}://{parts.hostname}:{parts.port or port}"
        self.session = requests.Session()
        self.session.trust_env = False  # no proxies, and no passwords of ~/.netrc for another service
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, HTTPAdapter(pool_connections=1, pool_maxsize=CONNECTIONS))

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
                timeout=self.timeout,
                allow_redirects=False,
            )
        except (requests.RequestException, OSError) as e:
            raise self.unanswered(type(e).__name__) from None

    def refusal(self, answer: requests.Response) -> ServerFailed:
        """The error for a response that is not a success."""
        return ServerFailed(f"{self.where}: {answer.status_code} {answer.reason}: {one_line(answer.text, 300)}")

    def close(self) -> None:
        """Release the connections."""
        self.session.close()
