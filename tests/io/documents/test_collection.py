"""Folders with everything in them, ids, digests, progress, and files that cannot be read."""

from __future__ import annotations

import importlib.util
import os
import time

import pytest
from support.document_samples import paragraphs, pdf, write_folder

from dupmae_ir.errors import EnvironmentProblem, InputError, UsageError
from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.io.documents.files import find_files
from dupmae_ir.io.documents.names import path_id
from dupmae_ir.io.sources import CorpusOptions


def read(*sources, **settings):
    collection = DocumentCollection([str(source) for source in sources], **settings)
    return collection, list(collection)


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
    collection, documents = read(tmp_path / "docs")
    assert [d.text for d in documents] == ["one", "two"]
    assert collection.report["skipped"] == {"links out of the folder": 1}
    _, documents = read(tmp_path / "docs", follow_links=True)
    assert [(d.metadata["path"], d.text) for d in documents] == [
        ("a.txt", "one"),
        ("out.txt", "three"),
        ("sub/b.txt", "two"),
    ]
    (tmp_path / "link").symlink_to("docs")
    _, linked = read(tmp_path / "link", follow_links=True)
    assert [d.docid for d in linked] == [d.docid for d in documents]


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
        importlib.util,
        "find_spec",
        lambda name, *r: None if name == "pypdfium2" else plain(name, *r),
    )
    write_folder(tmp_path, {"a.pdf": pdf(), "b.txt": b"text"})
    with pytest.raises(
        EnvironmentProblem,
        match=r"reading 1 pdf files needs pypdfium2: pip install 'dupmae-ir\[documents\]'",
    ):
        DocumentCollection([str(tmp_path)]).check()
    (tmp_path / "a.pdf").unlink()
    DocumentCollection([str(tmp_path)]).check()


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


def test_a_log_without_sentences_is_cut_in_linear_time(tmp_path):
    (tmp_path / "a.log").write_text("INFO request done " * 100_000)
    started = time.process_time()
    _, documents = read(tmp_path)
    assert len(documents) > 1000
    assert time.process_time() - started < 20  # it took minutes when each cut copied the rest


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


def test_a_table_beside_other_documents_is_a_document(tmp_path):
    write_folder(tmp_path, {"a.txt": b"Some text.", "prices.tsv": b"fruit\tprice\nplum\t3\n"})
    collection = CorpusOptions(corpus=str(tmp_path)).collection()
    assert [document.text for document in collection] == ["Some text.", "fruit: plum; price: 3"]
    (tmp_path / "corpus2.jsonl").write_text('{"id": "d1", "text": "A document."}\n')
    with pytest.raises(InputError, match=r"corpus2.jsonl has a document on each line, a.txt is"):
        CorpusOptions(corpus=str(tmp_path)).collection()
