"""Representation files: the lines of an index, and Anserini's reader of dense ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.encode_runs import arguments

from dupmae_ir import pyserini
from dupmae_ir.__main__ import main
from dupmae_ir.index.index import Index
from dupmae_ir.io.collections import read_collection

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "representation_files.py"


@pytest.mark.jvm
def test_lines_are_those_of_the_live_documents_and_anserini_reads_the_dense_ones(corpus, tmp_path):
    """JsonDenseVectorCollection is what Lucene's flat and HNSW indexes are built from."""
    index = str(tmp_path / "I")
    folder = tmp_path / "J"
    assert main(["encode", *map(str, arguments(corpus, index)), "--quiet"]) == 0
    documents = {d.docid: d for d in read_collection(corpus)}
    gone = next(iter(documents))
    assert main(["index", "delete", "--index", index, "--ids", gone, "--quiet"]) == 0
    subprocess.run([sys.executable, EXAMPLE, index, folder], check=True, capture_output=True)
    opened = Index.open(index)
    live = [docid for docid in opened.docids if docid != gone]
    for part in ("cls", "ot"):
        lines = [
            json.loads(line)
            for line in (folder / part / "part-000000.jsonl").read_text().splitlines()
        ]
        assert [line["id"] for line in lines] == live
        for row, line in enumerate(lines, 1):
            document = documents[line["id"]]
            assert line["contents"] == (
                f"{document.title}\n{document.text}" if document.title else document.text
            )
            if part == "cls":
                assert line["docid"] == line["id"]
                np.testing.assert_array_equal(
                    np.array(line["vector"], np.float32), opened.segments[0].vectors[row]
                )
            else:
                terms, impacts = opened.forward.row(row)
                assert line["vector"] == {
                    opened.terms[t]: i for t, i in zip(terms, impacts.tolist(), strict=True)
                }
    pyserini.start_jvm()
    path = pyserini.autoclass("java.nio.file.Paths").get(str(folder / "cls"))
    collection = pyserini.autoclass("io.anserini.collection.JsonDenseVectorCollection")(path)
    read = [document for segment in collection for document in segment]
    assert [document.id() for document in read] == live
    np.testing.assert_array_equal(
        [document.vector() for document in read], opened.segments[0].vectors[1:]
    )
