"""``index verify`` and ``index seal``, and the check of each part when it is first used."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from support import index_samples as samples

from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.__main__ import main
from dupmae_ir.index.format import integrity
from dupmae_ir.index.format.dense_kinds import build_kind, open_kind
from dupmae_ir.index.format.manifest import read_meta, sealed, write_meta
from dupmae_ir.index.format.verification import problems
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings.postings import export_postings

pytestmark = pytest.mark.jvm


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "I"
    samples.build(folder)
    index = Index.open(folder)
    export_postings(index)
    build_kind(index, "sq8")
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "I")


def flip(path, at=-1):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def reseal(folder):
    """Let the manifest describe the files as they are, as a writer with a bug would."""
    meta = read_meta(folder)
    write_meta(folder, sealed(meta, integrity.describe(folder, meta["files"])))


def test_every_file_is_recorded(whole):
    meta = read_meta(whole)
    files = {str(p.relative_to(whole)) for p in whole.rglob("*") if p.is_file()} - {"meta.json"}
    assert set(meta["files"]) == files
    assert {integrity.part_of(name) for name in files} == {"ids", "cls", "cls/sq8", "ot", "forward", "postings"}
    assert problems(whole) == []
    assert Index.open(whole).unread == 0


def test_verify_names_every_damaged_file(whole, folder, capsys):
    assert main(["verify", str(whole)]) == 0
    assert "whole: 120 documents" in capsys.readouterr().err
    names = sorted(read_meta(folder)["files"])
    for name in names:
        flip(folder / name)
    assert main(["verify", str(folder)]) == 1
    error = capsys.readouterr().err
    # one line per file; a damaged mark is reported for its folder
    assert error.splitlines()[0] == f"dupmae-ir index verify: {len(names)} problem(s) found"
    assert all(name in error or str((folder / name).parent) in error for name in names)
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
    "cls/sq8.faiss": lambda index: open_kind(index, "sq8"),
    "cls/sq8.json": lambda index: open_kind(index, "sq8"),
}


@pytest.mark.parametrize("name", USES)
def test_a_flipped_bit_is_refused_on_first_use(folder, name):
    flip(folder / name, -2)
    index = Index.open(folder)
    with pytest.raises(IndexMismatch, match=f"{name}.*(damaged|cannot be read)"):
        USES[name](index)


def test_a_flipped_bit_in_any_file_of_lucene_is_refused(folder):
    for path in (folder / "ot").iterdir():
        good = path.read_bytes()
        flip(path, len(good) // 2)
        with pytest.raises(IndexMismatch, match=r"damaged|another index|cannot be read"):
            Index.open(folder).searcher  # noqa: B018
        path.write_bytes(good)
    assert Index.open(folder).searcher.documents == 120


def test_large_files_are_read_only_when_asked(folder, monkeypatch):
    monkeypatch.setattr(integrity, "READ_AT_MOST", 2000)
    flip(folder / "cls" / "index")
    index = Index.open(folder)
    assert index.unread > (folder / "cls" / "index").stat().st_size
    assert len(index.vectors) == 120
    with pytest.raises(IndexMismatch, match="cls/index is damaged"):
        build_kind(index, "sq8")  # nothing is made from a damaged part
    with pytest.raises(IndexMismatch, match="cls/index is damaged"):
        index.verify()


def test_parts_of_another_index_are_refused(folder, tmp_path):
    samples.build(tmp_path / "J", seed=5)
    for part in ("ot", "cls", "forward"):
        shutil.move(folder / part, tmp_path / part)
        shutil.copytree(tmp_path / "J" / part, folder / part)
        with pytest.raises(IndexMismatch, match=f"{part} belongs to another index"):
            Index.open(folder)
        shutil.rmtree(folder / part)
        shutil.move(tmp_path / part, folder / part)
    Index.open(folder)


def test_decoded_parts_are_compared(folder, tmp_path):
    """With records that agree with the files, only the contents can tell."""
    path = folder / "postings" / "impacts.npy"
    impacts = np.load(path)
    impacts[3] += 1
    np.save(path, impacts)
    reseal(folder)
    assert ["postings/impacts.npy differs from the forward index" in p for p in problems(folder)] == [True]
    samples.build(tmp_path / "J", scale=3.0)
    for name in (folder / "ot").iterdir():
        name.unlink()
    for source in (tmp_path / "J" / "ot").iterdir():
        shutil.copy(source, folder / "ot")
    (folder / "ot" / "part.json").write_bytes(
        (folder / "forward" / "part.json").read_bytes().replace(b"forward", b"ot")
    )
    meta = read_meta(folder)
    files = {name: record for name, record in meta["files"].items() if not name.startswith("ot/")}
    names = [f"ot/{p.name}" for p in (folder / "ot").iterdir()]
    write_meta(folder, sealed(meta, files | integrity.describe(folder, names)))
    assert any("ot: the postings of" in problem and "differ" in problem for problem in problems(folder))


def test_an_older_index_is_sealed_by_one_command(folder, capsys):
    samples.unseal(folder)
    index = Index.open(folder)
    assert not index.sealed
    assert index.certifies
    assert main(["verify", str(folder)]) == 0
    assert "not sealed" in capsys.readouterr().err
    assert main(["seal", str(folder)]) == 0
    index = Index.open(folder)
    assert index.sealed
    assert index.certifies is None
    assert {integrity.part_of(name) for name in index.meta["files"]} >= {"postings", "cls/sq8"}
    assert open_kind(index, "sq8")
    assert index.postings
    (folder / "ot" / "part.json").unlink()  # as a kill between manifest and marks leaves it
    assert main(["seal", str(folder)]) == 0
    assert problems(folder) == []


def test_a_damaged_older_index_is_not_sealed(folder, capsys):
    samples.unseal(folder)
    before = json.loads((folder / "meta.json").read_text())
    flip(folder / "forward" / "impacts.npy")
    assert main(["seal", str(folder)]) == 2
    assert "was not sealed: " in capsys.readouterr().err
    assert json.loads((folder / "meta.json").read_text()) == before


def test_a_part_that_its_manifest_does_not_list_is_rebuilt(folder):
    """As a kill between publishing the part and updating the manifest leaves it."""
    meta = read_meta(folder)
    files = {n: r for n, r in meta["files"].items() if integrity.part_of(n) != "postings"}
    write_meta(folder, sealed(meta, files))
    with pytest.raises(IndexMismatch, match=r"does not list its files; rebuild them with: dupmae-ir index postings"):
        Index.open(folder).postings  # noqa: B018
    assert main(["postings", "--index", str(folder), "--quiet"]) == 0
    assert Index.open(folder).postings
