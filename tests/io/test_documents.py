"""Files of documents: every format, folders with everything in them, passages, and files that cannot be read."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import itertools
import os
import random
import re
import time

import pytest
from support.document_samples import FILES, HTML, docx, epub, paragraphs, pdf, write_folder, zipped

from dupmae_ir.errors import EnvironmentProblem, InputError, UsageError
from dupmae_ir.io.documents import files as document_files
from dupmae_ir.io.documents import formats
from dupmae_ir.io.documents.collection import (
    _TOKEN,
    DocumentCollection,
    path_id,
    structured_passages,
)
from dupmae_ir.io.documents.extracted import Extracted, Heading, Unreadable
from dupmae_ir.io.documents.files import extract, find_files
from dupmae_ir.io.documents.isolation import ISOLATED


def read(*sources, **settings):
    collection = DocumentCollection([str(source) for source in sources], **settings)
    return collection, list(collection)


def by_path(documents):
    found = {}
    for document in documents:
        found.setdefault(document.metadata["path"], []).append(document)
    return found


# ---------------------------------------------------------------- formats


def test_every_format_in_a_folder(tmp_path):
    collection, documents = read(write_folder(tmp_path / "docs"))
    found = by_path(documents)
    assert set(found) == set(FILES)
    assert collection.report == {
        "files": len(FILES),
        "skipped": {},
        "unreadable": {},
        "unreadable_files": 0,
    }
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
    found = formats.code(source.encode())
    ends = [*(h.start for h in found.headings[1:]), len(source)]
    assert [
        (h.text, source[h.start : end]) for h, end in zip(found.headings, ends, strict=True)
    ] == [
        ("add", source[source.index("# Adds") : source.index("class")]),
        ("Reader", "class Reader: # reads\n"),
        ("Reader.open", source[source.index("    # Opens") :]),
    ]
    go = "// Add adds.\n// It returns the sum.\nfunc Add(x int) int {\n}\n/**\n * Twice.\n */\nfunction twice(x) {}\n"
    assert [go[h.start :][:6] for h in formats.code(go.encode()).headings] == ["// Add", "/**\n *"]


def test_the_questions_of_a_faq_are_headings():
    faq = (
        "Questions\n=========\n\n 1. Is it thread-safe?\n\n    Yes. Is it fast? It is.\n\n 2. deflate() fails.\n\n"
        "    Why\n    would it?\n\nQ:  Can it be stopped?\n\nA:  Yes.\n\nWhy does it stop?\n\n\tNobody knows.\n\n"
        "Two lines, is\nthis one?\n\nA sentence alone.\n\n"
    )
    found = formats.text(faq.encode())
    assert [(h.level, h.text) for h in sorted(found.headings)] == [
        (1, "Questions"),
        (2, "1. Is it thread-safe?"),
        (2, "2. deflate() fails."),
        (2, "Q:  Can it be stopped?"),
        (2, "Why does it stop?"),
    ]
    assert found.title == "Questions"
    assert formats.text(b"Where is it?\n\nHere.\n").title == ""


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


DAMAGED = {
    "a.docx": b"PK no zip",
    "b.docx": zipped({"x.txt": b"no document"}),
    "c.epub": zipped({"x": b""}),
    "d.epub": docx()[:-20],
    "e.pdf": b"%PDF-1.4 nothing",
    "f.pdf": pdf(())[:200],
    "g.ipynb": b'{"cells": 3}',
    "h.json": b"{no json",
    "i.txt": b"text with \0 in it",
    "j.html.gz": gzip.compress(b"<p>cut")[:-9],
    "k.md": b"\0" * 100,
    "l.csv": b'a,b\n"\0',
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
    for module in ("formats", "files"):
        monkeypatch.setattr(f"dupmae_ir.io.documents.{module}.LARGEST", 1 << 20)
    for reader in (formats.epub, formats.docx):
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


# ---------------------------------------------------------------- folders


def test_what_is_left_out_of_a_folder(tmp_path):
    names = (
        "a.txt",
        ".hidden.txt",
        ".git/config",
        "CVS/Root",
        "node_modules/x.js",
        "b.png",
        "~$c.docx",
        "d.txt~",
        "sub/e.md",
    )
    write_folder(tmp_path, dict.fromkeys(names, b"some text"))
    (tmp_path / "blank.md").write_bytes(b" \n")
    write_folder(
        tmp_path, {"index/meta.json": b"{}", "index/docid": b"x\n", "index/cls/docid": b"x\n"}
    )
    collection, documents = read(tmp_path)
    assert [d.metadata["path"] for d in documents] == ["a.txt", "sub/e.md"]
    assert collection.report["files"] == 2
    assert collection.report["skipped"] == {".md without text": 1, ".png": 1}
    _, documents = read(tmp_path, exclude=["sub/*"])
    assert [d.metadata["path"] for d in documents] == ["a.txt"]


def test_links_lead_to_no_loop_and_no_file_twice(tmp_path):
    write_folder(tmp_path / "docs", {"a.txt": b"one", "sub/b.txt": b"two"})
    (tmp_path / "outside.txt").write_text("three")
    (tmp_path / "docs/sub/loop").symlink_to(tmp_path / "docs")
    (tmp_path / "docs/self").symlink_to("self")
    (tmp_path / "docs/again.txt").symlink_to("a.txt")
    (tmp_path / "docs/out.txt").symlink_to(tmp_path / "outside.txt")
    (tmp_path / "docs/broken.txt").symlink_to("nowhere")
    os.mkfifo(tmp_path / "docs/pipe.txt")
    _, documents = read(tmp_path / "docs")
    assert [(d.metadata["path"], d.text) for d in documents] == [
        ("a.txt", "one"),
        ("out.txt", "three"),
        ("sub/b.txt", "two"),
    ]
    (tmp_path / "link").symlink_to("docs")
    assert [d.docid for d in read(tmp_path / "link")[1]] == [d.docid for d in documents]


def test_files_that_may_not_be_read(tmp_path, monkeypatch):
    write_folder(tmp_path, {"a.txt": b"one", "b.txt": b"two"})
    plain = open

    def refuse(path, *rest, **more):
        if str(path).endswith("b.txt"):
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path, *rest, **more)

    monkeypatch.setattr("builtins.open", refuse)
    collection, documents = read(tmp_path)
    assert [d.text for d in documents] == ["one"]
    assert collection.unreadable == {"b.txt": "Permission denied"}


def test_order_and_ids(tmp_path):
    names = ["b 10.txt", "b 2.txt", "100%.txt", "c#.txt", "ü.txt", "sub/a\tb.txt"]
    write_folder(tmp_path, dict.fromkeys(names, b"text"))
    _, documents = read(tmp_path)
    assert [d.docid for d in documents] == [
        "100%25.txt#0",
        "b%202.txt#0",
        "b%2010.txt#0",
        "c%23.txt#0",
        "sub/a%09b.txt#0",
        "ü.txt#0",
    ]
    assert path_id(os.fsdecode(b"caf\xe9 1")) == "caf%E9%201"


def test_several_folders_and_files_have_names_from_their_common_folder(tmp_path):
    write_folder(tmp_path, {"a/x.txt": b"1", "b/c/y.txt": b"2", "z.md": b"3"})
    _, documents = read(
        tmp_path / "a", tmp_path / "b", tmp_path / "z.md", tmp_path / "b" / "c" / "y.txt"
    )
    assert [d.docid for d in documents] == ["a/x.txt#0", "b/c/y.txt#0", "z.md#0"]
    assert [d.docid for d in read(tmp_path / "z.md")[1]] == ["z.md#0"]


def test_nothing_to_read(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no files in it"):
        read(tmp_path / "empty")
    with pytest.raises(InputError, match="no such file or folder"):
        read(tmp_path / "nothing")
    write_folder(tmp_path / "bad", {"a.pdf": b"x", "b.txt": b"  \n"})
    with pytest.raises(InputError, match=r"no text in any of its 2 files \(a.pdf: "):
        read(tmp_path / "bad")
    with pytest.raises(InputError, match="no text in any"):
        DocumentCollection([str(tmp_path / "bad")]).check()
    with pytest.raises(UsageError, match="at most half"):
        read(tmp_path, length=10, overlap=6)


def test_the_digest_is_of_names_and_bytes(tmp_path):
    write_folder(tmp_path, {"a.txt": b"one", "b.md": b"two", "c.png": b"x"})
    collection, _ = read(tmp_path)
    digest = collection.digests()
    assert DocumentCollection([str(tmp_path)]).read_digests() == digest
    (tmp_path / "c.png").write_bytes(b"y")  # no document
    os.utime(tmp_path / "a.txt", (1, 1))
    assert DocumentCollection([str(tmp_path)]).read_digests() == digest
    (tmp_path / "a.txt").write_bytes(b"ONE")
    changed = DocumentCollection([str(tmp_path)]).read_digests()
    assert changed != digest
    (tmp_path / "a.txt").rename(tmp_path / "a2.txt")
    assert DocumentCollection([str(tmp_path)]).read_digests() not in (digest, changed)


def test_a_missing_package_is_one_line_that_names_the_extra(tmp_path, monkeypatch):
    plain = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *r: None if name == "pypdf" else plain(name, *r)
    )
    write_folder(tmp_path, {"a.pdf": pdf(), "b.txt": b"text"})
    with pytest.raises(
        EnvironmentProblem,
        match=r"reading 1 pdf files needs pypdf: pip install 'dupmae-ir\[documents\]'",
    ):
        DocumentCollection([str(tmp_path)]).check()
    (tmp_path / "a.pdf").unlink()
    DocumentCollection([str(tmp_path)]).check()


def test_every_kind_has_an_extractor():
    readers = {*document_files.EXTRACTORS, *ISOLATED}
    assert set(document_files.KINDS.values()) == readers
    assert {kind for kinds in document_files.PACKAGES.values() for kind in kinds} <= readers


# ---------------------------------------------------------------- passages


def spans(text, length=30, overlap=10, **more):
    return list(structured_passages(Extracted(text, **more), length, overlap))


def test_passages_cover_the_text_and_are_not_too_long():
    rng = random.Random(3)
    for _ in range(60):
        words = rng.choices(
            [
                "word",
                "a",
                "internationalisation",
                "x.y",
                "Zürich",
                "検索エンジン",
                "end.",
                "End!",
                "\n\n",
                "\n",
            ],
            k=400,
        )
        text = " ".join(words)
        headings = sorted(rng.sample(range(len(text)), 5))
        lines = rng.random() < 0.5
        found = spans(
            text, headings=[Heading(start, 1 + start % 3, "H") for start in headings], lines=lines
        )
        covered = set()
        for start, end, _ in found:
            assert text[start:end].strip() == text[start:end] != ""
            assert len(_TOKEN.findall(text[start:end])) <= 30
            covered |= set(range(start, end))
        assert all(text[i].isspace() for i in set(range(len(text))) - covered)
        assert [s for s, _, _ in found] == sorted(s for s, _, _ in found)
        assert len({(s, e) for s, e, _ in found}) == len(found)


def test_passages_end_at_sentences_and_overlap_by_whole_sentences():
    text = paragraphs("topic", 30)
    found = spans(text, 60, 25)
    assert all(
        text[start:end].startswith("The retriever") and text[start:end].endswith("vector.")
        for start, end, _ in found
    )
    assert all(later.start < earlier.end for earlier, later in itertools.pairwise(found))
    without = spans(text, 60, 0)
    assert all(later.start >= earlier.end for earlier, later in itertools.pairwise(without))
    assert len(without) < len(found)


def test_headings_begin_passages_and_short_sections_are_joined():
    parts = [f"Part {i}\n\n{paragraphs(f'part {i}', 3)}\n\n" for i in range(4)]
    text = "".join(parts) + "".join(f"Tiny {i}\n\nOne.\n\n" for i in range(5))
    headings = [
        Heading(m.start(), 1 if m[1] == "Part" else 2, m[0])
        for m in re.finditer(r"(Part|Tiny) \d(?=\n)", text)
    ]
    found = spans(text, 80, 20, headings=headings)
    assert [heading for _, _, heading in found] == [
        "Part 0",
        "Part 1",
        "Part 2",
        "Part 3",
        "Part 3 > Tiny 0",
        "Part 3 > Tiny 4",
    ] or [heading for _, _, heading in found][:5] == [
        "Part 0",
        "Part 1",
        "Part 2",
        "Part 3",
        "Part 3 > Tiny 0",
    ]
    assert all(text[start:].startswith(("Part", "Tiny")) for start, _, _ in found)


def test_no_passage_has_the_end_of_a_long_section_and_the_next_one():
    for sentences in range(5, 40):
        parts = [f"Part {i}\n\n{paragraphs(f'part {i}', sentences)}\n\n" for i in range(3)]
        text, starts = "".join(parts), list(itertools.accumulate(map(len, parts), initial=0))[:3]
        found = spans(text, 200, 40, headings=[Heading(start, 1, "H") for start in starts])
        assert not [
            span for span in found if any(span.start < start < span.end for start in starts)
        ]


def test_the_heading_of_a_passage_is_the_one_that_most_of_it_is_under():
    text = "Guide\n\nShort.\n\nLabels\n\n" + "A label names a file system. " * 4
    (found,) = spans(
        text, 80, 20, headings=[Heading(0, 1, "Guide"), Heading(text.index("Labels"), 2, "Labels")]
    )
    assert found.heading == "Guide > Labels"


def test_a_caption_is_with_what_follows_it():
    text = "".join(f"name{i}\n\nThis is what name{i} means and does.\n\n" for i in range(12))
    for length in range(20, 60):
        found = [text[start:end] for start, end, _ in spans(text, length, 8)]
        assert all(passage.endswith("does.") for passage in found)
        assert sum(text[start:end].count("means") for start, end, _ in spans(text, length, 0)) == 12


@pytest.mark.parametrize(
    "text",
    [
        "x" * 300_000,
        "a " * 150_000,
        "\n" * 300_000 + "a",
        ". " * 150_000,
        "." + " " * 300_000 + "x",
        "a\n" * 150_000,
    ],
)
def test_strange_texts_are_split_in_linear_time(text):
    started = time.process_time()
    spans(text, 200, 40)
    spans(text, 200, 40, lines=True)
    assert time.process_time() - started < 5


def test_offsets_are_places_in_the_file(tmp_path):
    body = "\n\n".join(f"# Section {i}\n\n{paragraphs('thing', 12)}" for i in range(5))
    (tmp_path / "a.md").write_text(body)
    _, documents = read(tmp_path / "a.md", length=80, overlap=20)
    assert len(documents) > 10
    assert all(body[d.metadata["start"] : d.metadata["end"]] == d.text for d in documents)
    assert {d.metadata["heading"] for d in documents} == {f"Section {i}" for i in range(5)}
    assert [d.docid for d in documents] == [f"a.md#{i}" for i in range(len(documents))]
    assert documents[-1].title == "Section 0: Section 4"
    assert find_files([tmp_path]).files[0].name == "a.md"


# ---------------------------------------------------------------- plan and progress


def test_the_bytes_read_grow_inside_a_file_and_end_at_the_total(tmp_path):
    (tmp_path / "a.log").write_text("\n".join(f"line {i} of a long log" for i in range(4000)))
    (tmp_path / "b.txt").write_text("A short note.")
    (tmp_path / "c.png").write_bytes(bytes(100_000))  # no document: not part of the total
    collection = DocumentCollection([str(tmp_path)])
    positions = [collection.bytes_read for _ in collection]
    size = (tmp_path / "a.log").stat().st_size
    assert collection.total_bytes == size + 13 == collection.bytes_read
    assert len(positions) > 50
    assert positions == sorted(set(positions))
    assert abs(positions[len(positions) // 2] / size - 0.5) < 0.05


def test_a_log_without_sentences_is_cut_in_linear_time(tmp_path):
    (tmp_path / "a.log").write_text("INFO request done " * 100_000)
    started = time.process_time()
    _, documents = read(tmp_path)
    assert len(documents) > 1000
    assert time.process_time() - started < 20  # it took minutes when each cut copied the rest


def test_the_file_with_most_bytes_is_named_with_the_flag_that_leaves_it_out(tmp_path):
    (tmp_path / "logs [old]").mkdir()
    (tmp_path / "logs [old]" / "server.log").write_text("request done\n" * 200_000)
    (tmp_path / "note.txt").write_text("A short note.")
    note = DocumentCollection([str(tmp_path)]).dominating
    assert note == (
        "logs [old]/server.log has 2.6 MB of 2.6 MB, so it takes most of the time; "
        "--exclude 'logs [[]old]/server.log' leaves it out"
    )
    left = DocumentCollection([str(tmp_path)], exclude=["logs [[]old]/server.log"])
    assert [file.name for file in left.files] == ["note.txt"]
    assert left.dominating is None
