"""Fixtures of the encoding tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.encode_runs import arguments, write_corpus

from dupmae_ir.encode.__main__ import main


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """700 documents: with a window of 100, 7 windows."""
    return write_corpus(tmp_path / "corpus.jsonl", 700)


@pytest.fixture
def encode(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run the command here; gives (exit status, what it wrote to standard error)."""

    def run(corpus: Any, index: Any, *more: Any) -> tuple[int, str]:
        status = main(arguments(corpus, index, *more))
        return status, capsys.readouterr().err

    return run
