"""BGE-M3: token weights, vectors and single-token vectors equal FlagEmbedding's own."""

from __future__ import annotations

import numpy as np
import pytest
from support.bge_models import TEXTS, write_bge_m3

from dupmae_ir.models import load_encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_bge_m3(tmp_path_factory.mktemp("models") / "bge-m3")


@pytest.fixture(scope="module")
def expected(folder):
    """Vectors, and a token's weight by its id, of each text."""
    flag = pytest.importorskip("FlagEmbedding", reason="FlagEmbedding is not installed: pip install FlagEmbedding")
    model = flag.BGEM3FlagModel(str(folder), use_fp16=False, devices="cpu")
    out = model.encode(TEXTS, max_length=64, return_dense=True, return_sparse=True, return_colbert_vecs=True)
    return out["dense_vecs"], [{int(i): float(w) for i, w in one.items()} for one in out["lexical_weights"]]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("side", ["documents", "queries"])
def test_both_parts_equal_those_of_flagembedding(folder, expected, packed, side):
    encoder = load_encoder(str(folder))
    assert encoder._packed is not None
    if not packed:
        encoder._packed = None
    found = getattr(encoder, f"encode_{side}")(TEXTS)
    vectors, weights = expected
    np.testing.assert_allclose(found.cls, vectors, atol=1e-5)
    for row, wanted in enumerate(weights):
        assert found.ot[row].indices.tolist() == sorted(wanted)
        np.testing.assert_allclose(found.ot[row].data, [wanted[i] for i in sorted(wanted)], atol=1e-5)
    assert found.ot.nnz > 20
