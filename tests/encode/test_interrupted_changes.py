"""``index add`` that was interrupted after it had encoded: what it saved is used, with and without progress bars."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dupmae_ir.encode import changes
from dupmae_ir.encode.changes import run_add
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.index.config import AddConfig
from dupmae_ir.index.index import Index

pytestmark = pytest.mark.jvm


def corpus(path: Path, numbers: range) -> str:
    rows = [{"_id": f"d{n}", "title": "", "text": f"word{n % 7} word{n % 3} more"} for n in numbers]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("quiet", [True, False])
def test_what_was_encoded_is_not_encoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    index = str(tmp_path / "I")
    first = corpus(tmp_path / "first.jsonl", range(6))
    encode(
        EncodeConfig(
            model="testing:hashing", corpus=first, index=index, scale=50.0, window=4, quiet=True
        )
    )
    more = AddConfig(index=index, corpus=corpus(tmp_path / "more.jsonl", range(6, 16)), quiet=quiet)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(changes, "build_index", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_add(more)

    def encoded_again(*_: object) -> None:
        raise AssertionError("a saved window is encoded again")

    monkeypatch.setattr(changes, "represent_with_excerpts", encoded_again)
    run_add(more)
    assert Index.open(index).documents == 16
