"""The first download of a checkpoint records its digests; a later one with other bytes is refused."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from record_downloads import main as record_main

from dupmae_ir.config import read_toml
from dupmae_ir.errors import DupmaeError
from dupmae_ir.eval.regressions.cases import DIGESTS, MODELS, read_models
from dupmae_ir.eval.regressions.workspace import Workspace
from dupmae_ir.io.publishing import read_json_object

FOLDER = Path(__file__).resolve().parents[2] / "eval"
NAME = "retromae-beir"


@pytest.fixture
def hub(monkeypatch):
    """File -> bytes of a hub that has one model; the transfers are copies."""
    files: dict[str, bytes] = {}

    def bring(self) -> None:
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self.target.write_bytes(files[self.target.name])

    monkeypatch.setattr("dupmae_ir.io.transfer._Transfer.bring", bring)
    return files


@pytest.fixture
def workspace(hub, tmp_path):
    shutil.copytree(FOLDER, tmp_path / "eval", ignore=shutil.ignore_patterns("accepted", "studies"))
    made = Workspace(tmp_path / "eval", tmp_path / "out", cache=tmp_path / "cache")
    hub.update({name: name.encode() for name in made.models[NAME].files})
    return made


def fetch(workspace: Workspace) -> None:
    workspace.download_model(workspace.models[NAME])


def delete(workspace: Workspace) -> None:
    shutil.rmtree(workspace.cache_folder / "models" / NAME)


def test_the_first_download_is_recorded_and_the_next_compared(workspace, hub):
    fetch(workspace)
    record = read_json_object(workspace.cache_folder / "models" / f"{NAME}.{DIGESTS}")
    url = "https://huggingface.co/Shitao/RetroMAE_BEIR/resolve/main/pytorch_model.bin"
    assert record[url] == hashlib.sha256(b"pytorch_model.bin").hexdigest()
    assert len(record) == len(hub)
    delete(workspace)
    fetch(workspace)  # the same bytes
    delete(workspace)
    hub["pytorch_model.bin"] = b"other weights"
    with pytest.raises(DupmaeError, match="sha256"):
        fetch(workspace)


def test_a_changed_file_in_the_cache_is_refused(workspace):
    fetch(workspace)
    (workspace.cache_folder / "models" / NAME / "vocab.txt").write_bytes(b"another")
    with pytest.raises(DupmaeError, match=r"vocab\.txt: sha256"):
        fetch(workspace)


def test_recorded_digests_are_written_into_the_models_once(workspace, tmp_path, capsys):
    fetch(workspace)
    arguments = ["--recipes", str(tmp_path / "eval"), "--cache", str(workspace.cache_folder)]
    assert record_main(arguments) == 0
    assert (
        f"{NAME}: revision main; sha256 of 5 files: 0 pinned, 5 recorded here, 0 unknown"
        in capsys.readouterr().out
    )
    assert record_main([*arguments, "--write"]) == 0
    assert (
        f"{NAME}: revision main; sha256 of 5 files: 5 pinned, 0 recorded here"
        in capsys.readouterr().out
    )
    written = read_models(read_toml(tmp_path / "eval" / MODELS), tmp_path / "eval")
    assert written[NAME].sha256["vocab.txt"] == hashlib.sha256(b"vocab.txt").hexdigest()
    assert {n: m for n, m in written.items() if n != NAME} == {
        n: m for n, m in workspace.models.items() if n != NAME
    }
    before = (tmp_path / "eval" / MODELS).read_text()
    assert record_main([*arguments, "--write"]) == 0
    assert (tmp_path / "eval" / MODELS).read_text() == before


def test_a_pinned_digest_holds_on_a_machine_that_recorded_nothing(workspace, hub, tmp_path):
    fetch(workspace)
    record_main(
        ["--recipes", str(tmp_path / "eval"), "--cache", str(workspace.cache_folder), "--write"]
    )
    hub["vocab.txt"] = b"another"
    elsewhere = Workspace(tmp_path / "eval", tmp_path / "out", cache=tmp_path / "empty")
    with pytest.raises(DupmaeError, match="sha256"):
        fetch(elsewhere)


def test_addresses_take_a_revision_and_digests_name_files():
    """models.toml: checkpoints of the hub take a revision, and every digest belongs to a listed file."""
    models = read_models(read_toml(FOLDER / MODELS), FOLDER)
    assert all("{revision}" in m.url for m in models.values() if "huggingface.co" in m.url)
    assert [n for n, m in models.items() if m.files and set(m.sha256) - set(m.files)] == []
