"""Tools for assistants over the Model Context Protocol: search, get_document, explain, list_indexes.

The tools use the queue of the service, as the API does. They return what an assistant can use: the passage that
matched instead of a whole text, the strongest words, and whether the list is proved complete.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, Any, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import BaseModel, Field
from starlette.routing import BaseRoute

from dupmae_ir import __version__
from dupmae_ir.errors import DupmaeError, UnknownName
from dupmae_ir.search.query_batching import Busy
from dupmae_ir.serve import batch_handler
from dupmae_ir.serve.api import check_hits, check_texts, index_list
from dupmae_ir.serve.batch_handler import HitFields, IndexTask, NotFound, Ranking, Search, Unavailable, WrongFilter
from dupmae_ir.serve.catalogue import OpenIndex
from dupmae_ir.serve.errors import LimitExceeded
from dupmae_ir.serve.schemas import Condition, Explained, IndexList, Mode, StoredText
from dupmae_ir.serve.service import Service

T = TypeVar("T")
INSTRUCTIONS = (
    "Search collections of documents. `search` returns passages with the words that matched; `get_document` the whole "
    "text of a hit; `explain` why a document scores as it does. `exact` means: it is proved that no better document "
    "was missed."
)
WORDS = 12
"""Matched words of a hit."""
PASSAGE = 800
"""Characters of a hit's passage."""

Query = Annotated[str, Field(min_length=1, description="what to look for, in plain words")]
Index = Annotated[str | None, Field(description="name of an index (see list_indexes); without it, the first")]
Docid = Annotated[str, Field(min_length=1, description="id of a document, as search returns it")]


class ToolHit(BaseModel):
    """One hit."""

    rank: int
    docid: str
    score: float
    title: str
    passage: str = Field(description="the part of the text that matches best")
    matched: list[str] = Field(description="the words that matched, strongest first")


class ToolAnswer(BaseModel):
    """The hits of a query."""

    index: str
    exact: bool = Field(description="whether it is proved that no document with a higher score was missed")
    hits: list[ToolHit]


def make_tools(service: Service) -> MCPServer:
    """A server with the four tools."""
    server = MCPServer("dupmae_ir", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")

    @server.tool()
    async def search(
        query: Query,
        index: Index = None,
        hits: Annotated[int, Field(ge=1, le=100)] = 5,
        filter: Annotated[Condition | None, Field(description="condition on metadata, such as year >= 2020")] = None,
        mode: Annotated[Mode | None, Field(description="hybrid (default), dense (meaning) or impact (words)")] = None,
    ) -> ToolAnswer:
        """Find the documents that answer a query best."""
        return await guarded(_search(service, query, Ranking(index, mode, hits, None, filter)))

    @server.tool()
    async def get_document(docid: Docid, index: Index = None) -> StoredText:
        """The title, text and metadata of a document."""
        return await guarded(
            service.ask(IndexTask(index, lambda generation: batch_handler.document(generation, docid)))
        )

    @server.tool()
    async def explain(query: Query, docid: Docid, index: Index = None) -> Explained:
        """Why a document has its score for a query: the share of meaning (dense) and of each matched word."""

        def run(generation: OpenIndex) -> Explained:
            return batch_handler.explained(generation, query, [docid])[0]

        return await guarded(service.ask(IndexTask(index, run, [query])))

    @server.tool()
    async def list_indexes() -> IndexList:
        """The indexes that can be searched."""
        return index_list(service)

    return server


async def guarded(result: Awaitable[T]) -> T:
    """``result``; an error that a caller can act on becomes the tool's error, without details of the server."""
    try:
        return await result
    except (UnknownName, NotFound, Unavailable, WrongFilter, Busy) as e:
        raise ToolError(str(e)) from None
    except LimitExceeded as e:
        raise ToolError(e.message) from None
    except TimeoutError:
        raise ToolError("no answer in time") from None
    except DupmaeError:
        raise ToolError("internal error; the server's log has the reason") from None


async def _search(service: Service, query: str, ranking: Ranking) -> ToolAnswer:
    check_texts(service.config, [query], ["query"])
    check_hits(service.config, ranking.hits, ["hits"])
    found = await service.ask(Search(ranking, [query], HitFields(texts=True, passage=PASSAGE)))
    (result,) = found.results
    shown = []
    for hit, about in zip(result.hits, found.described[0], strict=True):
        title, snippet = hit.document.title if hit.document else "", about.snippet
        text = "\u2026 " * snippet.before + snippet.text + " \u2026" * snippet.after if snippet else ""
        matched = [word.word for word in about.words[:WORDS]]
        shown.append(
            ToolHit(rank=hit.rank, docid=hit.docid, score=hit.score, title=title, passage=text, matched=matched)
        )
    return ToolAnswer(index=found.generation.name, exact=result.certificate.exact, hits=shown)


def http_routes(server: MCPServer) -> tuple[list[BaseRoute], Callable[[], contextlib.AbstractAsyncContextManager[Any]]]:
    """The route /mcp, and what must run beside it. Hosts, origins and the token are checked by the guard."""
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = server.streamable_http_app(
        streamable_http_path="/mcp", json_response=True, stateless_http=True, transport_security=unchecked
    )
    return list(app.routes), server.session_manager.run


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """What libraries print while the indexes are opened goes to standard error; standard output is for messages."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
