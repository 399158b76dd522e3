"""Every format: its text, titles, headings and places, and damaged files."""

from __future__ import annotations

import contextlib
import gzip
import random
import time

import pytest
from support.document_samples import FILES, HTML, docx, epub, extract, pdf, write_folder, zipped

from dupmae_ir.io.documents import files
from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.io.documents.readers import format, registry
from dupmae_ir.io.documents.readers.books import read_epub
from dupmae_ir.io.documents.readers.code import read_code
from dupmae_ir.io.documents.readers.extracted import Block, Extracted, Heading, Unreadable
from dupmae_ir.io.documents.readers.office import read_docx
from dupmae_ir.io.documents.readers.text import read_text


def read(*sources, **settings):
    collection = DocumentCollection([str(source) for source in sources], **settings)
    return collection, list(collection)


def by_path(documents):
    found = {}
    for document in documents:
        found.setdefault(document.metadata["path"], []).append(document)
    return found


def test_every_format_in_a_folder(tmp_path):
    collection, documents = read(write_folder(tmp_path / "docs"))
    found = by_path(documents)
    assert set(found) == set(FILES)
    report = collection.report
    assert report["files"] == sum(report["kinds"].values()) == len(FILES)
    assert (report["skipped"], report["unreadable"], report["unreadable_files"]) == ({}, {}, 0)
    assert list(report["guessed"]) == ["src/latin.txt"]
    types = {path: passages[0].metadata["type"] for path, passages in found.items()}
    assert types["guide/with blank.md"] == "md"
    assert types["src/copyright"] == "text"
    texts = {path: "\n".join(d.text for d in passages) for path, passages in found.items()}
    assert "The parser is faster." in texts["notes.txt"]
    assert "17" in texts["guide/deep/report.docx"]
    assert "whale number 3" in texts["books/whales.epub"]
    assert "penguins" in texts["papers/seals.pdf"]
    assert texts["data/table.csv"] == "name: Ada; age: 36\nname: Émile; age: 51"
    assert texts["data/settings.json"] == "server.port: 80\nserver.names: a\nserver.names: b"
    assert "load('data.csv')" in texts["work/plot.ipynb"]
    assert "secret" not in texts["work/plot.ipynb"]
    assert texts["src/latin.txt"] == "Größe und Maße"
    assert texts["src/utf16.txt"] == "Überschrift"
    titles = {path: passages[0].metadata["title"] for path, passages in found.items()}
    assert titles["notes.txt"] == "Release notes"
    assert titles["guide/with blank.md"] == "The guide"
    assert titles["guide/page.html"] == "Rotate logs"
    assert titles["guide/deep/report.docx"] == "A report"
    assert titles["books/whales.epub"] == "A book"
    assert titles["work/plot.ipynb"] == "Loading"
    assert titles["src/copyright"] == "src/copyright"


def test_terms_of_a_definition_list_are_headings_and_a_table_of_contents_is_left_out():
    page = (
        "<h1>Options</h1><div class='toc wide'><nav>Up</nav><dl><dt>1. Checks</dt></dl></div>"
        "<dl><dt><code>--leak-check</code><dd>Searches for leaks.<dt>-q<dd>Quiet.</dl><h2>Files</h2>None."
    )
    _, found = extract("a.html", page.encode())
    assert [heading.text for heading in found.headings] == [
        "Options",
        "--leak-check",
        "-q",
        "Files",
    ]
    assert [heading.level for heading in found.headings] == [1, 7, 7, 2]
    assert (
        found.text
        == "Options\n\n--leak-check\n\nSearches for leaks.\n\n-q\n\nQuiet.\n\nFiles\n\nNone."
    )


def test_html():
    _, found = extract("a.html", HTML.encode())
    assert (
        found.text
        == "Log rotation\n\nLogs grow.\nThey are <rotated> daily.\n\nSettings\n\n  daily\n  rotate 7\n\na  b"
    )
    assert [(h.level, h.text, found.text[h.start :][: len(h.text)]) for h in found.headings] == [
        (1, "Log rotation", "Log rotation"),
        (2, "Settings", "Settings"),
    ]
    _, latin = extract("a.html", '<meta charset="iso-8859-1"><p>Größe'.encode("latin-1"))
    assert latin.text == "Größe"


@pytest.mark.parametrize(
    "markup",
    [
        "<div>" * 40_000 + "needle",
        "<ul><li>" * 20_000 + "needle",
        "<b>" * 40_000 + "needle" + "</b>" * 40_000,
        "<p " * 40_000 + ">needle",
        "needle" + "<!--" * 40_000,
        "needle" + "<" * 100_000,
        "<table><tr><td>" * 15_000 + "needle",
    ],
    ids=["div", "list", "b", "attributes", "comments", "brackets", "table"],
)
def test_strange_html_takes_linear_time(markup):
    started = time.process_time()
    kind_and_text = extract("a.html", markup.encode())
    assert time.process_time() - started < 3
    assert "needle" in kind_and_text[1].text or "<p" in markup


def test_html_that_is_nested_too_deeply_is_refused():
    with pytest.raises(Unreadable, match="nested more than 50,000 deep"):
        extract("a.html", b"<div>" * 60_000)


def test_headings_of_markdown_text_and_code():
    _, found = extract("guide.md", FILES["guide/with blank.md"])
    assert [(h.level, h.text) for h in found.headings] == [(1, "Start"), (2, "Next")]
    assert all(found.text[h.start :].lstrip("# ").startswith(h.text) for h in found.headings)
    _, notes = extract("notes.txt", FILES["notes.txt"])
    assert [(h.level, h.text) for h in notes.headings] == [(1, "Release notes"), (2, "Fixes")]
    _, code = extract("module.py", FILES["src/module.py"])
    assert [(h.level, h.text) for h in code.headings] == [
        (1, "Reader"),
        (1, "Reader.read"),
        (1, "main"),
    ]


def test_comments_and_decorators_belong_to_the_definition_below_them():
    source = (
        "#!/usr/bin/env python\n# About the file.\n\nimport os\n"
        "# Adds one.\n@cache\ndef add(x):\n    return x + 1  # more\n    # the last line\n\n"
        "class Reader: # reads\n    # Opens it.\n    @property\n    def open(self):\n        pass\n"
    )
    found = read_code(source.encode())
    ends = [*(h.start for h in found.headings[1:]), len(source)]
    assert [
        (h.text, source[h.start : end]) for h, end in zip(found.headings, ends, strict=True)
    ] == [
        ("add", source[source.index("# Adds") : source.index("class")]),
        ("Reader", "class Reader: # reads\n"),
        ("Reader.open", source[source.index("    # Opens") :]),
    ]
    go = "// Add adds.\n// It returns the sum.\nfunc Add(x int) int {\n}\n/**\n * Twice.\n */\nfunction twice(x) {}\n"
    assert [go[h.start :][:6] for h in read_code(go.encode()).headings] == ["// Add", "/**\n *"]


def test_the_questions_of_a_faq_are_headings():
    faq = (
        "Questions\n=========\n\n 1. Is it thread-safe?\n\n    Yes. Is it fast? It is.\n\n 2. deflate() fails.\n\n"
        "    Why\n    would it?\n\nQ:  Can it be stopped?\n\nA:  Yes.\n\nWhy does it stop?\n\n\tNobody knows.\n\n"
        "Two lines, is\nthis one?\n\nA sentence alone.\n\n"
    )
    found = read_text(faq.encode())
    assert [(h.level, h.text) for h in sorted(found.headings)] == [
        (1, "Questions"),
        (2, "1. Is it thread-safe?"),
        (2, "2. deflate() fails."),
        (2, "Q:  Can it be stopped?"),
        (2, "Why does it stop?"),
    ]
    assert found.title == "Questions"
    assert read_text(b"Where is it?\n\nHere.\n").title == ""


def test_pages_of_a_pdf_and_joined_words(tmp_path):
    (tmp_path / "a.pdf").write_bytes(pdf(("About pen-", "guins " * 150 + ".", "The last page.")))
    _, documents = read(tmp_path / "a.pdf", length=50, overlap=0)
    pages = [d.metadata["page"] for d in documents]
    assert pages == sorted(pages)
    assert {1, 2} <= set(pages)
    assert documents[-1].text.endswith("The last page.")


def test_gzipped_files_keep_their_kind():
    kind, found = extract("guide.html.gz", gzip.compress(b"<p>Hello</p>"))
    assert (kind, found.text) == ("html", "Hello")
    assert extract("changelog.Debian.gz", gzip.compress(b"changes"))[0] == "text"


def filled_form() -> bytes:
    """A PDF with a form: the label "Name:", and a field in which "Ada Lovelace" is written."""
    shown = b"BT /F1 12 Tf 2 5 Td (Ada Lovelace) Tj ET"
    label = b"BT /F1 12 Tf 72 740 Td (Name:) Tj ET"
    font = b"/Resources << /Font << /F1 7 0 R >> >>"
    bodies = [
        b"<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [5 0 R] >> >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 4 0 R /Annots [5 0 R] %s >>"
        % font,
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(label), label),
        b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (name) /V (Ada Lovelace) /F 4 "
        b"/Rect [120 735 320 755] /P 3 0 R /AP << /N 6 0 R >> >>",
        b"<< /Type /XObject /Subtype /Form /BBox [0 0 200 20] %s /Length %d >>\nstream\n%s\nendstream"
        % (font, len(shown), shown),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    data = b"%PDF-1.4\n"
    for number, body in enumerate(bodies, 1):
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    # Without a table of the objects' places: readers find them.
    return data + b"trailer << /Size 8 /Root 1 0 R >>\n%%EOF\n"


def test_what_is_filled_in_in_a_form_is_read():
    pytest.importorskip("pypdfium2")
    _, found = extract("a.pdf", filled_form())
    assert found.text.split() == ["Name:", "Ada", "Lovelace"]


DAMAGED = {
    "a.docx": b"PK no zip",
    "b.docx": zipped({"x.txt": b"no document"}),
    "c.epub": zipped({"x": b""}),
    "d.epub": docx()[:-20],
    "e.pdf": b"%PDF-1.4 nothing",
    "f.pdf": pdf(())[:200],
    "g.ipynb": b'{"cells": 3}',
    "h.json": b"{no json",
    "i.txt": b"text\0\1\2\3\0with \0 in it\0",
    "j.html.gz": gzip.compress(b"<p>cut")[:-9],
    "k.md": b"\0" * 100,
    "l.csv": b'a,b\n"\0\1\0\2\0',
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_named_with_a_reason(name):
    with pytest.raises(Unreadable) as caught:
        extract(name, DAMAGED[name])
    assert str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_files_do_not_stop_the_rest(tmp_path):
    write_folder(tmp_path, {**DAMAGED, "good.txt": b"A good text."})
    collection, documents = read(tmp_path)
    assert [d.docid for d in documents] == ["good.txt#0"]
    assert sorted(collection.unreadable) == sorted(DAMAGED)
    assert collection.report["files"] == 1


@pytest.mark.parametrize("cut", [0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
@pytest.mark.parametrize("make", [docx, epub, pdf], ids=["docx", "epub", "pdf"])
def test_cut_and_flipped_files_never_raise_anything_else(make, cut):
    whole = make()
    name = f"a.{make.__name__}"
    rng = random.Random(repr((make.__name__, cut)))
    flipped = bytearray(whole)
    for _ in range(20):
        flipped[rng.randrange(len(flipped))] = rng.randrange(256)
    for data in (whole[: int(len(whole) * cut)], bytes(flipped)):
        try:
            extract(name, data)
        except Unreadable:
            continue


def test_archives_that_unpack_to_too_much_are_refused(monkeypatch):
    bomb = zipped({"META-INF/container.xml": b"<x/>", "big": bytes(3 << 20)})
    assert len(bomb) < 10_000
    for module in ("readers.archive", "files"):
        monkeypatch.setattr(f"dupmae_ir.io.documents.{module}.LARGEST", 1 << 20)
    for reader in (read_epub, read_docx):
        with pytest.raises(Unreadable, match="unpacks to 3 MiB in 2 parts; the limit is 1 MiB"):
            reader(bomb)
    with pytest.raises(Unreadable, match="unpacks to more than 1 MiB"):
        extract("a.txt.gz", gzip.compress(bytes(2 << 20)))


def test_entities_of_xml_are_not_resolved(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret words")
    package = (
        f'<!DOCTYPE x [<!ENTITY e SYSTEM "file://{secret}">]><package><title>&e;</title></package>'
    )
    data = zipped(
        {
            "META-INF/container.xml": b'<c><rootfile full-path="p"/></c>',
            "p": package.encode(),
            "a.xhtml": b"<p>x</p>",
        }
    )
    with contextlib.suppress(Unreadable):
        assert "secret words" not in repr(extract("a.epub", data))


def test_every_kind_has_a_reader():
    readers = set(registry.FORMATS)
    assert set(registry.KINDS.values()) == readers
    assert {kind for kinds in registry.PACKAGES.values() for kind in kinds} <= readers
    for entry in registry.FORMATS.values():
        assert bool(entry.reader) != bool(entry.splitter)
        for name in filter(None, (entry.reader, entry.splitter, entry.recogniser)):
            assert callable(format._function(name))


def test_the_place_of_a_passage_is_that_of_its_block(tmp_path, monkeypatch):
    def read_sheets(_kind, data):
        blocks = [Block(0, {"sheet": "A", "row": 1}), Block(6, {"sheet": "B", "row": 2})]
        headings = [Heading(0, 1, "first"), Heading(6, 1, "second")]
        text = data.decode()
        return Extracted(text, "Sheets", headings, blocks=blocks, metadata={"author": "Ada"})

    monkeypatch.setattr(files.ISOLATION, "read", read_sheets)
    (tmp_path / "a.txt").write_text("first second")
    _, documents = read(tmp_path, length=2, overlap=0)
    places = [(d.text, d.metadata["sheet"], d.metadata["row"]) for d in documents]
    assert places == [("first", "A", 1), ("second", "B", 2)]
    assert documents[0].metadata["author"] == "Ada"
    assert Extracted("no blocks").place(3) == {}
