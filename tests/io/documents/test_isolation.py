"""Files that ask for more than they are: the others of the folder are read all the same."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Callable
from typing import Any, cast

import pytest
from support.document_samples import extract, pdf

from dupmae_ir.io.documents.isolation import Isolation
from dupmae_ir.io.documents.readers import archive, extracted, office
from dupmae_ir.io.documents.readers.books import read_epub
from dupmae_ir.io.documents.readers.extracted import Block, Unreadable
from dupmae_ir.io.documents.readers.html import read_html
from dupmae_ir.io.documents.readers.markdown import read_markdown
from dupmae_ir.io.documents.readers.pdf import read_pdf
from dupmae_ir.io.documents.readers.text import read_text
from dupmae_ir.serve.http_server import Guard

GUARD = Guard(cast("Any", None), "t" * 20, True, (), 1 << 20, 1.0)
HOSTILE: dict[str, Callable[[int], object]] = {
    "heading": lambda n: read_markdown(b"# a" + b" " * n + b"b"),
    "heading of signs": lambda n: read_markdown(b"# a" + b" #" * n + b"b"),
    "front matter": lambda n: read_markdown(b"---\ntitle: a" + b" " * n + b"b\n---\n"),
    "underlines": lambda n: read_text(b"title\n" + b"=" * n + b"x"),
    "cookie": lambda n: GUARD.allows({"cookie": f'dupmae_ir="{chr(92) * n}"'}),
}
"""Input of a length that grows -> what reads it."""


def seconds(work: Callable[[int], object], n: int) -> float:
    found = []
    for _ in range(5):
        began = time.perf_counter()
        work(n)
        found.append(time.perf_counter() - began)
    return min(found)


@pytest.mark.parametrize("name", HOSTILE)
def test_time_grows_no_faster_than_the_input(name: str) -> None:
    """Sixteen times the input: 16 if linear, 256 if quadratic."""
    work = HOSTILE[name]
    work(10)
    assert seconds(work, 16 * 2_000) < 80 * max(seconds(work, 2_000), 2e-5)


@pytest.fixture
def isolation():
    made = Isolation()
    yield made
    made.close()


def word_file(span: int) -> bytes:
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.add_table(1, 1).cell(0, 0).text = "in a cell"
    whole = io.BytesIO()
    changed = io.BytesIO()
    document.save(whole)
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(changed, "w") as new:
        for member in old.infolist():
            data = old.read(member)
            if member.filename == "word/document.xml":
                data = data.replace(b"</w:tcPr>", b'<w:gridSpan w:val="%d"/></w:tcPr>' % span)
            new.writestr(member, data)
    return changed.getvalue()


def test_a_file_that_takes_too_long_ends_the_process_and_the_next_is_read(
    isolation: Isolation,
) -> None:
    good = word_file(1)
    assert "in a cell" in isolation.read("docx", good).text
    with pytest.raises(Unreadable, match="more than 1 seconds"):
        isolation.read("docx", word_file(2_000_000_000), seconds=1)
    assert "in a cell" in isolation.read("docx", good).text


def test_what_a_reader_refuses_is_said_by_its_process(isolation: Isolation) -> None:
    pytest.importorskip("pypdfium2")
    with pytest.raises(Unreadable, match="damaged"):
        isolation.read("pdf", b"%PDF-1.7\nnothing")
    assert isolation.read("html", b"<title>A</title><h1>B</h1><p>C").headings[0].text == "B"


def test_a_book_that_names_a_chapter_again_and_again_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extracted, "LARGEST", 50_000)
    book = io.BytesIO()
    spine = '<itemref idref="c"/>' * 1000
    with zipfile.ZipFile(book, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("META-INF/container.xml", '<container><rootfile full-path="p"/></container>')
        item = '<item id="c" href="c" media-type="application/xhtml+xml"/>'
        z.writestr("p", f"<package>{item}{spine}</package>")
        z.writestr("c", f"<p>{'word ' * 2000}</p>")
    with pytest.raises(Unreadable, match="the limit"):
        read_epub(book.getvalue())


def test_pages_that_are_one_page_are_read_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pypdfium2")
    monkeypatch.setattr(extracted, "LARGEST", 5_000)
    file = pdf(("word " * 200,))
    assert read_pdf(file).blocks == [Block(0, {"page": 1})]
    with pytest.raises(Unreadable, match="the limit"):
        read_pdf(file.replace(b"[3 0 R] /Count 1", b"[" + b"3 0 R " * 1000 + b"] /Count 1000"))


@pytest.mark.parametrize("name", ["long.json", "long.csv"])
def test_text_that_grows_with_the_square_of_the_file_is_refused(name: str) -> None:
    n = 12_000
    data = (
        json.dumps({"k" * n: [1] * n}) if name.endswith("json") else "k" * n + ",b\n" + "1,2\n" * n
    )
    with pytest.raises(Unreadable, match="characters"):
        extract(name, data.encode())
    _, found = extract(name, b'{"a": [1, 2]}' if name.endswith("json") else b"a,b\n1,2\n")
    assert "a: 1" in found.text


@pytest.mark.nightly
def test_a_document_of_empty_paragraphs_is_refused_before_they_are_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = io.BytesIO(word_file(1))
    many = io.BytesIO()
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(many, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            data = old.read(member)
            if member.filename == "word/document.xml":
                data = data.replace(b"<w:body>", b"<w:body>" + b"<w:p/>" * 5_000)
            new.writestr(member, data)
    assert "in a cell" in office.read_docx(many.getvalue()).text
    monkeypatch.setattr(archive, "MAX_TAGS", 5_000)
    with pytest.raises(Unreadable, match="more than 5,000 tags"):
        office.read_docx(many.getvalue())


def test_a_page_of_stray_end_tags_is_refused_at_once() -> None:
    """Each takes time proportional to the open elements."""
    with pytest.raises(Unreadable, match="more than 1,000 end tags without a start"):
        read_html(b"<b>" * 20_000 + b"x</i>" * 100_000)
    assert read_html(b"<b>" * 2_000 + b"x</i>" * 900).text.count("x") == 900
    assert read_html(b"<i>x</i>" * 5_000).text.count("x") == 5_000
