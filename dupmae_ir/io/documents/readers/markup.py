"""Markdown and HTML.

The text of Markdown is that of the file, so offsets are places in the file. HTML is read by lxml's event parser: no
tree is built, so deep nesting costs no more than flat text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import date

from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Builder, Extracted, Heading, Unreadable
from dupmae_ir.io.documents.readers.format import Format
from dupmae_ir.io.documents.readers.text import MAX_HEADING, underlined_headings
from dupmae_ir.types import MetadataValue

_HASH_HEADING = re.compile(r"^ {0,3}(#{1,6})[ \t]+(\S.*)$", re.MULTILINE)
_FENCE = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?\n)(?:---|\.\.\.)[ \t]*\n", re.DOTALL)
_TITLE_LINE = re.compile(r"^title:(.*)$", re.MULTILINE)

MAX_FRONT_MATTER = 10_000
"""Characters of a front matter that are read: YAML takes long, and its anchors multiply what it says."""
_LIST_FIELDS = frozenset(["tags", "categories", "keywords", "aliases", "author", "authors"])
_DATE_FIELDS = frozenset(["date", "created", "updated", "published", "modified_on"])
_SCALARS = (str, int, float, date)
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
_XML_DECLARATION = re.compile(r"\A\s*<\?xml[^>]*\?>")

MAX_DEPTH = 50_000
"""Open elements above which a page is refused."""
MAX_STRAY_END_TAGS = 1_000
"""End tags without a start above which a page is refused: each takes time proportional to the open elements."""


def read_markdown(data: bytes) -> Extracted:
    """Markdown: ``#`` and underlined headings outside of code; the title of the front matter."""
    text, guess = decoded(data)
    title_line = None
    metadata: dict[str, MetadataValue] = {}
    front_matter = _FRONT_MATTER.match(text)
    if front_matter:
        title_line = _TITLE_LINE.search(front_matter.group(1))
        metadata = _front_matter_metadata(front_matter.group(1))
        # White space of the same length instead of the front matter, so that offsets stay those of the file.
        blank = re.sub(r"[^\n]", " ", text[: front_matter.end()])
        text = blank + text[front_matter.end() :]

    fences = _fence_borders(text)
    headings: list[Heading] = []
    for match in _HASH_HEADING.finditer(text):
        words = match.group(2).rstrip().rstrip("#").rstrip()
        if words and not _in_code(match.start(), fences):
            headings.append(Heading(match.start(), len(match.group(1)), words[:MAX_HEADING]))
    hash_starts = {heading.start for heading in headings}
    for heading in underlined_headings(text, hash_starts):
        if not _in_code(heading.start, fences):
            headings.append(heading)
    headings.sort()

    title = ""
    if title_line:
        title = title_line.group(1).strip().strip("\"'")
    elif headings:
        title = headings[0].text
    return Extracted(text, title, headings, metadata=metadata, guess=guess)


def _front_matter_metadata(source: str) -> dict[str, MetadataValue]:
    """The tags, authors and dates of a front matter in YAML; none for one that is damaged."""
    import yaml

    try:
        fields = yaml.safe_load(source[:MAX_FRONT_MATTER])
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a date that is none
        return {}
    if not isinstance(fields, dict):
        return {}
    metadata: dict[str, MetadataValue] = {}
    for name, values in fields.items():
        if name in _LIST_FIELDS:
            # "bread, yeast", or a list.
            items = values.split(",") if isinstance(values, str) else values
            if isinstance(items, list) and all(isinstance(item, _SCALARS) for item in items):
                metadata[name] = [str(item).strip().lstrip("#") for item in items]
        elif name in _DATE_FIELDS and isinstance(values, _SCALARS):
            metadata[name] = str(values)
    return metadata


def _fence_borders(text: str) -> list[int]:
    """Where fenced code begins and ends, in turns."""
    borders: list[int] = []
    open_fence = ""
    for match in _FENCE.finditer(text):
        if not open_fence:
            open_fence = match.group(1)
            borders.append(match.start())
        elif match.group(1) == open_fence:
            open_fence = ""
            borders.append(match.start())
    return borders


def _in_code(place: int, borders: list[int]) -> bool:
    """Whether a place has an odd number of borders before it."""
    return bisect_right(borders, place) % 2 == 1


def read_html(data: bytes) -> Extracted:
    """An HTML file."""
    page = decoded(data, declared=True)
    extracted = parse_html(page.text, Builder()).finish()
    return replace(extracted, guess=page.guess)


def parse_html(markup: str, builder: Builder) -> PageEvents:
    """Append the text of a page to ``builder``. Raises :class:`Unreadable` for what lxml refuses."""
    from lxml import etree

    _refuse_stray_end_tags(markup)
    events = PageEvents(builder)
    parser = etree.HTMLParser(target=events, huge_tree=True)
    try:
        # The declared encoding is that of the bytes; the text is already decoded.
        parser.feed(_XML_DECLARATION.sub("", markup[:1000]) + markup[1000:])
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
        self._left_out_depth = (
            0  # of the element that is being left out for its attributes; 0 outside of one
        )
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

    def finish(self) -> Extracted:
        """The text of the page."""
        if self._heading:  # the page ends inside a heading
            self.builder.write(" ".join("".join(self._heading).split()))
        return self.builder.done(self.title)

    def _break(self, tag: str) -> None:
        if tag in _PARAGRAPH_TAGS:
            self.builder.gap("\n\n")
        elif tag in _LINE_TAGS:
            self.builder.gap("\n")
        elif tag in ("td", "th"):
            self.builder.gap("  ")


FORMATS = (
    Format("md", ("md", "markdown", "mdx"), read_markdown),
    Format("html", ("html", "htm", "xhtml"), read_html, ("lxml",), isolated=True),
)
