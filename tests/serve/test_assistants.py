"""The tools for assistants, called with the client of the official SDK: in process, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the extra: pip install 'dupmae-ir[mcp]'")

from mcp import Client, StdioServerParameters
from support.serving import serving, texts

from dupmae_ir.serve.http_server import make_server
from dupmae_ir.serve.mcp import make_tools
from dupmae_ir.serve.run import listen, make_app

pytestmark = pytest.mark.jvm
ROOT = Path(__file__).resolve().parents[2]


async def use(server: Any) -> None:
    """What an assistant does; ``server``: anything that the client connects to."""
    async with Client(server) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"search", "get_document", "get_file", "explain", "list_indexes"}
        assert "plain words" in str(tools["search"].input_schema)
        found = await call(client, "search", query="lock queue", hits=3)
        assert (found["index"], found["nothing_missed"], len(found["hits"])) == ("docs", True, 3)
        first = found["hits"][0]
        assert first["passage"] == texts(60)[first["docid"]]
        document = await call(client, "get_document", docid=first["docid"])
        assert document["passages"][0]["text"] == texts(60)[first["docid"]]
        why = await call(client, "explain", query="lock queue", docid=first["docid"])
        assert why["score"] == first["score"] == pytest.approx(why["dense"] + why["impact"])
        listed = await call(client, "list_indexes")
        assert listed["indexes"][0]["index"] == "docs"
        for arguments in (
            {"query": "a", "index": "nope"},
            {"query": ""},
            {"query": "x" * 5000},
            {"query": "a", "hits": 0},
            {"query": "a", "k": 3},
        ):
            wrong = await client.call_tool("search", arguments)
            assert wrong.is_error
            assert str(ROOT) not in str(wrong.content)
            (said,) = wrong.content
            assert "\n" not in said.text
            assert "pydantic" not in said.text
        assert said.text == "k: no argument of search, which has query, index, hits, filter, mode"
        missing = await client.call_tool("get_document", {"docid": "nope"})
        assert missing.is_error
        assert "no document of this id" in str(missing.content)


async def call(client: Any, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


def test_in_process(folders: dict[str, Path]) -> None:
    with serving(*folders.values()) as client:
        asyncio.run(use(make_tools(client.service)))


def test_over_stdio(folders: dict[str, Path]) -> None:
    """As an assistant starts it; nothing but messages is on standard output."""
    command = [
        "-m",
        "dupmae_ir",
        "serve",
        "--index",
        str(folders["docs"]),
        "--threads",
        "1",
        "--mcp",
        "--quiet",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    asyncio.run(
        use(StdioServerParameters(command=sys.executable, args=command, env=environment, cwd=ROOT))
    )


@contextmanager
def over_http(folder: Path, token: str | None = None) -> Iterator[str]:
    with serving(folder, port=0, mcp_http=True, token=token) as client:
        listener = listen(client.service.config)
        listener.listen(64)
        server = make_server(make_app(client.service), client.service.config, lambda: None)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        server.should_exit = True
        thread.join(30)


def test_over_http(folders: dict[str, Path]) -> None:
    with over_http(folders["docs"]) as address:
        assert asyncio.run(reaches(address)) is True
        asyncio.run(use(address))


def test_http_needs_the_token(folders: dict[str, Path]) -> None:
    with over_http(folders["docs"], "a-token-of-many-characters") as address:
        assert asyncio.run(reaches(address)) is False


async def reaches(address: str) -> bool:
    try:
        async with Client(address) as client:
            await client.list_tools()
    except BaseException:  # whatever the SDK raises for 401, or a group of it
        return False
    return True
