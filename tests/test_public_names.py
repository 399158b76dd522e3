"""The public names are fixed, importable, and listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dupmae_ir

PUBLIC = [
    "Document",
    "DupmaeError",
    "Hit",
    "Index",
    "Query",
    "Searcher",
    "build_index",
    "compact_index",
    "compare",
    "delete_documents",
    "evaluate",
    "export_model",
    "fine_tune",
    "load_encoder",
    "pre_train",
    "read_collection",
    "read_qrels",
    "read_run",
    "read_topics",
    "serve_indexes",
    "update_index",
    "write_run",
]


def test_the_public_names_are_fixed():
    assert dupmae_ir.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_each_can_be_imported(name):
    assert getattr(dupmae_ir, name) is not None
    assert name in dir(dupmae_ir)


def test_any_other_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Sercher'"):
        _ = dupmae_ir.Sercher


def test_the_version_is_the_changelogs_newest():
    text = (Path(__file__).parents[1] / "CHANGELOG.md").read_text()
    assert re.search(r"^## (\d+\.\d+\.\d+)", text, re.M).group(1) == dupmae_ir.__version__
