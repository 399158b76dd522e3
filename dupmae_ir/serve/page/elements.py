"""HTML from Python values: text and attribute values are escaped, always."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

VOID = frozenset(("br", "hr", "img", "input", "link", "meta"))
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]")


class Html(str):
    """A string that is HTML already. Only :func:`el` makes one."""

    __slots__ = ()


Content = str | Iterable["Content"] | None
"""Text, which is escaped; elements, which are not; or several of both."""


def el(tag: str, content: Content = None, /, **attributes: str | float | bool | None) -> Html:
    """An element.

    ``class_`` is the attribute ``class``, and other underscores are hyphens. True is an attribute without a value;
    False and None leave it out.
    """
    given = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in VOID:
        return Html(f"<{tag}{given}>")
    return Html(f"<{tag}{given}>{inner(content)}</{tag}>")


def inner(content: Content) -> Html:
    """The HTML of some content."""
    if content is None:
        return Html("")
    if isinstance(content, Html):
        return content
    if isinstance(content, str):
        return Html(html.escape(_CONTROLS.sub("\ufffd", content)))
    return Html("".join(map(inner, content)))


def document(head: Content, body: Content, **attributes: str | float | bool | None) -> Html:
    """A whole page."""
    return Html(f"<!doctype html>\n{el('html', [el('head', head), el('body', body)], **attributes)}\n")


def _attribute(name: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    return f' {name}="{html.escape(_CONTROLS.sub("?", str(value)))}"'
