"""Building impact postings: Anserini's IndexCollection on JSON vectors against dupmae_ir's ImpactWriter.

    python benchmarks/impact_writer.py [--documents 20000] [--index FOLDER --name "what it holds"]

Synthetic documents of about 207 terms out of 28,000 (Zipf with exponent 0.7), impacts of 1 to 255 from a gamma
distribution (mean 60); with ``--index`` also the impacts of an index folder, which are smaller, so that the peer,
which reads a term as often as it weighs, has less to do. The peer reads JSONL that is there already (writing it is not
timed) with one thread, ``-impact -pretokenized -optimize``, as Pyserini's documentation has it. Ours gets the same
impacts as a CSR matrix. Both run in one warm JVM, one after the other, on one thread each, and leave one segment.

Equal work: stock LuceneImpactSearcher gives the same hits and scores for 200 queries at k=100 on both indexes. Bytes a
posting are those of the index less those of one with the same ids and no impacts; also for the documents of ``--index``
drawn again (with replacement) to ``--rows`` rows, because terms of few documents cost most. The entropies beside them
are what a coder would need that knows, for each term, the distribution of its gaps (geometric, by its document
frequency), and one distribution of all impacts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from harness import Claim, arguments, bars, in_turns, middle, report, speedup

from dupmae_ir import pyserini
from dupmae_ir.index.index import Index
from dupmae_ir.index.lucene import impacts as lucene

VOCABULARY = 28_000
TERMS_DRAWN = 218
"""Terms drawn for each document; about 207 are distinct."""
QUERIES = 200
QUERY_TERMS = 40
K = 100
BATCH = 512
PEER = "Anserini IndexCollection"
STRINGS = "ImpactWriter, as strings"
OURS = "ImpactWriter"


def synthetic(documents: int, seed: int = 0) -> sp.csr_matrix:
    """(documents, VOCABULARY) uint8."""
    rng = np.random.default_rng(seed)
    share = np.arange(1, VOCABULARY + 1) ** -0.7
    edges = np.cumsum(share / share.sum())
    # The last edge may be rounded to less than 1, so a number above it is given the last term.
    drawn = np.minimum(np.searchsorted(edges, rng.random((documents, TERMS_DRAWN))), VOCABULARY - 1)
    drawn.sort(axis=1)
    first = np.ones(drawn.shape, bool)
    first[:, 1:] = drawn[:, 1:] != drawn[:, :-1]
    indptr = np.concatenate([[0], np.cumsum(first.sum(axis=1))])
    impacts = rng.gamma(2, 30, int(indptr[-1])).clip(1, 255).astype(np.uint8)
    return sp.csr_matrix(
        (impacts, drawn[first].astype(np.int32), indptr), shape=(documents, VOCABULARY)
    )


class Builders:
    """The ways to write an index of the same impacts, each into a folder of ``folder`` with the name of the way."""

    def __init__(self, folder: Path, impacts: sp.csr_matrix, terms: list[str]) -> None:
        self.folder = folder
        self.impacts = impacts
        self.terms = terms
        self.docids = [f"d{row}" for row in range(impacts.shape[0])]
        self.cpu: dict[str, list[float]] = {}

    def write_json(self) -> int:
        """Write the JSONL that the peer reads, and return its bytes."""
        (self.folder / "json").mkdir()
        path = self.folder / "json" / "documents.jsonl"
        m = self.impacts
        with path.open("w", encoding="utf-8") as out:
            for docid, start, end in zip(self.docids, m.indptr[:-1], m.indptr[1:], strict=True):
                pairs = zip(m.indices[start:end].tolist(), m.data[start:end].tolist(), strict=True)
                vector = {self.terms[term]: impact for term, impact in pairs}
                out.write(json.dumps({"id": docid, "contents": "", "vector": vector}) + "\n")
        return path.stat().st_size

    def empty_folder(self, name: str) -> Path:
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path

    def anserini(self) -> None:
        start = time.process_time()
        words = ["-collection", "JsonVectorCollection", "-input", str(self.folder / "json")]
        words += ["-index", str(self.empty_folder(PEER))]
        words += ["-generator", "DefaultLuceneDocumentGenerator", "-threads", "1"]
        words += ["-impact", "-pretokenized", "-optimize"]
        pyserini.autoclass("io.anserini.index.IndexCollection").main(words)
        self.cpu.setdefault(PEER, []).append(time.process_time() - start)

    def ours(
        self, name: str = OURS, impacts: sp.csr_matrix | None = None, feed: bool = True
    ) -> Path:
        start = time.process_time()
        path = self.empty_folder(name)
        m = self.impacts if impacts is None else impacts
        with lucene.ImpactWriter(path, self.terms) as writer:
            if not feed:
                writer._feed = None  # the writer then passes terms and impacts as strings
            for first in range(0, m.shape[0], BATCH):
                writer.add_batch(self.docids[first : first + BATCH], m[first : first + BATCH])
        self.cpu.setdefault(name, []).append(time.process_time() - start)
        return path

    def strings(self) -> None:
        self.ours(STRINGS, feed=False)

    def bytes_a_posting(self, name: str) -> float:
        """Bytes a posting of the index in ``name``, less an index of the same ids without impacts."""
        ids_only = self.ours("ids", sp.csr_matrix(self.impacts.shape, dtype=np.uint8))
        return (_size(self.folder / name) - _size(ids_only)) / self.impacts.nnz


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def entropy(impacts: sp.csr_matrix) -> dict[str, float]:
    """Entropies of a posting: bits of the gap between documents, bits of the impact, and bytes of both."""
    documents = impacts.shape[0]
    share = np.bincount(impacts.indices, minlength=impacts.shape[1]) / documents
    share = share[share > 0]
    # `where` computes both of its values: log2(0) of a term in all documents is not used.
    with np.errstate(divide="ignore", invalid="ignore"):
        binary = -share * np.log2(share) - np.where(share < 1, (1 - share) * np.log2(1 - share), 0)
    gaps = float(binary.sum() * documents / impacts.nnz)
    counts = np.bincount(impacts.data)
    p = counts[counts > 0] / impacts.nnz
    weights = float(-(p * np.log2(p)).sum())
    return {"gap_bits": gaps, "impact_bits": weights, "bytes": (gaps + weights) / 8}


def same_hits(
    folders: Sequence[Path], impacts: sp.csr_matrix, terms: list[str], seed: int = 1
) -> str:
    """Compare the hits of stock LuceneImpactSearcher on all indexes, and return what was compared.

    Raises SystemExit if hits or scores differ, or if a query has no hits.
    """
    rng = np.random.default_rng(seed)
    queries = []
    for row in rng.integers(impacts.shape[0], size=QUERIES):
        part = slice(impacts.indptr[row], impacts.indptr[row + 1])
        sample = rng.permutation(part.stop - part.start)[:QUERY_TERMS]
        query_terms = [terms[term_id] for term_id in impacts.indices[part][sample]]
        weights = impacts.data[part][sample].astype(float).tolist()
        queries.append(dict(zip(query_terms, weights, strict=True)))

    class NumberedQueries(pyserini.QueryEncoder):
        def encode(self, text: str) -> dict[str, float]:
            return queries[int(text)]

    lists_by_index = []
    for folder in folders:
        searcher = pyserini.LuceneImpactSearcher(str(folder), NumberedQueries(), min_idf=-1)
        lists = []
        for number in range(QUERIES):
            lists.append([(hit.docid, hit.score) for hit in searcher.search(str(number), K)])
        lists_by_index.append(lists)
        searcher.close()
    reference = lists_by_index[0]
    if any(lists != reference for lists in lists_by_index) or not all(reference):
        raise SystemExit("the indexes do not give the same hits and scores")
    return f"identical hits and scores of LuceneImpactSearcher, {QUERIES} queries at k={K}"


def _quiet() -> None:
    """Limit Anserini's log to errors."""
    log4j = "org.apache.logging.log4j."
    configurator = pyserini.autoclass(log4j + "core.config.Configurator")
    configurator.setLevel("io.anserini", pyserini.autoclass(log4j + "Level").ERROR)


def of_index(path: str) -> tuple[sp.csr_matrix, list[str]]:
    """The impacts of an index folder, (documents, V) uint8, and its terms."""
    index = Index.open(path)
    forward = index.only_segment.forward
    csr = (np.asarray(forward.impacts), np.asarray(forward.terms), np.asarray(forward.indptr))
    return sp.csr_matrix(csr, shape=(index.documents, len(index.terms))), index.terms


def compare(impacts: sp.csr_matrix, terms: list[str], repeats: int) -> dict[str, Any]:
    """Seconds and processor seconds of each builder in each turn, the gate, and bytes a posting."""
    with tempfile.TemporaryDirectory() as folder:
        builders = Builders(Path(folder), impacts, terms)
        json_bytes = builders.write_json()
        variants = {PEER: builders.anserini, STRINGS: builders.strings, OURS: builders.ours}
        seconds = in_turns(variants, repeats)
        # Warm-up turns come first.
        cpu = {name: builders.cpu[name][-repeats:] for name in variants}
        gate = same_hits([builders.folder / name for name in variants], impacts, terms)
        sizes = {name: builders.bytes_a_posting(name) for name in variants}
    for name, median in middle(seconds).items():
        pace = f"{1e9 * median / impacts.nnz:8.0f} ns a posting"
        print(f"{name:<28} {median:8.3f} s  {pace}  {sizes[name]:.3f} bytes a posting")
    return {
        "documents": impacts.shape[0],
        "postings": int(impacts.nnz),
        "mean_impact": float(impacts.data.mean()),
        "peer_json_bytes": json_bytes,
        "seconds": seconds,
        "processor_seconds": cpu,
        "gate": gate,
        "bytes": sizes,
        "entropy": entropy(impacts),
        "strings_speedup": speedup(seconds, PEER, STRINGS),
    }


def drawn_again(impacts: sp.csr_matrix, terms: list[str], rows: int) -> dict[str, Any]:
    """Bytes a posting of ``rows`` documents drawn from ``impacts`` with replacement."""
    sample = impacts[np.random.default_rng(0).integers(impacts.shape[0], size=rows)]
    with tempfile.TemporaryDirectory() as folder:
        builders = Builders(Path(folder), sample, terms)
        builders.ours()
        return {
            "documents": rows,
            "postings": int(sample.nnz),
            "bytes": {OURS: builders.bytes_a_posting(OURS)},
            "entropy": entropy(sample),
            "gate": "",
        }


def _claims(what: str, result: dict[str, Any]) -> list[Claim]:
    def faster(by: str, seconds: dict[str, list[float]]) -> Claim:
        return Claim(
            9,
            f"build impact postings, {by}: {what}",
            OURS,
            PEER,
            speedup(seconds, PEER, OURS),
            8.0,
            gate=result["gate"],
        )

    return [
        faster("one thread", result["seconds"]),
        faster("processor time", result["processor_seconds"]),
        _bytes_claim(what, result),
    ]


def _bytes_claim(what: str, result: dict[str, Any]) -> Claim:
    e = result["entropy"]
    note = (
        f"entropy {e['gap_bits']:.2f} bits of gap + {e['impact_bits']:.2f} of impact = {e['bytes']:.2f} bytes; "
        "Lucene spends the bits of a block's largest gap on each of its 128, and whole bytes (2.6 to 2.9) on each "
        "posting of a term's last, incomplete block"
    )
    return Claim(
        9,
        f"bytes a posting: {what}",
        OURS,
        PEER,
        result["bytes"][OURS],
        2.0,
        "<=",
        " bytes",
        result["gate"],
        note,
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument(
        "--index", metavar="FOLDER", help="an index folder whose impacts are measured too"
    )
    parser.add_argument(
        "--name", default="real encodings", help="what --index holds, for the table"
    )
    parser.add_argument(
        "--rows", type=int, default=100_000, help="documents drawn from --index for their size"
    )
    args: argparse.Namespace = parser.parse_args(argv)
    os.environ.setdefault("OPENAI_API_KEY", "unused")
    pyserini.start_jvm("4g")
    _quiet()
    synthetic_terms = [f"##t{i}" for i in range(VOCABULARY)]
    collections = {f"synthetic, {args.documents:,}": (synthetic(args.documents), synthetic_terms)}
    if args.index:
        impacts, terms = of_index(args.index)
        collections[f"{args.name}, {impacts.shape[0]:,}"] = (impacts, terms)

    results: dict[str, dict[str, Any]] = {}
    claims = []
    seconds = {}
    rates = {}
    for name, (impacts, terms) in collections.items():
        terms_each = impacts.nnz / impacts.shape[0]
        mean = impacts.data.mean()
        print(f"{name} documents, {terms_each:.0f} terms each, mean impact {mean:.0f}")
        result = compare(impacts, terms, args.repeats)
        results[name] = result
        claims += _claims(name, result)
        medians = middle(result["seconds"])
        for builder, taken in result["seconds"].items():
            seconds[f"{builder}: {name}"] = taken
            rates[f"{builder}: {name}"] = result["documents"] / medians[builder]

    if args.index:
        # The last collection is that of --index.
        drawn_name = f"{args.name}, drawn to {args.rows:,}"
        results[drawn_name] = drawn_again(impacts, terms, args.rows)
        claims.append(_bytes_claim(drawn_name, results[drawn_name]))

    details = {}
    for name, result in results.items():
        details[name] = {k: v for k, v in result.items() if k not in ("seconds", "gate")}
    ours = [name for name in rates if not name.startswith(PEER)]
    picture = bars("Building impact postings on one thread", "documents per second", rates, ours)
    report("impact_writer", claims, seconds, args, details, picture)


if __name__ == "__main__":
    main()
