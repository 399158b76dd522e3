"""Encode a few texts, search them in three modes, and explain the top hit."""

import sys
import tempfile
from pathlib import Path

from dupmae_ir import Document, Searcher, build_index

TEXTS = {
    "heap": "A heap is a binary tree in which every parent is no larger than its children.",
    "queue": "Items leave a queue in the order in which they arrived.",
    "sort": "Sorting puts a list in order; Python's sort is stable.",
    "cat": "The cat sat on the mat and watched the rain.",
}


def main(model: str | None = None) -> None:
    folder = Path(tempfile.mkdtemp()) / "index"
    build_index([Document(docid, text) for docid, text in TEXTS.items()], folder, model=model)
    searcher = Searcher.open(folder)
    query = "which structure gives me the smallest element first?"
    for mode in ("dense", "impact", "hybrid"):
        print(mode, [(hit.docid, round(hit.score, 2)) for hit in searcher.search(query, 2, mode)])
    best = searcher.search(query, 1)[0]
    why = searcher.explain(query, best.docid)
    print(f"{best.docid}: {why.score:.2f} = {why.dense:.2f} dense + {why.impact:.2f} impact")
    print("matched:", ", ".join(f"{t.term} {t.share:.2f}" for t in why.terms[:5]) or "nothing")


if __name__ == "__main__":
    main(*sys.argv[1:])
