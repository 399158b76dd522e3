"""XML of any kind: its text, each element with words of its own on a line."""

from __future__ import annotations

from typing import Any

from dupmae_ir.io.documents.readers.archive import XML_DECLARATION, local_name, xml_root
from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Builder, Extracted

_TITLES = frozenset(["title", "head", "heading", "name"])
_PROSE = frozenset(
    [
        "p",
        "para",
        "simpara",
        "l",
        "line",
        "li",
        "item",
        "abstract",
        "description",
        "summary",
        "content",
    ]
)
_MAX_TITLE = 200


def read_xml(data: bytes) -> Extracted:
    """An XML file: ``element: text`` for each element that has text, with its attributes."""
    # Python knows more encodings than the parser, and feeds of the web are often cut or not well-formed.
    text, guess = decoded(data, declared=True)
    root = xml_root(XML_DECLARATION.sub("", text).encode("utf-8", "replace"), recover=True)
    builder = Builder()
    _write(root, 1, builder)
    return builder.done(guess=guess, lines=not builder.headings)


def _write(element: Any, depth: int, builder: Builder) -> None:
    """Append an element; the parser limits how deep elements are nested."""
    name = local_name(element)
    if not name:
        return
    own_words = [element.text or "", *(inner.tail or "" for inner in element)]
    has_words = any(words.strip() for words in own_words)
    attributes = "; ".join(
        f"{key.rpartition('}')[2]}: {value}" for key, value in element.attrib.items()
    )
    if not has_words:
        if attributes:
            builder.gap("\n")
            builder.write(f"{name}: {attributes}")
        for inner in element:
            _write(inner, depth + 1, builder)
        return
    # With words between its elements, it is a paragraph, and they are parts of it.
    text = " ".join("".join(element.itertext()).split())
    if name in _TITLES and len(text) <= _MAX_TITLE:
        builder.heading(depth, text)
        return
    is_prose = len(element) > 0 or name in _PROSE
    builder.gap("\n\n" if is_prose else "\n")
    label = "" if is_prose else f"{name}: "
    builder.write(label + text)
    if is_prose:
        builder.gap("\n\n")
