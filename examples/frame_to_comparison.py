"""Index a DataFrame, search it in four processes, and compare two runs query by query."""

import tempfile
from multiprocessing import Pool
from pathlib import Path

import pandas as pd

from dupmae_ir import Searcher, build_index, compare

DOCUMENTS = pd.DataFrame(
    {
        "id": ["heap", "queue", "sort", "lock"],
        "text": [
            "A heap is a tree.",
            "A queue is first in, first out.",
            "Sorts lists.",
            "A mutex.",
        ],
    }
)
QUERIES = {"1": "which tree has the smallest element first?", "2": "order a list", "3": "mutex"}
QRELS = {"1": {"heap": 1}, "2": {"sort": 1}, "3": {"lock": 1}}

if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp()) / "index"
    build_index(DOCUMENTS, folder)
    searcher = Searcher.open(folder)
    with Pool(4) as pool:
        words = pool.starmap(searcher.search, [(text, 10, "impact") for text in QUERIES.values()])
    runs = {"words": dict(zip(QUERIES, words, strict=True)), "hybrid": searcher.search(QUERIES)}
    comparison = compare(QRELS, runs, "nDCG@10")
    print(comparison)
    print(comparison.to_frame())
