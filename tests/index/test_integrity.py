"""``index verify``, and the check of each part when it is first used."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
from support import index_samples as samples

from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.__main__ import main
from dupmae_ir.index.format import integrity
from dupmae_ir.index.format.manifest import read_manifest, with_segments, write_meta
from dupmae_ir.index.format.rotated import build_rotated, open_rotated
from dupmae_ir.index.format.verification import problems
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings.format import export_postings

pytestmark = pytest.mark.jvm


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "I"
    samples.build(folder)
    index = samples.opened(folder)
    export_postings(index)
    build_rotated(index)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "I")


def flip(path, at=-1):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_every_file_is_recorded(whole):
    segment = samples.first_segment(whole)
    files = {str(p.relative_to(segment)) for p in segment.rglob("*") if p.is_file()}
    assert set(samples.opened(whole).record.files) == files
    assert {integrity.part_of(name) for name in files} == {
        "ids",
        "cls",
        "cls/rotated",
        "ot",
        "forward",
        "postings",
    }
    assert problems(whole) == []
    assert Index.open(whole).unread == 0


def test_verify_names_every_damaged_file(whole, folder, capsys):
    assert main(["verify", str(whole)]) == 0
    assert "undamaged: 120 documents" in capsys.readouterr().err
    segment = samples.first_segment(folder)
    names = sorted(samples.opened(folder).record.files)
    for name in names:
        flip(segment / name)
    assert main(["verify", str(folder)]) == 1
    error = capsys.readouterr().err
    # one line per file; a damaged mark is reported for its folder
    assert error.splitlines()[0] == f"dupmae-ir index verify: {len(names)} problem(s) found"
    assert all(name in error or str((segment / name).parent) in error for name in names)
    (folder / "meta.json").write_text("{")
    assert main(["verify", str(folder)]) == 1
    assert main(["verify", str(folder / "nothing")]) == 2


USES = {
    "docid": lambda index: index.docids,
    "terms.txt": lambda index: index.terms,
    "cls/index": lambda index: index.vectors,
    "forward/indptr.npy": lambda index: index.forward,
    "forward/impacts.npy": lambda index: index.forward,
    "postings/rows.npy": lambda index: index.postings,
    "cls/rotated.bin": lambda index: open_rotated(index),
}


@pytest.mark.parametrize("name", USES)
def test_a_flipped_bit_is_refused_on_first_use(folder, name):
    flip(samples.first_segment(folder) / name, -2)
    index = samples.opened(folder)
    with pytest.raises(IndexMismatch, match=f"{name}.*(damaged|cannot be read)"):
        USES[name](index)


def test_a_flipped_bit_in_any_file_of_lucene_is_refused(folder):
    for path in (samples.first_segment(folder) / "ot").iterdir():
        good = path.read_bytes()
        flip(path, len(good) // 2)
        with pytest.raises(IndexMismatch, match=r"damaged|another index|cannot be read"):
            samples.opened(folder).searcher  # noqa: B018
        path.write_bytes(good)
    assert samples.opened(folder).searcher.documents == 120


def test_large_files_are_read_only_when_asked(folder, monkeypatch):
    monkeypatch.setattr(integrity, "READ_AT_MOST", 2000)
    path = samples.first_segment(folder) / "cls" / "index"
    flip(path)
    index = samples.opened(folder)
    assert index.unread > path.stat().st_size
    assert len(index.vectors) == 120
    with pytest.raises(IndexMismatch, match="cls/index is damaged"):
        build_rotated(index)  # nothing is made from a damaged part
    with pytest.raises(IndexMismatch, match="cls/index is damaged"):
        index.verify()


def test_parts_of_another_index_are_refused(folder, tmp_path):
    samples.build(tmp_path / "J", seed=5)
    ours = samples.first_segment(folder)
    theirs = samples.first_segment(tmp_path / "J")
    for part in ("ot", "cls", "forward"):
        shutil.move(ours / part, tmp_path / part)
        shutil.copytree(theirs / part, ours / part)
        with pytest.raises(IndexMismatch, match=f"{part} belongs to another index"):
            Index.open(folder)
        shutil.rmtree(ours / part)
        shutil.move(tmp_path / part, ours / part)
    Index.open(folder)


def test_decoded_parts_are_compared(folder, tmp_path):
    """With records that agree with the files, only the contents can tell."""
    segment = samples.first_segment(folder)
    path = segment / "postings" / "impacts.npy"
    impacts = np.load(path)
    impacts[3] += 1
    np.save(path, impacts)
    samples.write_records(folder, segment)
    assert [
        "postings/impacts.npy differs from the forward index" in p for p in problems(folder)
    ] == [True]
    samples.build(tmp_path / "J", scale=3.0)
    shutil.rmtree(segment / "ot")
    shutil.copytree(samples.first_segment(tmp_path / "J") / "ot", segment / "ot")
    (segment / "ot" / "part.json").write_bytes(
        (segment / "forward" / "part.json").read_bytes().replace(b"forward", b"ot")
    )
    samples.write_records(folder, segment)
    assert any(
        "ot: the postings of" in problem and "differ" in problem for problem in problems(folder)
    )


def test_a_part_that_its_manifest_does_not_list_is_rebuilt(folder):
    """As a kill between publishing the part and updating the manifest leaves it."""
    manifest = read_manifest(folder)
    (record,) = manifest.segments
    files = {
        name: file for name, file in record.files.items() if integrity.part_of(name) != "postings"
    }
    write_meta(folder, with_segments(manifest.meta, [dataclasses.replace(record, files=files)]))
    with pytest.raises(
        IndexMismatch, match=r"does not list its files; rebuild them with: dupmae-ir index postings"
    ):
        samples.opened(folder).postings  # noqa: B018
    assert main(["postings", "--index", str(folder), "--quiet"]) == 0
    assert samples.opened(folder).postings
