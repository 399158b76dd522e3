"""The embedded collection: its size, its document ids, and that it is the same on every run."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dupmae_ir.collections import stdlib
from dupmae_ir.errors import EnvironmentProblem


@pytest.fixture(scope="module")
def documents():
    return stdlib.stdlib_documents()


def test_size_and_distinct_texts(documents):
    assert 4500 < len(documents) < 6500
    assert len({d.docid for d in documents}) == len(documents)
    assert len({d.text for d in documents}) == len(documents)
    assert not any(c.isspace() for d in documents for c in d.docid)
    assert all(len(d.text) >= 20 for d in documents)


@pytest.mark.parametrize(
    "name",
    [
        "os.path.join",
        "str.split",
        "open",
        "json.dumps",
        "asyncio.sleep",
        "functools.wraps",
        "random.randint",
        "concurrent.futures.ThreadPoolExecutor",
        "argparse.ArgumentParser.add_argument",
        "KeyError",
        "pathlib.Path.mkdir",
        "pathlib.Path.exists",
        "pathlib.Path.cwd",
        "pathlib.PurePath.suffix",
        "pathlib.PurePath.relative_to",
    ],
)
def test_objects_have_their_usual_names(documents, name):
    assert name in {d.docid for d in documents}


def test_a_document_is_its_docstring_with_its_signature(documents):
    by_name = {d.docid: d for d in documents}
    assert by_name["textwrap.indent"].text.startswith("Adds 'prefix' to the beginning")
    assert by_name["textwrap.indent"].title == "textwrap.indent(text, prefix, predicate=None)"


def test_methods_of_a_private_base_belong_to_the_public_class(monkeypatch):
    """As in pathlib of Python 3.13: PurePath(Hidden), Path(HiddenToo, PurePath), with the bases in pathlib._abc."""
    package = ModuleType("paths")
    hidden = type(
        "Hidden", (), {"__module__": "paths._abc", "name": property(doc="The final component.")}
    )
    pure = type("Pure", (hidden,), {"__module__": "paths", "joined": lambda self: None})
    hidden_too = type(
        "HiddenToo", (hidden,), {"__module__": "paths._abc", "exists": lambda self: None}
    )
    path = type("Path", (hidden_too, pure), {"__module__": "paths", "mkdir": lambda self: None})
    package.Pure = pure
    package.Path = path
    monkeypatch.setitem(sys.modules, "paths", package)

    def public(cls):
        return {name for name in stdlib._attributes(cls) if not name.startswith("_")}

    assert public(pure) == {"name", "joined"}
    assert public(path) == {"exists", "mkdir"}


@pytest.mark.parametrize(
    "child", ["raise SystemExit('no library here')", "import time; time.sleep(9)"]
)
def test_an_error_in_the_child_process_is_one_line(monkeypatch, child):
    monkeypatch.setattr(stdlib, "_CHILD", child)
    monkeypatch.setattr(stdlib, "_TIMEOUT", 0.5)
    with pytest.raises(
        EnvironmentProblem, match=r"\A[^\n]*cannot list.*(no library here|timed out)[^\n]*\Z"
    ):
        stdlib.stdlib_documents()


def test_the_collection_does_not_depend_on_the_hash_seed():
    digests = set()
    for seed in ("1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", stdlib._CHILD, str(Path(stdlib.__file__).parents[2])],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        digests.add(hashlib.sha256(done.stdout).hexdigest())
    assert len(digests) == 1


def test_titles_contain_no_memory_addresses(documents):
    assert not any(" at 0x" in d.title for d in documents)


def test_write_beir(tmp_path, documents):
    from dupmae_ir.io.collections import read_collection
    from dupmae_ir.io.qrels import read_qrels
    from dupmae_ir.io.topics import read_topics

    counts = stdlib.write_beir(tmp_path)
    assert [d.docid for d in read_collection(str(tmp_path / "corpus.jsonl"))] == [
        d.docid for d in documents
    ]
    topics = read_topics(tmp_path / "queries.jsonl")
    qrels = read_qrels(tmp_path / "qrels" / "test.tsv")
    assert counts == {"documents": len(documents), "queries": len(qrels)}
    assert set(qrels) == {q.qid for q in topics}
