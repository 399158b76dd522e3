"""Read-outs of one model of mae_from_scratch.py, as a JSON record: search of all sets, and a probe of [CLS].

Search is exhaustive and in memory: the scores are those of DupMAE Eq. 12 with float32 vectors and the OT weights that
an index would keep, without its quantisation. A pre-trained model (``--probe``) has no fine-tuned similarity: its
[CLS] vectors are compared by their cosine.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dupmae_ir.console import guarded
from dupmae_ir.device import torch_threads
from dupmae_ir.eval.evaluate import evaluate
from dupmae_ir.io.collections import read_collection
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.models.inference.term_encoder import PARTS
from dupmae_ir.training.trained import LOG, read_log
from dupmae_ir.types import Document, Hit, Representation

DEPTH = 1000
"""Hits per query."""
DIGITS = 4
"""Decimals stored per query and measure."""
FREQUENT = 200
"""Word pieces that most texts have; the probe leaves them out."""
RIDGE = 10.0
"""Weight of the squared norm in the probe's regression, whose inputs have unit variance."""


def read_out(
    model: Path,
    sets: Mapping[str, Path],
    measures: Sequence[str],
    pretrained: bool,
    probe: tuple[int, int] = (0, 0),
    parts: tuple[str, ...] = PARTS,
) -> dict[str, Any]:
    """The record of a model: scores of each set, and for a pre-trained one the probe and the held-out losses.

    Args:
        model: a model folder of ``pretrain`` or ``finetune``.
        sets: BEIR folders by name.
        measures: names such as ``nDCG@10``.
        pretrained: compare [CLS] by its cosine, probe it, and add the log of the held-out losses.
        probe: numbers of texts that the probe is fitted to and tested on.
        parts: ``cls``, ``ot`` or both; OT of a model whose head was not calibrated has most words in every text, and
            takes longer than all else.
    """
    encoder = TextEncoder.load(
        model, dtype="mixed", normalize=True if pretrained else None, parts=parts
    )
    record = dict[str, Any](sets={})
    vectors = list[np.ndarray]()
    for name, folder in sets.items():
        record["sets"][name], stored = search_set(encoder, folder, measures)
        if stored.cls is not None:
            vectors.append(stored.cls)
    if pretrained:
        log = read_log(model / "pretraining" / LOG)
        record["tokens"] = sum(row.get("tokens", 0) for row in log)
        record["held_out"] = [row for row in log if "eval_loss" in row]
        texts = []
        for folder in sets.values():
            texts += [document.joined() for document in read_collection(folder / "corpus.jsonl")]
        record["probe"] = probe_words(encoder, texts, np.concatenate(vectors), *probe)
    training = json.loads((model / "training.json").read_text(encoding="utf-8"))
    return record | {"steps": training["steps"], "seconds": training["seconds"]}


def search_set(
    encoder: TextEncoder, folder: Path, measures: Sequence[str]
) -> tuple[dict[str, Any], Representation]:
    """``queries`` (ids), ``scores`` (part -> measure -> mean) and ``per_query`` (part -> measure -> values).

    Also the representation of the documents, in the order of the collection.
    """
    documents = list(read_collection(folder / "corpus.jsonl"))
    qrels = read_qrels(folder / "qrels" / "test.tsv")
    topics = [topic for topic in read_topics(str(folder / "queries.jsonl")) if topic.qid in qrels]
    stored = encoder.encode_collection(documents)
    asked = encoder.encode_queries([t.text for t in topics])
    queries = sorted(topic.qid for topic in topics)
    result: dict[str, Any] = {"queries": queries, "scores": {}, "per_query": {}}
    for part, scores in part_scores(asked, stored):
        run = {topic.qid: _hits(row, documents) for topic, row in zip(topics, scores, strict=True)}
        evaluated = evaluate(qrels, run, measures)
        result["scores"][part] = dict(evaluated.mean)
        values = evaluated.per_query
        by_measure = {}
        for measure in evaluated.mean:
            by_measure[measure] = [round(values[qid][measure], DIGITS) for qid in queries]
        result["per_query"][part] = by_measure
    return result, stored


def part_scores(asked: Representation, stored: Representation) -> Iterator[tuple[str, np.ndarray]]:
    """(Q, N) inner products of queries and documents: of ``cls``, of ``ot``, and their ``sum`` (DupMAE Eq. 12).

    A model with one part has the products of that part only.
    """
    parts = dict[str, np.ndarray]()
    if asked.cls is not None and stored.cls is not None:
        parts["cls"] = asked.cls @ stored.cls.T
    if asked.ot is not None and stored.ot is not None:
        parts["ot"] = (asked.ot @ stored.ot.T).toarray()
    yield from parts.items()
    if len(parts) == 2:
        yield "sum", parts["cls"] + parts["ot"]


def _hits(scores: np.ndarray, documents: Sequence[Document]) -> list[Hit]:
    order = np.argsort(-scores, kind="stable")[:DEPTH]
    return [Hit(documents[i].docid, float(scores[i])) for i in order]


def probe_words(
    encoder: TextEncoder, texts: Sequence[str], cls: np.ndarray, fit: int, test: int, seed: int = 0
) -> dict[str, float]:
    """How many of a text's word pieces a linear map finds in its [CLS] vector.

    Ridge regression from ``cls`` (texts, d), standardised, to the bag of words, fitted to ``fit`` texts. Of each of
    ``test`` other texts with n distinct pieces the n best-scored ones are taken.

    Returns:
        ``words``: mean share of the text's pieces among them, without the :data:`FREQUENT` most frequent pieces;
        ``prior``: the same for the mean bag of words, which needs no vector.
    """
    chosen = np.random.default_rng(seed).permutation(len(texts))[: fit + test]
    kept = [texts[i] for i in chosen]
    vectors = cls[chosen].astype(np.float64)
    bags = _bags(encoder, kept)
    bags[:, np.argsort(-bags.sum(0), kind="stable")[:FREQUENT]] = False
    fit = max(1, len(kept) - test)
    mean = vectors[:fit].mean(0)
    spread = vectors[:fit].std(0) + 1e-6
    x = (vectors - mean) / spread
    y = bags[:fit].astype(np.float64)
    prior = y.mean(0)
    weights = np.linalg.solve(
        x[:fit].T @ x[:fit] + RIDGE * np.eye(x.shape[1]), x[:fit].T @ (y - prior)
    )
    tests = bags[fit:]
    return {
        "words": _r_precision(x[fit:] @ weights + prior, tests),
        "prior": _r_precision(prior[None], tests),
    }


def _bags(encoder: TextEncoder, texts: Sequence[str]) -> np.ndarray:
    """(n, V) bool: the word pieces of each text, as far as the encoder reads it."""
    tokenizer = encoder.tokenizer
    bags = np.zeros((len(texts), len(tokenizer)), bool)
    pieces = tokenizer(
        list(texts),
        add_special_tokens=False,
        truncation=True,
        max_length=encoder.settings.document_length - 2,
    )["input_ids"]
    for bag, ids in zip(bags, pieces, strict=True):
        bag[ids] = True
    return bags


def _r_precision(scores: np.ndarray, bags: np.ndarray) -> float:
    """Mean over the texts of the share of their n pieces among the n best scores; ``scores`` (n, V) or (1, V)."""
    order = np.argsort(-scores, axis=1, kind="stable")
    shares = [
        bag[order[i % len(order)][: bag.sum()]].mean() for i, bag in enumerate(bags) if bag.any()
    ]
    return round(float(np.mean(shares)), DIGITS) if shares else 0.0


def main(argv: list[str] | None = None) -> int:
    """Parse the flags and write the record. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--data", type=Path, required=True, help="folder with the test collections")
    parser.add_argument(
        "--prepared", type=Path, required=True, help="folder with dev/, of mae_data.py"
    )
    parser.add_argument("--sets", nargs="+", required=True)
    parser.add_argument(
        "--targets", nargs="+", type=Path, default=[], help="folders of other collections"
    )
    parser.add_argument("--measures", nargs="+", required=True)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument(
        "--settings", type=json.loads, default={}, help="JSON object that the record keeps"
    )
    parser.add_argument(
        "--probe", action="store_true", help="the model is pre-trained, not fine-tuned"
    )
    parser.add_argument("--probe-texts", type=int, default=20000)
    parser.add_argument("--probe-tests", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args(argv)
    return guarded(lambda: run(args), "mae_readouts.py")


def run(args: argparse.Namespace) -> None:
    """Read out the model and write the record."""
    sets = {name: (args.prepared if name == "dev" else args.data) / name for name in args.sets}
    sets |= {folder.name: folder for folder in args.targets}
    with torch_threads(args.threads):
        probe = (args.probe_texts, args.probe_tests)
        record = read_out(args.model, sets, args.measures, args.probe, probe, tuple(args.parts))
    write_record(args.record, {"model": args.model.name, "settings": args.settings, **record})


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record atomically, each list of values on one line."""
    text = json.dumps(record, indent=2, ensure_ascii=False)
    lines = re.sub(
        r"\[[^][{}]*\]", lambda values: json.dumps(json.loads(values[0]), ensure_ascii=False), text
    )
    with atomic_write(path) as f:
        f.write(f"{lines}\n")


if __name__ == "__main__":
    sys.exit(main())
