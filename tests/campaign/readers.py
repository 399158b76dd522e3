"""Files of every format, changed at random, read as ``encode`` reads a folder.

The seeds are made with the libraries that write these formats, one set for each family of formats. A trial puts ten
changed files of a family between two good ones. Changes: bits, blocks, cuts, repetitions, numbers of headers and of
texts, references, entities and depth of XML, names and sizes in containers, gzip around all of it; a zip container is
often unpacked before and packed after the change, so that the change reaches the reader of its members.

Wrong is: an error that ends the reading of the folder, a good file that is not read, a passage with the text of
another file, an id that no index takes or that occurs twice, a reason of more than a line, more text than the limits
allow, a file that the reading wrote, over a minute for ten files, over :data:`MEMORY` of this process.

``CAMPAIGN_SEEDS`` names a folder of more seeds, sorted into families by their endings. A wrong trial's folder is kept
below the folder for temporary files.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import os
import random
import re
import resource
import shutil
import struct
import sys
import tarfile
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from support.document_samples import HTML, docx, epub, notebook, paragraphs, pdf, zipped
from support.outlook_samples import compound_file, outlook_tree

from dupmae_ir.io.collections import checked_docid
from dupmae_ir.io.documents import isolation
from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.io.documents.files import FileOptions
from tests.campaign.records import Record, Records, counted, number_of, sum_of

TITLE = "Readers: files of every format, damaged and made to mislead"
FILES = 10
"""Changed files of a trial."""
SECONDS = 60.0
"""For a trial of small files, apart from those that are ended at :data:`READER_SECONDS`."""
READER_SECONDS = 6.0
"""Instead of the two minutes that a reader has, which would be all that a campaign does."""
MEMORY = 3 << 30
"""Bytes of this process at most."""
PICTURE_ROUNDS = 5
"""Rounds of which one has pictures, whose recognition takes as long as all other families together."""
GROWTH = 250
"""Characters of text for a byte of a file and of what is in it: 200 are allowed, and passages overlap."""
GOOD = "The parser is faster now. "
MARK = "canary"
"""In a trial, every file has another word that begins so."""

Family = dict[str, bytes]
"""Name of a seed -> its bytes."""


class Trial(NamedTuple):
    """What became of the files of a trial; ``words`` say what is wrong."""

    read: int
    named: int
    limited: int
    words: str


def run(seconds: float, seed: int, records: Records) -> None:
    """Ten files of each family in turn until the time is over, pictures less often."""
    isolation.SECONDS = READER_SECONDS  # type: ignore[misc]
    resource.setrlimit(resource.RLIMIT_AS, (2 * MEMORY, 2 * MEMORY))
    families = _families()
    end = time.monotonic() + seconds
    number = len(records.all)
    with tempfile.TemporaryDirectory() as name:
        for round_number in itertools.count():
            if time.monotonic() > end:
                break
            for family, seeds in families.items():
                if family == "pictures" and round_number % PICTURE_ROUNDS:
                    continue
                number += 1
                folder = Path(name) / str(number)
                began = time.monotonic()
                trial = _tried(random.Random(f"{seed} {number}"), seeds, folder)
                records.add(
                    kind=family,
                    count=FILES,
                    read=trial.read,
                    named=trial.named,
                    limited=trial.limited,
                    seconds=time.monotonic() - began,
                    memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
                    verdict="wrong" if trial.words else "right",
                    words=trial.words,
                )
                if trial.words:
                    shutil.copytree(folder, Path(tempfile.mkdtemp(prefix="readers-")) / "docs")
                shutil.rmtree(folder)


def table(records: Sequence[Record]) -> str:
    """Files by family: how many were read, named in the report, and ended at a limit."""
    counts: dict[str, Callable[[Sequence[Record]], int]] = {
        "files": sum_of("count"),
        "read": sum_of("read"),
        "named": sum_of("named"),
        "ended at a limit": sum_of("limited"),
        "MB of the parent at most": lambda rows: max(row["memory"] for row in rows),
        "trials": len,
        "wrong": number_of("verdict", "wrong"),
    }
    return counted(records, "kind", counts, "family")


def is_wrong(record: Record) -> bool:
    """Whether something of a trial is not as promised."""
    return record["verdict"] == "wrong"


# --- one trial ---------------------------------------------------------------------------------------------------


def _tried(rng: random.Random, seeds: Family, folder: Path) -> Trial:
    docs = folder / "docs"
    docs.mkdir(parents=True)
    marks: dict[str, str] = {}
    for number in range(FILES):
        mark = f"{MARK}{rng.randrange(10**6):06d}"
        name, data = _changed(rng, _marked(seeds, mark))
        name = f"{number} {name}"
        marks[name] = mark
        (docs / name).write_bytes(data)
    for name in ("! good.txt", "~ good.txt"):
        (docs / name).write_text(GOOD * 3)
    before = _listing(folder)
    try:
        trial = _read(docs, marks)
    except BaseException:
        return Trial(0, 0, 0, traceback.format_exc()[-2000:])
    if _listing(folder) != before:
        return trial._replace(words="a file was written or changed")
    return trial


def _read(docs: Path, marks: dict[str, str]) -> Trial:
    """Read a folder, and look at every passage."""
    began = time.monotonic()
    options = FileOptions(archives=True, ocr=True)
    collection = DocumentCollection([str(docs)], options=options)
    ids: set[str] = set()
    characters = dict.fromkeys([*marks, "! good.txt", "~ good.txt"], 0)
    for document in collection:
        checked_docid(document.docid, "a passage")
        if document.docid in ids:
            return Trial(0, 0, 0, f"the id {document.docid!r} occurs twice")
        ids.add(document.docid)
        path = str((document.metadata or {})["path"])
        characters[path] += len(document.text)
        others = set(re.findall(rf"{MARK}\d{{6}}", document.text)) & set(marks.values())
        if others - {marks.get(path)} or (path in marks and GOOD.strip() in document.text):
            return Trial(0, 0, 0, f"{path}: text of another file")
    seconds = time.monotonic() - began
    read = sum(bool(characters[name]) for name in marks)
    reasons = list(collection.unreadable.values())
    limited = sum(
        "takes more than" in reason or "ended the process" in reason for reason in reasons
    )
    named = {name.partition("/")[0] for name in collection.unreadable}
    words = ""
    if not (characters["! good.txt"] and characters["~ good.txt"]):
        words = "a good file is not there"
    elif any("\n" in reason or len(reason) > 300 for reason in reasons):
        words = f"more than a line: {reasons}"
    elif seconds - READER_SECONDS * limited > SECONDS:
        words = f"{seconds:.0f} s"
    elif resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 > MEMORY:
        words = "memory of the parent"
    for name in marks:
        if characters[name] > GROWTH * _unpacked_size(docs / name) + (2 << 20):
            words = f"{name}: {characters[name]:,} characters"
    return Trial(read, len(named), limited, words)


def _unpacked_size(path: Path) -> int:
    """Bytes of a file, and of what gzip and archives have in it."""
    data = path.read_bytes()
    size = len(data)
    with contextlib.suppress(Exception), gzip.GzipFile(fileobj=io.BytesIO(data)) as unpacked:
        data = unpacked.read(64 << 20)
        size += len(data)
    with contextlib.suppress(Exception), zipfile.ZipFile(io.BytesIO(data)) as archive:
        size += sum(entry.file_size for entry in archive.infolist())
    return size


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


# --- changes -----------------------------------------------------------------------------------------------------

_HOSTILE = (
    b"\0",
    b"\xff\xfe",
    b"<b>",
    b"</b>",
    b"&lol;",
    b"]]>",
    b"<!--",
    b"<![CDATA[",
    b"(",
    b"[",
    b"{",
    b'{"a":',
    b"\\x",
    b"\n\n",
    b"\n--b\n",
    b"\nFrom a@b.c Mon Jan 1 00:00:00 2024\nA: b\n",
    b"\nContent-Type: message/rfc822\n\n",
    b"\nContent-Transfer-Encoding: base64\n\n",
    b'\nContent-Disposition: attachment; filename="../../x"\n\n',
    b"begin 644 ../../x\n#0V%T\n`\nend\n",
    b"=?utf-8?B?4pyT?=",
    b"1 0 R",
    b"/Kids [2 0 R]",
    b"/Next 1 0 R",
    b"/Filter /FlateDecode",
    b"endstream endobj",
    b"%\x80",
    b"\x1b[2J",
    "\u202e\u2028\x9b".encode(),
    b"\xed\xa0\x80",
    b"{\\rtf",
    b"\\bin99999999 ",
    b"$",
    b"`",
    b"|",
    b"- ",
    b"# a\n",
)
_EXTREMES = (
    0,
    1,
    2,
    255,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63,
    10**9,
    10**18,
    -1,
    -2,
    -512,
)
_NAMES = (
    "../../x.txt",
    "/etc/passwd",
    "C:\\x.txt",
    "a\x1b[31m.txt",
    "a\nb.txt",
    "a\x9b.txt",
    "\u202etxt.exe",
    "",
    ".",
    "a/" * 300,
    "n" * 5000,
)
_ENTITIES = (
    b'<!DOCTYPE a [<!ENTITY lol "lol"><!ENTITY l1 "&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;">'
    b'<!ENTITY l2 "&l1;&l1;&l1;&l1;&l1;&l1;&l1;&l1;"><!ENTITY l3 "&l2;&l2;&l2;&l2;&l2;&l2;&l2;&l2;">'
    b'<!ENTITY e SYSTEM "file:///etc/hostname">]>'
)


def _changed(rng: random.Random, seeds: Family) -> tuple[str, bytes]:
    """The name and the bytes of a file made from a seed."""
    name = rng.choice(list(seeds))
    data = seeds[name]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if data.startswith(b"PK") and rng.random() < 0.7:
            data = _container_changed(rng, data, seeds)
        else:
            data = rng.choice(_CHANGES)(rng, data, seeds)
    if rng.random() < 0.04:
        packed = gzip.compress(data)
        data = packed[: rng.randrange(len(packed))] if rng.random() < 0.3 else packed
        name += ".gz"
    return name, data[: 4 << 20]


def _bits(rng: random.Random, data: bytes, _seeds: Family) -> bytes:
    changed = bytearray(data or b" ")
    for _ in range(rng.choice((1, 3, 20))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _block(rng: random.Random, data: bytes, _seeds: Family) -> bytes:
    start, end = _span(rng, data)
    block = rng.choice((rng.randbytes, bytes))(end - start)
    return data[:start] + block + data[end:]


def _cut(rng: random.Random, data: bytes, _seeds: Family) -> bytes:
    start, end = _span(rng, data)
    return rng.choice((data[:start], data[:start] + data[end:], data[start:]))


def _repeated(rng: random.Random, data: bytes, _seeds: Family) -> bytes:
    start, end = _span(rng, data)
    count = rng.choice((2, 100, 5000))
    return data[:end] + (data[start:end] * count)[: 2 << 20] + data[end:]


def _spliced(rng: random.Random, data: bytes, seeds: Family) -> bytes:
    other = rng.choice(list(seeds.values()))
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other)) :]


def _hostile(rng: random.Random, data: bytes, _seeds: Family) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.choice(_HOSTILE) * rng.choice((1, 1, 50, 20_000)) + data[place:]


def _integer(rng: random.Random, data: bytes, _seeds: Family) -> bytes:
    """An integer of a header, in one of the forms that headers have."""
    form = rng.choice(("<H", ">H", "<I", ">I", "<Q", ">Q"))
    size = struct.calcsize(form)
    value = rng.choice(_EXTREMES) % 2 ** (8 * size)
    place = rng.randrange(max(1, min(len(data), rng.choice((64, 600, len(data) + 1)))))
    if rng.random() < 0.4 and b"PK" in data:
        places = [match.start() for match in re.finditer(rb"PK[\x01-\x06]{2}", data)]
        place = rng.choice(places or [0]) + rng.randrange(46)
    return data[:place] + struct.pack(form, value) + data[place + size :]


def _number(rng: random.Random, data: bytes, _seeds: Family) -> bytes:
    """A number that is written in digits."""
    numbers = list(re.finditer(rb"\d{1,18}", data[: 1 << 20]))
    if not numbers:
        return data
    number = rng.choice(numbers)
    return data[: number.start()] + str(rng.choice(_EXTREMES)).encode() + data[number.end() :]


def _reference(rng: random.Random, data: bytes, _seeds: Family) -> bytes:
    """A reference of a PDF, or an attribute of XML, that has the value of another one."""
    pattern = rng.choice((rb"\d+ 0 R", rb'="[^"]{0,80}"', rb"<[^<>]{1,80}>", rb"/[A-Za-z]{1,20}"))
    places = list(re.finditer(pattern, data[: 1 << 20]))
    if not places:
        return data
    place, other = rng.choice(places), rng.choice(places)
    return data[: place.start()] + other[0] + data[place.end() :]


def _deep(rng: random.Random, data: bytes, _seeds: Family) -> bytes:
    """An element, or another bracket, that begins again and again."""
    tags = list(re.finditer(rb"<[A-Za-z][^<>/]{0,100}>", data[: 1 << 20]))
    count = rng.choice((300, 3000, 50_000))
    if not tags:
        bracket = rng.choice((b"[", b"{", b"(", b"<< ", b"{\\b "))
        place = rng.randrange(len(data) + 1)
        return data[:place] + bracket * count + data[place:]
    tag = rng.choice(tags)
    return data[: tag.start()] + (tag[0] * count)[: 2 << 20] + data[tag.end() :]


def _entities(rng: random.Random, data: bytes, _seeds: Family) -> bytes:
    """Entities that grow and that name a file, used in an element and in an attribute."""
    declared = re.sub(rb"\A(<\?xml[^>]*\?>)?", lambda match: match[0] + _ENTITIES, data, count=1)
    place = rng.choice(list(re.finditer(rb">|\"", declared)) or [None])
    if place is None:
        return declared
    return (
        declared[: place.end()] + rng.choice((b"&l3;", b"&e;", b"&l1;")) + declared[place.end() :]
    )


def _encoded(rng: random.Random, data: bytes, _seeds: Family) -> bytes:
    text = data.decode("utf-8", "replace")
    return text.encode(rng.choice(("utf-16", "utf-32", "utf-7", "cp037", "shift_jis")), "replace")


_CHANGES: tuple[Callable[[random.Random, bytes, Family], bytes], ...] = (
    _bits,
    _bits,
    _block,
    _cut,
    _repeated,
    _spliced,
    _hostile,
    _hostile,
    _integer,
    _integer,
    _number,
    _number,
    _reference,
    _deep,
    _entities,
    _encoded,
)


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    """Where a part of the data begins and ends: mostly a small one."""
    start = rng.randrange(len(data) + 1)
    length = rng.choice((1, 8, 100, len(data)))
    return start, min(len(data), start + rng.randrange(length + 1))


def _container_changed(rng: random.Random, data: bytes, seeds: Family) -> bytes:
    """A zip archive with a member changed, renamed, repeated or left out."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    except Exception:  # an earlier change damaged it
        return _bits(rng, data, seeds)
    if not members:
        return data
    number = rng.randrange(len(members))
    name, contents = members[number]
    deed = rng.random()
    if deed < 0.7:
        members[number] = (name, rng.choice(_CHANGES)(rng, contents or b" ", seeds))
    elif deed < 0.8:
        members[number] = (rng.choice((*_NAMES, rng.choice(members)[0])), contents)
    elif deed < 0.87:
        members.insert(rng.randrange(len(members) + 1), members[number])
    elif deed < 0.94:
        del members[number]
    else:
        members[number] = (name, rng.choice(list(seeds.values())))
    packed = io.BytesIO()
    with zipfile.ZipFile(
        packed, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    ) as archive:
        for name, contents in members:
            archive.NameToInfo.clear()  # against the warning of a second one
            with contextlib.suppress(ValueError, UnicodeError):
                archive.writestr(zipfile.ZipInfo(name or "a"), contents)
    return packed.getvalue()


# --- seeds -------------------------------------------------------------------------------------------------------

_WORD = f"{MARK}000000"


def _marked(seeds: Family, mark: str) -> Family:
    """The seeds with another word in the place of :data:`_WORD`, which has the same length."""
    return {name: _with_word(data, mark) for name, data in seeds.items()}


def _with_word(data: bytes, mark: str) -> bytes:
    if not data.startswith(b"PK"):
        for encoding in ("utf-8", "utf-16-le"):
            data = data.replace(_WORD.encode(encoding), mark.encode(encoding))
        return data
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: _with_word(archive.read(name), mark) for name in archive.namelist()}
    return zipped(members)


def _families() -> dict[str, Family]:
    text = f"{_WORD}. {paragraphs('seed', 3)}"
    families = {
        "mail": _mails(text),
        "sheets": _sheets(),
        "slides": _slides(text),
        "Word, EPUB, RTF": {
            "a.docx": docx(body=text),
            "a.epub": epub({"a.xhtml": f"<h1>A</h1><p>{text}</p>"}),
            "a.rtf": rf"{{\rtf1\ansi\ansicpg1252 {{\title A}}\b {text}\b0\par \u8364? x}}".encode(),
            "a.doc": rf"{{\rtf1 {text}}}".encode(),
        },
        "OpenDocument": _opendocuments(text),
        "HTML and XML": {
            "a.html": HTML.replace("daily", text).encode(),
            "a.xml": f'<?xml version="1.0"?><a b="1"><title>T</title><p>{text}</p><i k="v"/></a>'.encode(),
            "a.rss": f"<rss><channel><item><title>T</title><description>{text}</description></item>"
            "</channel></rss>".encode(),
        },
        "PDF": {
            "a.pdf": pdf((text, "Seals.")),
            "b.pdf": pdf(tuple(f"{_WORD} {n}" for n in range(9))),
        },
        "archives": _archives(text),
        "notebooks and tables": {
            "a.ipynb": notebook().replace(b"Read the data.", text.encode()),
            "a.csv": f"name;age\n{_WORD};36\nB;51\n".encode() * 3,
            "a.json": json.dumps({"a": {"b": [1, text, None, 2.5e9]}, "c": "x"}).encode(),
            "a.jsonl": (json.dumps({"a": text}) + "\n").encode() * 2,
        },
        "markup": _markup(text),
        "source code": _source(),
        "pictures": _pictures(),
    }
    folder = os.environ.get("CAMPAIGN_SEEDS")
    if folder:
        _add_seeds(Path(folder), families)
    return families


def _add_seeds(folder: Path, families: dict[str, Family]) -> None:
    """Add the files of a folder to the families that have their endings; others to markup."""
    for path in sorted(folder.iterdir()):
        endings = (
            seeds for seeds in families.values() if any(n.endswith(path.suffix) for n in seeds)
        )
        next(endings, families["markup"])[path.name] = path.read_bytes()


def _mails(text: str) -> Family:
    head = f"From: Ada <a@example.org>\nTo: b@example.org\nSubject: {_WORD}\nMessage-ID: <1@x>\n"
    head += "Date: Mon, 1 Jan 2024 00:00:00 +0000\nMIME-Version: 1.0\n"
    parts = (
        f"--b\nContent-Type: multipart/alternative; boundary=c\n\n--c\nContent-Type: text/plain\n\n{text}\n"
        f"--c\nContent-Type: text/html\n\n<p>{text}</p>\n--c--\n"
        f'--b\nContent-Disposition: attachment; filename="n.txt"\n\nattached {text}\n'
        "--b\nContent-Type: text/csv; name*=utf-8''t%C3%A4.csv\nContent-Transfer-Encoding: base64\n\nYSxiCjEsMgo=\n"
        f"--b\nContent-Type: message/rfc822\n\n{head}\n{text}\n--b--\n"
    )
    mixed = f"{head}Content-Type: multipart/mixed; boundary=b\n\n{parts}"
    message = compound_file(
        outlook_tree(
            {0x0037: _WORD, 0x1000: text, 0x0C1A: "Ada"},
            [{0x3001: "B", 0x39FE: "b@example.org"}],
            [{0x3705: 1, 0x3707: "n.txt", 0x3701: text.encode()}],
        )
    )
    box = f"From a@example.org Mon Jan  1 00:00:00 2024\n{mixed}\n" * 2
    apple = f"{len(mixed.encode())}\n{mixed}<?xml version='1.0'?><plist/>"
    return {
        "a.eml": mixed.encode(),
        "b.eml": f"{head}\n{text}\n".encode(),
        "a.mbox": box.encode(),
        "a.emlx": apple.encode(),
        "a.msg": message,
    }


def _sheets() -> Family:
    import xlsxwriter

    out = io.BytesIO()
    with xlsxwriter.Workbook(out) as book:
        for name in ("First", "Second"):
            sheet = book.add_worksheet(name)
            rows: list[list[object]] = [["name", "age"], [_WORD, 36], ["B", 51.25], ["C", True]]
            for number, row in enumerate(rows):
                sheet.write_row(number, 0, row)
            sheet.write_formula(5, 0, "=SUM(B2:B3)")
            sheet.merge_range(6, 0, 7, 2, "merged")
    cell = (
        '<table:table-cell office:value-type="string" table:number-columns-repeated="{}">'
        "<text:p>{}</text:p></table:table-cell>"
    )
    cells = cell.format(2, _WORD) + cell.format(1, "b")
    row = f'<table:table-row table:number-rows-repeated="2">{cells}</table:table-row>'
    table_of_rows = f'<table:table table:name="S">{row}</table:table>'
    body = f"<office:spreadsheet>{table_of_rows}</office:spreadsheet>"
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    return {"a.xlsx": out.getvalue(), "a.ods": _opendocument(kind, body)}


def _opendocument(kind: str, body: str) -> bytes:
    spaces = ("office", "text", "table", "drawing", "presentation", "style")
    names = " ".join(f'xmlns:{n}="urn:oasis:names:tc:opendocument:xmlns:{n}:1.0"' for n in spaces)
    content = (
        f'<?xml version="1.0"?><office:document-content {names}><office:body>{body}</office:body>'
        "</office:document-content>"
    )
    manifest = (
        '<manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"/>'
    )
    meta = '<m xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>A</dc:title></m>'
    members = {
        "mimetype": kind,
        "META-INF/manifest.xml": manifest,
        "content.xml": content,
        "meta.xml": meta,
    }
    return zipped({name: value.encode() for name, value in members.items()})


def _opendocuments(text: str) -> Family:
    written = (
        f'<text:h text:outline-level="1">A</text:h><text:p>{text}<text:s text:c="3"/>x</text:p>'
    )
    written += "<text:list><text:list-item><text:p>one</text:p></text:list-item></text:list>"
    boxed = f"<drawing:text-box>{written}</drawing:text-box>"
    frame = f'<drawing:frame presentation:class="title">{boxed}</drawing:frame>'
    page = f"<drawing:page>{frame}</drawing:page>"
    kind = "application/vnd.oasis.opendocument"
    flat = (
        '<office:document xmlns:office="o" xmlns:text="t"><office:body>'
        f"<office:text>{written}</office:text></office:body></office:document>"
    )
    return {
        "a.odt": _opendocument(f"{kind}.text", f"<office:text>{written}</office:text>"),
        "a.odp": _opendocument(
            f"{kind}.presentation", f"<office:presentation>{page}</office:presentation>"
        ),
        "a.fodt": flat.encode(),
    }


def _slides(text: str) -> Family:
    from pptx import Presentation
    from pptx.util import Inches

    show = Presentation()
    for title in ("First", "Second"):
        slide = show.slides.add_slide(show.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = text
        slide.notes_slide.notes_text_frame.text = _WORD
        area = (Inches(1), Inches(1), Inches(3), Inches(1))
        table = slide.shapes.add_table(2, 2, *area).table
        table.cell(0, 0).text = "cell"
    out = io.BytesIO()
    show.save(out)
    # Layouts and themes are most of its members, and none of them is read.
    return {"a.pptx": out.getvalue()}


def _archives(text: str) -> Family:
    members = {
        "a.txt": text.encode(),
        "sub/b.md": f"# B\n\n{_WORD}\n".encode(),
        "c.eml": _mails(text)["a.eml"],
        "d.csv": b"a,b\n1,2\n",
    }
    archive = zipped({**members, "in.zip": zipped({"e.txt": _WORD.encode()})})
    families = {"a.zip": archive}
    forms = (("a.tar", tarfile.GNU_FORMAT), ("b.tar", tarfile.PAX_FORMAT))
    for name, form in forms:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=form) as tar:
            for member, data in members.items():
                entry = tarfile.TarInfo("ä" * 120 + member if member == "a.txt" else member)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        families[name] = out.getvalue()
    return families


def _markup(text: str) -> Family:
    front_matter = "---\ntitle: A\ntags: [a, b]\ndate: 2024-01-01\n---\n"
    latex = rf"\title{{A}}\begin{{document}}\section{{B}} {text} $x^2$ \emph{{y}}\end{{document}}"
    return {
        "a.md": f"{front_matter}# B\n\n{text}\n\n```\nx\n```\n\nC\n=\n\ny\n".encode(),
        "a.txt": f"A title\n=======\n\n{text}\n\n 1. Is it?\n\n    Yes.\n".encode(),
        "b.txt": f"Größe {text}".encode("latin-1"),
        "a.rst": f"A\n=\n\n{text}\n\nB\n-\n\nx\n".encode(),
        "a.adoc": f"= A\n\n{text}\n\n== B\n\n----\nx\n----\n".encode(),
        "a.org": f"#+title: A\n#+date: <2024-01-01>\n* B\n{text}\n#+begin_src\nx\n#+end_src\n".encode(),
        "a.tex": rf"\documentclass{{article}}{latex}".encode(),
        "a.srt": f"1\n00:00:01,000 --> 00:00:02,000\n{text}\n\n2\n00:00:03,000 --> 00:00:04,000\nx\n".encode(),
        "a.man": f".TH A 1\n.SH NAME\na \\- {text}\n.SH OPTIONS\n.TP\n.B \\-x\ny\n".encode(),
    }


def _source() -> Family:
    word = _WORD
    return {
        "a.py": f'"""{word}."""\nimport os\n\n\nclass A:\n    def b(self):\n        return [x]\n'.encode(),
        "a.js": f"// {word}\nfunction a(b) {{ return b.map(c => `${{c}}`); }}\nclass D {{ e() {{}} }}\n".encode(),
        "a.c": f"/* {word} */\n#include <x.h>\nint a(int b) {{ if (b) return 1; return 0; }}\n".encode(),
        "a.cpp": f"// {word}\ntemplate <class T> struct A {{ T b() const {{ return T(); }} }};\n".encode(),
        "a.go": f"// {word}\npackage a\n\nfunc B(c int) int {{\n\treturn c\n}}\n".encode(),
        "a.rs": f"//! {word}\nimpl A {{ fn b<'a>(c: &'a str) -> u8 {{ 1 }} }}\n".encode(),
        "a.java": f"/** {word} */\npublic class A {{ int b(int c) {{ return c; }} }}\n".encode(),
        "a.sh": f"# {word}\na() {{ cat <<E\nx\nE\n}}\n".encode(),
        "a.rb": f"# {word}\nclass A\n  def b(c) = c\nend\n".encode(),
        "a.hs": f"-- {word}\nmodule A where\nb :: Int -> Int\nb c = c\n".encode(),
        "a.pl": f"# {word}\nsub a {{ my $b = shift; return $b =~ m/x/; }}\n".encode(),
        "a.yaml": f"a: {word}\nb:\n  - c\n".encode(),
    }


def _pictures() -> Family:
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (160, 40), "white")
    ImageDraw.Draw(picture).text((5, 10), "seals and penguins", fill="black")
    seeds = {}
    for ending, form in (
        ("png", "PNG"),
        ("jpg", "JPEG"),
        ("tif", "TIFF"),
        ("bmp", "BMP"),
        ("webp", "WEBP"),
    ):
        out = io.BytesIO()
        pages = {"save_all": True, "append_images": [picture]} if form == "TIFF" else {}
        picture.save(out, form, **pages)
        seeds[f"a.{ending}"] = out.getvalue()
    return seeds


if __name__ == "__main__":
    # The seeds themselves, for a look at what is changed.
    target = Path(sys.argv[1])
    for family_name, family in _families().items():
        for seed_name, seed_data in family.items():
            (target / family_name).mkdir(parents=True, exist_ok=True)
            (target / family_name / seed_name).write_bytes(seed_data)
