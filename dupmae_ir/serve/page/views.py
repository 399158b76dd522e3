"""The page as HTML. Nothing here reads an index: values come from :mod:`dupmae_ir.serve.page.routes`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dupmae_ir.search.query.words import Mark, WordShare
from dupmae_ir.search.view.explain import DescribedHit
from dupmae_ir.serve.page.elements import Content, Html, document, el
from dupmae_ir.serve.page.state import CHOICES, State
from dupmae_ir.serve.schemas import Certificate, IndexInfo, SearchHit, Shares, Stored, WeightedTerm

NAMES = {"dense": "By meaning", "impact": "By words", "hybrid": "By both"}
SHORT = {"dense": "meaning", "impact": "words", "hybrid": "both"}
FORMAL = {"dense": "[CLS]", "impact": "OT", "hybrid": "hybrid"}
EXPLAINED = {
    "dense": "Similarity of the query's and the document's [CLS] vectors: finds the same meaning in other words.",
    "impact": "Weighted words that the model gives to query and document (OT), expansions included.",
    "hybrid": "The sum of both scores.",
}
SHOWN_TERMS = 12
LEAST_SHARE = 0.005
LEVELS = 5
"""Shades of marked words."""


@dataclass(frozen=True)
class ListView:
    """One ranked list. ``ranks``: docid -> rank in the other lists, by their mode. ``described``: each hit of the list
    in the middle with its words."""

    title: str
    formal: str
    about: str
    hits: Sequence[SearchHit]
    certificate: Certificate
    mode: str
    ranks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    described: Sequence[DescribedHit] = ()


@dataclass(frozen=True)
class Results:
    """What a query found: the list in the middle with explanations, and the lists beside it."""

    main: ListView
    sides: Sequence[ListView]
    terms: Sequence[WeightedTerm]
    index: IndexInfo
    milliseconds: float


def page(state: State, indexes: Sequence[IndexInfo], assets: Mapping[str, str], content: Content) -> Html:
    """The whole page around some content. ``assets``: name -> address."""
    title = f"{state.q[:80]} - dupmae_ir" if state.q else "dupmae_ir search"
    head = [
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
        el("link", rel="icon", href=assets["icon.svg"], type="image/svg+xml"),
        el("link", rel="stylesheet", href=assets["style.css"]),
        el("script", None, src=assets["page.js"], defer=True),
    ]
    body = [
        el("a", "Skip to the results", class_="skip", href="#results"),
        header(state, indexes),
        el("main", content, id="results", tabindex="-1"),
        footer(),
    ]
    return document(head, body, lang="en")


def header(state: State, indexes: Sequence[IndexInfo]) -> Html:
    """The name of the page and the form."""
    button = el("button", "Search", type="submit", class_="primary")
    ask = [labelled("Query", query_field(state), "q", "wide"), el("datalist", None, id="history"), button]
    parts = [el("div", ask, class_="ask"), el("div", options(state, indexes), class_="options")]
    form = el("form", parts, action="/", method="get", role="search")
    theme = el("button", "Dark", type="button", id="theme", hidden=True, aria_pressed="false")
    copy = el("button", "Copy link", type="button", id="copy", hidden=True)
    name = el("a", ["dupmae", el("span", "_ir")], href="/", class_="name")
    return el("header", [el("div", [name, el("div", [copy, theme], class_="tools")], class_="top"), form])


def query_field(state: State) -> Html:
    """The box for the query."""
    return el(
        "input",
        type="search",
        name="q",
        id="q",
        value=state.q,
        list="history",
        autocomplete="off",
        autofocus=not state.q,
        placeholder="Ask something",
        maxlength="4096",
        enterkeyhint="search",
    )


def options(state: State, indexes: Sequence[IndexInfo]) -> list[Content]:
    """The controls under the query."""
    names, found = [info.index for info in indexes], list[Content]()
    if len(names) > 1:
        compare = select("compare", ["", *names], state.compare, {"": "nothing"})
        found += [
            labelled("Index", select("index", names, state.index or names[0]), "index"),
            labelled("Compare with", compare, "compare"),
        ]
    modes = select("mode", list(NAMES), state.mode or "hybrid", {mode: name.lower() for mode, name in NAMES.items()})
    numbers = select("hits", [*map(str, sorted({*CHOICES, state.hits}))], str(state.hits))
    found += [labelled("Hits", numbers, "hits"), labelled("Rank", modes, "mode")]
    if names := list(dict.fromkeys(name for info in indexes for name in info.metadata)):
        found.append(labelled("Filter", filter_field(state, names), "filter", "wide"))
    return found


def filter_field(state: State, names: Sequence[str]) -> Html:
    """The box for a condition on metadata."""
    return el(
        "input",
        type="text",
        name="filter",
        id="filter",
        value=state.filter,
        autocomplete="off",
        spellcheck="false",
        maxlength="2000",
        placeholder=f"a condition on {', '.join(names[:6])}",
    )


def labelled(text: str, control: Html, name: str, class_: str = "") -> Html:
    """A control with its label."""
    return el("div", [el("label", text, for_=name), control], class_=f"field {class_}".strip())


def select(name: str, values: Sequence[str], chosen: str, shown: Mapping[str, str] | None = None) -> Html:
    """A list to choose from."""
    options = [el("option", (shown or {}).get(v, v), value=v, selected=v == chosen) for v in values]
    return el("select", options, name=name, id=name)


def footer() -> Html:
    """The keys, and links to the API."""
    keys = {
        "/": "write a query",
        "j / k": "next and previous hit",
        "o": "open the details of a hit",
        "t": "dark or light",
    }
    rows = [el("div", [el("dt", el("kbd", key)), el("dd", what)]) for key, what in keys.items()]
    links = [
        el("a", "API", href="/openapi.json"),
        " ",
        el("a", "Indexes", href="/api/indexes"),
        " ",
        el("a", "Metrics", href="/metrics"),
    ]
    return el(
        "footer", [el("details", [el("summary", "Keyboard"), el("dl", rows)]), el("nav", links, aria_label="Service")]
    )


def welcome(indexes: Sequence[IndexInfo]) -> Content:
    """What stands in place of results before the first query."""
    rows = [
        el(
            "tr",
            [
                el("th", i.index, scope="row"),
                el("td", f"{i.documents:,}"),
                el("td", ", ".join(i.modes)),
                el("td", i.encoder),
            ],
        )
        for i in indexes
    ]
    head = el("tr", [el("th", name, scope="col") for name in ("Index", "Documents", "Ranks by", "Model")])
    legend = [
        el("li", [el("strong", f"{NAMES[m]} ({FORMAL[m]})"), ". ", EXPLAINED[m]]) for m in ("dense", "impact", "hybrid")
    ]
    return [
        el("h1", "Search, and see why"),
        el(
            "p",
            "Each hit shows the words that carried it, what its meaning added, and where the other rankings put it.",
        ),
        el("ul", legend, class_="plain"),
        el("div", el("table", [el("thead", head), el("tbody", rows)]), class_="scroll"),
        el("section", [el("h2", "Your recent queries"), el("ul", None, id="recent")], id="recents", hidden=True),
    ]


def message(title: str, text: str) -> Content:
    """An error, in place of results."""
    return el("div", [el("h1", title), el("p", text)], class_="message", role="alert")


def results(state: State, found: Results) -> Content:
    """The lists of one index: the main one in the middle, and one on each side."""
    summary = el(
        "p",
        [
            f"{len(found.main.hits)} of {found.index.documents:,} documents in ",
            el("strong", found.index.index),
            f", {found.milliseconds:,.0f} ms",
        ],
        class_="summary",
    )
    left, right = [*found.sides, None, None][:2]
    columns = [side(left) if left else None, main_list(found.main), side(right) if right else None]
    classes = f"columns n{sum(c is not None for c in columns)}"
    return [
        el("h1", f"Results for \u201c{state.q[:200]}\u201d", class_="quiet"),
        el("div", [summary, switch(state, found)], class_="bar-of-results"),
        query_weights(found.terms),
        el("div", columns, class_=classes, id="columns"),
    ]


def switch(state: State, found: Results) -> Content:
    """Links that put another list into the middle; on a phone, the only way to the other lists."""
    lists = {found.main.mode, *(s.mode for s in found.sides)}
    links = [
        el("a", f"{NAMES[mode]}", href=state.link(mode=mode), aria_current="true" if mode == found.main.mode else None)
        for mode in ("dense", "hybrid", "impact")
        if mode in lists
    ]
    return el("nav", links, class_="switch", aria_label="Ranking in the middle") if len(links) > 1 else None


def comparison(state: State, both: Sequence[Results]) -> Content:
    """The lists of two indexes side by side."""
    a, b = both
    common = {h.docid for h in a.main.hits} & {h.docid for h in b.main.hits}
    summary = el(
        "p",
        [
            el("strong", a.index.index),
            " and ",
            el("strong", b.index.index),
            f" have {len(common)} of {max(len(a.main.hits), len(b.main.hits))} hits in common",
        ],
        class_="summary",
    )
    return [
        el("h1", f"Results for \u201c{state.q[:200]}\u201d", class_="quiet"),
        el("div", summary, class_="bar-of-results"),
        el("div", [main_list(a.main, "a"), main_list(b.main, "b")], class_="columns two", id="columns"),
    ]


def query_weights(terms: Sequence[WeightedTerm]) -> Content:
    """What the model reads in the query."""
    if not terms:
        return None
    strongest = max(term.weight for term in terms)
    rows = [
        el(
            "tr",
            [
                el("th", readable(t.term), scope="row"),
                el("td", meter(t.weight / strongest, "ot")),
                el("td", f"{t.weight:.2f}"),
            ],
        )
        for t in terms[:SHOWN_TERMS]
    ]
    more = f" The strongest {SHOWN_TERMS} of {len(terms)}." if len(terms) > SHOWN_TERMS else ""
    about = el(
        "p",
        f"The words that the model looks for, with their weights; words that you did not write are expansions.{more}",
    )
    head = el("tr", [el("th", name, scope="col") for name in ("Term", "", "Weight")])
    table = el("table", [el("thead", head), el("tbody", rows)], class_="weights")
    return el("details", [el("summary", "What the model reads in the query"), about, table], class_="query")


def main_list(shown: ListView, key: str = "m") -> Html:
    """A list with full cards."""
    cards = [card(hit, about, shown, key) for hit, about in zip(shown.hits, shown.described, strict=True)]
    heading = list_heading(shown)
    found = el("ol", cards, class_="cards") if cards else el("p", "No document matches.", class_="none")
    return el("section", [heading, found], class_="list main", aria_label=f"{shown.title}, {shown.formal}")


def side(shown: ListView) -> Html:
    """A list with one line for each hit."""
    items = [
        el(
            "li",
            [
                el("span", str(hit.rank), class_="rank"),
                el("span", title_of(hit), class_="title"),
                el("span", f"{hit.score:.2f}", class_="score"),
            ],
            data_docid=hit.docid,
            class_="" if hit.docid in shown.ranks.get("main", {}) else "outside",
            title=None if hit.docid in shown.ranks.get("main", {}) else "not in the middle list",
        )
        for hit in shown.hits
    ]
    found = el("ol", items, class_="lines") if items else el("p", "No document matches.", class_="none")
    return el(
        "section",
        [list_heading(shown), found],
        class_=f"list side {shown.mode}",
        aria_label=f"{shown.title}, {shown.formal}",
    )


def list_heading(shown: ListView) -> Html:
    """Name, formal name and certificate of a list."""
    name = el("h2", [shown.title, " ", el("small", shown.formal, title=shown.about)])
    return el("div", [name, badge(shown.certificate, len(shown.hits))], class_="heading")


def badge(certificate: Certificate, hits: int) -> Html:
    """The certificate, which explains itself when it is opened."""
    if certificate.exact:
        text = [el("p", f"It is proved that these are the best {hits} documents: none was missed.")]
        if certificate.kth is not None and certificate.bound is not None:
            text.append(
                el(
                    "p",
                    f"The last hit scores {certificate.kth:.6g}. Every document outside the list scores at most "
                    f"{certificate.bound:.6g}.",
                )
            )
        elif hits:
            text.append(el("p", "Every document was scored, so none is left outside."))
        text.append(el("p", f"{certificate.scored:,} documents were scored exactly."))
        summary = el("summary", [el("span", "\u2713", aria_hidden="true"), " exact"])
    else:
        text = [el("p", f"Not proved: {certificate.why_not}. A document with a higher score may be missing.")]
        summary = el("summary", [el("span", "!", aria_hidden="true"), " not certified"])
    return el(
        "details", [summary, el("div", text, class_="pop")], class_="badge ok" if certificate.exact else "badge open"
    )


def card(hit: SearchHit, about: DescribedHit, shown: ListView, key: str) -> Html:
    """A hit with its shares, its passage and its expansions."""
    why, text = hit.explanation, hit.document.text if hit.document else ""
    title, strongest = hit.document.title if hit.document else "", strongest_share(about)
    head = el(
        "div",
        [
            el("span", str(hit.rank), class_="rank"),
            el("h3", marked(title, about.title_marks, strongest) if title else hit.docid, class_="title"),
            el("span", f"{hit.score:.2f}", class_="score", title="score"),
        ],
        class_="head",
    )
    parts = [
        head,
        el("p", [el("span", hit.docid, class_="docid"), *elsewhere(hit, shown)], class_="where"),
        shares_bar(why),
        passage(about, text, strongest) if text else no_text(about.words),
        expansions([word for word in about.words if not word.text_words]) if text else None,
        details(hit, about, text, strongest),
    ]
    return el("li", parts, id=f"{key}{hit.rank}", tabindex="-1", data_docid=hit.docid, class_="card")


def strongest_share(about: DescribedHit) -> float:
    """The largest share of a word of a hit, which has the darkest shade."""
    return max((mark.share for mark in (*about.title_marks, *about.text_marks)), default=0.0)


def title_of(hit: SearchHit) -> str:
    """The title of a hit, or its id."""
    return (hit.document.title if hit.document else "") or hit.docid


def elsewhere(hit: SearchHit, shown: ListView) -> Iterable[Html]:
    """The ranks of a hit in the other lists."""
    for mode, ranks in shown.ranks.items():
        rank = ranks.get(hit.docid)
        text = f"{SHORT[mode]} {rank}" if rank else f"{SHORT[mode]} below {len(ranks)}"
        class_ = f"chip {mode}" if rank else f"chip {mode} outside"
        yield el("span", text, class_=class_, title=f"rank {NAMES[mode].lower()}")


def shares_bar(why: Shares | None) -> Content:
    """The parts of a score as a bar with its numbers."""
    if why is None or why.dense is None or why.impact is None or why.cls_share is None:
        return None
    percent = round(100 * why.cls_share)
    meaning, words = f"meaning {why.dense:.2f}", f"words {why.impact:.2f}"
    bar = el(
        "svg",
        [el("rect", class_="ot", width="100", height="8"), el("rect", class_="cls", width=str(percent), height="8")],
        class_="bar",
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{percent} percent of the score is meaning, the rest words",
    )
    bm25 = el("span", f"BM25 {why.bm25:.2f}", class_="bm25") if why.bm25 is not None else None
    return el(
        "div",
        [bar, el("p", [el("span", f"{meaning} ({percent} %)", class_="cls"), el("span", words, class_="ot"), bm25])],
        class_="shares",
    )


def passage(about: DescribedHit, text: str, strongest: float) -> Html:
    """The passage that matched, with its words marked."""
    part = about.snippet
    start, end = (part.start, part.end) if part else (0, len(text))
    before, after = (part.before, part.after) if part else (False, False)
    shown = marked(text, about.text_marks, strongest, start, end)
    return el("p", ["\u2026 " if before else "", shown, " \u2026" if after else ""], class_="passage")


def no_text(words: Sequence[WordShare]) -> Content:
    """The strongest words of a hit whose text is not in the index."""
    if not words:
        return None
    return el("ul", [word_chip(word) for word in words[:12]], class_="terms", aria_label="Matched words")


def marked(text: str, marks: Sequence[Mark], strongest: float, start: int = 0, end: int | None = None) -> Html:
    """``text[start:end]`` with the marked words shaded by their share of the ``strongest``."""
    end, parts = len(text) if end is None else end, list[Content]()
    for mark in marks:
        if start <= mark.start and mark.end <= end:
            level = max(1, min(LEVELS, round(LEVELS * mark.share / strongest)))
            words = text[mark.start : mark.end]
            shade = el("mark", words, class_=f"s{level}", title=f"{mark.share:.2f} of the score")
            parts += [text[start : mark.start], shade]
            start = mark.end
    return el("span", [*parts, text[start:end]])


def expansions(words: Sequence[WordShare]) -> Content:
    """Words that the text does not contain, as far as their share is not 0.00."""
    words = [word for word in words if word.share >= LEAST_SHARE]
    if not words:
        return None
    label = "Not in the text, added by the model:"
    return el(
        "div",
        [el("span", label, class_="label"), el("ul", [word_chip(word) for word in words[:8]], class_="terms")],
        class_="expansions",
    )


def word_chip(word: WordShare) -> Html:
    """A word and its share."""
    return el("li", [readable(word.word), " ", el("span", f"{word.share:.2f}")])


def details(hit: SearchHit, about: DescribedHit, text: str, strongest: float) -> Html:
    """All matched terms with their weights, the whole text and the metadata."""
    why = hit.explanation
    parts: list[Content] = []
    if why and why.terms:
        strongest = why.terms[0].share or 1.0
        rows = [
            el(
                "tr",
                [
                    el("th", readable(t.term), scope="row"),
                    el("td", f"{t.query_weight:.2f}"),
                    el("td", f"{t.document_weight:.2f}"),
                    el("td", f"{t.share:.2f}"),
                    el("td", meter(t.share / strongest, "ot")),
                ],
            )
            for t in why.terms
        ]
        head = el("tr", [el("th", name, scope="col") for name in ("Term", "In query", "In document", "Product", "")])
        parts.append(el("div", el("table", [el("thead", head), el("tbody", rows)], class_="weights"), class_="scroll"))
        if why.matched_terms > len(why.terms):
            parts.append(el("p", f"and {why.matched_terms - len(why.terms)} more"))
    if text:
        parts += [el("h4", "Text"), el("p", marked(text, about.text_marks, strongest), class_="whole")]
    if hit.document and hit.document.metadata:
        parts.append(metadata(hit.document))
    summary = el("summary", f"Why: {len(about.words)} matched words, whole text" if text else "Why")
    return el("details", [summary, *parts], class_="why")


def metadata(stored: Stored) -> Html:
    """The metadata of a document."""
    rows = [el("div", [el("dt", name), el("dd", str(value))]) for name, value in stored.metadata.items()]
    return el("dl", rows, class_="metadata")


def meter(part: float, class_: str) -> Html:
    """A small bar, 0 to 1; the number stands beside it."""
    width = f"{100 * min(1.0, max(0.0, part)):.1f}"
    return el(
        "svg",
        el("rect", class_=class_, width=width, height="8"),
        class_="meter",
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def readable(term: str) -> Html:
    """A term for people; a bucket of hashes without a name is called a stem."""
    if term.startswith("##"):
        return el("span", ["\u2026", term[2:]], class_="piece", title="a piece of a word")
    return el("span", "(a stem)" if term.startswith("=") else term)


def login(assets: Mapping[str, str], target: str, wrong: bool) -> Html:
    """The form that asks for the token."""
    head = [
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", "Sign in - dupmae_ir"),
        el("link", rel="icon", href=assets["icon.svg"], type="image/svg+xml"),
        el("link", rel="stylesheet", href=assets["style.css"]),
    ]
    field = el(
        "input",
        type="password",
        name="token",
        id="token",
        autocomplete="current-password",
        required=True,
        autofocus=True,
        aria_describedby="wrong" if wrong else None,
    )
    form = el(
        "form",
        [
            labelled("Token", field, "token", "wide"),
            el("input", type="hidden", name="next", value=target),
            el("button", "Sign in", type="submit", class_="primary"),
            el("p", "This is not the token.", role="alert", id="wrong") if wrong else None,
        ],
        action="/login",
        method="post",
        class_="login",
    )
    return document(head, el("main", [el("h1", "This search needs a token"), form], class_="narrow"), lang="en")
