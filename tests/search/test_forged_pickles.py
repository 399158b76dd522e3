"""Pickled searchers and indexes: a path and a digest, refused in one line if either leads elsewhere."""

from __future__ import annotations

import builtins
import io
import os
import pickle
import pickletools
import shutil

import pytest

from dupmae_ir import Searcher, build_index
from dupmae_ir.errors import DupmaeError, IndexMismatch
from dupmae_ir.index.index import Index, IndexSource
from dupmae_ir.models.names import embedded_folder

MODEL = "testing:hashing"


@pytest.fixture(scope="module")
def indexes(tmp_path_factory):
    """A folder with two indexes of other texts, by the same model."""
    folder = tmp_path_factory.mktemp("forged")
    build_index({"a": "one", "b": "two"}, folder / "mine", model=MODEL)
    build_index({"a": "one", "b": "three"}, folder / "other", model=MODEL)
    return folder


def refused(pickled: bytes, error: type[DupmaeError], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        pickle.loads(pickled)
    assert "\n" not in str(caught.value)


def with_source(pickled: bytes, old: str, new: str) -> bytes:
    """The pickle with one string replaced by another of the same length."""
    assert len(old) == len(new)
    assert pickled.count(old.encode()) == 1
    return pickled.replace(old.encode(), new.encode())


def test_a_pickle_has_a_path_and_a_digest_and_no_contents(indexes):
    index = Index.open(indexes / "mine")
    searcher = Searcher.open(indexes / "mine")
    strings = {
        argument
        for _, argument, _ in pickletools.genops(pickle.dumps(searcher))
        if isinstance(argument, str)
    }
    assert {str(indexes / "mine"), index.digest} <= strings
    # Everything that is called on loading is of this package, or a path.
    called = {name for name in strings if name in dir(builtins)}
    assert called == set()
    modules = {
        name for name in strings if name.split(".")[0] in ("dupmae_ir", "os", "pathlib", "builtins")
    }
    assert modules <= {
        "dupmae_ir.search.searcher",
        "dupmae_ir.search.config",
        "dupmae_ir.index.index",
        "pathlib",
    }


def test_another_path_or_digest_is_refused(indexes):
    pickled = pickle.dumps(Searcher.open(indexes / "mine"))
    digest = Index.open(indexes / "mine").digest
    other = Index.open(indexes / "other").digest
    changed = "has changed since it was pickled"
    refused(with_source(pickled, digest, other), IndexMismatch, changed)
    shutil.copytree(indexes / "other", indexes / "evil", symlinks=True)
    refused(with_source(pickled, "/mine", "/evil"), IndexMismatch, changed)
    refused(with_source(pickled, "/mine", "/none"), DupmaeError, "none")
    # Both replaced: it is another index, and is what the pickle says.
    copy = pickle.loads(with_source(with_source(pickled, "/mine", "/evil"), digest, other))
    assert copy.index.digest == other


def test_a_link_in_the_place_of_the_index(indexes, tmp_path):
    shutil.copytree(indexes / "mine", tmp_path / "mine", symlinks=True)
    pickled = pickle.dumps(Searcher.open(tmp_path / "mine"))
    (tmp_path / "mine").rename(tmp_path / "moved")
    (tmp_path / "mine").symlink_to(indexes / "other")
    refused(pickled, IndexMismatch, "has changed since it was pickled")
    (tmp_path / "mine").unlink()
    (tmp_path / "mine").symlink_to(tmp_path / "moved")
    assert pickle.loads(pickled).search("one")
    (tmp_path / "mine").unlink()
    os.mkfifo(tmp_path / "mine")
    refused(pickled, DupmaeError, "mine")


def test_nothing_but_the_path_is_opened(indexes, tmp_path, monkeypatch):
    """A digest that differs is refused when the record of the index has been read, and nothing else."""
    pickled = pickle.dumps(Searcher.open(indexes / "mine"))
    digest = Index.open(indexes / "mine").digest
    forged = with_source(pickled, digest, "0" * len(digest))
    opened: list[str] = []
    open_file = io.open

    def recorded(path, *arguments, **keywords):
        opened.append(str(path))
        return open_file(path, *arguments, **keywords)

    monkeypatch.setattr(io, "open", recorded)
    monkeypatch.setattr(builtins, "open", recorded)
    monkeypatch.setattr("dupmae_ir.search.searcher.load_query_encoder", None)
    refused(forged, IndexMismatch, "has changed since it was pickled")
    assert opened
    assert all(path.startswith(str(indexes / "mine")) for path in opened if not path.isdigit())


@pytest.mark.nightly
def test_another_model_is_refused(indexes, tmp_path):
    """By the digest that the index records of its model."""
    shutil.copytree(embedded_folder("dupmae-small"), tmp_path / "mine")
    build_index({"a": "one"}, tmp_path / "index", model=str(tmp_path / "mine"))
    pickled = pickle.dumps(Searcher.open(tmp_path / "index", str(tmp_path / "mine")))
    shutil.copytree(tmp_path / "mine", tmp_path / "evil")
    config = tmp_path / "evil" / "dupmae_config.json"
    config.write_text(config.read_text() + "\n")
    refused(with_source(pickled, f"{tmp_path}/mine", f"{tmp_path}/evil"), IndexMismatch, "digest")


@pytest.mark.parametrize(
    "source",
    [
        IndexSource((), False, "x"),
        IndexSource((5,), False, "x"),  # type: ignore[arg-type]
        IndexSource("paths", False, "x"),  # type: ignore[arg-type]
        IndexSource((b"bytes",), False, "x"),  # type: ignore[arg-type]
        IndexSource(("a\0b",), False, "x"),
        IndexSource(("mine",), False, None),  # type: ignore[arg-type]
        IndexSource(None, None, None),  # type: ignore[arg-type]
        ("mine", False, "x"),
        None,
    ],
)
def test_sources_of_other_types(source, indexes, monkeypatch):
    from dupmae_ir.index.index import _reopened

    monkeypatch.chdir(indexes)
    with pytest.raises(DupmaeError) as caught:
        _reopened(source)
    assert "\n" not in str(caught.value)
