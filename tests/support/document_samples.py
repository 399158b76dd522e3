"""Small files of every format, made here: Word documents, books and PDFs are zip archives and plain text."""

from __future__ import annotations

import io
import json
import textwrap
import zipfile
from pathlib import Path

from dupmae_ir.io.documents.files import read_file_parts
from dupmae_ir.io.documents.readers.extracted import Extracted, Unreadable

SENTENCE = "The retriever reads the {} and writes a vector. "


def extract(name: str, data: bytes) -> tuple[str, Extracted]:
    """The kind and the text of a file, without the files inside it. Raises :class:`Unreadable`."""
    part = next(read_file_parts(name, data))
    if part.problem:
        raise Unreadable(part.problem)
    assert part.kind is not None
    assert part.extracted is not None
    return part.kind, part.extracted


def paragraphs(topic: str, count: int = 6) -> str:
    """Sentences about a topic."""
    return "".join(SENTENCE.format(f"{topic} number {i}") for i in range(count)).strip()


def docx(title: str = "A report", body: str | None = None) -> bytes:
    from docx import Document

    document = Document()
    document.core_properties.title = title
    document.add_heading("First part", 1)
    document.add_paragraph(paragraphs("report") if body is None else body)
    document.add_heading("Numbers", 2)
    table = document.add_table(2, 2)
    for row, cells in zip(table.rows, (("year", "total"), ("2020", "17")), strict=True):
        for cell, text in zip(row.cells, cells, strict=True):
            cell.text = text
    return saved(document)


def saved(document: object) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def epub(chapters: dict[str, str] | None = None, title: str = "A book") -> bytes:
    chapters = chapters or {
        "one two.xhtml": f"<h1>Whales</h1><p>{paragraphs('whale')}</p>",
        "b.xhtml": "<p>The end.</p>",
    }
    items = "".join(
        f'<item id="c{i}" href="{name.replace(" ", "%20")}" media-type="application/xhtml+xml"/>'
        for i, name in enumerate(chapters)
    )
    refs = "".join(f'<itemref idref="c{i}"/>' for i in range(len(chapters)))
    package = (
        '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf"><metadata '
        f'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></metadata>'
        f"<manifest>{items}</manifest><spine>{refs}</spine></package>"
    )
    container = '<container><rootfiles><rootfile full-path="OPS/book.opf"/></rootfiles></container>'
    members = {"META-INF/container.xml": container, "OPS/book.opf": package}
    members |= {
        f"OPS/{name}": '<?xml version="1.0" encoding="UTF-8"?><html><head><title>x</title></head>'
        f"<body>{text}</body></html>"
        for name, text in chapters.items()
    }
    return zipped({name: text.encode() for name, text in members.items()})


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def pdf(
    pages: tuple[str, ...] = (
        "The first page is about penguins.",
        "The second page is about seals.",
    ),
) -> bytes:
    """A PDF with some text on each page."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b""]
    kids = []
    for text in pages:
        lines = textwrap.wrap(text, 80, break_on_hyphens=False)
        shown = " T* ".join(f"({line}) Tj" for line in lines)
        stream = f"BT /F1 12 Tf 13 TL 72 740 Td {shown} ET".encode("latin-1")
        kids.append(f"{len(objects) + 1} 0 R")
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents {len(objects) + 2} 0 R "
            "/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>".encode()
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>".encode()
    return pdf_of(*objects)


def pdf_of(*objects: bytes) -> bytes:
    """A PDF of these objects, numbered from 1; the first is its catalogue."""
    out = bytearray(b"%PDF-1.4\n")
    places = []
    for number, content in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer << /Size %d /Root 1 0 R >>\n" % (len(objects) + 1)
    return bytes(out + b"startxref\n%d\n%%%%EOF\n" % table)


def notebook() -> bytes:
    cells = [
        {"cell_type": "markdown", "source": ["# Loading\n", "Read the data."]},
        {
            "cell_type": "code",
            "source": ["x = load('data.csv')\n", "print(x)"],
            "outputs": [{"text": ["secret"]}],
        },
        {"cell_type": "markdown", "source": "## Plot\nDraw it."},
    ]
    return json.dumps({"cells": cells, "nbformat": 4}).encode()


HTML = (
    "<html><head><title>Rotate\nlogs</title><style>p {color: red}</style></head><body><nav>Home</nav>"
    "<h1>Log rotation¶</h1><p>Logs   grow.<br>They are &lt;rotated&gt; daily.</p><script>var x = 'no';</script>"
    "<h2>Settings</h2><pre>  daily\n  rotate 7</pre><table><tr><td>a</td><td>b</td></tr></table></body></html>"
)

FILES: dict[str, bytes] = {
    "notes.txt": b"Release notes\n=============\n\nThe parser is faster.\n\nFixes\n-----\n\n- A crash of the writer.\n",
    "guide/with blank.md": b"---\ntitle: 'The guide'\n---\n# Start\n\nInstall it.\n\n```\n# no heading\n```\n\n"
    b"## Next\n\nRun it.\n",
    "guide/page.html": HTML.encode(),
    "guide/deep/report.docx": b"",
    "books/whales.epub": b"",
    "papers/seals.pdf": b"",
    "data/table.csv": "name;age\nAda;36\nÉmile;51\n".encode(),
    "data/settings.json": b'{"server": {"port": 80, "names": ["a", "b"]}, "empty": null}',
    "work/plot.ipynb": b"",
    "src/module.py": b'"""Doc."""\n\nclass Reader:\n    def read(self):\n        return 1\n\n\ndef main():\n    pass\n',
    "src/copyright": b"Copyright 2020 Ada\n",
    "src/latin.txt": "Größe und Maße".encode("latin-1"),
    "src/utf16.txt": "Überschrift".encode("utf-16"),
}


def write_folder(folder: Path, files: dict[str, bytes] | None = None) -> Path:
    """The sample files below ``folder``, with fixed times."""
    made = {
        "guide/deep/report.docx": docx,
        "books/whales.epub": epub,
        "papers/seals.pdf": pdf,
        "work/plot.ipynb": notebook,
    }
    for name, data in (FILES if files is None else files).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made[name]() if name in made and not data else data)
    return folder
