"""Smaller dense indexes on disk: what faiss would write, an error that holds, and refusals of what is stale."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from support.seeds import seeds

from dupmae_ir.errors import IndexMismatch, UnknownName, UsageError
from dupmae_ir.index.__main__ import main
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.config import KINDS, Parameters
from dupmae_ir.index.format import dense_kinds
from dupmae_ir.index.format.dense_kinds import build_kind, choose, open_kind, search_effort
from dupmae_ir.index.format.segment import Segment
from dupmae_ir.index.index import Index

DIM = 12


def make(folder: Path, vectors: np.ndarray) -> Segment:
    with IndexBuilder(folder, dim=vectors.shape[1], terms=None, scale=None) as builder:
        builder.add([f"d{i}" for i in range(len(vectors))], vectors, None)
        builder.finish({})
    return Index.open(folder).only_segment


def awkward(seed: int) -> np.ndarray:
    """Vectors with zero rows, copies, constant dimensions, outliers, scales apart, sometimes a single row."""
    rng = np.random.default_rng(seed)
    rows = int(rng.choice([1, 2, 50, 700]))
    vectors = rng.standard_normal((rows, DIM)) * 10.0 ** rng.integers(-3, 4, DIM)
    vectors[rng.random(rows) < 0.2] = 0
    vectors[rng.random(rows) < 0.2] = vectors[0]
    vectors[:, rng.random(DIM) < 0.2] = 0.3
    vectors[rng.random(rows) < 0.01] *= 50
    return vectors.astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Segment:
    return make(tmp_path / "I", np.random.default_rng(0).standard_normal((500, DIM)).astype(np.float32))


@pytest.mark.parametrize("seed", seeds())
def test_sq8_is_the_file_faiss_writes_and_its_error_the_largest(tmp_path: Path, seed: int) -> None:
    vectors = awkward(seed)
    folder = make(tmp_path / "I", vectors)
    meta = build_kind(folder, "sq8")
    kind, metric = faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    whole = faiss.IndexScalarQuantizer(DIM, kind, metric)
    whole.train(vectors)
    whole.add(vectors)
    assert (folder.path / "cls" / "sq8.faiss").read_bytes() == faiss.serialize_index(whole).tobytes()
    lost = np.linalg.norm(vectors.astype(np.float64) - whole.sa_decode(whole.sa_encode(vectors)), axis=1)
    assert meta["error"] >= lost.max()
    assert meta["error"] == pytest.approx(lost.max(), rel=1e-9)
    assert open_kind(folder, "sq8").meta == meta == json.loads((folder.path / "cls" / "sq8.json").read_text())


def test_blocks_do_not_show(folder: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, in_blocks = io.BytesIO(), io.BytesIO()
    error = dense_kinds._write_sq8(folder.vectors, whole)
    monkeypatch.setattr(dense_kinds, "_BLOCK", 7)
    assert dense_kinds._write_sq8(folder.vectors, in_blocks) == error
    assert in_blocks.getvalue() == whole.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_twice_and_the_flat_index_untouched(folder: Segment, kind: str) -> None:
    flat = (folder.path / "cls" / "index").read_bytes()
    written = []
    for _ in range(2):
        meta = build_kind(folder, kind)
        written.append([(folder.path / "cls" / f"{kind}.{end}").read_bytes() for end in ("faiss", "json")])
    assert written[0] == written[1]
    assert meta["bytes"] == len(written[0][0])
    assert meta["repeatable"]
    assert meta["digest"] == folder.digest
    assert (meta["error"] is None) == (kind != "sq8")
    assert (folder.path / "cls" / "index").read_bytes() == flat
    assert {p.name for p in (folder.path / "cls").iterdir()} == {
        "index",
        "docid",
        "part.json",
        f"{kind}.faiss",
        f"{kind}.json",
    }
    folder.verify()
    opened = open_kind(folder, kind)
    assert (opened.index.ntotal, opened.index.d, opened.kind) == (500, DIM, kind)


def test_a_graph_of_several_threads_promises_nothing(folder: Segment) -> None:
    assert not build_kind(folder, "hnsw-sq8", Parameters(threads=2))["repeatable"]
    assert build_kind(folder, "sq8", Parameters(threads=2))["repeatable"]


def test_a_build_leaves_the_number_of_threads_as_it_was(folder: Segment) -> None:
    before = faiss.omp_get_max_threads()
    build_kind(folder, "sq8", Parameters(threads=before + 1))
    assert faiss.omp_get_max_threads() == before


def test_automatic_settings_and_their_reasons(folder: Segment) -> None:
    assert choose("sq8", 100_000, Parameters()) == {}
    assert choose("ivf-sq8", 1_000_000, Parameters())["nlist"].value == 4000
    for documents, most in ((1, 1), (38, 1), (500, 12)):
        (value, reason) = choose("ivf-sq8", documents, Parameters())["nlist"]
        assert value == most
        assert f"{documents:,} documents" in reason
    assert choose("hnsw-sq8", 5, Parameters(m=7))["m"] == (7, "given")
    meta = build_kind(folder, "ivf-sq8", Parameters(nlist=20))
    assert (meta["parameters"], meta["reasons"]) == ({"nlist": 20}, {"nlist": "given"})
    effort = search_effort(meta)
    assert effort is not None
    assert effort.value == 20
    assert "20 lists" in effort.reason
    assert search_effort({"kind": "sq8"}) is None


def refused(folder: Segment, kind: str, match: str) -> None:
    with pytest.raises(IndexMismatch, match=match) as error:
        open_kind(folder, kind)
    assert f"dupmae-ir index dense, kind {kind}" in str(error.value)
    assert str(folder.index) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_missing_cut_short_or_garbage_is_refused(folder: Segment, kind: str) -> None:
    refused(folder, kind, f"no \\(finished\\) {kind} index")
    build_kind(folder, kind)
    data, described = (folder.path / "cls" / f"{kind}.{end}" for end in ("faiss", "json"))
    good, meta = data.read_bytes(), described.read_text()
    data.write_bytes(good[:-1])
    refused(folder, kind, f"{len(good) - 1:,} bytes, expected {len(good):,}")
    data.write_bytes(b"\0" * len(good))
    refused(folder, kind, "is damaged: its sha256")
    data.unlink()
    refused(folder, kind, "is missing")
    data.write_bytes(good)
    for text, match in (
        ("{", "cannot be read"),
        ("[]", "built from other vectors"),
        (meta.replace('"format": 1', '"format": 2'), "does not describe"),
        (meta.replace('"bytes"', '"octets"'), "does not describe"),
    ):
        described.write_text(text)
        refused(folder, kind, match)
    described.write_text(meta)
    open_kind(folder, kind)


def test_what_was_built_from_other_vectors_is_refused(folder: Segment, tmp_path: Path) -> None:
    other = make(tmp_path / "J", np.asarray(folder.vectors)[::-1].copy())
    build_kind(other, "sq8")
    for name in ("sq8.faiss", "sq8.json"):
        (folder.path / "cls" / name).write_bytes((other.path / "cls" / name).read_bytes())
    refused(folder, "sq8", "built from other vectors")
    build_kind(folder, "ivf-sq8")
    meta = build_kind(folder, "sq8")
    (folder.path / "cls" / "sq8.faiss").write_bytes((folder.path / "cls" / "ivf-sq8.faiss").read_bytes())
    meta["bytes"] = (folder.path / "cls" / "sq8.faiss").stat().st_size
    (folder.path / "cls" / "sq8.json").write_text(json.dumps(meta))
    refused(folder, "sq8", "is too long")
    folder.record_part("cls/sq8")
    refused(folder, "sq8", "is not the sq8 index")


def test_a_build_that_fails_leaves_the_older_kind(folder: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build_kind(folder, "sq8")

    def full(*_: Any) -> float:
        raise OSError("disk full")

    monkeypatch.setattr(dense_kinds, "_write_sq8", full)
    with pytest.raises(OSError, match="disk full"):
        build_kind(folder, "sq8")
    assert open_kind(folder, "sq8").meta == before
    assert {p.name for p in (folder.path / "cls").iterdir()} == {"index", "docid", "part.json", "sq8.faiss", "sq8.json"}


def test_a_kind_that_is_complete_is_not_built_again(folder: Segment, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["dense", "--index", str(folder.index), "--kind", "ivf-sq8", "--nlist", "4"]
    assert main([*command, "--quiet"]) == 0
    data = folder.path / "cls" / "ivf-sq8.faiss"
    before = data.stat().st_ino
    assert main([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["status"] == "already complete"
    assert json.loads(out)["parameters"] == {"nlist": 4}
    assert "already complete" in err
    assert main([*command[:-1], "5"]) == 2
    assert "--nlist 4 (requested 5). Pass --overwrite to replace it" in capsys.readouterr().err
    assert data.stat().st_ino == before
    assert main([*command[:-1], "5", "--overwrite", "--quiet"]) == 0
    assert open_kind(folder, "ivf-sq8").meta["parameters"] == {"nlist": 5}
    data.write_bytes(b"damaged")
    assert main([*command, "--quiet"]) == 0, "an unusable kind is rebuilt"
    assert open_kind(folder, "ivf-sq8").meta["parameters"] == {"nlist": 4}


def test_the_command(folder: Segment, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["dense", "--index", str(folder.index)]
    assert main([*where, "--kind", "ivf-sq8", "--json"]) == 0
    out, err = capsys.readouterr()
    description = open_kind(folder, "ivf-sq8").meta
    assert description.items() <= json.loads(out).items()
    assert "ivf-sq8 of 500 documents" in err
    assert "nlist 12 (4 x the square root of 500 documents" in err
    assert main([*where, "--kind", "hnsw-sq8", "--m", "8", "--ef-construction", "20", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert open_kind(folder, "hnsw-sq8").meta["parameters"] == {"m": 8, "ef_construction": 20}


def test_show_lists_them(folder: Segment, capsys: pytest.CaptureFixture[str]) -> None:
    def shown() -> str:
        assert main(["show", str(folder.index)]) == 0
        return capsys.readouterr().out

    assert "sq8" not in shown()
    build_kind(folder, "sq8")
    assert "\n  sq8               0.0 MB\n" in shown()
    (folder.path / "cls" / "sq8.json").unlink()
    assert "sq8               unusable: " in shown()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks Linux what is mapped")
@pytest.mark.parametrize("kind", KINDS)
def test_codes_stay_in_the_file(folder: Segment, kind: str) -> None:
    build_kind(folder, kind)
    opened = open_kind(folder, kind)
    assert str(folder.path / "cls" / f"{kind}.faiss") in Path("/proc/self/maps").read_text()
    assert opened.index.ntotal == 500


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--kind", "sq9"], "Did you mean 'sq8'?"),
        (["--kind", "sq8", "--nlist", "4"], "--nlist applies only with --kind ivf-sq8"),
        (["--kind", "ivf-sq8", "--m", "4"], "--m applies only with --kind hnsw-sq8"),
        (["--kind", "sq8", "--ef-construction", "4"], "--ef-construction applies only with --kind hnsw-sq8"),
        (["--kind", "ivf-sq8", "--nlist", "-1"], "--nlist must be at least 0, got -1"),
        (["--kind", "ivf-sq8", "--nlist", "501"], "more than the 500 documents"),
        (["--kind", "hnsw-sq8", "--m", "1"], "--m must be at least 2"),
        (["--kind", "sq8", "--threads", "-2"], "--threads must be at least 0"),
        ([], "--kind"),
    ],
)
def test_misuse_is_one_line(
    folder: Segment, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    try:
        status = main(["dense", "--index", str(folder.index), *flags])
    except SystemExit as e:  # argparse's own
        status = int(e.code or 0)
    assert status == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert list((folder.path / "cls").glob("*8.*")) == []


def test_nothing_to_index(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no documents"):
        build_kind(make(tmp_path / "I", np.zeros((0, DIM), np.float32)), "sq8")
    with pytest.raises(UnknownName, match="Did you mean 'hnsw-sq8'"):
        choose("hnsw-sq", 5, Parameters())
