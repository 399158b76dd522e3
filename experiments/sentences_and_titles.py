"""The measurements of experiments/sentences-and-titles.md: every setting of its four arms, on every collection.

    python experiments/sentences_and_titles.py --sets SETS --data DATA --output runs/sentences-and-titles

``SETS`` is made by question_sets.py; ``DATA`` has the four classic collections and the pairs. Each collection becomes a
record in ``OUTPUT/records``, and its vectors are kept in ``OUTPUT/vectors``, so the same command continues after an
interruption. Search is exhaustive, by the float32 sums of both parts (DupMAE Eq. 12).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from question_sets import QuestionSet
from scipy import sparse

from dupmae_ir.collections.prepared import QUERIES
from dupmae_ir.collections.stdlib import write_beir
from dupmae_ir.console import guarded
from dupmae_ir.eval.evaluate import evaluate
from dupmae_ir.io.collections import read_collection
from dupmae_ir.io.documents.passages import structured_passages
from dupmae_ir.io.documents.readers.extracted import Extracted
from dupmae_ir.io.publishing import atomic_write, move_into_place
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.models import load_encoder
from dupmae_ir.models.word_pieces import WordPieces, read_word_pieces
from dupmae_ir.types import CollectionStatistics, Document, Encoder, Hit, LexicalEncoder

NEW = ("fairytales", "stories")
"""The collections that decide."""
CLASSIC = ("scifact", "vaswani", "cranfield", "cacm")
CHOOSE_BY = ("covid", *CLASSIC, "dev")
"""The collections by which the setting of each arm is chosen."""
DEMO = "demo"
WINDOWS = (64, 96, 128)
"""Word pieces of a window."""
SHARES = (0.2, 0.3, 0.4, 1.0)
"""Shares of the best window in the score by meaning."""
SHORTER = 128
"""Word pieces of a shorter passage."""
SHARED_BY = (1, 3, 10)
"""Passages that have a title at most, if their vectors read it."""
COVERED = (0.6, 0.7, 0.8, 0.9)
"""Shares of a query's word weights in the best passage by words, from which vectors count half."""
MEASURES = ("nDCG@10", "R@10")
_HITS = 100
_DIGITS = 4


@dataclass
class Parts:
    """What a collection's scores are made of: ``dense`` and ``words`` are (Q, N) float32 scores, ``covered`` (Q,) the
    share of each query's word weights that the best passage by words has."""

    dense: np.ndarray
    words: np.ndarray
    covered: np.ndarray


class Collection:
    """A collection in BEIR's layout. ``vectors``: where those of windows and of texts without titles are kept."""

    def __init__(self, folder: Path, vectors: Path) -> None:
        self.documents = list(read_collection(folder / "corpus.jsonl"))
        self.qrels = read_qrels(folder / "qrels" / "test.tsv")
        topics = read_topics(str(folder / QUERIES))
        self.topics = [topic for topic in topics if topic.qid in self.qrels]
        self._vectors = vectors
        pieces = read_word_pieces(None)
        assert pieces is not None  # the embedded model has a tokenizer
        self._pieces: WordPieces = pieces

    def parts(self, encoder: Encoder) -> Parts:
        """The scores of an encoder with lexical weights, each part with its weight in the sum."""
        assert isinstance(encoder, LexicalEncoder)
        stored = encoder.encode_collection(self.documents)
        assert stored.ot is not None
        assert stored.cls is not None
        frequencies = np.bincount(stored.ot.indices, minlength=stored.ot.shape[1])
        statistics = CollectionStatistics(len(self.documents), frequencies)
        asked = encoder.for_collection(statistics).encode_queries([t.text for t in self.topics])
        assert asked.ot is not None
        assert asked.cls is not None
        self.queries = asked.cls
        dense_weight, impact_weight = encoder.settings.part_weights
        dense = dense_weight * (asked.cls @ stored.cls.T)
        words = (impact_weight * (asked.ot @ stored.ot.T)).toarray()
        return Parts(dense, words, covered(asked.ot, stored.ot, words))

    def best_windows(self, dense: np.ndarray, most: int, overlap: int) -> np.ndarray:
        """(Q, N) scores of each passage's best window; its own score for one that fits in a window.

        ``most`` and ``overlap``: word pieces of a window, and those that two windows share at most.
        """
        texts = []
        first = []  # the first window of each passage that has several
        owners = []
        for row, document in enumerate(self.documents):
            windows = list(windows_of(document, self._pieces, most, overlap))
            if len(windows) > 1:
                first.append(len(texts))
                owners.append(row)
                texts += windows
        best = dense.copy()
        if texts:
            scores = self.queries @ self._encoded(texts, f"windows.{most}.{overlap}").T
            best[:, owners] = np.maximum.reduceat(scores, first, axis=1)
        return best

    def without_shared_titles(self, dense: np.ndarray, most: int) -> np.ndarray:
        """(Q, N) scores of vectors that read a title only if at most ``most`` passages have it."""
        counts = Counter(document.title for document in self.documents)
        rows = []
        for row, document in enumerate(self.documents):
            if document.title and document.text and counts[document.title] > most:
                rows.append(row)
        changed = dense.copy()
        if rows:
            texts = [self.documents[row].text for row in rows]
            changed[:, rows] = self.queries @ self._encoded(texts, f"untitled.{most}").T
        return changed

    def _encoded(self, texts: Sequence[str], name: str) -> np.ndarray:
        """The vectors of texts, from the file of an earlier run if there is one."""
        digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
        path = self._vectors / f"{name}.{digest[:12]}.npy"
        if path.is_file():
            return np.asarray(np.load(path))
        vectors = load_encoder(parts=("cls",), dtype="mixed").encode_documents(texts).cls
        assert vectors is not None
        with atomic_write(path, "wb") as f:
            np.save(f, vectors)
        return vectors

    def scores(self, values: np.ndarray) -> dict[str, list[float]]:
        """Measure -> value of each topic, for (Q, N) scores."""
        run = {}
        for topic, row in zip(self.topics, values, strict=True):
            order = np.argsort(-row, kind="stable")[:_HITS]
            run[topic.qid] = [Hit(self.documents[i].docid, float(row[i])) for i in order]
        found = evaluate(self.qrels, run, MEASURES).per_query
        by_measure = {}
        for measure in MEASURES:
            by_measure[measure] = [
                round(found[topic.qid][measure], _DIGITS) for topic in self.topics
            ]
        return by_measure


def covered(asked: sparse.csr_matrix, stored: sparse.csr_matrix, words: np.ndarray) -> np.ndarray:
    """(Q,) shares of the queries' word weights that their best passages by words have; 0 for a query without words."""
    shares = np.zeros(asked.shape[0], np.float32)
    for row, best in enumerate(words.argmax(1)):
        query = asked[row]
        total = query.data.sum()
        if total:
            has = np.isin(query.indices, stored[best].indices)
            shares[row] = query.data[has].sum() / total
    return shares


def windows_of(document: Document, pieces: WordPieces, most: int, overlap: int) -> Iterator[str]:
    """The windows of a passage, runs of whole sentences of at most ``most`` word pieces, each with its title."""

    def length(_heading: str) -> int:
        return most

    text = document.text
    for span in structured_passages(Extracted(text), length, overlap, pieces):
        yield Document("", text[span.start : span.end], document.title).joined()


def meaning_by_setting(collection: Collection, parts: Parts) -> Iterator[tuple[str, np.ndarray]]:
    """The name of each setting of the arms that change vectors, and its (Q, N) scores by meaning."""
    yield "today", parts.dense
    for most in WINDOWS:
        best = collection.best_windows(parts.dense, most, most // 2)
        for share in SHARES:
            yield f"window {most}, share {share:g}", (1 - share) * parts.dense + share * best
    yield "shorter passages", collection.best_windows(parts.dense, SHORTER, 0)
    for most in SHARED_BY:
        name = f"titles of at most {most}"
        yield name, collection.without_shared_titles(parts.dense, most)


def measure(folder: Path, vectors: Path) -> dict[str, Any]:
    """The record of a collection: the scores of each setting, by meaning alone and of hybrid search."""
    collection = Collection(folder, vectors)
    parts = collection.parts(load_encoder())
    record: dict[str, Any] = {
        "documents": len(collection.documents),
        "queries": [topic.qid for topic in collection.topics],
        "words": collection.scores(parts.words),
        "settings": {},
    }
    for name, meaning in meaning_by_setting(collection, parts):
        record["settings"][name] = {
            "meaning": collection.scores(meaning),
            "hybrid": collection.scores(meaning + parts.words),
        }
    for share in COVERED:
        weights = np.where(parts.covered >= share, 0.5, 1.0)
        hybrid = weights[:, None] * parts.dense + parts.words
        name = f"half from {share:g}"
        record["settings"][name] = {"hybrid": collection.scores(hybrid)}
    return record


def read_dev(pairs: Path) -> QuestionSet:
    """The dev pairs, with their positives as the collection."""
    found = QuestionSet()
    with gzip.open(pairs / "dev.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            pair = json.loads(line)
            positive = pair["positive"]
            found.documents[positive["id"]] = (positive["title"], positive["text"])
            found.questions.append((pair["query"], [positive["id"]]))
    return found


def write_demo(folder: Path) -> None:
    """Write the demo's documents and questions in BEIR's layout, unless ``folder`` is there already."""
    if folder.is_dir():
        return
    aside = folder.with_name(f".{folder.name}.writing")
    aside.mkdir(parents=True, exist_ok=True)
    write_beir(aside)
    move_into_place(aside, folder)


def collections(sets: Path, data: Path, made: Path) -> Mapping[str, Path]:
    """The folder of each collection; those that are made of others are written below ``made``."""
    folders = {name: sets / name for name in ("covid", *NEW)}
    folders |= {name: data / name for name in CLASSIC}
    if not (made / "dev").is_dir():
        read_dev(data / "pairs").write(made / "dev")
    write_demo(made / DEMO)
    return folders | {name: made / name for name in ("dev", DEMO)}


def run(args: argparse.Namespace) -> None:
    """Measure the collections that have no record yet."""
    records = args.output / "records"
    records.mkdir(parents=True, exist_ok=True)
    for name, folder in collections(args.sets, args.data, args.output / "collections").items():
        path = records / f"{name}.json"
        if path.is_file():
            continue
        print(f"{name}: started", flush=True)
        record = measure(folder, args.output / "vectors" / name)
        with atomic_write(path) as f:
            json.dump(record, f)
        print(f"{name}: done", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=Path, required=True, help="made by question_sets.py")
    parser.add_argument(
        "--data", type=Path, required=True, help="classic collections and pairs/dev"
    )
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    return guarded(lambda: run(args), "sentences_and_titles.py")


if __name__ == "__main__":
    raise SystemExit(main())
