"""The routes of the page: its HTML, its files, and the form for the token."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from dupmae_ir.errors import UnknownName
from dupmae_ir.serve import batch_handler as answering
from dupmae_ir.serve.api import check_texts, index_info
from dupmae_ir.serve.batch_handler import Call, Found, Ranking, Search, Shown, Unavailable, WrongFilter
from dupmae_ir.serve.batching import Busy
from dupmae_ir.serve.catalogue import Generation
from dupmae_ir.serve.errors import Wrong
from dupmae_ir.serve.limits import COOKIE, cookie_value, is_local_path, same
from dupmae_ir.serve.page import views
from dupmae_ir.serve.page.state import State
from dupmae_ir.serve.page.views import ListView, Results
from dupmae_ir.serve.schemas import WeightedTerm
from dupmae_ir.serve.service import Service

TYPES = {"style.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
TERMS = 200
"""Matched terms of a hit that the page gets."""
PASSAGE = 400
"""Characters of a hit's passage."""
STAY = 30 * 24 * 3600
"""Seconds that a browser stays signed in."""


def page_routes(service: Service) -> APIRouter:
    """The page, its files, and the form for the token."""
    router, found = APIRouter(include_in_schema=False), _assets()
    addresses = {name: f"/assets/{name}?v={hashlib.sha256(body).hexdigest()[:12]}" for name, body in found.items()}

    @router.get("/")
    async def page(request: Request) -> HTMLResponse:
        state = State.read(request.query_params, service.config.most_hits)
        status, content = await _content(service, state)
        indexes = [index_info(service.catalogue.get(name)) for name in service.catalogue.names]
        return HTMLResponse(views.page(state, indexes, addresses, content), status)

    @router.get("/assets/{name}")
    async def asset(name: str) -> Response:
        if name not in found:
            return Response(status_code=404)
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(found[name], media_type=TYPES[name], headers=headers)

    @router.get("/login")
    async def ask(next: str = "/") -> HTMLResponse:
        return HTMLResponse(views.login(addresses, next if is_local_path(next) else "/", False))

    @router.post("/login")
    async def sign_in(request: Request) -> Response:
        given = parse_qs((await request.body()).decode("utf-8", "replace"))
        token, target = given.get("token", [""])[0], given.get("next", ["/"])[0]
        target = target if is_local_path(target) else "/"
        if service.token is not None and not same(token.strip(), service.token):
            await asyncio.sleep(0.5)  # slows guessing down
            return HTMLResponse(views.login(addresses, target, True), 401)
        reply = RedirectResponse(target, 303)
        if service.token is not None:
            secure = request.url.scheme == "https"
            reply.set_cookie(COOKIE, cookie_value(service.token), STAY, httponly=True, samesite="strict", secure=secure)
        return reply

    return router


def _assets() -> dict[str, bytes]:
    folder = files("dupmae_ir.serve.page") / "assets"
    return {name: (folder / name).read_bytes() for name in TYPES}


async def _content(service: Service, state: State) -> tuple[int, views.Content]:
    """Status and content of the page."""
    try:
        if not state.q.strip():
            return 200, views.welcome([index_info(service.catalogue.get(n)) for n in service.catalogue.names])
        check_texts(service.config, [state.q], ["q"])
        first = await _results(service, state, state.index or None, sides=not state.compare)
        if not state.compare:
            return 200, views.results(state, first)
        second = await _results(service, state, state.compare, sides=False)
        return 200, views.comparison(state, _named(first, second))
    except (UnknownName, Unavailable) as e:
        return 404, views.message("Not found", str(e))
    except Wrong as e:
        return 422, views.message("This query is too long", e.message)
    except WrongFilter as e:
        return 422, views.message("This filter cannot be used", str(e))
    except Busy as e:
        return 429, views.message("The server is busy", f"Try again in {e.retry_after} s.")
    except TimeoutError:
        return 504, views.message("No answer in time", "Try again, or ask for fewer hits.")


async def _results(service: Service, state: State, name: str | None, sides: bool) -> Results:
    """The lists of one index: all in one batch, so the query is encoded once."""
    generation = service.catalogue.get(name)
    mode = state.mode or generation.searcher.mode
    others = [m for m in ("dense", "hybrid", "impact") if m != mode and m in generation.modes] if sides else []
    started = time.perf_counter()
    condition = state.filter or None
    work = [Search(Ranking(name, mode, state.hits, None, condition), [state.q], Shown(True, TERMS, PASSAGE))]
    work += [Search(Ranking(name, other, state.hits, None, condition), [state.q], Shown(True)) for other in others]
    *lists, terms = await asyncio.gather(
        *(service.ask(search) for search in work), service.ask(Call(name, _weights(state.q), [state.q]))
    )
    seconds = time.perf_counter() - started
    main, *beside = [_list(found) for found in lists]
    ranks = {m.mode: {hit.docid: hit.rank for hit in m.hits} for m in (main, *beside)}
    main = _with_ranks(main, {m: ranks[m] for m in others})
    beside = [_with_ranks(shown, {"main": ranks[main.mode]}) for shown in beside]
    return Results(main, beside, terms, index_info(lists[0].generation), 1000 * seconds)


def _weights(query: str) -> Callable[[Generation], list[WeightedTerm]]:
    def run(generation: Generation) -> list[WeightedTerm]:
        (encoding,) = answering.encoded(generation, [query], documents=False, vectors=False)
        return encoding.terms or []

    return run


def _list(found: Found) -> ListView:
    (result,) = found.results
    mode = found.mode
    about = found.described[0]
    names = views.NAMES[mode], views.FORMAL[mode], views.EXPLAINED[mode]
    return ListView(*names, result.hits, result.certificate, mode, described=about)


def _with_ranks(shown: ListView, ranks: Mapping[str, Mapping[str, int]]) -> ListView:
    return dataclasses.replace(shown, ranks=ranks)


def _named(*both: Results) -> Sequence[Results]:
    """The lists of two indexes, named after them."""
    return [
        dataclasses.replace(r, main=dataclasses.replace(r.main, title=r.index.index, formal=r.main.formal))
        for r in both
    ]
