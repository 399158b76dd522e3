"""A small index encoded by a tiny model with weights, for opening and searching it many times."""

from __future__ import annotations

from pathlib import Path

from support.making_commands import write_inputs
from support.tiny_models import WORDS

from dupmae_ir.search.searcher import Searcher

__all__ = ["QUERY", "WORDS", "found", "write"]

QUERY = "quick brown fox"


def write(folder: Path) -> Path:
    """Make the index; call it in a child process where no JVM may run in this one."""
    from dupmae_ir.__main__ import main

    write_inputs(folder / "inputs", lambda words: main([*map(str, words)]))
    flags = [
        "--model",
        folder / "inputs" / "retriever",
        "--corpus",
        folder / "inputs" / "corpus.jsonl",
    ]
    index = folder / "index"
    assert (
        main(["encode", *map(str, flags), "--index", str(index), "--device", "cpu", "--quiet"]) == 0
    )
    return index


def found(searcher: Searcher, text: str = QUERY) -> list[tuple[str, float]]:
    """The ten best documents and their scores."""
    return [(hit.docid, hit.score) for hit in searcher.search(text, 10)]
