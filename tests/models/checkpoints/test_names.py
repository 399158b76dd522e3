"""One resolver of model names for all commands."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dupmae_ir.errors import CheckpointError, EnvironmentProblem
from dupmae_ir.models import load_encoder
from dupmae_ir.models.names import (
    EMBEDDED,
    PACKAGED,
    SMALL,
    ListModelsConfig,
    embedded_folder,
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


def test_a_packaged_model(monkeypatch, tiny_folder):
    monkeypatch.setitem(
        sys.modules, PACKAGED["minilm"], SimpleNamespace(MODEL_DIR=str(tiny_folder))
    )
    assert model_folder("minilm") == tiny_folder
    encoder = load_encoder("minilm")
    assert encoder.name == "minilm"
    assert encoder.digest == load_encoder(tiny_folder).digest


def test_a_packaged_model_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGED["minilm"], None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'dupmae-ir\[train\]'"):
        model_folder("minilm")
