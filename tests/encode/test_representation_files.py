"""The lines of representation files, and Anserini's reader of dense ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dupmae_ir import pyserini
from dupmae_ir.encode.pyserini_files import line_of
from dupmae_ir.types import Document


def test_dense_lines_repeat_the_id_as_docid():
    document = Document("d 1", "text", "title")
    assert json.loads(line_of(document, [0.5, -1.0])) == {
        "docid": "d 1",
        "id": "d 1",
        "contents": "title\ntext",
        "vector": [0.5, -1.0],
    }
    assert json.loads(line_of(document, {"term": 3})) == {"id": "d 1", "contents": "title\ntext", "vector": {"term": 3}}


@pytest.mark.jvm
def test_anserini_reads_dense_lines(tmp_path):
    """JsonDenseVectorCollection is what Lucene's flat and HNSW indexes are built from."""
    vectors = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    lines = [line_of(Document(f"d{i}", "text"), vector.tolist()) for i, vector in enumerate(vectors)]
    (tmp_path / "part-000000.jsonl").write_text("".join(line + "\n" for line in lines))
    pyserini.start_jvm()
    paths = pyserini.autoclass("java.nio.file.Paths")
    collection = pyserini.autoclass("io.anserini.collection.JsonDenseVectorCollection")(paths.get(str(tmp_path)))
    documents = [document for segment in collection for document in segment]
    assert [document.id() for document in documents] == ["d0", "d1", "d2"]
    np.testing.assert_array_equal([document.vector() for document in documents], vectors)
