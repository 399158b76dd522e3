"""HTML and XHTML through lxml's event parser: no tree is built, so deep nesting costs no more than flat text."""

from __future__ import annotations

import re

from dupmae_ir.io.documents.extracted import Builder, Extracted, Unreadable, decoded

_NAME = re.compile(r"\w+")
_SKIPPED = frozenset(
    _NAME.findall("<script><style><template><noscript><svg><math><nav><form><button><select><option><iframe><object>")
)
_PARAGRAPHS = frozenset(_NAME.findall("<p><table><ul><ol><dl><pre><blockquote><section><article><main><figure><hr>"))
_LINES = frozenset(_NAME.findall("<div><li><tr><br><dt><dd><caption><header><footer><aside><address><body>"))
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_SPACE = re.compile(r"[ \t\n\r\f\v]+")
DEEPEST = 50_000
"""Open elements above which a file is refused: closing one of another name takes time proportional to them."""


def html(data: bytes) -> Extracted:
    """An HTML file."""
    return parse(decoded(data, declared=True), Builder()).finish()


def parse(markup: str, made: Builder) -> Target:
    """Append the text of a page to ``made``. Raises :class:`Unreadable` for what lxml refuses."""
    from lxml import etree

    target = Target(made)
    parser = etree.HTMLParser(target=target, huge_tree=True)
    try:
        # The declared encoding is that of the bytes; the text is already decoded.
        parser.feed(re.sub(r"\A\s*<\?xml[^>]*\?>", "", markup[:1000]) + markup[1000:])
        parser.close()
    except etree.LxmlError as e:
        raise Unreadable(f"not HTML: {e}") from None
    return target


class Target:
    """Collects the events of the parser."""

    def __init__(self, made: Builder) -> None:
        self.made = made
        self.title = ""
        self._skipped = self._pre = self._depth = 0
        self._in_title = False
        self._heading: list[str] | None = None
        self._space = False

    def start(self, tag: str, attributes: object) -> None:  # noqa: ARG002 (the parser's interface)
        """An element begins."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise Unreadable(f"elements nested more than {DEEPEST:,} deep")
        if tag in _SKIPPED:
            self._skipped += 1
        elif self._skipped:
            return
        elif tag == "title":
            self._in_title = not self.title
        elif tag in _HEADINGS and self._heading is None:
            self._heading = []
        else:
            self._break(tag)
            self._pre += tag == "pre"

    def end(self, tag: str) -> None:
        """An element ends."""
        self._depth -= 1
        if tag in _SKIPPED:
            self._skipped -= 1
        elif self._skipped:
            return
        elif tag == "title":
            self._in_title = False
        elif tag in _HEADINGS and self._heading is not None:
            self._space = False
            self.made.heading(_HEADINGS[tag], "".join(self._heading).replace("\u00b6", ""))
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
            self.made.write(text)
        else:
            self._flow(text)

    def comment(self, text: str) -> None:
        """Comments are left out."""

    def pi(self, target: str, data: str) -> None:
        """Processing instructions are left out."""

    def close(self) -> None:
        """The end of the file."""

    def finish(self) -> Extracted:
        """The text of the page."""
        if self._heading:
            self.made.write(" ".join("".join(self._heading).split()))
        return self.made.done(self.title)

    def _break(self, tag: str) -> None:
        if tag in _PARAGRAPHS:
            self.made.gap("\n\n")
        elif tag in _LINES:
            self.made.gap("\n")
        elif tag in ("td", "th"):
            self.made.gap("  ")

    def _flow(self, text: str) -> None:
        """Text outside of ``pre``: white space is one blank, and none at the ends of paragraphs."""
        words = _SPACE.sub(" ", text)
        if words.startswith(" "):
            self.made.gap(" ")
        self.made.write(words.strip(" "))
        if words.endswith(" "):
            self.made.gap(" ")
