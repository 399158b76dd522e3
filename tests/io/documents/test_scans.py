"""Scanned pages and pictures: without OCR they are counted, with it they are read in the order of reading."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from support.document_samples import pdf, write_folder

from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.io.documents.files import FileOptions, kind_of, read_file_parts
from dupmae_ir.io.documents.readers import scans
from dupmae_ir.io.documents.readers.extracted import Unreadable
from dupmae_ir.io.documents.readers.pdf import read_pdf
from dupmae_ir.io.documents.readers.scans import Line, read_picture
from dupmae_ir.io.sources import file_report

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("pypdfium2")

OCR = FileOptions(ocr=True)
SENTENCES = ("The lighthouse keeper counts", "eleven ships each morning.")


def needs_ocr() -> None:
    pytest.importorskip("rapidocr")
    pytest.importorskip("onnxruntime")


def page(*lines: str) -> Image.Image:
    """A white page with some lines of black text."""
    from PIL import ImageDraw, ImageFont

    picture = Image.new("RGB", (620, 60 + 60 * len(lines)), "white")
    draw = ImageDraw.Draw(picture)
    for number, line in enumerate(lines):
        draw.text((30, 30 + 60 * number), line, fill="black", font=ImageFont.load_default(36))
    return picture


def saved(picture: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()


def scanned_pdf(pages: int = 2) -> bytes:
    """A PDF file whose pages are pictures."""
    others = [page(f"Page {number}") for number in range(2, pages + 1)]
    return saved(page(*SENTENCES), "PDF", save_all=True, append_images=others)


def test_without_ocr_scanned_pages_are_counted_and_named(tmp_path: Path) -> None:
    write_folder(tmp_path, {"scan.pdf": scanned_pdf(), "a.txt": b"Some text.", "b.png": b"\x89PNG"})
    collection = DocumentCollection([str(tmp_path)])
    assert [document.text for document in collection] == ["Some text."]
    report = collection.report
    assert report is not None
    assert report["waiting"] == {"scan.pdf": 2}
    assert report["waiting_pages"] == 2
    assert report["unreadable"] == {}
    assert report["skipped"] == {".png": 1}
    shown = file_report(report)
    assert "2 scanned pages have no text; --ocr reads them (pip install 'dupmae-ir[ocr]')" in shown
    assert "scan.pdf: 2 pages" in shown


def test_a_page_with_text_does_not_wait() -> None:
    assert read_pdf(pdf(("A page with more than thirty characters of text.",))).waiting_pages == 0
    # A page without a picture has nothing to recognise.
    assert read_pdf(pdf(("Short.",))).waiting_pages == 0


def test_ocr_reads_pictures_and_scanned_pages(tmp_path: Path) -> None:
    needs_ocr()
    second = page("Two ferries in the harbour")
    two_pages = saved(page("One lamp on the pier"), "TIFF", save_all=True, append_images=[second])
    turned = page(*SENTENCES).rotate(90, expand=True)
    orientation = Image.Exif()
    orientation[0x0112] = 6  # the camera was held upright
    files = {
        "scan.pdf": scanned_pdf(),
        "photo.jpg": saved(turned, "JPEG", exif=orientation),
        "fax.tiff": two_pages,
        "mixed.pdf": pdf(("A page with more than thirty characters of text.",)),
    }
    write_folder(tmp_path, files)
    collection = DocumentCollection([str(tmp_path)], options=OCR)
    passages = {passage.docid: passage for passage in collection}
    scan = passages["scan.pdf#0"]
    assert " ".join(scan.text.split()).startswith(" ".join(SENTENCES))
    assert scan.metadata["page"] == 1
    assert scan.metadata["ocr_confidence"] > 0.9
    assert " ".join(passages["photo.jpg#0"].text.split()) == " ".join(SENTENCES)
    fax = " ".join(text.text for docid, text in passages.items() if docid.startswith("fax"))
    assert " ".join(fax.split()) == "One lamp on the pier Two ferries in the harbour"
    assert "ocr_confidence" not in passages["mixed.pdf#0"].metadata
    report = collection.report
    assert report is not None
    assert report["waiting_pages"] == 0
    assert collection.settings["ocr"] is True


def test_without_the_extra_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dupmae_ir import device
    from dupmae_ir.errors import EnvironmentProblem

    def lacks_ocr(name: str, *rest: object) -> object:
        return None if name == "rapidocr" else object()

    monkeypatch.setattr(device.importlib.util, "find_spec", lacks_ocr)
    write_folder(tmp_path, {"a.txt": b"Some text."})
    with pytest.raises(EnvironmentProblem, match=r"pip install 'dupmae-ir\[ocr\]'"):
        DocumentCollection([str(tmp_path)], options=OCR).check()


@pytest.mark.parametrize("data", [b"", b"no picture", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_a_damaged_picture_is_named(data: bytes) -> None:
    (part,) = read_file_parts("a.png", data, OCR)
    assert part.extracted is None
    assert part.problem


def test_a_picture_of_too_many_pixels_is_refused() -> None:
    huge = saved(Image.new("1", (9_000, 9_000)), "PNG")
    with pytest.raises(Unreadable, match="more than 40,000,000 pixels"):
        read_picture(huge)


def test_pictures_are_documents_only_with_ocr() -> None:
    assert kind_of("a.png") is None
    assert kind_of("a.png", OCR) == "picture"
    assert kind_of("a.gif", OCR) is None


def line(left: float, top: float, text: str, width: float = 300) -> Line:
    return Line(left, top, left + width, top + 20, text, 1.0)


def test_columns_are_read_one_after_the_other() -> None:
    lines = [line(0, 0, "A heading above both of the columns", 700)]
    for row in range(4):
        lines.append(line(400, 30 + 30 * row, f"right column line {row}"))
        lines.append(line(0, 31 + 30 * row, f"left column, line {row}"))
    rows = list(scans._rows(lines))
    left = [f"left column, line {row}" for row in range(4)]
    right = [f"right column line {row}" for row in range(4)]
    assert rows == ["A heading above both of the columns", *left, *right]


def test_a_row_of_a_table_is_one_line() -> None:
    lines = []
    for row in range(4):
        lines.append(line(400, 30 * row, f"{row}.50", 60))
        lines.append(line(0, 30 * row + 2, f"item {row}", 90))
    assert list(scans._rows(lines)) == [f"item {row} {row}.50" for row in range(4)]
