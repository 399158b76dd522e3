"""Windows and parts: the pieces that a resumed run is put together from."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from dupmae_ir.encode.run import EncodingBar
from dupmae_ir.encode.windows import (
    EncodedWindow,
    documents_digest,
    read_header,
    window_size,
    windows,
    write_window,
)
from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.format.manifest import Losses
from dupmae_ir.index.format.quantisation import CALIBRATION, calibrated_scale
from dupmae_ir.testing import HashingEncoder
from dupmae_ir.types import Document, Representation


def documents(count: int) -> list[Document]:
    return [Document(f"d{i}", f"text {i}") for i in range(count)]


@pytest.mark.parametrize(
    ("count", "size"), [(0, 5), (1, 5), (5, 5), (12, 5), (CALIBRATION + 700, 600), (1300, 4096)]
)
def test_windows_lose_nothing_and_the_first_is_for_calibration(count, size):
    found = list(windows(documents(count), size))
    assert [d for w in found for d in w] == documents(count)
    assert [len(w) for w in found[:-1]] == [window_size(i, size) for i in range(len(found) - 1)]
    assert all(len(w) <= CALIBRATION for w in found[:1])


def test_the_digest_of_documents_sees_every_boundary():
    different = [
        [Document("a", "bc")],
        [Document("ab", "c")],
        [Document("a", "c", "b")],
        [Document("a", "b", "c")],
        [Document("a", ""), Document("bc", "")],
        [Document("a", "bc"), Document("a", "bc")],
        [],
    ]
    assert len({documents_digest(d) for d in different}) == len(different)
    assert documents_digest(documents(3)) == documents_digest(iter(documents(3)))


@pytest.mark.parametrize("settings", [{}, {"dim": None}, {"vocabulary": None}])
def test_an_encoded_window_comes_back_as_it_was(tmp_path, settings):
    encoder = HashingEncoder(**settings)
    texts = ["one two two", "", "three"]
    documents = [Document(docid, text) for docid, text in zip(["a", "b", "é"], texts, strict=True)]
    part = EncodedWindow.of(documents, encoder.encode_documents(texts), 90.0, texts=True)
    write_window(tmp_path / "p", part.to_bytes("digest"))
    back = EncodedWindow.read(tmp_path / "p")
    assert read_header(tmp_path / "p")["documents"] == "digest"
    assert (back.documents, back.digests) == (part.documents, part.digests)
    assert back.docids == part.docids
    assert back.losses == part.losses
    for name in ("cls", "impacts"):
        a = getattr(part, name)
        b = getattr(back, name)
        assert (a is None) == (b is None)
    if part.cls is not None:
        np.testing.assert_array_equal(part.cls, back.cls)
    if part.impacts is not None:
        assert (part.impacts != back.impacts).nnz == 0
        assert back.impacts.dtype == np.uint8
        assert np.diff(back.impacts.indptr).tolist() == [2, 0, 1]


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "p").write_bytes(b"x" * 20)
    with pytest.raises(IndexMismatch, match=r"p: damaged .*; remove this file"):
        EncodedWindow.read(tmp_path / "p")


def test_quantising_counts_what_it_changes():
    ot = sp.csr_matrix(np.array([[0.004, 1.0, 0.0], [3.0, 0.005, 2.549]], np.float32))
    part = EncodedWindow.of(
        [Document("a", ""), Document("b", "")], Representation(None, ot), 100.0, texts=False
    )
    # 0.4 -> 0 is dropped, 300 -> 255 is clipped, 0.5 -> 0 (half to even) is dropped, 254.9 -> 255.
    assert part.impacts.toarray().tolist() == [[0, 100, 0], [255, 0, 255]]
    assert part.losses == Losses(clipped=1, dropped=2)


def test_the_calibrated_scale_leaves_headroom():
    ot = sp.csr_matrix(np.array([[0.5, 3.2]], np.float32))
    assert calibrated_scale(Representation(None, ot)) == 72.44  # 255 / (1.1 x 3.2) = 72.4432
    assert calibrated_scale(Representation(None, sp.csr_matrix((2, 3), dtype=np.float32))) is None
    assert calibrated_scale(Representation(np.zeros((1, 2), np.float32), None)) is None


class _Bar:
    """tqdm's numbers, without a terminal."""

    disable = False

    def __init__(self):
        self.n = self.initial = 0
        self.positions = []

    def update(self, n):
        assert n >= 0
        self.n += n
        self.positions.append(self.n)

    def set_postfix_str(self, text, refresh):
        self.note = text


def test_the_bar_of_encoding_ends_at_the_bytes_of_the_collection_and_never_goes_back():
    source = SimpleNamespace(total_bytes=900, bytes_read=0)
    bar = _Bar()
    work = EncodingBar(bar, source)
    for number, position in enumerate((400, 700, 900)):
        source.bytes_read = position
        work.read(number, 10)
    work.skip(0)  # finished by an earlier run
    assert (bar.n, bar.initial) == (400, 400)
    for number in (1, 2):
        for share in (0.3, 0.3, 0.9):
            work.advance(number, share)
        work.finish(number, f"{number} done")
    assert (bar.n, bar.positions, bar.note) == (900, sorted(bar.positions), "2 done")
