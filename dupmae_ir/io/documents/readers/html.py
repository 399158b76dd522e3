"""HTML, read by lxml's event parser: no tree is built, so deep nesting costs no more than flat text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from dupmae_ir.io.documents.readers.archive import XML_DECLARATION
from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Builder, Extracted, Guess, Unreadable

_SKIPPED_TAGS = frozenset(
    [
        "script",
        "style",
        "template",
        "noscript",
        "svg",
        "math",
        "nav",
        "form",
        "button",
        "select",
        "option",
        "iframe",
        "object",
    ]
)
_PARAGRAPH_TAGS = frozenset(
    [
        "p",
        "table",
        "ul",
        "ol",
        "dl",
        "pre",
        "blockquote",
        "section",
        "article",
        "main",
        "figure",
        "hr",
    ]
)
_LINE_TAGS = frozenset(
    ["div", "li", "tr", "br", "dd", "caption", "header", "footer", "aside", "address", "body"]
)
_HEADING_LEVELS = {f"h{level}": level for level in range(1, 7)} | {"dt": 7}
"""Element -> level; what a ``dd`` describes is the heading of it."""
_NO_CONTENT_ROLES = frozenset(["navigation", "search", "dialog", "alertdialog", "menu", "menubar"])
_COOKIES = re.compile(r"cookie|consent|gdpr")
_SPACE = re.compile(r"[ \t\n\r\f\v]+")
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")

MAX_DEPTH = 50_000
"""Open elements above which a page is refused."""
MAX_STRAY_END_TAGS = 1_000
"""End tags without a start above which a page is refused: each takes time proportional to the open elements."""


def read_html(data: bytes) -> Extracted:
    """An HTML file."""
    page = decoded(data, declared=True)
    events = parse_html(page.text, Builder())
    return events.finish(page.guess)


def parse_html(markup: str, builder: Builder) -> PageEvents:
    """Append the text of a page to ``builder``. Raises :class:`Unreadable` for what lxml refuses."""
    from lxml import etree

    _refuse_stray_end_tags(markup)
    events = PageEvents(builder)
    parser = etree.HTMLParser(target=events, huge_tree=True)
    try:
        # The declared encoding is that of the bytes; the text is already decoded.
        parser.feed(XML_DECLARATION.sub("", markup[:1000]) + markup[1000:])
        parser.close()
    except etree.LxmlError as e:
        raise Unreadable(f"not HTML: {e}") from None
    return events


def _refuse_stray_end_tags(markup: str) -> None:
    if markup.count("</") <= MAX_STRAY_END_TAGS:
        return
    # Name of a tag -> its end tags less its start tags.
    surplus: Counter[str] = Counter()
    for tag in _TAG.finditer(markup):
        surplus[tag[2].lower()] += 1 if tag[1] else -1
    if max(surplus.values(), default=0) > MAX_STRAY_END_TAGS:
        raise Unreadable(f"more than {MAX_STRAY_END_TAGS:,} end tags without a start")


def _is_no_content(attributes: Mapping[str, str]) -> bool:
    """Whether an element is a table of contents, which repeats the headings, navigation, or a banner about cookies."""
    if attributes.get("role") in _NO_CONTENT_ROLES or "hidden" in attributes:
        return True
    names = f"{attributes.get('class', '')} {attributes.get('id', '')}".lower()
    return "toc" in names.split() or _COOKIES.search(names) is not None


class PageEvents:
    """Collects the events of the parser."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.title = ""
        self._depth = 0
        # How many elements are open whose text is left out, and how many in which white space counts.
        self._skipped = 0
        self._pre = 0
        # The depth of the element that is being left out for its attributes; 0 outside of one.
        self._left_out_depth = 0
        self._in_title = False
        self._heading: list[str] | None = None

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """An element begins."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable(f"elements nested more than {MAX_DEPTH:,} deep")
        if tag in _SKIPPED_TAGS:
            self._skipped += 1
        elif self._skipped:
            return
        elif _is_no_content(attributes):
            self._skipped = 1
            self._left_out_depth = self._depth
        elif tag == "title":
            self._in_title = not self.title
        elif tag in _HEADING_LEVELS and self._heading is None:
            self._heading = []
        else:
            self._break(tag)
            self._pre += tag == "pre"

    def end(self, tag: str) -> None:
        """An element ends."""
        self._depth -= 1
        if self._left_out_depth and self._depth + 1 == self._left_out_depth:
            self._skipped = 0
            self._left_out_depth = 0
        elif tag in _SKIPPED_TAGS:
            self._skipped -= 1
        elif self._skipped:
            return
        elif tag == "title":
            self._in_title = False
        elif tag in _HEADING_LEVELS and self._heading is not None:
            # The pilcrow is the text of links to the heading, as Sphinx writes them.
            title = "".join(self._heading).replace("\u00b6", "")
            self.builder.heading(_HEADING_LEVELS[tag], title)
            self._heading = None
        else:
            self._break(tag)
            self._pre -= tag == "pre"

    def data(self, text: str) -> None:
        """Text of an element."""
        if self._skipped:
            return
        if self._in_title:
            self.title += text
        elif self._heading is not None:
            self._heading.append(text)
        elif self._pre:
            self.builder.write(text)
        else:  # white space is one blank, and none at the ends of paragraphs
            words = _SPACE.sub(" ", text)
            if words.startswith(" "):
                self.builder.gap(" ")
            self.builder.write(words.strip(" "))
            if words.endswith(" "):
                self.builder.gap(" ")

    def comment(self, text: str) -> None:
        """Comments are left out."""

    def pi(self, target: str, data: str) -> None:
        """Processing instructions are left out."""

    def close(self) -> None:
        """The end of the file."""

    def finish(self, guess: Guess | None = None) -> Extracted:
        """The text of the page; ``guess``: its encoding, if it was guessed."""
        if self._heading:  # the page ends inside a heading
            self.builder.write(" ".join("".join(self._heading).split()))
        return self.builder.done(self.title, guess)

    def _break(self, tag: str) -> None:
        if tag in _PARAGRAPH_TAGS:
            self.builder.gap("\n\n")
        elif tag in _LINE_TAGS:
            self.builder.gap("\n")
        elif tag in ("td", "th"):
            self.builder.gap("  ")
