"""The scripts of tools/ are importable, as they are for each other; the papers' texts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))


@pytest.fixture
def papers(shared_data) -> Path:
    """The folder of the papers' texts."""
    folder = shared_data.parent / "papers"
    if not folder.is_dir():
        pytest.skip("the papers' texts are not here")
    return folder
