"""nDCG@10 of BM25 and of an index's modes on a question-answering collection in several languages.

    python benchmarks/languages.py FOLDER --output languages.json     # FOLDER/xquad.de.json, ...: XQuAD's own files
    python benchmarks/languages.py FOLDER --languages de ru --every 6  # every sixth question

Each language is indexed and searched as ``encode`` and ``index bm25`` do without flags: the language is recognised, and
the weight of the dense part measured. XQuAD is github.com/google-deepmind/xquad (CC BY-SA 4.0): 240 paragraphs of
Wikipedia, translated by professionals, and 1,190 questions on them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import cache
from pathlib import Path

from dupmae_ir import Searcher
from dupmae_ir.encode import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.eval import evaluate
from dupmae_ir.index.config import Bm25Config
from dupmae_ir.index.lucene.bm25 import BM25Searcher
from dupmae_ir.index.run import run_bm25
from dupmae_ir.types import Query

LANGUAGES = ("en", "de", "es", "ru", "ar", "zh", "hi", "tr", "el", "ro", "th", "vi")
MODES = ("impact", "dense", "hybrid")
MEASURE = "nDCG@10"


def read(path: Path, every: int) -> tuple[dict[str, str], list[Query], dict[str, dict[str, int]]]:
    """Paragraphs by id, the questions, and the paragraph of each, of a file in SQuAD's layout."""
    paragraphs: dict[str, str] = {}
    questions = []
    qrels = {}
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            docid = f"p{len(paragraphs)}"
            paragraphs[docid] = paragraph["context"]
            for question in paragraph["qas"]:
                questions.append(Query(question["id"], question["question"]))
                qrels[question["id"]] = {docid: 1}
    questions = questions[::every]
    return paragraphs, questions, {q.qid: qrels[q.qid] for q in questions}


def measure(path: Path, every: int, work: Path) -> dict[str, object]:
    """The scores of one language, and what its index records."""
    paragraphs, questions, qrels = read(path, every)
    corpus = work / "corpus.jsonl"
    corpus.write_text(
        "".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in paragraphs.items())
    )
    run_bm25(Bm25Config(corpus=str(corpus), index=str(work / "bm25"), quiet=True))
    runs = {"bm25": BM25Searcher(work / "bm25").search(questions, 100)}
    encode(EncodeConfig(corpus=str(corpus), index=str(work / "index"), quiet=True))
    searcher = Searcher.open(work / "index")
    once = cache(
        lambda texts, cap: type(searcher.encoder).encode_queries(searcher.encoder, list(texts), cap)
    )
    searcher.encoder.encode_queries = lambda texts, cap=1024: once(
        tuple(texts), cap
    )  # the same for all modes
    runs |= {mode: searcher.search(questions, 100, mode) for mode in MODES}
    encoder = searcher.index.meta["encoder"]
    scores = {
        name: round(evaluate(qrels, run, [MEASURE]).mean[MEASURE], 4) for name, run in runs.items()
    }
    return {"language": encoder["language"], "dense_weight": searcher.part_weights[0], **scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--languages", nargs="+", default=LANGUAGES)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    results = {}
    for language in arguments.languages:
        with tempfile.TemporaryDirectory() as work:
            results[language] = measure(
                arguments.folder / f"xquad.{language}.json", arguments.every, Path(work)
            )
        print(language, json.dumps(results[language]), flush=True)
        if arguments.output:
            arguments.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
