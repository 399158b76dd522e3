"""Mapped ids equal a list of strings, in every respect that search uses."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from dupmae_ir.index.format import lines
from dupmae_ir.index.format.lines import MappedLines

IDS = [
    "b",
    "a",
    "é",
    "e\u0301",
    "\U0001f600",
    "\uffff",
    "a\x00b",
    "a\x00",
    "zz",
    "10",
    "9",
    "x" * 70,
    "ab",
]


def write(folder: Path, *files: list[str]) -> MappedLines:
    paths = [folder / f"docid{n}" for n in range(len(files))]
    for path, ids in zip(paths, files, strict=True):
        path.write_bytes("".join(f"{docid}\n" for docid in ids).encode())
    return MappedLines(paths)


@pytest.mark.parametrize("seed", range(6))
def test_it_equals_the_list(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(lines, "_BLOCK", 7)
    ids = rng.sample(IDS if seed % 2 else [i for i in IDS if "\0" not in i and len(i) < 60], 10)
    at = rng.randrange(11)
    found = write(tmp_path, ids[:at], [], ids[at:])
    assert len(found) == 10
    assert list(found) == ids == [found[row] for row in range(10)] == found[:]
    assert found.order().tolist() == sorted(range(10), key=ids.__getitem__)
    with pytest.raises(IndexError):
        found[10]


def test_no_documents(tmp_path: Path) -> None:
    found = write(tmp_path, [])
    assert (len(found), list(found), found.order().tolist()) == (0, [], [])


def test_equal_ids_keep_the_order_of_rows(tmp_path: Path) -> None:
    assert np.array_equal(write(tmp_path, ["b", "a"], ["a", "b"]).order(), [1, 2, 0, 3])
