"""The REST API: one FastAPI application over a :class:`~dupmae_ir.serve.service.Service`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Annotated, Any, Literal, cast, get_args

from fastapi import APIRouter, FastAPI, Path, Query, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from pydantic import BaseModel
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from dupmae_ir import __version__
from dupmae_ir.serve import batch_handler
from dupmae_ir.serve.batch_handler import (
    JSON_CLOSING,
    HitFields,
    IndexTask,
    Ranking,
    Search,
    SearchResult,
    json_of,
    json_opening,
)
from dupmae_ir.serve.catalogue import OpenIndex
from dupmae_ir.serve.config import ServeConfig
from dupmae_ir.serve.errors import PLAIN, RESPONSES, LimitExceeded, add_handlers
from dupmae_ir.serve.http_server import Guard
from dupmae_ir.serve.schemas import (
    MAX_FILE,
    Condition,
    DocumentResponse,
    EncodeRequest,
    EncodeResponse,
    ExplainRequest,
    ExplainResponse,
    FileResponse,
    FileText,
    Health,
    IndexInfo,
    IndexList,
    Mode,
    Name,
    PathDocid,
    Ready,
    ReloadChange,
    ReloadResult,
    SearchRequest,
    SearchResponse,
    StateFields,
    StoredText,
    Text,
)
from dupmae_ir.serve.service import Service

DESCRIPTION = (
    "Search by meaning (dense), by words (impact) and by both (hybrid) over indexes of dupmae_ir. Every list carries a "
    "certificate: whether it is proved that no document of the index was missed."
)
IndexName = Annotated[Name | None, Query(description="name of the index; without it, the first")]


def create_app(
    service: Service,
    more: Sequence[APIRouter] = (),
    routes: Sequence[BaseRoute] = (),
    beside: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
) -> ASGIApp:
    """The application, with the guards around it.

    ``more`` and ``routes``: besides the API's own. ``beside``: what must run while the application does.
    """
    config = service.config

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with beside():
            yield
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="dupmae_ir",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,  # Swagger UI comes from another host
        redoc_url=None,
        lifespan=lifespan,
    )
    add_handlers(app)
    guarded = Guard(
        app,
        service.token,
        service.token is None,
        config.cors,
        config.max_bytes,
        config.slow_client,
        service.observe_request,
    )
    for router in (
        search_routes(service),
        encode_routes(service),
        index_routes(service),
        state_routes(service),
        *more,
    ):
        app.include_router(router)
    app.router.routes.extend(routes)
    if config.cors:
        origins = [origin.rstrip("/") for origin in config.cors]
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
    _limit_schema(app, config)
    return guarded


def search_routes(service: Service) -> APIRouter:
    """Search."""
    router = APIRouter(prefix="/api", tags=["search"], responses=RESPONSES)
    config = service.config

    @router.post("/search", operation_id="search", response_model=SearchResponse)
    async def search(request: SearchRequest) -> Response:
        """Rank the documents of an index for one query or several.

        Queries of one request, and of others that arrive at the same time, are encoded and ranked together.
        """
        queries = [request.query] if isinstance(request.query, str) else request.query
        check_texts(config, queries, ["body", "query"])
        check_hits(config, request.hits, ["body", "hits"])
        terms = request.terms if request.explain else None
        shown = HitFields(request.texts, terms)
        within = None if request.within is None else tuple(request.within)
        ranking = Ranking(request.index, request.mode, request.hits, within, request.filter)
        work = Search(ranking, queries, shown, as_json=True)
        return search_response(await service.ask(work))

    @router.get("/search", operation_id="search_by_url", response_model=SearchResponse)
    async def search_by_url(
        query: Annotated[Text, Query()],
        index: IndexName = None,
        mode: Annotated[Mode | None, Query()] = None,
        hits: Annotated[int, Query(ge=1)] = 10,
        texts: bool = False,
        explain: bool = False,
        filter: Annotated[Condition | None, Query()] = None,
    ) -> Response:
        """The same for one query, as a link."""
        check_texts(config, [query], ["query", "query"])
        check_hits(config, hits, ["query", "hits"])
        ranking = Ranking(index, mode, hits, None, filter)
        shown = HitFields(texts, terms=10 if explain else None)
        work = Search(ranking, [query], shown, as_json=True)
        return search_response(await service.ask(work))

    return router


def encode_routes(service: Service) -> APIRouter:
    """Encode and explain."""
    router = APIRouter(prefix="/api", tags=["search"], responses=RESPONSES)
    config = service.config

    @router.post("/encode", operation_id="encode", response_model=EncodeResponse)
    async def encode(request: EncodeRequest) -> Response:
        """The dense vectors and term weights of texts, by the encoder of an index."""
        check_texts(config, request.texts, ["body", "texts"])
        documents = request.kind == "document"

        def run(generation: OpenIndex, texts: Sequence[str]) -> list[bytes]:
            encodings = batch_handler.encoded(generation, texts, documents, request.vectors)
            return list(map(json_of, encodings))

        step = 1 if documents else batch_handler.SMALL
        work = IndexTask(request.index, run, request.texts, step, light=step)
        generation, encodings = await service.ask(work)
        head = EncodeResponse(**source(generation), encodings=[])
        return json_response(head, [[encoding] for encoding in encodings])

    @router.post("/explain", operation_id="explain", response_model=ExplainResponse)
    async def explain(request: ExplainRequest) -> Response:
        """The composition of documents' scores: the share of meaning, and of each matched term."""
        check_texts(config, [request.query], ["body", "query"])

        def run(generation: OpenIndex, docids: Sequence[str]) -> list[bytes]:
            return list(map(json_of, batch_handler.explained(generation, request.query, docids)))

        work = IndexTask(
            request.index,
            run,
            request.docids,
            query=request.query,
            light=batch_handler.EXPLANATIONS_PER_QUERY,
        )
        generation, documents = await service.ask(work)
        head = ExplainResponse(**source(generation), query=request.query, documents=[])
        return json_response(head, [[document] for document in documents])

    return router


def index_routes(service: Service) -> APIRouter:
    """The indexes and their documents."""
    router = APIRouter(prefix="/api", tags=["indexes"], responses=RESPONSES)

    @router.get("/documents/{docid:path}", operation_id="document")
    async def stored(
        docid: Annotated[PathDocid, Path()],
        index: IndexName = None,
        neighbours: Annotated[
            int, Query(ge=0, le=100, description="passages of the same file on either side")
        ] = 0,
    ) -> DocumentResponse:
        """One stored document by its id, with the passages around it."""

        def run(generation: OpenIndex, docids: Sequence[str]) -> list[list[StoredText]]:
            return [batch_handler.with_neighbours(generation, one, neighbours) for one in docids]

        generation, (passages,) = await service.ask(IndexTask(index, run, [docid]))
        (document,) = (passage for passage in passages if passage.docid == docid)
        if not neighbours:
            passages = []
        return DocumentResponse(**source(generation), document=document, passages=passages)

    @router.get("/files/{path:path}", operation_id="file")
    async def file(
        path: Annotated[PathDocid, Path()],
        index: IndexName = None,
        start: Annotated[int, Query(ge=0)] = 0,
    ) -> FileResponse:
        """The text of a file from a character on, put together from its passages."""

        def run(generation: OpenIndex, paths: Sequence[str]) -> list[FileText]:
            return [batch_handler.file_text(generation, one, start, MAX_FILE) for one in paths]

        generation, (text,) = await service.ask(IndexTask(index, run, [path]))
        return FileResponse(**source(generation), **text.model_dump())

    @router.get("/indexes", operation_id="indexes")
    async def indexes() -> IndexList:
        """All indexes."""
        return index_list(service)

    @router.get("/indexes/{index}", operation_id="index")
    async def index_by_name(index: Annotated[Name, Path()]) -> IndexInfo:
        """One index."""
        return index_info(service.catalogue.get(index))

    @router.post("/reload", operation_id="reload")
    async def reload() -> ReloadResult:
        """Look for new generations of the served folders now."""
        changes = await asyncio.to_thread(service.reload)
        return ReloadResult(changes=[ReloadChange(index=c.name, what=c.what) for c in changes])

    return router


def state_routes(service: Service) -> APIRouter:
    """Health, readiness and metrics."""
    router = APIRouter(tags=["state"], responses=PLAIN)

    @router.get("/health", operation_id="health")
    async def health() -> Health:
        """200 while the process answers."""
        return Health(status="ok", version=__version__)

    @router.get(
        "/ready",
        operation_id="ready",
        responses={503: {"model": Ready, "description": "Not ready"}},
    )
    async def ready(response: Response) -> Ready:
        """200 while requests are taken; 503 while the queue is full or the server stops."""
        status: Literal["ready", "busy", "stopping"] = "ready"
        if service.stopping:
            status = "stopping"
        elif service.waiting >= service.config.queue:
            status = "busy"
        response.status_code = 200 if status == "ready" else 503
        return Ready(status=status, indexes=len(service.catalogue.names), waiting=service.waiting)

    @router.get("/metrics", operation_id="metrics", response_class=Response, responses=_METRICS)
    async def metrics() -> Response:
        """Counters and histograms for Prometheus."""
        return Response(
            generate_latest(service.registry), headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4}
        )

    return router


_METRICS: dict[int | str, dict[str, Any]] = {
    200: {"content": {CONTENT_TYPE_PLAIN_0_0_4: {"schema": {"type": "string"}}}}
}


def search_response(result: SearchResult) -> Response:
    """The result of a search ``as_json``."""
    head = SearchResponse(**source(result.generation), mode=cast(Mode, result.mode), results=[])
    return json_response(head, [ranked.pieces() for ranked in result.lists])


def json_response(head: BaseModel, items: Sequence[Sequence[bytes | bytearray]]) -> Response:
    """``head``, whose last field is an empty list, with ``items`` in it. Each is JSON in pieces, so that a large answer
    is copied only once."""
    pieces: list[bytes | bytearray] = [json_opening(head)]
    for number, item in enumerate(items):
        if number > 0:
            pieces.append(b",")
        pieces += item
    pieces.append(JSON_CLOSING)
    return Response(b"".join(pieces), media_type="application/json")


def source(generation: OpenIndex) -> StateFields:
    """The fields of :class:`~dupmae_ir.serve.schemas.IndexState`."""
    return {"index": generation.name, "index_id": generation.id, "generation": generation.number}


def index_list(service: Service) -> IndexList:
    """All indexes."""
    return IndexList(
        indexes=[index_info(service.catalogue.get(name)) for name in service.catalogue.names]
    )


def index_info(generation: OpenIndex) -> IndexInfo:
    """What is known of an index without reading it."""
    searcher = generation.searcher
    encoder = searcher.index.meta.get("encoder") or {}
    reading = encoder.get("reading") or {}
    impact_search = None
    if "impact" in generation.modes:
        impact_search, _ = searcher.impact_search
    metadata = []
    if searcher.index.texts is not None:
        metadata = list(searcher.index.texts.columns)
    return IndexInfo(
        **source(generation),
        documents=generation.documents,
        files=len(searcher.index.files) or None,
        modes=[mode for mode in get_args(Mode) if mode in generation.modes],
        dimensions=searcher.index.dim,
        scale=searcher.index.scale,
        encoder=generation.encoder.name,
        language=encoder.get("language"),
        reading=reading.get("found"),
        impact_search=impact_search,
        missing=searcher.index.missing,
        texts=searcher.index.has_texts,
        metadata=metadata,
        opened=generation.opened,
    )


def check_texts(config: ServeConfig, texts: Sequence[str], loc: Sequence[str]) -> None:
    """Raise :class:`LimitExceeded` for too many or too long texts."""
    if len(texts) > config.max_queries:
        raise LimitExceeded(loc, f"at most {config.max_queries} texts in one request")
    if any(len(text) > config.max_characters for text in texts):
        raise LimitExceeded(loc, f"at most {config.max_characters} characters")


def check_hits(config: ServeConfig, hits: int, loc: Sequence[str]) -> None:
    """Raise :class:`LimitExceeded` for too many hits."""
    if hits > config.max_hits:
        raise LimitExceeded(loc, f"at most {config.max_hits} hits")


def _limit_schema(app: FastAPI, config: ServeConfig) -> None:
    """Write the limits of this server into /openapi.json."""
    limits = {"hits": ("maximum", config.max_hits), "query": ("maxLength", config.max_characters)}
    schema = app.openapi()
    for model in schema["components"]["schemas"].values():
        for name, (keyword, limit) in limits.items():
            _limit(model.get("properties", {}).get(name), keyword, limit, config)
        if "kind" in model.get("properties", {}):
            _limit(model["properties"].get("texts"), "maxLength", config.max_characters, config)
    for path in schema["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", []):
                if parameter["name"] in limits:
                    _limit(parameter["schema"], *limits[parameter["name"]], config)


def _limit(schema: Mapping[str, Any] | None, keyword: str, limit: int, config: ServeConfig) -> None:
    """Set ``keyword`` in a schema, its alternatives and its items; lists get the most queries of a request."""
    if not isinstance(schema, dict):
        return
    for alternative in schema.get("anyOf", ()):
        _limit(alternative, keyword, limit, config)
    if "items" in schema:
        _limit(schema["items"], keyword, limit, config)
    if schema.get("type") == {"maximum": "integer", "maxLength": "string"}[keyword]:
        schema[keyword] = limit
    if schema.get("type") == "array":
        schema["maxItems"] = config.max_queries
