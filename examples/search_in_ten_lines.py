"""Encode a few texts, search them in three modes, and explain the top hit."""

import json
import sys
import tempfile
from pathlib import Path

from dupmae_ir import Searcher
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode

TEXTS = {
    "heap": "A heap is a binary tree in which every parent is no larger than its children.",
    "queue": "Items leave a queue in the order in which they arrived.",
    "sort": "Sorting puts a list in order; Python's sort is stable.",
    "cat": "The cat sat on the mat and watched the rain.",
}


def main(model: str | None = None) -> None:
    folder = Path(tempfile.mkdtemp())
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"_id": i, "text": t}) + "\n" for i, t in TEXTS.items()))
    encode(EncodeConfig(corpus=str(corpus), index=str(folder / "index"), model=model, quiet=True))
    searcher = Searcher.open(folder / "index")
    query = "which structure gives me the smallest element first?"
    for mode in ("dense", "impact", "hybrid"):
        print(mode, [(hit.docid, round(hit.score, 2)) for hit in searcher.search(query, 2, mode)])
    best = searcher.search(query, 1)[0]
    why = searcher.explain(query, best.docid)
    print(f"{best.docid}: {why.score:.2f} = {why.dense:.2f} dense + {why.impact:.2f} impact")
    print("matched:", ", ".join(f"{t.term} {t.share:.2f}" for t in why.terms[:5]) or "nothing")


if __name__ == "__main__":
    main(*sys.argv[1:])
