"""A small index with texts, and frameworks imported in spite of their own warnings."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.io.lines import json_lines
from dupmae_ir.search.searcher import Searcher

DOCUMENTS = {
    "logs": ("Rotating logs", "rotate the log files every night and compress them"),
    "mail": ("Sending mail", "send mail with attachments from a program"),
    "time": ("Time zones", "convert between time zones and print local time"),
    "files": ("Reading files", "read log files line by line"),
}


def write_index(folder: Path, store_texts: bool = True) -> Path:
    """Encode :data:`DOCUMENTS`."""
    with json_lines(folder / "corpus.jsonl") as write:
        for number, (docid, (title, text)) in enumerate(DOCUMENTS.items()):
            write({"_id": docid, "title": title, "text": text, "number": number})
    encode(
        EncodeConfig(
            corpus=str(folder / "corpus.jsonl"),
            index=str(folder / "index"),
            model="testing:hashing",
            scale=50.0,
            store_texts=store_texts,
            quiet=True,
        )
    )
    return folder / "index"


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of :data:`DOCUMENTS` with stored texts."""
    return write_index(tmp_path_factory.mktemp("integrations"))


@pytest.fixture
def index_without_texts(tmp_path: Path) -> Path:
    """An index of :data:`DOCUMENTS` without stored texts."""
    return write_index(tmp_path, store_texts=False)


@pytest.fixture(scope="session")
def searcher(index: Path) -> Searcher:
    """A searcher of :func:`index`."""
    return Searcher.open(index)


@pytest.fixture(scope="session")
def framework() -> Callable[[str], Any]:
    """Imports a module of :mod:`dupmae_ir.integrations`, or skips where its framework is not installed."""

    def imported(name: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pytest.importorskip(
                f"dupmae_ir.integrations.{name}",
                reason=f"{name} is not installed",
                exc_type=ImportError,
            )

    return imported
