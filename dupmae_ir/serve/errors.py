"""How errors become answers. Only messages made for clients leave the server; others are logged and answered 500."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from dupmae_ir.console import visible
from dupmae_ir.errors import UnknownName
from dupmae_ir.search.query_batching import Busy
from dupmae_ir.serve.batch_handler import NotFound, Unavailable, WrongFilter
from dupmae_ir.serve.schemas import Problem, WrongField, WrongRequest

RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The connection or the Host header is not accepted"},
    401: {"model": Problem, "description": "The bearer token is missing or wrong"},
    403: {"model": Problem, "description": "A page of another origin"},
    404: {"model": Problem, "description": "No such index or document"},
    408: {"model": Problem, "description": "The body did not arrive in time"},
    409: {"model": Problem, "description": "The index lacks the part that this needs"},
    413: {"model": Problem, "description": "The body is too long"},
    422: {"model": WrongRequest, "description": "The request does not have the documented form"},
    429: {
        "model": Problem,
        "description": "The queue is full",
        "headers": {"Retry-After": {"schema": {"type": "integer"}, "description": "seconds"}},
    },
    500: {"model": Problem, "description": "A fault of the server; its log has the reason"},
    504: {"model": Problem, "description": "No answer in time"},
}
"""The errors of a route that asks an index."""
PLAIN: dict[int | str, dict[str, Any]] = {
    status: RESPONSES[status] for status in (400, 401, 403, 408, 413, 500)
}
"""The errors of every other route."""


class LimitExceeded(Exception):
    """A value of a request beyond a limit of this server: where it stands, and what is wrong."""

    def __init__(self, loc: Sequence[str | int], message: str) -> None:
        super().__init__(message)
        self.loc = list(loc)
        self.message = message


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """An error as every route returns it."""
    return JSONResponse({"detail": visible(detail)}, status, headers)


def wrong(fields: Sequence[WrongField]) -> JSONResponse:
    """A 422."""
    return JSONResponse(WrongRequest(detail=list(fields)).model_dump(), 422)


def add_handlers(app: FastAPI) -> None:
    """Register the answers to all errors."""

    @app.exception_handler(RequestValidationError)
    async def _(_request: Request, e: RequestValidationError) -> JSONResponse:
        # The values themselves are left out: they may not have a JSON form.
        fields = []
        for error in e.errors():
            location = _safe(error["loc"])
            fields.append(WrongField(loc=location, msg=visible(error["msg"]), type=error["type"]))
        return wrong(fields)

    @app.exception_handler(LimitExceeded)
    async def _(_request: Request, e: LimitExceeded) -> JSONResponse:
        return wrong([WrongField(loc=e.loc, msg=e.message, type="limit")])

    @app.exception_handler(WrongFilter)
    async def _(_request: Request, e: WrongFilter) -> JSONResponse:
        return wrong([WrongField(loc=["filter"], msg=visible(e), type="filter")])

    @app.exception_handler(HTTPException)
    async def _(request: Request, e: HTTPException) -> JSONResponse:
        headers = dict(e.headers or {})
        if e.status_code == 405:
            # starlette names only the methods of the first route with this path.
            methods = allowed_methods(app.openapi(), request.url.path)
            if methods:
                headers["allow"] = ", ".join(methods)
        return problem(e.status_code, str(e.detail), headers)

    @app.exception_handler(Busy)
    async def _(_request: Request, e: Busy) -> JSONResponse:
        return problem(429, str(e), {"retry-after": str(e.retry_after)})

    @app.exception_handler(TimeoutError)
    async def _(_request: Request, _e: TimeoutError) -> JSONResponse:
        return problem(504, "no answer in time")

    for status, kind in ((404, UnknownName), (404, NotFound), (409, Unavailable)):
        _add_plain(app, status, kind)

    @app.exception_handler(Exception)
    async def _(_request: Request, _e: Exception) -> JSONResponse:
        return problem(500, "internal error")


def allowed_methods(schema: Mapping[str, Any], path: str) -> list[str]:
    """The methods of a path, from all routes that have it."""
    methods: set[str] = set()
    for template, operations in schema["paths"].items():
        pattern = re.sub(r"\\\{(\w+)\\\}", _parameter_pattern, re.escape(template))
        if re.fullmatch(pattern, path, re.DOTALL):
            methods.update(method.upper() for method in operations)
    return sorted(methods)


def _parameter_pattern(parameter: re.Match[str]) -> str:
    # A document's id may contain slashes.
    if parameter[1] == "docid":
        return ".+"
    return "[^/]+"


def _add_plain(app: FastAPI, status: int, kind: type[Exception]) -> None:
    @app.exception_handler(kind)
    async def _(_request: Request, e: Exception) -> JSONResponse:
        return problem(status, str(e))


def _safe(loc: Sequence[str | int]) -> list[str | int]:
    return [part if isinstance(part, int) else visible(part)[:200] for part in loc]
