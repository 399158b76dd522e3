"""Tools for assistants over the Model Context Protocol: search, get_document, get_file, explain, list_indexes.

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
from pydantic import BaseModel, Field, ValidationError
from starlette.routing import BaseRoute

from dupmae_ir import __version__
from dupmae_ir.errors import DupmaeError, UnknownName
from dupmae_ir.search.query_batching import Busy
from dupmae_ir.search.view.naming import NO_WORD, NOTABLE
from dupmae_ir.serve import batch_handler
from dupmae_ir.serve.api import check_hits, check_texts, index_list
from dupmae_ir.serve.batch_handler import (
    HitFields,
    IndexTask,
    NotFound,
    Ranking,
    Search,
    Unavailable,
    WrongFilter,
)
from dupmae_ir.serve.catalogue import OpenIndex
from dupmae_ir.serve.errors import LimitExceeded
from dupmae_ir.serve.schemas import (
    FILTERS,
    MAX_FILE,
    MODES_TEXT,
    Condition,
    Explained,
    FileText,
    IndexInfo,
    InFile,
    Mode,
    StoredText,
    index_size,
)
from dupmae_ir.serve.service import Service

T = TypeVar("T")
INSTRUCTIONS = (
    "Search collections of documents. `search` returns passages with the words that matched and the file they are in; "
    "`get_document` the full text of a passage and its neighbours; `get_file` the text of a file; `explain` why a "
    "passage scores as it does. `nothing_missed` means: it is proved that no passage with a higher score was missed, "
    "not that the passages answer the question."
)
WORDS = 12
"""Matched words of a hit."""
PASSAGE = 800
"""Characters of a hit's passage."""

Query = Annotated[str, Field(min_length=1, description="what to look for, in plain words")]
Index = Annotated[
    str | None, Field(description="name of an index (see list_indexes); without it, the first")
]
Docid = Annotated[
    str, Field(min_length=1, description="id of a passage or document, as search returns it")
]


class ToolHit(InFile):
    """One hit."""

    rank: int
    docid: str
    score: float
    title: str
    passage: str = Field(description="the part of the text that matches best")
    language: str | None = Field(
        description="language of the text, in English; null in an index of one language"
    )
    matched: list[str] = Field(
        description="the words that matched, strongest first; empty: found by meaning"
    )


class ToolAnswer(BaseModel):
    """The hits of a query."""

    index: str
    nothing_missed: bool = Field(
        description="whether it is proved that no text with a higher score was missed"
    )
    assumes: str | None = Field(
        None, description="what that proof takes for granted; null if all of it was checked"
    )
    note: str | None = Field(None, description="a remark on the hits")
    hits: list[ToolHit]


class NearbyPassages(BaseModel):
    """A passage, with its neighbours in its file."""

    passages: list[StoredText]


class ToolIndex(BaseModel):
    """One index."""

    index: str
    contents: str = Field(description="how much it has")
    modes: list[Mode]
    filter_fields: list[str] = Field(description="names that a filter can use")

    @classmethod
    def of(cls, info: IndexInfo) -> ToolIndex:
        """What an assistant needs to know of an index."""
        return cls(
            index=info.index,
            contents=index_size(info),
            modes=info.modes,
            filter_fields=info.metadata,
        )


class ToolIndexes(BaseModel):
    """All indexes; the first is the default."""

    indexes: list[ToolIndex]


def make_tools(service: Service) -> MCPServer:
    """A server with the five tools."""
    server = _Server(
        "dupmae_ir", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING"
    )

    @server.tool()
    async def search(
        query: Query,
        index: Index = None,
        hits: Annotated[int, Field(ge=1, le=100)] = 5,
        filter: Annotated[Condition | None, Field(description=FILTERS)] = None,
        mode: Annotated[Mode | None, Field(description=MODES_TEXT)] = None,
    ) -> ToolAnswer:
        """Find the documents that answer a query best."""
        return await guarded(_search(service, query, Ranking(index, mode, hits, None, filter)))

    @server.tool()
    async def get_document(
        docid: Docid,
        index: Index = None,
        neighbours: Annotated[
            int, Field(ge=0, le=20, description="passages of the same file before and after")
        ] = 0,
    ) -> NearbyPassages:
        """The title, text and metadata of a passage or document, with its neighbours in the file."""

        def run(generation: OpenIndex) -> NearbyPassages:
            return NearbyPassages(
                passages=batch_handler.with_neighbours(generation, docid, neighbours)
            )

        return await _one(service, index, run)

    @server.tool()
    async def get_file(
        path: Annotated[
            str, Field(min_length=1, description="path of a file, as search returns it")
        ],
        index: Index = None,
        start: Annotated[int, Field(ge=0, description="character of the text to begin at")] = 0,
    ) -> FileText:
        """The text of a file, put together from its passages."""
        return await _one(
            service, index, lambda opened: batch_handler.file_text(opened, path, start, MAX_FILE)
        )

    @server.tool()
    async def explain(query: Query, docid: Docid, index: Index = None) -> Explained:
        """Why a document has its score for a query: the share of meaning (dense) and of each matched word."""

        return await _one(
            service, index, lambda opened: batch_handler.explained(opened, query, [docid])[0], query
        )

    @server.tool()
    async def list_indexes() -> ToolIndexes:
        """The indexes that can be searched."""
        return ToolIndexes(indexes=[ToolIndex.of(info) for info in index_list(service).indexes])

    # The SDK has no public way to the models of arguments.
    for tool in server._tool_manager.list_tools():
        # By default pydantic ignores an unknown argument: a misspelt filter would go unnoticed.
        tool.fn_metadata.arg_model.model_config["extra"] = "forbid"
        tool.fn_metadata.arg_model.model_rebuild(force=True)
        tool.parameters["additionalProperties"] = False
    return server


class _Server(MCPServer):
    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """What a tool returns. Wrong arguments are refused in one line instead of pydantic's several."""
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as e:
            if not isinstance(e.__cause__, ValidationError):
                raise
            error = e.__cause__.errors()[0]
        reason = error["msg"]
        if error["type"] == "extra_forbidden":
            tool = self._tool_manager.get_tool(name)
            arguments_of_tool = tool.parameters["properties"] if tool else ()
            reason = f"no argument of {name}, which has {', '.join(arguments_of_tool)}"
        location = ".".join(map(str, error["loc"]))
        raise ToolError(f"{location}: {reason}")


async def _one(
    service: Service, index: str | None, run: Callable[[OpenIndex], T], query: str | None = None
) -> T:
    """What ``run`` returns for an index; ``query``: the one that it encodes."""
    work = IndexTask[None, T](index, lambda opened, _: [run(opened)], [None], query=query)
    _, (result,) = await guarded(service.ask(work))
    return result


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
    result = await service.ask(Search(ranking, [query], HitFields(texts=True, passage=PASSAGE)))
    (ranked,) = result.lists
    tool_hits = []
    for hit, described in zip(ranked.result.hits, ranked.described, strict=True):
        passage = ""
        snippet = described.snippet
        if snippet:
            before = "\u2026 " if snippet.before else ""
            after = " \u2026" if snippet.after else ""
            passage = before + snippet.text + after
        matched = []
        for word in described.words[:WORDS]:
            if word.share >= NOTABLE * hit.score:
                matched.append(word.word)
        tool_hits.append(
            ToolHit(
                rank=hit.rank,
                docid=hit.docid,
                score=hit.score,
                title=hit.document.title if hit.document else "",
                passage=passage,
                language=hit.language,
                matched=matched,
                **hit.model_dump(include=set(InFile.model_fields)),
            )
        )
    note = ranked.result.certificate.why_not
    if tool_hits and not any(hit.has_query_word for hit in ranked.described):
        note = NO_WORD
    return ToolAnswer(
        index=result.generation.name,
        nothing_missed=ranked.result.certificate.exact,
        assumes=ranked.result.certificate.assumes,
        note=note,
        hits=tool_hits,
    )


def http_routes(
    server: MCPServer,
) -> tuple[list[BaseRoute], Callable[[], contextlib.AbstractAsyncContextManager[Any]]]:
    """The route /mcp, and what must run beside it. Hosts, origins and the token are checked by the guard."""
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = server.streamable_http_app(
        streamable_http_path="/mcp",
        json_response=True,
        stateless_http=True,
        transport_security=unchecked,
    )
    return list(app.routes), server.session_manager.run


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """What libraries print while the indexes are opened goes to standard error; standard output is for messages."""
    sys.stdout.flush()
    # The descriptor and not sys.stdout alone, since compiled libraries write to it directly.
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
