"""Tokens, origins, hosts, bodies and the headers of every answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.serving import Client, serving

from dupmae_ir.serve import http_server
from dupmae_ir.serve.http_server import HEADERS, cookie_value, is_loopback_host

pytestmark = pytest.mark.jvm
TOKEN = "a-token-of-many-characters"


@pytest.fixture(scope="module")
def locked(folders: dict[str, Path]) -> Iterator[Client]:
    with serving(
        folders["dense"], token=TOKEN, host="0.0.0.0", cors=("https://example.org/",)
    ) as client:
        yield client


@pytest.mark.parametrize(
    "path",
    [
        "/api/search?query=a",
        "/api/indexes",
        "/metrics",
        "/openapi.json",
        "/v1/dense/search?query=a",
    ],
)
def test_nothing_of_an_index_is_shown_without_the_token(locked: Client, path: str) -> None:
    reply = locked.get(path)
    assert (reply.status, reply.headers["www-authenticate"]) == (401, 'Bearer realm="dupmae-ir"')
    for wrong in (
        "Bearer nonsense",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer",
        f"Bearer {TOKEN}x",
        "Bearer \xe9",
    ):
        assert locked.get(path, authorization=wrong).status == 401
    assert locked.get(path, cookie=f"dupmae_ir={TOKEN}").status == 401
    assert locked.get(path, authorization=f"Bearer {TOKEN}").status == 200
    assert locked.get(path, authorization=f"bearer {TOKEN}").status == 200
    assert locked.get(path, cookie=f"a=b; dupmae_ir={cookie_value(TOKEN)}").status == 200


def test_no_digest_is_computed_for_a_stranger(
    locked: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server.hmac, "new", lambda *_: pytest.fail("a digest for each cookie"))
    assert locked.get("/api/indexes", cookie="dupmae_ir=x;" * 4000).status == 401


def test_no_more_cookies_are_read_than_common_servers_accept(locked: Client) -> None:
    for others, status in ((600, 200), (700, 401)):
        cookie = "dupmae_ir=x;" * others + f"dupmae_ir={cookie_value(TOKEN)}"
        assert locked.get("/api/indexes", cookie=cookie).status == status


@pytest.mark.parametrize("origin", ["http://[", "http://evil.example", "null", "://", "localhost"])
def test_an_origin_that_is_not_the_page_is_refused(locked: Client, origin: str) -> None:
    assert locked.post("/api/reload", origin=origin).status == 403


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_need_no_token(locked: Client, path: str) -> None:
    assert locked.get(path).status == 200
    assert locked.get(f"{path}/../metrics").status == 401


def test_only_loopback_names_are_answered_without_a_token(client: Client) -> None:
    for host in ("localhost", "localhost:8000", "127.0.0.1:1", "127.9.9.9", "[::1]:8000"):
        assert client.get("/health", host=host).status == 200
    for host in (
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "192.168.0.1",
        "",
        "[::1",
        "127.0.0.1@evil.example",
    ):
        assert client.get("/api/indexes", host=host).status == 400
    assert not is_loopback_host("::1]")


def test_pages_of_other_origins(client: Client, locked: Client) -> None:
    asked = {"query": "a"}
    assert client.post("/api/search", asked, origin="http://localhost").status == 200
    for origin in ("https://evil.example", "null", "http://localhost:9"):
        assert client.post("/api/search", asked, origin=origin).status == 403
    assert (
        "access-control-allow-origin"
        not in client.get("/api/indexes", origin="https://evil.example").headers
    )
    allowed = {"origin": "https://example.org", "authorization": f"Bearer {TOKEN}"}
    assert (
        locked.post("/api/search", asked, **allowed).headers["access-control-allow-origin"]
        == "https://example.org"
    )
    preflight = {"origin": "https://example.org", "access_control_request_method": "POST"}
    assert locked.run(locked.call("OPTIONS", "/api/search", headers=preflight)).status == 200
    assert (
        "access-control-allow-origin"
        not in locked.get("/health", origin="https://evil.example").headers
    )


def test_every_answer_carries_the_headers(client: Client, locked: Client) -> None:
    replies = [
        client.get("/health"),
        client.get("/nothing"),
        locked.get("/metrics"),
        client.get("/health", host="x"),
    ]
    assert [r.status for r in replies] == [200, 404, 401, 400]
    for reply in replies:
        assert {name: reply.headers[name] for name in HEADERS} == HEADERS


def test_bodies_are_limited(folders: dict[str, Path]) -> None:
    with serving(folders["dense"], max_bytes=2000, slow_client=0.2) as client:
        assert client.post("/api/search", {"query": "a" * 1900}).status == 200
        assert client.post("/api/search", {"query": "a" * 2000}).status == 413
        # A body that is longer than it says, or says nothing.
        assert client.post("/api/search", b"x" * 3000, content_length="10").status == 413
        assert client.post("/api/search", b"x" * 3000, content_length="nonsense").status == 413
        assert client.run(_slowly(client)) == 408


async def _slowly(client: Client) -> int:
    """The answer to a body of which one byte comes every 50 ms."""
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.sleep(0.05)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-length", b"100")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/search",
        "query_string": b"",
        "headers": headers,
    }
    await client.app(scope, receive, send)
    return int(sent[0]["status"])
