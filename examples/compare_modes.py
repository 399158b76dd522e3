"""Judge three ways of searching one index, with a test of significance. Run: python examples/compare_modes.py"""

import tempfile
from pathlib import Path

from dupmae_ir import Document, Query, Searcher, build_index, compare, evaluate

TEXTS = {
    "logs": "Every night a timer renames the file, compresses it and deletes copies older than 14 days.",
    "backup": "Restore the newest full dump first, then apply the increments in order.",
    "rollback": "Set the previous image as current and restart the machines.",
    "disk": "An alert fires at 85 percent. Remove core dumps first, then uncompressed logs.",
}
QUERIES = {
    "how do I go back to the version before?": "rollback",
    "the drive is almost full": "disk",
    "when are old copies deleted": "logs",
    "bring back a lost database": "backup",
}


def main() -> None:
    folder = Path(tempfile.mkdtemp()) / "index"
    build_index([Document(docid, text) for docid, text in TEXTS.items()], folder)
    searcher = Searcher.open(folder)
    queries = [Query(str(number), text) for number, text in enumerate(QUERIES)]
    qrels = {str(number): {docid: 1} for number, docid in enumerate(QUERIES.values())}
    runs = {}
    for mode in ("impact", "dense", "hybrid"):
        runs[mode] = searcher.search(queries, hits=6, mode=mode)
        print(mode, evaluate(qrels, runs[mode], ["nDCG@10", "MRR@10"]).mean)
    for mode, by_measure in compare(qrels, runs, ["nDCG@10"], baseline="impact").runs.items():
        gain = by_measure["nDCG@10"]
        interval = f"from {gain.interval.low:+.3f} to {gain.interval.high:+.3f}"
        print(f"{mode}: {gain.mean:+.3f}, {interval}, p = {gain.corrected['t']:.3f}")


if __name__ == "__main__":
    main()
