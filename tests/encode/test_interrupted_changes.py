"""``index add`` that was interrupted after it had encoded: what it saved is used, with and without progress bars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dupmae_ir.encode import changes
from dupmae_ir.encode.changes import run_add
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.encode.sync import run_sync
from dupmae_ir.index.changes.changes import run_compact
from dupmae_ir.index.config import AddConfig, CompactConfig, SyncConfig
from dupmae_ir.index.index import Index

pytestmark = pytest.mark.jvm


def corpus(path: Path, numbers: range) -> str:
    rows = [{"_id": f"d{n}", "title": "", "text": f"word{n % 7} word{n % 3} more"} for n in numbers]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def make(folder: Path, index: str) -> None:
    """An index of six documents, which is changed in windows of four."""
    first = corpus(folder / "first.jsonl", range(6))
    encode(
        EncodeConfig(
            model="testing:hashing", corpus=first, index=index, scale=50.0, window=4, quiet=True
        )
    )


def following(folder: Path, index: str) -> SyncConfig:
    """Adds 34 documents."""
    return SyncConfig(index=index, corpus=corpus(folder / "all.jsonl", range(40)), quiet=True)


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("quiet", [True, False])
def test_what_was_encoded_is_not_encoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    index = str(tmp_path / "I")
    make(tmp_path, index)
    more = AddConfig(index=index, corpus=corpus(tmp_path / "more.jsonl", range(6, 16)), quiet=quiet)
    with monkeypatch.context() as patched:
        patched.setattr(changes, "build_index", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_add(more)

    def encoded_again(*_: object) -> None:
        raise AssertionError("a saved window is encoded again")

    monkeypatch.setattr(changes, "represent_with_excerpts", encoded_again)
    run_add(more)
    assert Index.open(index).documents == 16


def test_a_folder_is_followed_in_steps_and_an_addition_is_made_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    index = str(tmp_path / "I")
    make(tmp_path, index)
    result = run_sync(SyncConfig(index=index, corpus=corpus(tmp_path / "all.jsonl", range(40))))
    # Of 34 new documents: 4 and 4, 8, and the rest.
    sizes = [segment.documents for segment in Index.open(index).segments]
    assert sizes == [6, 4, 4, 8, 18]
    assert result["added_now"] == 34
    assert result["generation"] == 4
    said = capsys.readouterr().err
    assert [line for line in said.splitlines() if line.endswith("can be searched")] == [
        f"{index}: {count} of 34 documents can be searched" for count in (4, 8, 16)
    ]
    more = AddConfig(index=index, corpus=corpus(tmp_path / "more.jsonl", range(40, 80)))
    assert run_add(more)["segments"] == 6


def test_a_change_that_ends_between_two_steps_goes_on_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    index = str(tmp_path / "I")
    make(tmp_path, index)
    plain = changes.build_index
    segments = []

    def interrupted_at_the_third(*args: Any, **options: Any) -> Any:
        segments.append(args)
        if len(segments) == 3:
            raise KeyboardInterrupt
        return plain(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(changes, "build_index", interrupted_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            run_sync(following(tmp_path, index))
    assert Index.open(index).documents == 6 + 8
    result = run_sync(following(tmp_path, index))
    # The two windows of the third step were saved.
    assert result["resumed"] == 8
    assert result["unchanged_now"] == 6 + 8
    found = Index.open(index)
    assert found.docids == [f"d{number}" for number in range(40)]
    at_once = str(tmp_path / "J")
    encode(
        EncodeConfig(
            model="testing:hashing",
            corpus=corpus(tmp_path / "all.jsonl", range(40)),
            index=at_once,
            scale=50.0,
            quiet=True,
        )
    )
    run_compact(CompactConfig(index=index, quiet=True))
    assert (
        Index.open(index).segments[0].record.digest == Index.open(at_once).segments[0].record.digest
    )


def test_a_document_is_replaced_in_the_step_that_has_its_new_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    index = str(tmp_path / "I")
    folder = corpus(tmp_path / "first.jsonl", range(30))
    encode(
        EncodeConfig(
            model="testing:hashing", corpus=folder, index=index, scale=50.0, window=4, quiet=True
        )
    )
    # 20 texts change, and five documents are gone.
    lines = (tmp_path / "first.jsonl").read_text().splitlines()
    changed = [line.replace("more", "other") for line in lines[:20]] + lines[25:]
    (tmp_path / "first.jsonl").write_text("\n".join(changed))
    plain = changes.ChangeJob.commit
    seen = []

    def commit(self: changes.ChangeJob, *args: Any, **options: Any) -> Any:
        result = plain(self, *args, **options)
        docids = [
            docid
            for docid, live in zip(self.current().docids, self.current().live, strict=True)
            if live
        ]
        seen.append((len(docids), len(set(docids))))
        return result

    monkeypatch.setattr(changes.ChangeJob, "commit", commit)
    result = run_sync(SyncConfig(index=index, corpus=folder, quiet=True))
    assert (result["updated_now"], result["deleted_now"]) == (20, 5)
    # Each document is there once after every step; those that are gone go with the last.
    assert seen == [(30, 30), (30, 30), (30, 30), (25, 25)]
