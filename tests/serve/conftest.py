"""Indexes and a service shared by the tests of one file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra: pip install 'dupmae-ir[serve]'")

from support.serving import Client, serving, texts, write_index


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """``docs``: 60 documents; ``other``: the same ids with other texts; ``dense``: [CLS] only, without texts."""
    root = tmp_path_factory.mktemp("served")
    return {
        "docs": write_index(root / "docs", texts(60)),
        "other": write_index(root / "other", texts(60, seed=7)),
        "dense": write_index(root / "dense", texts(20), parts="cls", scale=None, store_texts=False),
    }


@pytest.fixture(scope="module")
def client(folders: dict[str, Path]) -> Iterator[Client]:
    with serving(*folders.values()) as client:
        yield client
