"""Routes of Pyserini's REST servers, in their shapes, so that their clients work here.

Pyserini 1.6: ``POST /v1/indexes/{index}/search``, ``GET /v1/indexes/{index}/documents/{docid}``, ``.../status``,
``.../settings`` and ``GET /v1/indexes/``. Pyserini 2 (and Anserini): ``GET /v1/{index}/search`` and
``GET /v1/{index}/doc/{docid}``. Indexes are searched in their default mode.

Differences: no index is downloaded, settings are fixed when the server starts, images and instructions are refused,
and a path is never an index.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from dupmae_ir.serve import batch_handler
from dupmae_ir.serve.api import check_hits, check_texts
from dupmae_ir.serve.batch_handler import HitFields, IndexTask, Ranking, Search, SearchResult
from dupmae_ir.serve.catalogue import OpenIndex
from dupmae_ir.serve.errors import RESPONSES
from dupmae_ir.serve.schemas import Name, PathDocid, Text
from dupmae_ir.serve.service import Service

IndexPath = Annotated[Name, Path(min_length=1)]


class SearchParams(BaseModel):
    """The body of a search in Pyserini 1.6. Fields that select another encoder or generator are accepted when empty."""

    model_config = ConfigDict(extra="ignore")

    query: Text
    hits: int = Field(10, ge=1)
    qid: str = ""


class QueryInfo(BaseModel):
    """The query of an answer."""

    qid: str
    query_txt: str
    query_img_path: str | None = None
    query_modality: str | None = "text"
    fp16: bool | None = False


class PyseriniCandidate(BaseModel):
    """A hit of Pyserini 1.6."""

    docid: str
    score: float
    document_txt: str
    document_img_path: str | None = None
    encoded_img: str | None = None


class PyseriniHits(BaseModel):
    """The answer of a search in Pyserini 1.6."""

    query: QueryInfo
    candidates: list[PyseriniCandidate]


class IndexStatus(BaseModel):
    """Whether an index is here, and its size."""

    downloaded: bool
    size_bytes: str


class IndexSetting(BaseModel):
    """Settings of an index."""

    efSearch: str | None = None
    encoder: str | None = None
    queryGenerator: str | None = None


class QueryText(BaseModel):
    """The query of an answer of Pyserini 2."""

    text: str


class AnseriniCandidate(BaseModel):
    """A hit of Pyserini 2."""

    docid: str
    score: float
    rank: int
    doc: dict[str, str] | str | None


class AnseriniHits(BaseModel):
    """The answer of a search in Pyserini 2."""

    api: str = "v1"
    index: str
    query: QueryText
    candidates: list[AnseriniCandidate]


class OneDocument(BaseModel):
    """A document of Pyserini 2."""

    api: str = "v1"
    index: str
    docid: str
    doc: dict[str, str] | str


def pyserini_routes(service: Service) -> APIRouter:
    """The routes of both versions."""
    router = APIRouter(prefix="/v1", responses=RESPONSES)
    _add_version_1(router, service)
    _add_version_2(router, service)
    return router


def _add_version_1(router: APIRouter, service: Service) -> None:
    tags: list[str | Enum] = ["Pyserini 1.6"]

    @router.post("/indexes/{index}/search", tags=tags, operation_id="pyserini_search")
    async def search(index: IndexPath, params: SearchParams) -> PyseriniHits:
        """Search an index."""
        result = await _search(service, index, params.query, params.hits)
        candidates = []
        for hit in result.results[0].hits:
            text = hit.document.text if hit.document else ""
            candidates.append(
                PyseriniCandidate(docid=hit.docid, score=hit.score, document_txt=text)
            )
        query = QueryInfo(qid=params.qid, query_txt=params.query)
        return PyseriniHits(query=query, candidates=candidates)

    @router.get(
        "/indexes/{index}/documents/{docid:path}", tags=tags, operation_id="pyserini_document"
    )
    async def document(index: IndexPath, docid: Annotated[PathDocid, Path()]) -> dict[str, str]:
        """A document."""
        return await _document(service, index, docid)

    @router.get("/indexes/{index}/status", tags=tags, operation_id="pyserini_status")
    async def status(index: IndexPath) -> IndexStatus:
        """Whether the index is here, and its size in bytes."""
        files = service.catalogue.get(index).searcher.index.manifest.files()
        return IndexStatus(downloaded=True, size_bytes=str(sum(file.bytes for _, file in files)))

    @router.get("/indexes/{index}/settings", tags=tags, operation_id="pyserini_settings")
    async def settings(index: IndexPath) -> IndexSetting:
        """The encoder of the index."""
        return IndexSetting(encoder=service.catalogue.get(index).encoder.name)

    @router.get("/indexes/", tags=tags, operation_id="pyserini_indexes")
    async def indexes(index_type: Annotated[str, Query(max_length=100)] = "") -> list[str]:  # noqa: ARG001
        """The names of all indexes; their types are not distinguished."""
        return service.catalogue.names


def _add_version_2(router: APIRouter, service: Service) -> None:
    tags: list[str | Enum] = ["Pyserini 2"]

    @router.get("/{index}/search", tags=tags, operation_id="anserini_search")
    async def search(
        index: IndexPath,
        query: Annotated[Text, Query()],
        hits: Annotated[int, Query(ge=1)] = 10,
        parse: bool = True,
    ) -> AnseriniHits:
        """Search an index."""
        result = await _search(service, index, query, hits)
        candidates = []
        for hit in result.results[0].hits:
            document = _shown(hit.document, parse)
            candidates.append(
                AnseriniCandidate(docid=hit.docid, score=hit.score, rank=hit.rank, doc=document)
            )
        return AnseriniHits(index=index, query=QueryText(text=query), candidates=candidates)

    @router.get("/{index}/doc/{docid:path}", tags=tags, operation_id="anserini_document")
    async def document(
        index: IndexPath, docid: Annotated[PathDocid, Path()], parse: bool = True
    ) -> OneDocument:
        """A document."""
        fields = await _document(service, index, docid)
        return OneDocument(index=index, docid=docid, doc=_parsed_or_raw(fields, parse))


async def _search(service: Service, index: str, query: str, hits: int) -> SearchResult:
    check_texts(service.config, [query], ["query"])
    check_hits(service.config, hits, ["hits"])
    return await service.ask(Search(Ranking(index, None, hits), [query], HitFields(texts=True)))


async def _document(service: Service, index: str, docid: str) -> dict[str, str]:
    def run(generation: OpenIndex, docids: Sequence[str]) -> list[dict[str, str]]:
        return [_plain(batch_handler.document(generation, one)) for one in docids]

    _, (fields,) = await service.ask(IndexTask(index, run, [docid]))
    return fields


def _plain(document: batch_handler.StoredText) -> dict[str, str]:
    return {"id": document.docid, "title": document.title, "contents": document.text}


def _shown(document: batch_handler.StoredText | None, parse: bool) -> dict[str, str] | str | None:
    if document is None:
        return None
    return _parsed_or_raw(_plain(document), parse)


def _parsed_or_raw(fields: dict[str, str], parse: bool) -> dict[str, str] | str:
    """A document's fields as an object or, as Anserini stores them, as a string of JSON."""
    if parse:
        return fields
    return json.dumps(fields, ensure_ascii=False)
