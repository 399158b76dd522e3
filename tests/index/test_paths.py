"""Files as things to act on: listed, deleted by file, folder and pattern."""

from __future__ import annotations

import pytest

from dupmae_ir import delete_documents
from dupmae_ir.encode.__main__ import main as encode
from dupmae_ir.errors import UnknownName
from dupmae_ir.index.__main__ import main
from dupmae_ir.index.index import Index

pytestmark = pytest.mark.jvm
FILES = ("a.txt", "notes/b.md", "notes/old/c.md", "notes 2/d.md")


@pytest.fixture
def index(tmp_path):
    for name in FILES:
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"The text of {name}. " * (90 if name == "a.txt" else 1))
    target = str(tmp_path / "I")
    assert (
        encode(
            [
                "--corpus",
                str(tmp_path / "docs"),
                "--index",
                target,
                "--model",
                "testing:hashing",
                "--quiet",
            ]
        )
        == 0
    )
    return target


def test_files_are_listed(index, capsys):
    assert main(["show", "--index", index, "--files"]) == 0
    out = capsys.readouterr().out
    table, _, report = out.partition("\n  from ")
    rows = [line.rsplit(None, 2) for line in table.splitlines()[-4:]]
    passages = str(len(Index.open(index).files["a.txt"]))
    assert rows == [
        ["a.txt", passages, "text"],
        ["notes 2/d.md", "1", "md"],
        ["notes/b.md", "1", "md"],
        ["notes/old/c.md", "1", "md"],
    ]
    assert report.strip() == "4 files (md 3, text 1)"
    assert len(Index.open(index).files["a.txt"]) > 1


@pytest.mark.parametrize(
    ("paths", "left"),
    [
        (["notes"], ["a.txt", "notes 2/d.md"]),
        (["a.txt", "notes/old/"], ["notes 2/d.md", "notes/b.md"]),
        (["*.md"], ["a.txt"]),
        (["n?tes/b.md", "nothing"], ["a.txt", "notes 2/d.md", "notes/old/c.md"]),
    ],
)
def test_deletion_by_path(index, paths, left):
    assert main(["delete", index, "--paths", *paths, "--ignore-unknown", "--quiet"]) == 0
    assert sorted(Index.open(index).files) == left
    assert main(["verify", index]) == 0


def test_deletion_by_condition(index, capsys):
    asked = ["delete", index, "--filter", 'path under "notes" or path like "*.txt"']
    assert main([*asked, "--dry-run"]) == 0
    count = len(Index.open(index).files["a.txt"]) + 2
    assert (
        f"{count} would be deleted (dry run); {count + 1} passages of 4 files"
        in capsys.readouterr().err
    )
    assert len(Index.open(index).files) == len(FILES)
    assert main([*asked, "--quiet"]) == 0
    assert list(Index.open(index).files) == ["notes 2/d.md"]
    assert (
        delete_documents(index, filter='path under "notes"').deleted == 0
    )  # they are deleted already
    assert main(["delete", index, "--filter", "pth = 1"]) == 2
    assert "--filter, column 1: the index has no metadata 'pth'" in capsys.readouterr().err
    assert main(["verify", index]) == 0


def test_what_is_not_there_is_named_with_a_near_miss(index, capsys):
    assert main(["delete", "--index", index, "--ids", "notes/b.md"]) == 2
    assert "It is a file: name it in --paths" in capsys.readouterr().err
    with pytest.raises(
        UnknownName,
        match=r"no file 'notes/bb.md'; nothing was deleted. Did you mean 'notes/b.md'\?",
    ):
        delete_documents(index, paths=["a.txt", "notes/bb.md"])
    assert len(Index.open(index).files) == len(FILES)
    assert main(["delete", "--paths", "a.txt"]) == 2
    assert "INDEX is required" in capsys.readouterr().err
