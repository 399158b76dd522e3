"""The page: rendered on the server, so that it works without JavaScript, and every state of it is a link.

Templates are in ``templates/``, style and script in ``assets/``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import NamedTuple
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.ext import Extension
from markupsafe import Markup

from dupmae_ir.errors import UnknownName
from dupmae_ir.search.config import MODES
from dupmae_ir.search.query.words import Mark, WordShare
from dupmae_ir.search.query_batching import Busy
from dupmae_ir.search.view.naming import BY_MEANING, NO_WORD, NOTHING_MISSED, digits, without
from dupmae_ir.search.view.results import DescribedHit
from dupmae_ir.serve import batch_handler
from dupmae_ir.serve.api import check_texts, index_info, index_list
from dupmae_ir.serve.batch_handler import (
    HitFields,
    IndexTask,
    Ranking,
    Search,
    SearchResult,
    Unavailable,
    WrongFilter,
)
from dupmae_ir.serve.catalogue import OpenIndex
from dupmae_ir.serve.errors import LimitExceeded
from dupmae_ir.serve.following import Follower
from dupmae_ir.serve.http_server import COOKIE, cookie_value, is_local_path, same
from dupmae_ir.serve.schemas import Certificate, IndexInfo, SearchHit, WeightedTerm, index_size
from dupmae_ir.serve.service import Service

TYPES = {"style.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
HIT_CHOICES = (5, 10, 20, 50)
MAX_TERMS = 200
"""Matched terms of a hit."""
PASSAGE = 400
"""Characters of a hit's passage."""
LONGEST_TEXT = 20_000
"""Characters of a document's text on the page."""
MIN_SHARE = 0.005
"""Words with a smaller share of the score would be shown with 0.00."""
SHADES = 5
"""Shades of marked words."""
SIGNED_IN_SECONDS = 30 * 24 * 3600
_CONTROLS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff\ud800-\udfff]"
)
_LINE_BREAKS = re.compile(r"(?<=[>}])\s*\n\s*|\s*\n\s*(?=[<{])")


class ModeTexts(NamedTuple):
    """What the page says about a mode."""

    title: str
    short: str
    about: str


MODE_TEXTS = {
    "dense": ModeTexts(
        "By meaning", "meaning", "Finds texts that mean the same as the query, also in other words."
    ),
    "impact": ModeTexts(
        "By words",
        "words",
        "Finds texts with the words of the query, and with words that the model adds to them.",
    ),
    "hybrid": ModeTexts(
        "By both", "both", "Adds both scores, and proves that no text with a higher sum was missed."
    ),
}


@dataclass(frozen=True)
class State:
    """The state of the page, which its address contains.

    ``q``: the query. ``index``, ``compare``: names of indexes, empty for the default and for none. ``mode``: of the
    list in the middle. ``hits``: per list. ``filter``: a condition on metadata, empty for none.
    """

    q: str = ""
    index: str = ""
    compare: str = ""
    mode: str = ""
    hits: int = 10
    filter: str = ""

    @classmethod
    def read(cls, parameters: Mapping[str, str], max_hits: int) -> State:
        """The state of an address; values that mean nothing are the defaults."""
        digits_of_hits = parameters.get("hits", "")
        hits = cls.hits
        # isascii: int() would read other scripts' digits, too. Fewer than six: it is slow for thousands.
        if digits_of_hits.isascii() and digits_of_hits.isdigit() and len(digits_of_hits) < 6:
            hits = int(digits_of_hits)
        mode = parameters.get("mode", "")
        return cls(
            q=parameters.get("q", ""),
            index=parameters.get("index", ""),
            compare=parameters.get("compare", ""),
            mode=mode if mode in MODES else "",
            hits=min(max(hits, 1), max_hits),
            filter=parameters.get("filter", "").strip(),
        )

    @property
    def hit_choices(self) -> list[int]:
        """Numbers of hits that the form offers."""
        return sorted({*HIT_CHOICES, self.hits})

    def link(self, **changes: str | int) -> str:
        """The address of this state with some values changed."""
        changed = dataclasses.replace(self, **changes)  # type: ignore[arg-type]
        parameters = {}
        for setting in dataclasses.fields(changed):
            value = getattr(changed, setting.name)
            if value != setting.default:
                parameters[setting.name] = value
        if not parameters:
            return "/"
        return "/?" + urlencode(parameters)


@dataclass(frozen=True)
class RankedList:
    """One list of hits. ``ranks``: docid -> rank in the other lists, by their mode. ``described``: each hit of the list
    in the middle with its words."""

    mode: str
    hits: Sequence[SearchHit]
    certificate: Certificate
    described: Sequence[DescribedHit]
    ranks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """The results of a query in one index: the list in the middle with explanations, and the lists next to it."""

    main: RankedList
    sides: Sequence[RankedList]
    terms: Sequence[WeightedTerm]
    index: IndexInfo
    milliseconds: float
    follower: Follower | None = None

    @property
    def size(self) -> str:
        """What was searched, in words."""
        return index_size(self.index)

    @property
    def in_step(self) -> str:
        """The folders that the index follows, and when it last agreed with them; empty without such folders."""
        if self.follower is None:
            return ""
        folders = ", ".join(self.follower.folders)
        if self.follower.in_step is None:
            return f"being compared with {folders}"
        return f"in step with {folders} since {self.follower.in_step:%H:%M:%S} UTC"

    @property
    def note(self) -> str:
        """A remark on the hits; empty for none."""
        hits = self.main.described
        if not hits or any(hit.has_query_word for hit in hits):
            return ""
        return NO_WORD.removeprefix("note: ")

    @property
    def modes(self) -> list[str]:
        """The modes of all lists."""
        return [ranked.mode for ranked in (self.main, *self.sides)]

    @property
    def max_weight(self) -> float:
        """The largest weight of a term of the query."""
        return max(term.weight for term in self.terms)


class Piece(NamedTuple):
    """A part of a text; with a ``shade`` of 1 or more, a word that matched, with its ``share`` of the score."""

    text: str
    shade: int = 0
    share: float = 0.0


def pieces(
    text: str,
    marks: Sequence[Mark],
    max_share: float,
    start: int = 0,
    end: int | None = None,
    hidden: Sequence[tuple[int, int]] = (),
) -> list[Piece]:
    """``text[start:end]`` in pieces without what is ``hidden``, the marked words shaded by their share of
    ``max_share``."""
    if end is None:
        end = len(text)
    parts: list[Piece] = []

    def add(begin: int, stop: int, shade: int = 0, share: float = 0.0) -> None:
        parts.append(Piece(without(text, begin, stop, hidden), shade, share))

    for mark in marks:
        if start <= mark.start and mark.end <= end:
            shade = round(SHADES * mark.share / max_share)
            add(start, mark.start)
            add(mark.start, mark.end, max(1, min(SHADES, shade)), mark.share)
            start = mark.end
    add(start, end)
    # A marked word of which everything is hidden would be an empty mark.
    return [piece for piece in parts if piece.text or not piece.shade]


def expansions(words: Sequence[WordShare]) -> list[WordShare]:
    """Words that matched without being in the text."""
    return [word for word in words if not word.text_words and word.share >= MIN_SHARE]


class _JoinLines(Extension):
    """Line breaks in templates are for their readers; next to inline elements they would be blanks on the page."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        del name, filename
        return _LINE_BREAKS.sub("", source)


def _visible(value: object) -> object:
    """Text without control characters and changes of direction; other values unchanged."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _CONTROLS.sub("\ufffd", value)
    return value


TEMPLATES = Environment(
    loader=PackageLoader("dupmae_ir.serve.page"),
    autoescape=True,
    auto_reload=False,
    undefined=StrictUndefined,
    extensions=[_JoinLines],
    finalize=_visible,
)
TEMPLATES.globals |= {
    "modes": MODE_TEXTS,
    "mode_labels": {mode: texts.title.lower() for mode, texts in MODE_TEXTS.items()},
    "pieces": pieces,
    "expansions": expansions,
    "digits": digits,
    "index_size": index_size,
    "nothing_missed": NOTHING_MISSED,
    "by_meaning": BY_MEANING,
    "longest_text": LONGEST_TEXT,
}


def page_routes(service: Service) -> APIRouter:
    """The page, its files, and the form for the token."""
    router = APIRouter(include_in_schema=False)
    folder = files("dupmae_ir.serve.page") / "assets"
    contents = {name: (folder / name).read_bytes() for name in TYPES}
    addresses = {
        name: f"/assets/{name}?v={hashlib.sha256(body).hexdigest()[:12]}"
        for name, body in contents.items()
    }

    def html(template: str, status: int = 200, **values: object) -> HTMLResponse:
        return HTMLResponse(
            TEMPLATES.get_template(template).render(assets=addresses, **values), status
        )

    @router.get("/")
    async def page(request: Request) -> HTMLResponse:
        state = State.read(request.query_params, service.config.max_hits)
        status, template, values = await _content(service, state)
        indexes = index_list(service).indexes
        return await asyncio.to_thread(
            html, template, status, state=state, indexes=indexes, **values
        )

    @router.get("/assets/{name}")
    async def asset(name: str) -> Response:
        if name not in contents:
            return Response(status_code=404)
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(contents[name], media_type=TYPES[name], headers=headers)

    @router.get("/login")
    async def ask(next: str = "/") -> HTMLResponse:
        return html("login.html", target=next if is_local_path(next) else "/", wrong=False)

    @router.post("/login")
    async def sign_in(request: Request) -> Response:
        form = parse_qs((await request.body()).decode("utf-8", "replace"))
        token = form.get("token", [""])[0]
        target = form.get("next", ["/"])[0]
        if not is_local_path(target):
            target = "/"
        if service.token is not None and not same(token.strip(), service.token):
            await asyncio.sleep(0.5)  # slows guessing down
            return html("login.html", 401, target=target, wrong=True)
        reply = RedirectResponse(target, 303)
        if service.token is not None:
            reply.set_cookie(
                COOKIE,
                cookie_value(service.token),
                SIGNED_IN_SECONDS,
                httponly=True,
                samesite="strict",
                secure=request.url.scheme == "https",
            )
        return reply

    return router


async def _content(service: Service, state: State) -> tuple[int, str, dict[str, object]]:
    """Status of the page, its template, and the template's values."""
    try:
        if not state.q.strip():
            return 200, "welcome.html", {}
        check_texts(service.config, [state.q], ["q"])
        first = await _results(service, state, state.index or None, sides=not state.compare)
        if not state.compare:
            return 200, "results.html", {"results": first}
        second = await _results(service, state, state.compare, sides=False)
        in_first = {hit.docid for hit in first.main.hits}
        in_second = {hit.docid for hit in second.main.hits}
        values = {
            "a": first,
            "b": second,
            "common": len(in_first & in_second),
            "most": max(len(in_first), len(in_second)),
        }
        return 200, "comparison.html", values
    except (UnknownName, Unavailable) as e:
        return _message(404, "Not found", str(e))
    except LimitExceeded as e:
        return _message(422, "This asks for too much", e.message)
    except WrongFilter as e:
        return _message(422, "This filter cannot be used", str(e))
    except Busy as e:
        return _message(429, "The server is busy", f"Try again in {e.retry_after} s.")
    except TimeoutError:
        return _message(504, "No answer in time", "Try again, or ask for fewer hits.")


def _message(status: int, title: str, text: str) -> tuple[int, str, dict[str, object]]:
    return status, "message.html", {"title": title, "text": text}


async def _results(service: Service, state: State, name: str | None, sides: bool) -> Results:
    """The lists of one index: all in one batch, so the query is encoded once."""
    generation = service.catalogue.get(name)
    mode = state.mode or generation.searcher.mode
    others = []
    if sides:
        for other in ("dense", "hybrid", "impact"):
            if other != mode and other in generation.modes:
                others.append(other)
    started = time.perf_counter()

    def search(mode: str, shown: HitFields) -> Search:
        return Search(Ranking(name, mode, state.hits, None, state.filter or None), [state.q], shown)

    def weights(generation: OpenIndex, queries: Sequence[str]) -> list[list[WeightedTerm]]:
        encodings = batch_handler.encoded(generation, queries, documents=False, vectors=False)
        return [_words_of(encoding.terms or []) for encoding in encodings]

    searches = [search(mode, HitFields(True, MAX_TERMS, PASSAGE))]
    for other in others:
        searches.append(search(other, HitFields(True)))
    lists, (_, (terms,)) = await asyncio.gather(
        asyncio.gather(*map(service.ask, searches)),
        service.ask(IndexTask(name, weights, [state.q], query=state.q)),
    )
    seconds = time.perf_counter() - started

    ranks: dict[str, dict[str, int]] = {}
    for result in lists:
        (query_result,) = result.results
        ranks[result.mode] = {hit.docid: hit.rank for hit in query_result.hits}
    main = _ranked_list(lists[0], {other: ranks[other] for other in others})
    side_lists = [_ranked_list(result, {"main": ranks[mode]}) for result in lists[1:]]
    return Results(
        main, side_lists, terms, index_info(lists[0].generation), 1000 * seconds, service.follower
    )


def _ranked_list(result: SearchResult, ranks: Mapping[str, Mapping[str, int]]) -> RankedList:
    (ranked,) = result.lists
    return RankedList(
        result.mode, ranked.result.hits, ranked.result.certificate, ranked.described, ranks
    )


def _words_of(terms: Sequence[WeightedTerm]) -> list[WeightedTerm]:
    """The terms of a query, strongest first; a word has one row, with the weights of its stem and its pieces."""
    weights: dict[str, float] = {}
    for term in terms:
        weights[term.term] = weights.get(term.term, 0.0) + term.weight
    words = [WeightedTerm(term=name, weight=weight) for name, weight in weights.items()]
    return sorted(words, key=lambda word: -word.weight)
