"""The page's HTML: what it shows, that nothing in it can run, and that it can be read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote, unquote_plus

import pytest
from support.serving import Client, serving, write_index

from dupmae_ir.search.query.words import Mark
from dupmae_ir.serve.http_server import POLICY, cookie_value, is_local_path
from dupmae_ir.serve.page import TEMPLATES, State

pytestmark = pytest.mark.jvm
VOID = ("input", "link", "meta")
NASTY = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> \x00\x1b[31m \u202e & &amp;"


class Tree(HTMLParser):
    """The elements of a page in their order, with their attributes and the text inside."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(html)
        assert self.open == [], "elements that are not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [
            a
            for t, a in self.found
            if t == tag and all(v in (a.get(n.rstrip("_")) or "") for n, v in attributes.items())
        ]

    def text(self, tag: str) -> list[str]:
        return [text for t, text in self.texts if t == tag]


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = write_index(
        tmp_path_factory.mktemp("n") / "I",
        {NASTY[:50].replace(" ", "") + str(n): f"lock {NASTY} queue {n}" for n in range(3)},
    )
    with serving(folder) as client:
        yield client


def test_the_three_lists_are_those_of_the_api(client: Client) -> None:
    page = Tree(client.get("/?q=lock+queue&hits=5").text)
    assert [a["aria-label"] for a in page.all("section", class_="list")] == [
        "By meaning", "By both", "By words"
    ]  # fmt: skip
    shown = [a["data-docid"] for a in page.all("li") if "data-docid" in a]
    lists = [
        client.post("/api/search", {"query": "lock queue", "hits": 5, "mode": m}).json
        for m in ("dense", "hybrid", "impact")
    ]
    assert shown == [hit["docid"] for reply in lists for hit in reply["results"][0]["hits"]]
    assert len(page.all("details", class_="badge ok")) == 3
    assert (
        len(page.all("div", class_="expansions")) == 5
    )  # the terms of this encoder are numbers, in no text
    assert len(page.all("svg", class_="bar")) == 5


def test_another_list_in_the_middle_and_one_part_only(client: Client) -> None:
    page = Tree(client.get("/?q=lock&mode=impact").text)
    assert page.all("section", class_="list main")[0]["aria-label"] == "By words"
    dense = Tree(client.get("/?q=lock&index=dense").text)
    assert [a["aria-label"] for a in dense.all("section", class_="list")] == ["By meaning"]
    assert (
        Tree(client.get("/?q=zyzzyva&mode=impact").text).text("p").count("No document matches.")
        >= 1
    )


def test_two_indexes_side_by_side(client: Client) -> None:
    page = Tree(client.get("/?q=lock+queue&compare=other&hits=3").text)
    assert [a["aria-label"] for a in page.all("section", class_="list main")] == ["docs", "other"]
    other = client.post("/api/search", {"query": "lock queue", "hits": 3, "index": "other"}).json[
        "results"
    ][0]["hits"]
    assert [a["data-docid"] for a in page.all("li") if "data-docid" in a][3:] == [
        h["docid"] for h in other
    ]


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("/", 200, "Search, and see why"),
        ("/?q=+++", 200, "Search, and see why"),
        ("/?q=lock&index=nope", 404, "Not found"),
        ("/?q=lock&index=dense&mode=impact", 404, "has only: dense"),
        ("/?q=" + "x" * 5000, 422, "too much"),
        ("/?q=lock&filter=year+%3E", 422, "This filter cannot be used"),
        ("/?q=lock&filter=year+%3E+2050", 200, "Results for"),
        ("/?q=lock&hits=99999&mode=magic&compare=", 200, "Results for"),
    ],
)
def test_every_state_is_a_page(client: Client, address: str, status: int, words: str) -> None:
    reply = client.get(address)
    assert (reply.status, reply.headers["content-security-policy"]) == (status, POLICY)
    assert words in reply.text
    Tree(reply.text)


def test_links_give_the_state_back() -> None:
    state = State(q="a & b=c #?", index="I", mode="dense", hits=20)
    given = dict(re.findall(r"[?&]([^=]+)=([^&]*)", state.link()))
    assert State.read({k: unquote_plus(v) for k, v in given.items()}, 100) == state
    assert State().link() == "/"


def test_no_text_becomes_markup(nasty: Client) -> None:
    """In queries, ids, titles, texts and metadata; and the policy would not run it."""
    reply = nasty.get("/?q=" + quote("lock " + NASTY) + "&index=" + quote(NASTY))
    for page in (nasty.get("/?q=" + quote("lock " + NASTY)), reply):
        tree = Tree(page.text)
        assert len(tree.all("script")) == 1
        assert tree.all("img") == []
        assert not [
            a
            for _, attributes in tree.found
            for a in attributes
            if a.startswith("on") or a == "style"
        ]
        assert "\x00" not in page.text
        assert "\x1b" not in page.text
    assert "unsafe" not in POLICY
    assert "default-src 'none'" in POLICY


def test_nothing_comes_from_elsewhere(client: Client) -> None:
    page = client.get("/?q=lock").text
    addresses = [
        v for _, a in Tree(page).found for n, v in a.items() if n in ("src", "href", "action") and v
    ]
    assert addresses
    assert all(a.startswith(("/", "#")) and not a.startswith("//") for a in addresses)
    for a in {a for a in addresses if a.startswith("/assets/")}:
        reply = client.get(a)
        assert (reply.status, "immutable" in reply.headers["cache-control"]) == (200, True)
        assert not re.search(r"https?://(?!www\.w3\.org/)", reply.text)
    assert client.get("/assets/..%2f__init__.py").status == 404
    assert client.get("/assets/base.html").status == 404


def test_everything_has_a_name(client: Client) -> None:
    """Labels for controls, names for landmarks and pictures, one h1, unique ids, and headings without gaps."""
    for address in ("/", "/?q=lock+queue", "/?q=lock&compare=other", "/?q=a&index=nope"):
        page = Tree(client.get(address).text)
        labels = {a["for"] for a in page.all("label")}
        controls = [
            a for t, a in page.found if t in ("input", "select") and a.get("type") != "hidden"
        ]
        assert {a["id"] for a in controls} == labels
        ids = [a["id"] for _, a in page.found if "id" in a]
        assert len(ids) == len(set(ids))
        assert all(a.get("aria-hidden") == "true" or a.get("aria-label") for a in page.all("svg"))
        levels = [int(t[1]) for t, _ in page.found if re.fullmatch("h[1-6]", t)]
        assert levels.count(1) == 1
        assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
        assert page.found[0] == ("html", {"lang": "en"})
        assert len(page.all("main")) == len(page.all("header")) == len(page.all("footer")) == 1


def test_colours_have_contrast() -> None:
    """WCAG AA: 4.5 for text, 3 for the parts of a bar, in both themes."""
    css = (files("dupmae_ir.serve.page") / "assets" / "style.css").read_text()
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", css)
    assert len(blocks) == 3
    themes = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in blocks]
    assert themes[1] == themes[2]
    for colours in themes[:2]:
        for text in ("text", "muted", "accent", "cls", "ot", "bad"):
            for ground in ("ground", "panel"):
                assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        assert contrast(colours["on-accent"], colours["accent"]) >= 4.5
        for level in range(1, 6):
            assert contrast(colours["on-mark"], colours[f"s{level}"]) >= 4.5
        assert contrast(colours["muted"], colours["ground"]) >= 3


def contrast(a: str, b: str) -> float:
    lighter, darker = sorted((luminance(a), luminance(b)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_signing_in(folders: dict[str, Path]) -> None:
    token = "a-token-of-many-characters"
    with serving(folders["docs"], token=token, host="0.0.0.0") as client:
        sent = client.get("/?q=lock", accept="text/html,*/*")
        assert (sent.status, sent.headers["location"]) == (303, "/login?next=%2F%3Fq%3Dlock")
        assert client.get("/?q=lock").status == 401
        assert "password" in client.get(sent.headers["location"]).text
        wrong = client.post("/login", b"token=wrong&next=%2F")
        assert (wrong.status, "set-cookie" in wrong.headers) == (401, False)
        right = client.post("/login", f"token={token}&next=%2F%3Fq%3Dlock".encode())
        assert (right.status, right.headers["location"]) == (303, "/?q=lock")
        cookie = right.headers["set-cookie"]
        assert cookie.startswith(f"dupmae_ir={cookie_value(token)}; ")
        assert "httponly" in cookie.lower()
        assert "samesite=strict" in cookie.lower()
        assert client.get("/?q=lock", cookie=cookie.split(";")[0]).status == 200
        assert (
            client.post("/login", f"token={token}&next=//evil.example".encode()).headers["location"]
            == "/"
        )
    for target, local in (
        ("/", True),
        ("/?q=a", True),
        ("//x", False),
        ("/\\x", False),
        ("https://x", False),
        ("/a\n", False),
    ):
        assert is_local_path(target) is local


def test_words_are_shaded_by_their_shares() -> None:
    marked = TEMPLATES.get_template("parts.html").module.marked  # type: ignore[attr-defined]
    text = "Rotating the LOGS of a <spool>"
    marks = (Mark(0, 8, 2.0), Mark(13, 17, 1.0), Mark(23, 30, 0.1))
    assert marked(text, marks, 2.0) == (
        '<span><mark class="s5" title="2.00 of the score">Rotating</mark> the '
        '<mark class="s2" title="1.00 of the score">LOGS</mark> of a '
        '<mark class="s1" title="0.10 of the score">&lt;spool&gt;</mark></span>'
    )
    assert marked(text, marks, 2.0, 9, 22) == (
        '<span>the <mark class="s2" title="1.00 of the score">LOGS</mark> of a</span>'
    )
    assert marked("nothing <matches>", (), 0.0) == "<span>nothing &lt;matches&gt;</span>"


def test_words_and_passages_are_those_of_describe(client: Client) -> None:
    """The page shows what ``search --query`` shows: one description for both."""
    generation = client.service.catalogue.get("docs")
    hits = client.post("/api/search", {"query": "lock queue", "hits": 5}).json["results"][0]["hits"]
    described = generation.searcher.describe(
        "lock queue", [hit["docid"] for hit in hits], longest=400
    )
    page = client.get("/?q=lock+queue&hits=5").text
    passages = re.findall(r'<p class="passage" dir="auto">(.*?)</p>', page)
    assert [re.sub("<[^>]*>", "", passage) for passage in passages] == [
        d.snippet.text for d in described if d.snippet
    ]
    chips = re.findall(r'<ul class="terms">(.*?)</ul>', page)
    assert len(chips) == len(described)
    for shown, about in zip(chips, described, strict=True):
        words = [w for w in about.words if not w.text_words and w.share >= 0.005]
        assert re.findall("<span>([^<]*)</span></li>", shown) == [
            f"{w.share:.2f}" for w in words[:8]
        ]


def test_templates_escape() -> None:
    """Text and attributes; control characters become visible."""
    template = TEMPLATES.from_string('<a href="{{ text }}">{{ text }}</a>')
    assert template.render(text='"<&>\x00\x1b\ud800') == (
        '<a href="&#34;&lt;&amp;&gt;\ufffd\ufffd\ufffd">&#34;&lt;&amp;&gt;\ufffd\ufffd\ufffd</a>'
    )


def test_line_breaks_of_templates_are_not_on_the_page() -> None:
    template = TEMPLATES.from_string("<p>\n  {{ 'a' }}\n  <b>\n  d\n  </b>\n</p>\n")
    assert template.render() == "<p>a<b>d</b></p>"
