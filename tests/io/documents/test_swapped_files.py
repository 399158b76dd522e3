"""Files that change between their listing and their reading: nothing outside the folder is read."""

import os
import threading

import pytest

from dupmae_ir.io.documents.collection import DocumentCollection

SECRET = "The secret is kept outside."


@pytest.fixture
def folder(tmp_path):
    """A folder of two files in a folder of their own, and a secret beside it."""
    (tmp_path / "docs/inner").mkdir(parents=True)
    (tmp_path / "docs/inner/a.txt").write_text("The first text.")
    (tmp_path / "docs/inner/b.txt").write_text("The second text.")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/a.txt").write_text(SECRET)
    (tmp_path / "outside/b.txt").write_text(SECRET)
    return tmp_path


def texts(collection):
    return [document.text for document in collection]


def swap_file(folder):
    (folder / "docs/inner/a.txt").unlink()
    (folder / "docs/inner/a.txt").symlink_to(folder / "outside/a.txt")


def swap_folder(folder):
    (folder / "docs/inner").rename(folder / "moved")
    (folder / "docs/inner").symlink_to(folder / "outside")


def test_a_file_that_has_become_a_link_is_not_read(folder):
    collection = DocumentCollection([str(folder / "docs")])
    swap_file(folder)
    assert texts(collection) == ["The second text."]
    (reason,) = collection.unreadable.values()
    assert reason == "has become a link, or is behind one; links are not followed"
    assert collection.may_have("inner/a.txt#0")


def test_a_folder_that_has_become_a_link_is_not_read(folder):
    (folder / "docs/c.txt").write_text("The third text.")
    collection = DocumentCollection([str(folder / "docs")])
    swap_folder(folder)
    assert texts(collection) == ["The third text."]
    assert set(collection.unreadable) == {"inner/a.txt", "inner/b.txt"}


@pytest.mark.parametrize("swap", [swap_file, swap_folder])
def test_links_are_read_where_they_are_followed(folder, swap):
    collection = DocumentCollection([str(folder / "docs")], follow_links=True)
    swap(folder)
    assert SECRET in texts(collection)


def test_a_root_may_be_a_link_or_behind_one(folder):
    (folder / "link").symlink_to(folder / "docs")
    (folder / "file").symlink_to(folder / "docs/inner/a.txt")
    assert len(texts(DocumentCollection([str(folder / "link")]))) == 2
    assert len(texts(DocumentCollection([str(folder / "link/inner")]))) == 2
    assert texts(DocumentCollection([str(folder / "file")])) == ["The first text."]
    both = DocumentCollection([str(folder / "link/inner"), str(folder / "file")])
    assert len(texts(both)) == 3


def test_a_relative_root(folder, monkeypatch):
    monkeypatch.chdir(folder / "docs")
    assert len(texts(DocumentCollection(["."]))) == 2
    assert len(texts(DocumentCollection(["../docs/inner"]))) == 2


@pytest.mark.parametrize("place", ["inner/a.txt", "inner"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(folder, place):
    (folder / "docs/c.txt").write_text("The third text.")
    collection = DocumentCollection([str(folder / "docs")])
    path = folder / "docs" / place
    path.rename(folder / "moved")
    os.mkfifo(path)
    found = []
    thread = threading.Thread(target=lambda: found.extend(texts(collection)), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert "The third text." in found
    assert "inner/a.txt" in collection.unreadable


def test_a_file_that_has_gone_is_named(folder):
    collection = DocumentCollection([str(folder / "docs")])
    (folder / "docs/inner/a.txt").unlink()
    assert texts(collection) == ["The second text."]
    assert collection.unreadable == {"inner/a.txt": "No such file or directory"}
