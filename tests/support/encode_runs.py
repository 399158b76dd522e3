"""What the tests of encoding share: small collections, runs in this process and in another, and their answers."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WORDS = [f"word{i}" for i in range(300)]

# A run whose encoder takes its time, so that a signal can find it at work.
_SLOW = """
import sys, time
from dupmae_ir.testing import HashingEncoder
plain = HashingEncoder.encode_documents
def slowly(self, texts):
    time.sleep({delay})
    return plain(self, texts)
HashingEncoder.encode_documents = slowly
from dupmae_ir.encode.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def write_corpus(path: Path, count: int, seed: int = 0) -> Path:
    """BEIR lines of random words; every 50th document is empty."""
    rng = random.Random(seed)
    with path.open("w") as f:
        for i in range(count):
            text = "" if i % 50 == 49 else " ".join(rng.choices(WORDS, k=rng.randrange(1, 30)))
            title = " ".join(rng.choices(WORDS, k=2)) if i % 3 and text else ""
            f.write(json.dumps({"_id": f"d{i}", "title": title, "text": text}) + "\n")
    return path


def arguments(corpus: Any, index: Any, *more: Any) -> list[str]:
    return [
        "--model",
        "testing:hashing",
        "--corpus",
        str(corpus),
        "--index",
        str(index),
        *map(str, more),
    ]


def start(corpus: Any, index: Any, *more: Any, delay: float = 0.0) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", _SLOW.format(delay=delay), *arguments(corpus, index, *more)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )


def meta(index: Path) -> dict[str, Any]:
    return json.loads((index / "meta.json").read_text())


def content(index: Path) -> dict[str, bytes]:
    """The bytes of everything whose bytes are determined (Lucene names its segments by chance)."""
    return {
        str(p.relative_to(index)): p.read_bytes()
        for p in sorted(index.rglob("*"))
        if p.is_file() and p.name != "meta.json" and p.parent.name != "ot"
    }


def corpus_and_more(folder: Path, texts: Sequence[str], model: Path) -> tuple[str, list[str]]:
    """Write the first two texts to ``c.jsonl`` and the others to ``more.jsonl``, with the ids c0, c1, more0, ...

    Returns the path of the index and the flags that encode ``c.jsonl``.
    """
    for name, some in (("c", texts[:2]), ("more", texts[2:])):
        rows = [json.dumps({"_id": f"{name}{i}", "text": text}) for i, text in enumerate(some)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
    index = str(folder / "i")
    return index, [
        "--corpus",
        str(folder / "c.jsonl"),
        "--model",
        str(model),
        "--index",
        index,
        "--quiet",
    ]
