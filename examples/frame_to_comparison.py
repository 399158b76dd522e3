"""Index a DataFrame, search it in four processes, and compare two runs query by query."""

import tempfile
from multiprocessing import Pool

import pandas as pd

from dupmae_ir import Searcher, build_index, compare

TEXTS = {"heap": "A heap is a tree.", "queue": "First in, first out.", "sort": "Sorts a list."}
QUERIES = {"q1": "smallest element of a tree", "q2": "order the items", "q3": "waiting line"}
QRELS = {"q1": {"heap": 1}, "q2": {"sort": 1}, "q3": {"queue": 1}}

if __name__ == "__main__":
    documents = pd.DataFrame(list(TEXTS.items()), columns=["id", "text"])
    index = tempfile.mkdtemp() + "/index"
    build_index(documents, index)
    searcher = Searcher.open(index)
    with Pool(4) as pool:
        words = pool.starmap(searcher.search, [(text, 10, "impact") for text in QUERIES.values()])
    runs = {"words": dict(zip(QUERIES, words, strict=True)), "hybrid": searcher.search(QUERIES)}
    comparison = compare(QRELS, runs, "nDCG@10")
    print(comparison)
    print(comparison.to_frame())
