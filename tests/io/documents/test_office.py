"""Slides, sheets, OpenDocument and Rich Text: text, places, and files that ask for too much or are something else."""

from __future__ import annotations

import datetime
import io
import zipfile

import pytest
from support.document_samples import docx, extract, zipped

from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.io.documents.readers import archive, sheets
from dupmae_ir.io.documents.readers.extracted import Heading, Unreadable

pptx = pytest.importorskip("pptx")
xlsxwriter = pytest.importorskip("xlsxwriter")
pytest.importorskip("python_calamine")
pytest.importorskip("striprtf")

OFFICE = "urn:oasis:names:tc:opendocument:xmlns:office:1.0"
NAMESPACES = (
    f'xmlns:office="{OFFICE}" xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" '
    'xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0" '
    'xmlns:draw="urn:oasis:names:tc:opendocument:xmlns:drawing:1.0" '
    'xmlns:presentation="urn:oasis:names:tc:opendocument:xmlns:presentation:1.0" '
    'xmlns:dc="http://purl.org/dc/elements/1.1/"'
)


def slide_show() -> bytes:
    show = pptx.Presentation()
    show.core_properties.title = "Harvest"
    first = show.slides.add_slide(show.slide_layouts[1])
    first.shapes.title.text = "Kelp"
    first.placeholders[1].text = "Cut at low tide\nDry in the barn"
    first.notes_slide.notes_text_frame.text = "Mention the storm."
    second = show.slides.add_slide(show.slide_layouts[6])
    table = second.shapes.add_table(2, 2, 0, 0, 99, 99).table
    for row, cells in enumerate((("bed", "depth"), ("Gull Bank", "7"))):
        for column, text in enumerate(cells):
            table.cell(row, column).text = text
    group = second.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "A box in a group"
    out = io.BytesIO()
    show.save(out)
    return out.getvalue()


def workbook(tables: dict[str, list[list[object]]]) -> bytes:
    out = io.BytesIO()
    with xlsxwriter.Workbook(out, {"default_date_format": "yyyy-mm-dd"}) as book:
        for name, rows in tables.items():
            sheet = book.add_worksheet(name)
            for number, row in enumerate(rows):
                for column, value in enumerate(row):
                    if value is not None:
                        sheet.write(number, column, value)
    return out.getvalue()


def opendocument(body: str, title: str = "") -> bytes:
    content = f"<office:document-content {NAMESPACES}><office:body>{body}</office:body></office:document-content>"
    meta = f"<office:document-meta {NAMESPACES}><dc:title>{title}</dc:title></office:document-meta>"
    return zipped({"content.xml": content.encode(), "meta.xml": meta.encode()})


def test_slides_with_tables_groups_and_notes(tmp_path) -> None:
    kind, show = extract("a.pptx", slide_show())
    assert (kind, show.title) == ("pptx", "Harvest")
    assert show.text == (
        "Kelp\n\nCut at low tide\nDry in the barn\n\nNotes: Mention the storm.\n\n"
        "bed | depth\nGull Bank | 7\n\nA box in a group"
    )
    assert show.headings == [Heading(0, 1, "Kelp")]
    assert [dict(block.place) for block in show.blocks] == [{"slide": 1}, {"slide": 2}]
    assert show.place(show.text.index("Gull")) == {"slide": 2}


def test_rows_have_the_names_of_their_columns_and_their_places() -> None:
    data = workbook(
        {
            "Beds": [
                ["Oyster beds in 2024"],
                [],
                ["bed", "depth in m", "since"],
                ["Gull Bank", 7, datetime.date(2019, 5, 1)],
            ],
            "Empty": [],
            "Prices": [["grade", "euros"], ["fine", 9.5], ["coarse", 1 / 3], ["all", True]],
        }
    )
    kind, book = extract("a.xlsx", data)
    assert kind == "sheet"
    assert book.text == (
        "Beds\n\nOyster beds in 2024\nbed: Gull Bank; depth in m: 7; since: 2019-05-01\n\n"
        "Prices\n\ngrade: fine; euros: 9.5\ngrade: coarse; euros: 0.333333333333333\ngrade: all; euros: True"
    )
    assert book.lines
    assert book.place(book.text.index("Gull")) == {"sheet": "Beds", "row": 4}
    assert book.place(book.text.index("fine")) == {"sheet": "Prices", "row": 2}
    assert book.place(0) == {"sheet": "Beds", "row": 1}


def test_a_table_without_a_header_and_one_of_its_header_alone() -> None:
    _, book = extract("a.xlsx", workbook({"A": [[1, 2], [3, 4]], "B": [["name", "depth"]]}))
    assert book.text == "A\n\n1; 2\n3; 4\n\nB\n\nname; depth"


def test_formats_of_numbers_do_not_make_rows() -> None:
    out = io.BytesIO()
    with xlsxwriter.Workbook(out) as book:
        sheet = book.add_worksheet("S")
        bold = book.add_format({"bold": True})
        sheet.write(0, 0, "only")
        sheet.write_blank(200_000, 3, None, bold)
        sheet.write_formula(1, 0, '=WEBSERVICE("http://192.0.2.1/")', None, "cached")
    _, read = extract("a.xlsx", out.getvalue())
    assert read.text == "S\n\nonly\ncached"


def test_a_sheet_with_too_many_cells_is_named(monkeypatch) -> None:
    monkeypatch.setattr(sheets, "MAX_CELLS", 5)
    book = sheets.read_sheets(
        workbook({"small": [["a", "b"], ["c", "d"]], "large": [list("abc")] * 2})
    )
    assert "large" not in book.text
    assert book.problems == ["sheet large: more than 5 cells"]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            b"<html><table><tr><td>bed</td><td>depth</td></tr><tr><td>Gull</td><td>7</td></tr></table>",
            "bed  depth\nGull  7",
        ),
        (b"bed\tdepth\nGull\t7\n", "bed: Gull; depth: 7"),
    ],
)
def test_exports_that_are_no_sheets_are_read_as_what_they_are(data: bytes, text: str) -> None:
    assert extract("export.xls", data)[1].text == text


def test_texts_of_opendocument() -> None:
    body = (
        "<office:text><text:tracked-changes>deleted</text:tracked-changes>"
        '<text:h text:outline-level="2">Choir</text:h><text:p>Tenors<text:s text:c="2"/>meet<text:tab/>on <text:span>'
        "Thursday</text:span><text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>or Friday"
        "</text:p></text:note-body></text:note>.</text:p><text:list><text:list-item>"
        "<text:p>one</text:p></text:list-item>"
        "<text:list-item><text:p>two</text:p></text:list-item></text:list><table:table>"
        "<table:table-row><table:table-cell>"
        "<text:p>a</text:p></table:table-cell><table:table-cell><text:p>b</text:p>"
        "</table:table-cell></table:table-row>"
        "</table:table><text:p>Before<draw:frame><draw:text-box><text:p>boxed</text:p>"
        "</draw:text-box></draw:frame></text:p>"
        "</office:text>"
    )
    kind, found = extract("a.odt", opendocument(body, "Rehearsals"))
    assert (kind, found.title) == ("odt", "Rehearsals")
    assert found.headings == [Heading(0, 2, "Choir")]
    assert (
        found.text
        == "Choir\n\nTenors  meet\ton Thursday (or Friday).\n\none\ntwo\n\na | b\n\nBefore\n\nboxed"
    )


def test_slides_of_opendocument() -> None:
    body = (
        "<office:presentation>"
        '<draw:page><draw:frame presentation:class="title"><draw:text-box><text:p>Kelp</text:p>'
        "</draw:text-box></draw:frame>"
        "<draw:frame><draw:text-box><text:p>low tide</text:p></draw:text-box></draw:frame>"
        "<presentation:notes><draw:frame><draw:text-box><text:p>the storm</text:p></draw:text-box></draw:frame>"
        "</presentation:notes></draw:page><draw:page><draw:frame><draw:text-box>"
        "<text:p>second</text:p></draw:text-box>"
        "</draw:frame></draw:page></office:presentation>"
    )
    _, found = extract("a.odp", opendocument(body))
    assert found.text == "Kelp\n\nlow tide\n\nNotes: the storm\n\nsecond"
    assert [heading.text for heading in found.headings] == ["Kelp"]
    assert found.place(found.text.index("second")) == {"slide": 2}
    assert found.place(found.text.index("low tide")) == {"slide": 1}


def test_rich_text() -> None:
    source = (
        r"{\rtf1\ansi\ansicpg1251\deff0{\fonttbl{\f0 Times;}}{\info{\title The deed}}\f0 The {\b "
        r"notary} keeps \'ea\'eb\'fe\'f7"
        r" and \u8364?5.\par Second.{\pict\pngblip 89504e470d0a1a0a}}"
    )
    kind, found = extract("a.rtf", source.encode())
    assert (kind, found.title) == ("rtf", "The deed")
    assert found.text == "The notary keeps ключ and €5.\nSecond."
    assert extract("b.doc", source.encode())[1].text == found.text
    with pytest.raises(Unreadable, match="does not begin with"):
        extract("c.rtf", b"plain words")


def test_word_documents_under_an_old_name() -> None:
    pytest.importorskip("docx")
    assert extract("a.doc", docx())[1].text == extract("a.docx", docx())[1].text


OLE = archive.OLE_MAGIC + bytes(600)
ENCRYPTED = OLE + "EncryptedPackage".encode("utf-16-le") + bytes(600)
LAUGHS = (
    '<!DOCTYPE x [<!ENTITY a0 "ha">'
    + "".join(f'<!ENTITY a{i} "&a{i - 1};&a{i - 1};">' for i in range(1, 20))
    + f"]><office:document-content {NAMESPACES}><office:body><office:text><text:p>&a19;</text:p>"
    f"</office:text></office:body>"
    "</office:document-content>"
)


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.doc", OLE, "save it as .docx"),
        ("a.ppt", OLE, "save them as .pptx"),
        ("a.docx", ENCRYPTED, "encrypted"),
        ("a.pptx", ENCRYPTED, "encrypted"),
        ("a.xlsx", ENCRYPTED, "encrypted"),
        ("a.pptx", slide_show()[:-3000], ""),
        ("a.xlsx", workbook({"A": [["a", "b"]]})[:-900], ""),
        ("a.odt", zipped({"mimetype": b"x"}), "content.xml is not in it"),
        (
            "a.odt",
            zipped({"META-INF/manifest.xml": b"<a><encryption-data/></a>", "content.xml": b"\0"}),
            "encrypted",
        ),
        ("a.odt", zipped({"content.xml": b"<a>" * 300}), "damaged XML"),
        ("a.fodt", b"<a/>", "no body"),
    ],
)
def test_files_that_cannot_be_read_say_why(name: str, data: bytes, why: str) -> None:
    with pytest.raises(Unreadable) as caught:
        extract(name, data)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bombs_are_refused_and_entities_not_resolved() -> None:
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as package:
        for number in range(3):
            package.writestr(f"ppt/slides/{number}.xml", bytes(60 << 20))
    for name in ("a.pptx", "a.docx", "a.odt"):
        with pytest.raises(Unreadable, match="the limit is"):
            extract(name, bomb.getvalue())
    try:
        _, found = extract("a.fodt", LAUGHS.encode())
    except Unreadable:
        return
    assert "haha" not in found.text


def test_a_large_sheet_is_read_in_bounded_time(tmp_path) -> None:
    rows: list[list[object]] = [["reef", "depth", "keeper"]]
    rows += [[f"reef {number}", number, f"keeper {number % 7}"] for number in range(30_000)]
    (tmp_path / "large.xlsx").write_bytes(workbook({"Reefs": rows}))
    documents = list(DocumentCollection([str(tmp_path)]))
    assert documents[-1].metadata["sheet"] == "Reefs"
    assert "reef: reef 29999; depth: 29999; keeper: keeper 4" in documents[-1].text
    assert 29_000 < int(str(documents[-1].metadata["row"])) <= 30_001
