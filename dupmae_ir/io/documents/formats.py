"""The text of each format: plain text, Markdown, source code, notebooks, CSV, JSON, HTML, Word, EPUB and PDF.

The text of the first three is that of the file, so offsets are places in it. HTML is read by lxml's event parser: no
tree is built, so deep nesting costs no more than flat text. Word documents are read by python-docx, PDF files by pypdf;
the chapters of EPUB books are XHTML.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import posixpath
import re
import zipfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from dupmae_ir.io.documents.extracted import (
    LARGEST,
    Builder,
    Extracted,
    Heading,
    Unreadable,
    decoded,
    joined,
)

_ATX = re.compile(r"^ {0,3}(#{1,6})[ \t]+(\S.*)$", re.MULTILINE)
_FENCE = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)
_UNDERLINE = re.compile(r"^(?=([=\-~^\"'`*+#.:_]))\1{3,}[ \t]*$", re.MULTILINE)
_QUESTION = re.compile(
    r"(?:\A|(?<=\n\n))[ \t]{0,3}(?=\d+(?:\.\d+)*[.)]?[ \t]|Q[:.)]|.*\?[ \t]*$)(\S.{3,150})$(?=\n[ \t]*$)",
    re.MULTILINE,
)
"""A line between blank ones that is numbered, begins with Q, or ends with a question mark."""
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?\n)(?:---|\.\.\.)[ \t]*\n", re.DOTALL)
_TITLE_LINE = re.compile(r"^title:(.*)$", re.MULTILINE)
_DEFINITION = re.compile(
    r"^(?:export |default |public |private |static |pub(?:\([a-z]+\))? |async |abstract |final )*"
    r"(?:class|def|fn|func|function|interface|struct|enum|trait|impl|module|sub|type)[ \t]+([A-Za-z_](?:[\w.:]*\w)?)"
    r"|^(?: {1,4}|\t)(?:(?:export|public|private|static|pub|async|abstract|final) )*"
    r"(?:class|def|fn|func|function)[ \t]+([A-Za-z_]\w*)(?=\W)",
    re.MULTILINE,
)
_ABOVE = re.compile(r"[ \t]*(?:@|#(?!!)|//|/?\*|--)")
"""A line of a comment, or a decorator."""
_LONGEST_HEADING = 200
_NAME = re.compile(r"\w+")
_SKIPPED = frozenset(
    _NAME.findall(
        "<script><style><template><noscript><svg><math><nav><form><button><select><option><iframe><object>"
    )
)
_PARAGRAPHS = frozenset(
    _NAME.findall("<p><table><ul><ol><dl><pre><blockquote><section><article><main><figure><hr>")
)
_LINES = frozenset(
    _NAME.findall("<div><li><tr><br><dd><caption><header><footer><aside><address><body>")
)
_HEADINGS = {f"h{level}": level for level in range(1, 7)} | {"dt": 7}
"""Element -> level; what a ``dd`` describes is the heading of it."""
_SPACE = re.compile(r"[ \t\n\r\f\v]+")
DEEPEST = 50_000
"""Open elements above which a page is refused."""
MOST_STRAY = 1_000
"""End tags without a start above which a page is refused: each takes time proportional to the open elements."""
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
MOST_ELEMENTS = 5_000_000
"""Tags of a Word document above which it is refused: an empty paragraph has 6 bytes, and 130 in memory."""
_HYPHEN = re.compile(r"(?<=[a-z])-\n(?=[a-z])")
_MOST_MEMBERS = 20_000
_HEADING = re.compile(r"heading (\d)", re.IGNORECASE)
_CONTAINER = "META-INF/container.xml"


def text(data: bytes) -> Extracted:
    """Plain text and reStructuredText: underlined lines are headings, and the questions of a FAQ."""
    found = decoded(data)
    headings = list(_underlined(found, set()))
    title = headings[0].text if headings and not found[: headings[0].start].strip() else ""
    deepest, taken = len({h.level for h in headings}) + 1, {h.start for h in headings}
    headings += [
        Heading(m.start(), deepest, m[1])
        for m in _QUESTION.finditer(found)
        if m.start() not in taken
    ]
    return Extracted(found, title, headings)


def markdown(data: bytes) -> Extracted:
    """Markdown: ``#`` and underlined headings outside of code; the title of the front matter."""
    found = decoded(data)
    front = _FRONT_MATTER.match(found)
    named = _TITLE_LINE.search(front.group(1)) if front else None
    # White space of the same length instead of the front matter, so that offsets stay those of the file.
    body = (
        found
        if front is None
        else re.sub(r"[^\n]", " ", found[: front.end()]) + found[front.end() :]
    )
    fenced = _fenced(body)
    headings = [
        Heading(m.start(), len(m.group(1)), words[:_LONGEST_HEADING])
        for m in _ATX.finditer(body)
        if not _inside(m.start(), fenced) and (words := m.group(2).rstrip().rstrip("#").rstrip())
    ]
    levels = {h.start for h in headings}
    headings += [h for h in _underlined(body, levels) if not _inside(h.start, fenced)]
    headings.sort()
    title = named.group(1).strip().strip("\"'") if named else headings[0].text if headings else ""
    return Extracted(body, title, headings)


def code(data: bytes) -> Extracted:
    """Source code: definitions at the left margin, and methods one step from it, are headings; split at line ends.

    Comments and decorators on the lines directly above a definition belong to it.
    """
    found = decoded(data)
    headings: list[Heading] = []
    outer, before = "", 0
    for m in _DEFINITION.finditer(found):
        outer = m[1] or outer
        start = m.start()
        while (
            start
            and (above := found.rfind("\n", 0, start - 1) + 1) >= before
            and _ABOVE.match(found, above)
        ):
            start = above
        headings.append(Heading(start, 1, m[1] or f"{outer}.{m[2]}".lstrip(".")))
        before = m.end()
    return Extracted(found, "", headings, lines=True)


def notebook(data: bytes) -> Extracted:
    """A Jupyter notebook: Markdown and code cells, without outputs."""
    try:
        cells = json.loads(decoded(data))["cells"]
        sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise Unreadable(f"not a notebook: {_reason(e)}") from None
    made = Builder()
    for kind, source in sources:
        if kind != "markdown":
            made.write(source.strip("\n"))
        else:
            inner = markdown(source.encode("utf-8", "replace"))
            start = made.next_start
            made.write(inner.text)
            made.headings += [
                heading._replace(start=heading.start + start) for heading in inner.headings
            ]
        made.gap("\n\n")
    return made.done()


def table(data: bytes) -> Extracted:
    """CSV or tab-separated: each row as ``name: value; ...``; split at rows."""
    found = decoded(data)
    first = found.lstrip("\n").partition("\n")[0]
    delimiter = max(",;\t|", key=first.count)
    csv.field_size_limit(1 << 30)
    try:
        rows = [
            [cell.strip() for cell in row]
            for row in csv.reader(io.StringIO(found), delimiter=delimiter)
        ]
    except csv.Error as e:
        raise Unreadable(f"not a table: {e}") from None
    rows = [row for row in rows if any(row)]
    header = rows.pop(0) if len(rows) > 1 and _is_header(rows[0]) else []
    names = [f"{name}: " if name else "" for name in header]
    lines = (
        "; ".join(
            f"{names[i] if i < len(names) else ''}{' '.join(cell.split())}"
            for i, cell in enumerate(row)
            if cell
        )
        for row in rows
    )
    return Extracted(joined(lines), "", (), lines=True)


def json_values(data: bytes) -> Extracted:
    """JSON, or JSON lines: each value as ``path: value`` on a line of its own."""
    found = decoded(data)
    try:
        values = [json.loads(found)]
    except (ValueError, RecursionError) as whole:
        try:
            values = [json.loads(line) for line in found.split("\n") if line.strip()]
        except (ValueError, RecursionError):
            raise Unreadable(f"not JSON: {_reason(whole)}") from None
    return Extracted(joined(line for value in values for line in _flat(value)), "", (), lines=True)


def _flat(root: Any) -> Iterator[str]:
    """``path: value`` lines in the order of the file, without recursion."""
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [
                (f"{path}.{key}" if path else str(key), inner)
                for key, inner in reversed(value.items())
            ]
        elif isinstance(value, list):
            waiting += [(path, inner) for inner in reversed(value)]
        elif value is not None and value != "":
            shown = " ".join(value.split()) if isinstance(value, str) else json.dumps(value)
            yield f"{path}: {shown}" if path else shown


def _is_header(row: list[str]) -> bool:
    """Distinct names that are no numbers."""
    return len(set(row)) == len(row) and not any(
        re.fullmatch(r"[-+]?[\d.,]+%?", cell) for cell in row
    )


def _underlined(found: str, taken: set[int]) -> Iterator[Heading]:
    """Lines that the next one underlines; the level is the place of the underline's character among those met."""
    characters: list[str] = []
    for m in _UNDERLINE.finditer(found):
        end = m.start() - 1
        if end <= 0:
            continue
        start = found.rfind("\n", max(0, end - _LONGEST_HEADING), end) + 1
        title = found[start:end].strip()
        too_short = len(m.group().rstrip()) < min(len(title), 12)
        if (
            not title
            or too_short
            or start in taken
            or not title[0].isalnum()
            or end - start > _LONGEST_HEADING
        ):
            continue
        if (character := m.group(1)) not in characters:
            characters.append(character)
        yield Heading(start, characters.index(character) + 1, title)


def _fenced(found: str) -> list[int]:
    """Where fenced code begins and ends, in turns."""
    places: list[int] = []
    opened = ""
    for m in _FENCE.finditer(found):
        if not opened or m.group(1) == opened:
            places.append(m.start())
            opened = "" if opened else m.group(1)
    return places


def _inside(place: int, borders: list[int]) -> bool:
    return bisect_right(borders, place) % 2 == 1


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def html(data: bytes) -> Extracted:
    """An HTML file."""
    return parse(decoded(data, declared=True), Builder()).finish()


def parse(markup: str, made: Builder) -> Target:
    """Append the text of a page to ``made``. Raises :class:`Unreadable` for what lxml refuses."""
    from lxml import etree

    if markup.count("</") > MOST_STRAY:
        tags: Counter[str] = Counter()
        for tag in _TAG.finditer(markup):
            tags[tag[2].lower()] += 1 if tag[1] else -1
        if max(tags.values(), default=0) > MOST_STRAY:
            raise Unreadable(f"more than {MOST_STRAY:,} end tags without a start")
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
        self._skipped = self._pre = self._depth = self._contents = 0
        self._in_title = False
        self._heading: list[str] | None = None

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """An element begins."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise Unreadable(f"elements nested more than {DEEPEST:,} deep")
        if tag in _SKIPPED:
            self._skipped += 1
        elif self._skipped:
            return
        elif "toc" in attributes.get("class", "").split():  # it repeats the headings
            self._skipped, self._contents = 1, self._depth
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
        if self._depth + 1 == self._contents > 0:
            self._skipped = self._contents = 0
        elif tag in _SKIPPED:
            self._skipped -= 1
        elif self._skipped:
            return
        elif tag == "title":
            self._in_title = False
        elif tag in _HEADINGS and self._heading is not None:
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
        else:  # white space is one blank, and none at the ends of paragraphs
            words = _SPACE.sub(" ", text)
            if words.startswith(" "):
                self.made.gap(" ")
            self.made.write(words.strip(" "))
            if words.endswith(" "):
                self.made.gap(" ")

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


def docx(data: bytes) -> Extracted:
    """A Word document: paragraphs and tables in their order; styles ``Heading N`` and ``Title`` are headings."""
    from docx import Document

    with _checked_zip(data) as package:
        tags = sum(
            package.read(name).count(b"<") for name in package.namelist() if name.endswith(".xml")
        )
    if tags > MOST_ELEMENTS:
        raise Unreadable(f"more than {MOST_ELEMENTS:,} tags")
    document = Document(io.BytesIO(data))
    made = Builder()
    for block in document.iter_inner_content():
        if hasattr(block, "rows"):
            for row in block.rows:
                made.gap("\n")
                made.write(
                    " | ".join(dict.fromkeys(" ".join(cell.text.split()) for cell in row.cells))
                )
        elif level := _level(block):
            made.heading(level, block.text)
        else:
            made.gap("\n\n")
            made.write(block.text.strip())
        made.gap("\n\n")
    return made.done(document.core_properties.title or "")


def _level(paragraph: Any) -> int:
    """The level of a heading; 0 for other paragraphs."""
    name = (paragraph.style.name or "") if paragraph.style is not None else ""
    if name.lower() == "title":
        return 1
    found = _HEADING.match(name)
    return int(found.group(1)) if found else 0


def epub(data: bytes) -> Extracted:
    """A book: its chapters in the order of the spine."""
    with _checked_zip(data) as book:
        paths = (
            element.get("full-path") for element in _elements(_read(book, _CONTAINER), "rootfile")
        )
        if not (path := next(filter(None, paths), None)):
            raise Unreadable("its container names no package")
        package, folder = _read(book, path), posixpath.dirname(path)
        files = {
            item.get("id"): posixpath.normpath(
                posixpath.join(folder, unquote(item.get("href") or ""))
            )
            for item in _elements(package, "item")
            if "html" in (item.get("media-type") or "")
        }
        titles = [(element.text or "").strip() for element in _elements(package, "title")]
        made = Builder()
        for reference in _elements(package, "itemref"):
            if name := files.get(reference.get("idref")):
                made.gap("\n\n")
                parse(decoded(_read(book, name), declared=True), made)
    return made.done(next(filter(None, titles), ""))


def _checked_zip(data: bytes) -> zipfile.ZipFile:
    """The archive. Raises :class:`Unreadable` for one that is none, or whose members are too large together; zipfile
    reads no more of a member than the size that is added here."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as e:
        raise Unreadable(f"not a zip archive: {e}") from None
    members = archive.infolist()
    size = sum(member.file_size for member in members)
    if size > LARGEST or len(members) > _MOST_MEMBERS:
        archive.close()
        raise Unreadable(
            f"unpacks to {size >> 20:,} MiB in {len(members):,} parts; the limit is {LARGEST >> 20} MiB"
        )
    return archive


def _read(book: zipfile.ZipFile, name: str) -> bytes:
    try:
        return book.read(name)
    except KeyError:
        raise Unreadable(f"{name} is not in the book") from None
    except RuntimeError as e:  # an encrypted member
        raise Unreadable(f"{name}: {e}") from None


def _elements(xml: bytes, name: str) -> Iterator[Any]:
    """The elements of a local name; no entity is resolved and nothing is loaded."""
    from lxml import etree

    try:
        root = etree.fromstring(
            xml, etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
        )
    except etree.LxmlError as e:
        raise Unreadable(f"damaged XML: {e}") from None
    return (e for e in root.iter() if isinstance(e.tag, str) and etree.QName(e).localname == name)


def pdf(data: bytes) -> Extracted:
    """The text of all pages; words that a line end divides are joined. A page that fails is left out and named."""
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns about every unusual file
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise Unreadable("encrypted with a password")
    made, pages, problems = Builder(), list[int](), list[str]()
    for number, page in enumerate(reader.pages, 1):
        try:
            text = _HYPHEN.sub("", page.extract_text().strip())
        except Exception as e:  # what pypdf raises for a damaged page is not documented
            problems.append(f"page {number}: {' '.join(str(e).split())[:100] or type(e).__name__}")
            text = ""
        made.gap("\n\n")
        pages.append(made.next_start)
        made.write(text)
    if not made.length:
        raise Unreadable("; ".join(problems[:2]) or "no text in it; scanned pages need OCR first")
    title = str(reader.metadata.title or "") if reader.metadata else ""
    found = made.done("" if "." in title[-5:] else title)  # many titles are names of source files
    return Extracted(found.text, found.title, (), pages=pages, problems=problems)
