"""Files that are made to mislead: counts, names, containers in containers, and readers that a file has taken over."""

from __future__ import annotations

import gzip
import io
import json
import os
import socket
import stat
import struct
import sys
import tarfile
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from support.document_samples import docx, epub, pdf, pdf_of, zipped

from dupmae_ir.io.collections import checked_docid
from dupmae_ir.io.documents import files, isolation
from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.io.documents.files import FileOptions, FilePart, read_file_parts
from dupmae_ir.io.documents.isolation import ISOLATION, Isolation
from dupmae_ir.io.documents.names import UniqueNames, member_name
from dupmae_ir.io.documents.readers.extracted import Unreadable
from dupmae_ir.io.documents.readers.table import read_table
from dupmae_ir.types import Document

WITH_ARCHIVES = FileOptions(archives=True)
GOOD = "A good text lies in the same folder."


def read_with_a_good_file(folder: Path, name: str, data: bytes) -> list[Document]:
    """The passages of a file, whose folder has a good one that must be read."""
    (folder / name).write_bytes(data)
    (folder / "zz.txt").write_text(GOOD)
    documents = list(DocumentCollection([str(folder)], options=WITH_ARCHIVES))
    ids = [document.docid for document in documents]
    # An index refuses other ids, and with them the complete collection.
    assert len(set(ids)) == len(ids)
    for docid in ids:
        assert checked_docid(docid, "here") == docid
    assert documents[-1].text == GOOD
    return documents[:-1]


def parts_of(name: str, data: bytes) -> list[FilePart]:
    return list(read_file_parts(name, data, WITH_ARCHIVES))


def zip_with_entries(*entries: tuple[str, bytes]) -> bytes:
    """A zip archive whose entries may have the same name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in entries:
            archive.NameToInfo.clear()  # against the warning of a second one
            archive.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


def mail(*attachments: str) -> bytes:
    lines = ["From: a@example.org", "Subject: x", "Date: Mon, 1 Jan 2024 00:00:00 +0000"]
    lines += ["Content-Type: multipart/mixed; boundary=b", ""]
    for number, name in enumerate(attachments):
        lines += ["--b", f'Content-Disposition: attachment; filename="{name}"', ""]
        lines += [f"attached {number}"]
    return "\n".join([*lines, "--b--", ""]).encode()


# --- counts ------------------------------------------------------------------------------------------------------


def test_a_mail_with_too_many_attachments_stops_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_MEMBERS", 3)
    message = mail(*["a.txt"] * 5)
    documents = read_with_a_good_file(tmp_path, "a.eml", message)
    assert [document.docid for document in documents] == [
        "a.eml#0",
        "a.eml/a.txt#0",
        "a.eml/a-2.txt#0",
        "a.eml/a-3.txt#0",
    ]
    assert [part.problem for part in parts_of("a.eml", message)][4:] == ["more than 3 files in it"]


def test_what_gzip_unpacks_inside_an_archive_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_UNPACKED", 1 << 20)
    packed = gzip.compress(b"word " * 100_000)
    archive = zipped({f"{number}.txt.gz": packed for number in range(5)})
    problems = [part.problem for part in parts_of("a.zip", archive) if part.problem]
    assert problems[-1] == "unpacks to more than 1 MiB, the limit"
    assert len([part for part in parts_of("a.zip", archive) if part.kind == "text"]) == 3
    # A file on the disk has the limit of its own size.
    (part,) = parts_of("a.txt.gz", gzip.compress(b"word " * 300_000))
    assert part.extracted is not None


def test_sparse_files_of_a_tar_archive_count_as_what_they_unpack_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dupmae_ir.io.documents.readers import packed

    monkeypatch.setattr(packed, "LARGEST", 10_000)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for number in range(4):
            entry = tarfile.TarInfo(f"{number}.txt")
            entry.size = 4_000
            archive.addfile(entry, io.BytesIO(b"x" * 4_000))
    with pytest.raises(Unreadable, match=r"unpacks to more than 0 MiB, the limit, with 2\.txt"):
        packed.read_tar(buffer.getvalue())


def test_a_text_of_headings_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each heading takes over 100 bytes, in the process that uses them too."""
    monkeypatch.setattr(isolation, "MAX_PLACES", 10)
    line, members = isolation._answer("md", b"# a\n" * 11, False)
    assert json.loads(line) == {"problem": "more than 10 headings", "sizes": []}
    assert not members
    assert json.loads(isolation._answer("md", b"# a\n" * 10, False)[0])["headings"]


def test_a_table_of_short_cells_is_not_in_memory_as_lists() -> None:
    data = b"a\n" * 100_000
    tracemalloc.start()
    try:
        text = read_table(data).text
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert text.startswith("a: a\na: a")
    # As lists of cells, it took 86 times its bytes, and the lines of text take 42.
    assert peak < 60 * len(data)


# --- names -------------------------------------------------------------------------------------------------------


def test_names_that_occur_again_are_made_unique(tmp_path: Path) -> None:
    archive = zip_with_entries(
        ("a.txt", b"the first"),
        ("a.txt", b"the second"),
        ("/a.txt", b"the third"),
        ("a-2.txt", b"the fourth"),
        ("b/m.eml", mail("x.txt")),
        ("b/m.eml/x.txt", b"the last"),
    )
    documents = read_with_a_good_file(tmp_path, "a.zip", archive)
    assert [
        (document.docid, document.text) for document in documents if ".eml#" not in document.docid
    ] == [
        ("a.zip/a.txt#0", "the first"),
        ("a.zip/a-2.txt#0", "the second"),
        ("a.zip/a-3.txt#0", "the third"),
        ("a.zip/a-2-2.txt#0", "the fourth"),
        ("a.zip/b/m.eml/x.txt#0", "attached 0"),
        ("a.zip/b/m.eml/x-2.txt#0", "the last"),
    ]


def test_unique_names() -> None:
    names = UniqueNames()
    given = ["a.b/c", "a.b/c", ".x", ".x", "c", "c", "c"]
    assert [names.add(name) for name in given] == [
        "a.b/c",
        "a.b/c-2",
        ".x",
        "-2.x",
        "c",
        "c-2",
        "c-3",
    ]


@pytest.mark.parametrize(
    ("name", "docid"),
    [
        ("../../x.txt", "a.zip/x.txt#0"),
        ("/etc/../x.txt", "a.zip/etc/x.txt#0"),
        ("C:\\x.txt", "a.zip/C:\\x.txt#0"),
        ("a\x1b[31m\nb.txt", "a.zip/a%1B[31m%0Ab.txt#0"),
        ("a\x9b31m.txt", "a.zip/a%C2%9B31m.txt#0"),
        ("a\u202egpj.txt", "a.zip/a\u202egpj.txt#0"),
        ("a\u2028b.txt", "a.zip/a%E2%80%A8b.txt#0"),
        ("./..//x", "a.zip/x#0"),
    ],
)
def test_names_in_archives_lead_nowhere_and_can_be_ids(
    tmp_path: Path, name: str, docid: str
) -> None:
    documents = read_with_a_good_file(tmp_path, "a.zip", zip_with_entries((name, b"its text")))
    assert [(document.docid, document.text) for document in documents] == [(docid, "its text")]
    assert documents[0].metadata is not None
    assert documents[0].metadata["path"] == "a.zip"


def test_names_of_files_may_have_any_control_character(tmp_path: Path) -> None:
    (tmp_path / "a\x9b.txt").write_text("its text")
    documents = read_with_a_good_file(tmp_path, "b.txt", b"another")
    assert documents[0].docid == "a%C2%9B.txt#0"


def test_names_of_no_characters_and_of_no_bytes() -> None:
    assert member_name("/../.") == "file"
    assert os.fsencode(member_name("a\ud800/\udcffb")) == b"a?/\xffb"


def test_a_name_that_is_too_long_for_an_id_is_a_problem_of_its_file(tmp_path: Path) -> None:
    archive = zip_with_entries(("a" * 40_000 + ".txt", b"hidden"), ("b.txt", b"the next"))
    documents = read_with_a_good_file(tmp_path, "a.zip", archive)
    assert [document.docid for document in documents] == ["a.zip/b.txt#0"]
    problems = [part.problem for part in parts_of("a.zip", archive) if part.problem]
    assert problems == ["its name has more than 4,096 bytes"]


@pytest.mark.parametrize("name", ["../../x.txt", "..\\..\\x.txt", "C:\\x.txt", "/etc/x.txt"])
def test_attachments_have_no_folder(tmp_path: Path, name: str) -> None:
    documents = read_with_a_good_file(tmp_path, "a.eml", mail(name))
    assert documents[-1].docid == "a.eml/x.txt#0"


# --- containers --------------------------------------------------------------------------------------------------


def test_a_damaged_file_in_an_archive_loses_no_other(tmp_path: Path) -> None:
    archive = zip_with_entries(("a.txt", b"first"), ("b.txt", b"second"), ("c.txt", b"third"))
    damaged = archive.replace(b"second", b"sEcond")
    documents = read_with_a_good_file(tmp_path, "a.zip", damaged)
    assert [document.text for document in documents] == ["first", "third"]
    problems = {part.member: part.problem for part in parts_of("a.zip", damaged) if part.problem}
    assert problems == {"b.txt": "Bad CRC-32 for file 'b.txt'"}


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, b"Z"])
def test_a_tar_archive_that_leads_back_has_the_files_before(tmp_path: Path, kind: bytes) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in ("a.txt", "b.txt"):
            entry = tarfile.TarInfo(name)
            entry.size = 4
            archive.addfile(entry, io.BytesIO(b"text"))
    data = bytearray(buffer.getvalue())
    # The second entry states a negative size, so that the next one is itself again.
    second = slice(2 * tarfile.BLOCKSIZE, 3 * tarfile.BLOCKSIZE)
    header = data[second]
    header[124:136] = tarfile.itn(-tarfile.BLOCKSIZE, 12, tarfile.GNU_FORMAT)
    header[156:157] = kind
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    data[second] = header
    documents = read_with_a_good_file(tmp_path, "a.tar", bytes(data))
    assert [(document.docid, document.text) for document in documents] == [
        ("a.tar/a.txt#0", "text")
    ]
    (archive_part, _) = parts_of("a.tar", bytes(data))
    assert archive_part.extracted is not None
    assert archive_part.extracted.problems == [
        "damaged tar archive: the size of b.txt is below zero"
    ]


def quine() -> bytes:
    """A zip archive in which each file is again such an archive, deeper than anyone reads."""
    data = b"at the bottom"
    for _ in range(60):
        data = zipped({"a.zip": data, "b.zip": data[:100]})
    return data


def test_archives_without_a_bottom_end_at_the_limit_of_depth() -> None:
    problems = {part.problem for part in parts_of("a.zip", quine()) if part.problem}
    assert "more than 5 files deep" in problems


def test_a_reason_that_quotes_the_file_is_one_short_line() -> None:
    """Found by the campaign: a wrong length makes the name of a member of all that follows it."""
    name = b"n" * 300 + b"\n"
    archive = zip_with_entries((name.decode(), b"text"))
    first = archive.index(name)
    damaged = archive[:first] + b"m" * len(name) + archive[first + len(name) :]
    _, part = parts_of("a.zip", damaged)
    assert part.problem.startswith("File name in directory 'nnn")
    assert len(part.problem) == 150
    assert "\n" not in part.problem


# --- documents ---------------------------------------------------------------------------------------------------


def workbook(sheet: bytes) -> bytes:
    """An Excel file with one sheet of given XML."""
    main = b"http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    relations = b"http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = b"http://schemas.openxmlformats.org/package/2006/relationships"
    link = b'<Relationships xmlns="%s"><Relationship Id="r1" Type="%s/%s" Target="%s"/></Relationships>'
    return zipped(
        {
            "_rels/.rels": link % (package, relations, b"officeDocument", b"xl/workbook.xml"),
            "xl/_rels/workbook.xml.rels": link
            % (package, relations, b"worksheet", b"worksheets/sheet1.xml"),
            "xl/workbook.xml": b'<workbook xmlns="%s" xmlns:r="%s"><sheets><sheet name="S" sheetId="1" '
            b'r:id="r1"/></sheets></workbook>' % (main, relations),
            "xl/worksheets/sheet1.xml": b'<worksheet xmlns="%s">%s</worksheet>' % (main, sheet),
        }
    )


def opendocument_sheet(rows: bytes) -> bytes:
    name = b'xmlns:%s="urn:oasis:names:tc:opendocument:xmlns:%s:1.0"'
    names = b" ".join(name % (word, word) for word in (b"office", b"table", b"text"))
    content = (
        b"<office:document-content %s><office:body><office:spreadsheet>"
        b'<table:table table:name="S">%s</table:table></office:spreadsheet></office:body>'
        b"</office:document-content>" % (names, rows)
    )
    kind = b"application/vnd.oasis.opendocument.spreadsheet"
    manifest = (
        b'<manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"/>'
    )
    return zipped({"mimetype": kind, "META-INF/manifest.xml": manifest, "content.xml": content})


CELL = b'<c r="%s" t="inlineStr"><is><t>hello</t></is></c>'
TEXT_CELL = (
    b'<table:table-cell %s office:value-type="string"><text:p>hello</text:p></table:table-cell>'
)
SHEETS = {
    "a dimension of 17 billion cells": (
        "a.xlsx",
        workbook(
            b'<dimension ref="A1:XFD1048576"/><sheetData><row r="1">%s</row></sheetData>'
            % (CELL % b"A1")
        ),
        "hello",
    ),
    "cells in the corners of a sheet": (
        "a.xlsx",
        workbook(
            b'<sheetData><row r="1">%s</row><row r="1048576">%s</row></sheetData>'
            % (CELL % b"A1", CELL % b"XFD1048576")
        ),
        "",
    ),
    "a cell that is repeated a billion times": (
        "a.ods",
        opendocument_sheet(
            b"<table:table-row>%s</table:table-row>"
            % (TEXT_CELL % b'table:number-columns-repeated="1000000000"')
        ),
        "hello; hello",
    ),
    "a row without text that is repeated a billion times": (
        "a.ods",
        opendocument_sheet(
            b'<table:table-row>%s</table:table-row><table:table-row table:number-rows-repeated="1000000000">'
            b"<table:table-cell/></table:table-row>" % (TEXT_CELL % b"")
        ),
        "hello",
    ),
}


@pytest.mark.parametrize("case", SHEETS)
def test_sheets_that_state_billions_of_cells(tmp_path: Path, case: str) -> None:
    pytest.importorskip("python_calamine")
    name, data, text = SHEETS[case]
    documents = read_with_a_good_file(tmp_path, name, data)
    assert any(text in document.text for document in documents) == bool(text)


PDF = pdf(("The only page.",))
PDF_LOOPS = {
    "a page tree that contains itself": PDF.replace(b"/Kids [3 0 R]", b"/Kids [2 0 R]"),
    "a page that is its own parent": PDF.replace(b"/Parent 2 0 R", b"/Parent 3 0 R"),
    "a billion pages": PDF.replace(b"/Count 1", b"/Count 1000000000"),
    "a table of places that refers to itself": PDF.replace(
        b"/Root 1 0 R", b"/Root 1 0 R /Prev %d" % PDF.rindex(b"xref\n0")
    ),
    "an outline that contains itself": PDF.replace(
        b"/Pages 2 0 R", b"/Pages 2 0 R /Outlines 1 0 R /First 1 0 R /Next 1 0 R"
    ),
    "a length that is its own stream": PDF.replace(b"<< /Length ", b"<< /Length 4 0 R /Was "),
}


@pytest.mark.parametrize("case", PDF_LOOPS)
def test_references_of_a_pdf_that_lead_to_themselves(tmp_path: Path, case: str) -> None:
    pytest.importorskip("pypdfium2")
    documents = read_with_a_good_file(tmp_path, "a.pdf", PDF_LOOPS[case])
    assert all("The only page." in document.text for document in documents)


def png(width: int, height: int, pixels: bytes = b"") -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [7_000, 60_000, 2_000_000_000])
def test_pictures_that_state_a_huge_size(side: int) -> None:
    pytest.importorskip("PIL")
    (part,) = read_file_parts("a.png", png(side, side), FileOptions(ocr=True))
    assert "pixels" in part.problem


# --- fonts -------------------------------------------------------------------------------------------------------


def zeros(size: int) -> bytes:
    """A zlib stream of so many zeros, made of equal parts, since to compress them would take seconds."""
    part = 1 << 20
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(bytes(part)) + packer.flush(zlib.Z_SYNC_FLUSH)
    # What refers to the zeros before it may follow itself.
    again = packer.compress(bytes(part)) + packer.flush(zlib.Z_SYNC_FLUSH)
    count = size // part
    checksum = (count * part % 65521) << 16 | 1
    return b"\x78\xda" + first + again * (count - 1) + b"\x03\x00" + struct.pack(">I", checksum)


def stream(data: bytes, entries: bytes = b"") -> bytes:
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(data), entries, data)


def pdf_in_font(font: bytes, *more: bytes) -> bytes:
    """A page with a line in a font, which is object 5; ``more`` are the objects from 6."""
    return pdf_of(
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        stream(b"BT /F1 12 Tf 72 700 Td (A line in a font.) Tj ET"),
        font,
        *more,
    )


TRUE_TYPE = b"<< /Type /Font /Subtype /TrueType /BaseFont /AAAAAA+F /FirstChar 0 /LastChar %s /Widths [%s] %s >>"
DESCRIPTOR = b"<< /Type /FontDescriptor /FontName /AAAAAA+F /Flags 4 /FontBBox [0 0 1000 1000] /FontFile2 7 0 R >>"
SFNT = b"\x00\x01\x00\x00" + struct.pack(">HHHH", 65535, 65535, 65535, 65535)
FONTS = {
    "a font file that unpacks to 6 GiB": lambda: pdf_in_font(
        TRUE_TYPE % (b"255", b"500 " * 256, b"/FontDescriptor 6 0 R"),
        DESCRIPTOR,
        stream(zlib.compress(zeros(6 << 30), 1), b"/Filter [/FlateDecode /FlateDecode]"),
    ),
    "tables of a font that are longer than any file": lambda: pdf_in_font(
        TRUE_TYPE % (b"255", b"500 " * 256, b"/FontDescriptor 6 0 R"),
        DESCRIPTOR,
        stream(SFNT + (b"glyf" + b"\xff" * 12) * 65535),
    ),
    "two billion widths": lambda: pdf_in_font(TRUE_TYPE % (b"2000000000", b"500", b"")),
    "characters that unpack to 6 GiB": lambda: pdf_in_font(
        TRUE_TYPE % (b"255", b"500 " * 256, b"/ToUnicode 6 0 R"),
        stream(zlib.compress(zeros(6 << 30), 1), b"/Filter [/FlateDecode /FlateDecode]"),
    ),
    "a range of all characters, many times": lambda: pdf_in_font(
        TRUE_TYPE % (b"255", b"500 " * 256, b"/ToUnicode 6 0 R"),
        stream(
            b"1 begincodespacerange <00000000> <FFFFFFFF> endcodespacerange 100 beginbfrange "
            + b"<00000000> <FFFFFFFF> <0041> " * 100_000
            + b"endbfrange"
        ),
    ),
    "a glyph that draws itself": lambda: pdf_in_font(
        b"<< /Type /Font /Subtype /Type3 /FontBBox [0 0 1 1] /FontMatrix [1 0 0 1 0 0] /FirstChar 65 /LastChar 65 "
        b"/Widths [1] /CharProcs << /A 6 0 R >> /Encoding << /Differences [65 /A] >> "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        stream(b"1 0 d0 BT /F1 12 Tf (A) Tj ET"),
    ),
    "a font that is its own descendant": lambda: pdf_in_font(
        b"<< /Type /Font /Subtype /Type0 /BaseFont /F /Encoding /Identity-H /DescendantFonts [5 0 R] >>"
    ),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.nightly) if "6 GiB" in case else case for case in FONTS],
)
def test_fonts_of_a_pdf_that_take_all_memory(tmp_path: Path, case: str) -> None:
    pytest.importorskip("pypdfium2")
    documents = read_with_a_good_file(tmp_path, "a.pdf", FONTS[case]())
    for document in documents:
        assert len(document.text) < 100


@pytest.mark.parametrize("name", ["a.docx", "a.epub"])
def test_fonts_in_a_document_are_not_unpacked(tmp_path: Path, name: str) -> None:
    sample = {"a.docx": docx, "a.epub": epub}[name]
    data = io.BytesIO(sample())
    with zipfile.ZipFile(data, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/fonts/font1.odttf", bytes(64 << 20))
    documents = read_with_a_good_file(tmp_path, name, data.getvalue())
    assert documents


def test_metadata_that_every_passage_repeats_is_short(tmp_path: Path) -> None:
    many = ", ".join(f"someone{number}{'x' * 200}@example.org" for number in range(50))
    head = f"From: {'A' * 100_000} <a@example.org>\nTo: {many}\nSubject: x\nMIME-Version: 1.0\n"
    message = f"{head}\n{'A text of the mail. ' * 2_000}"
    documents = read_with_a_good_file(tmp_path, "a.eml", message.encode())
    assert len(documents) > 10
    for document in documents:
        assert 1_000 < len(json.dumps(document.metadata)) < 8_000


# --- a reader that a file has taken over -------------------------------------------------------------------------

ANSWER: dict[str, Any] = {
    "text": "some text",
    "title": "",
    "headings": [],
    "lines": False,
    "blocks": [],
    "metadata": {},
    "problems": [],
    "members": [],
    "sizes": [],
    "guess": None,
    "waiting_pages": 0,
    "borders": [],
}
WRONG: dict[str, dict[str, Any]] = {
    "another path": {"metadata": {"path": "/etc/passwd"}},
    "another file in a place": {"blocks": [[0, {"member": "../../x"}]]},
    "metadata that is none": {"metadata": {"a": {"b": 1}}},
    "a heading after the end": {"headings": [[10, 1, "x"]]},
    "a heading before the start": {"headings": [[-1, 1, "x"]]},
    "a heading that is no text": {"headings": [[0, 1, 7]]},
    "blocks in another order": {"blocks": [[5, {}], [2, {}]]},
    "a border after the end": {"borders": [[10, 0]]},
    "an offset that is no whole number": {"borders": [[0.5, 0]]},
    "pages below zero": {"waiting_pages": -1},
    "text that is none": {"text": ["a"]},
    "a certainty above one": {"guess": ["utf-8", 2.0]},
    "a field that does not exist": {"x": 1},
    "members without sizes": {"members": [["a", ""]]},
    "a name that is none": {"members": [[7, ""]], "sizes": [0]},
    "a size below zero": {"members": [["a", ""]], "sizes": [-1]},
    "members of a terabyte": {"members": [["a", ""]], "sizes": [1 << 40]},
    "a problem that is none": {"problem": {"a": 1}},
}
HOSTILE_READER = """#!{python}
import json, os, sys
while line := sys.stdin.buffer.readline():
    mark, kind, recognise, size = line.split()
    sys.stdin.buffer.read(int(size))
    for piece in json.loads(os.environ["HOSTILE_ANSWER"]):
        sys.stdout.write(piece.replace("MARK", mark.decode()))
    sys.stdout.flush()
"""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Reads a text by a process that writes some pieces, in which MARK is the mark of the request."""
    reader = tmp_path / "reader"
    reader.write_text(HOSTILE_READER.format(python=sys.executable))
    reader.chmod(reader.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(isolation.sys, "executable", str(reader))
    reading = Isolation()

    def read(*pieces: str, seconds: float = 60):
        reading.close()
        monkeypatch.setenv("HOSTILE_ANSWER", json.dumps(pieces))
        return lambda: reading.read("text", b"x", seconds)

    yield read
    reading.close()


def as_json(**fields: Any) -> str:
    return json.dumps(ANSWER | fields) + "\n"


def test_an_answer_that_is_right(hostile) -> None:
    answer = as_json(members=[["a", ""]], sizes=[3], metadata={"author": "Ada"})
    extracted = hostile("MARK\n", answer, "abc")()
    assert extracted.text == "some text"
    assert extracted.members[0].data == b"abc"


@pytest.mark.parametrize("case", WRONG)
def test_an_answer_that_cannot_be_right(hostile, case: str) -> None:
    with pytest.raises(Unreadable, match=r"cannot be right|ended the process"):
        hostile("MARK\n", as_json(**WRONG[case]))()


@pytest.mark.parametrize(
    "pieces",
    [
        ("no mark\n", as_json()),
        ("MARK\n", "[" * 100_000 + "\n"),
        ("MARK\n", "[]\n"),
        ("MARK\n", "null\n"),
        ("MARK\n", '{"text": "\n'),
        ("MARK\n", as_json(text="x" * 5_000)),
    ],
    ids=["mark", "depth", "list", "null", "cut", "length"],
)
def test_an_answer_of_another_form(
    hostile, monkeypatch: pytest.MonkeyPatch, pieces: tuple[str, ...]
) -> None:
    if "x" * 5_000 in pieces[1]:
        monkeypatch.setattr(isolation, "MAX_ANSWER", 1_000)
    with pytest.raises(Unreadable, match="ended the process"):
        hostile(*pieces)()


def test_an_answer_without_its_members_is_waited_for_until_the_limit_of_time(hostile) -> None:
    read = hostile("MARK\n", as_json(members=[["a", ""]], sizes=[9]), "abc", seconds=1)
    with pytest.raises(Unreadable, match="takes more than 1 seconds"):
        read()


def test_an_answer_in_advance_is_no_text_of_the_next_file(hostile) -> None:
    read = hostile("MARK\n", as_json(), "MARK\n", as_json(text="of another"))
    assert read().text == "some text"
    with pytest.raises(Unreadable, match="ended the process"):
        read()


def test_the_time_for_pages_to_recognise_is_limited_whatever_their_count_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading = Isolation()
    reading._running()
    deadlines: list[float] = []
    monkeypatch.setattr(reading._watch, "set", deadlines.append)
    with pytest.raises(Unreadable):
        reading.read("text", b"x", recognised_pages=1 << 60)
    reading.close()
    days = 24 * 3600.0
    assert deadlines[0] < isolation.time.monotonic() + 2 * days


BAD_DEEDS = """
import socket, subprocess, urllib.request
from dupmae_ir.io.documents import isolation
from dupmae_ir.io.documents.readers.extracted import Extracted

def attempt(deed):
    try:
        deed()
    except Exception as e:
        return type(e).__name__
    return "done"

def read(kind, data, recognise):
    port, path = data.decode().split()
    def write():
        with open(path, "w") as f:
            f.write("x" * 10_000)
    deeds = [
        write,
        lambda: socket.create_connection(("127.0.0.1", int(port))),
        lambda: urllib.request.urlopen(f"http://localhost:{port}/", timeout=2),
        lambda: subprocess.run(["true"]),
    ]
    return Extracted(" ".join(map(attempt, deeds)))

class Format:
    read = staticmethod(lambda data, recognise: read("", data, recognise))

isolation.FORMATS["text"] = Format
isolation.answer_requests()
"""


def test_a_reader_writes_no_file_and_opens_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("resource")
    script = tmp_path / "deeds.py"
    script.write_text(BAD_DEEDS)
    reader = tmp_path / "reader"
    reader.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}"\n')
    reader.chmod(reader.stat().st_mode | stat.S_IXUSR)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(isolation.sys, "executable", str(reader))
        reading = Isolation()
        text = reading.read("text", f"{port} {tmp_path / 'written'}".encode()).text
        reading.close()
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert text == "OSError PermissionError URLError PermissionError"
    assert not (tmp_path / "written").exists() or not (tmp_path / "written").stat().st_size


def referring_documents(url: str, secret: Path) -> dict[str, bytes]:
    """Files that refer to an address, and to a file of the machine, in every way that their formats have."""
    local = f'<!DOCTYPE a [<!ENTITY e SYSTEM "file://{secret}">]>'
    entity = f'<!DOCTYPE a [<!ENTITY % d SYSTEM "{url}/d">%d;<!ENTITY e SYSTEM "{url}/e">]>'
    include = f'<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="{url}/x"/>'
    style = f'<?xml-stylesheet href="{url}/s"?>'
    word = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(docx())) as old, zipfile.ZipFile(word, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename == "word/_rels/document.xml.rels":
                template = (
                    '<Relationship Id="rt" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/'
                    f'attachedTemplate" Target="{url}/t.dotm" TargetMode="External"/></Relationships>'
                )
                data = data.replace(b"</Relationships>", template.encode())
            new.writestr(entry, data)
    page = f'<link rel=stylesheet href="{url}/c"><img src="{url}/i"><iframe src="{url}/f"></iframe><p>text'
    return {
        "a.xml": f'<?xml version="1.0"?>{style}{entity}<a>{include}text &e;</a>'.encode(),
        "local.xml": f'<?xml version="1.0"?>{local}<a>text &e;</a>'.encode(),
        "local.fodt": f"{local}<office><body><p>text &e;</p></body></office>".encode(),
        "a.html": page.encode(),
        "a.fodt": f'{entity}<office xmlns:x="{url}"><body><p>text &e;</p>{include}</body></office>'.encode(),
        "a.docx": word.getvalue(),
        "a.epub": epub({"a.xhtml": page}),
        "a.rtf": rf'{{\rtf1 text {{\field{{\*\fldinst INCLUDEPICTURE "{url}/p"}}}}}}'.encode(),
        "a.pdf": PDF.replace(
            b"/Pages 2 0 R", f"/Pages 2 0 R /OpenAction << /S /URI /URI ({url}/u) >>".encode()
        ),
        "a.ipynb": json.dumps(
            {"cells": [{"cell_type": "markdown", "source": f"text ![]({url}/i)"}]}
        ).encode(),
        "a.eml": b"From: a@b.c\nSubject: x\nDate: Mon, 1 Jan 2024 00:00:00 +0000\nContent-Type: text/html\n\n"
        + page.encode(),
    }


def test_no_document_brings_in_what_it_refers_to(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of the machine")
    docs = tmp_path / "docs"
    docs.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        for name, data in referring_documents(url, secret).items():
            (docs / name).write_bytes(data)
        documents = list(DocumentCollection([str(docs)]))
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    read = {str((document.metadata or {})["path"]) for document in documents}
    assert {"a.xml", "a.html", "a.docx", "a.epub", "a.eml", "a.ipynb", "local.xml"} <= read
    assert not any("secret" in document.text for document in documents)


@pytest.fixture(autouse=True, scope="module")
def _end_the_process():
    yield
    ISOLATION.close()
