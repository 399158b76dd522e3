"""Evaluate a model on the test collections with the toolkit's own commands: encode, search, evaluate."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rows import checked

from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.eval.evaluate import evaluate
from dupmae_ir.index.config import Bm25Config
from dupmae_ir.index.run import run_bm25
from dupmae_ir.io.collections import read_collection
from dupmae_ir.io.publishing import write_json
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.runs import read_run, write_run
from dupmae_ir.io.topics import read_topics
from dupmae_ir.search.config import SearchConfig
from dupmae_ir.search.fusion import Fusion, fuse_runs
from dupmae_ir.search.run import run as search
from dupmae_ir.types import EncoderSettings, Hit

if TYPE_CHECKING:
    from dupmae_ir.models.inference.encoder import TextEncoder

LENGTH = 256
"""Word pieces that the base model reads of a document or query."""
LEVELS = 255
"""Largest impact of an index: 8 bits."""
FUSIONS = {"rrf": Fusion("rrf"), "min-max": Fusion("interpolation", normalize=True)}
"""Fusion of lists of 1,000: reciprocal ranks (k = 60), or the mean of scores mapped to 0 to 1."""
DIGITS = 6
"""Decimals stored per query and measure."""


@dataclass(frozen=True)
class Evaluator:
    """Evaluates models with fixed measures and settings of encode and search."""

    measures: Sequence[str]
    encode: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)

    def model(
        self,
        collection: Path,
        folder: Path,
        model: Path,
        modes: Sequence[str],
        parts: str,
        options: dict[str, Any] | None = None,
        index: Path | None = None,
        bits: int = 8,
    ) -> dict[str, Any]:
        """Scores of one model on one set. ``index``: an existing index of the model, searched with ``options``; with
        fewer than 8 ``bits`` it only gives the scale, and the set is encoded again with smaller impacts."""
        return _once(
            folder,
            lambda: self._model(
                collection, folder, model, modes, parts, options or {}, index, bits
            ),
        )

    def _model(
        self,
        collection: Path,
        folder: Path,
        model: Path,
        modes: Sequence[str],
        parts: str,
        options: dict[str, Any],
        index: Path | None,
        bits: int,
    ) -> dict[str, Any]:
        seconds = {}
        extra: dict[str, Any] = {}
        if index is not None and bits < 8:
            scale = json.loads((index / "meta.json").read_text(encoding="utf-8"))["scale"]
            extra["scale"] = scale * (2**bits - 1) / LEVELS
        if index is None or bits < 8:
            index = folder / "index"
            started = time.perf_counter()
            encode(
                checked(
                    EncodeConfig,
                    "encode",
                    **{
                        "corpus": str(collection / "corpus.jsonl"),
                        "index": str(index),
                        "model": str(model),
                        "parts": parts,
                        "quiet": True,
                        **self.encode,
                        **extra,
                    },
                )
            )
            seconds["encode"] = round(time.perf_counter() - started, 2)
        for mode in modes:
            started = time.perf_counter()
            self._search(collection, index, folder / f"{mode}.trec", mode, model, options)
            seconds[mode] = round(time.perf_counter() - started, 2)
        found = self._scores(collection, {mode: folder / f"{mode}.trec" for mode in modes})
        return found | {"index_bytes": index_bytes(index), "seconds": seconds}

    def bm25(self, collection: Path, folder: Path) -> dict[str, Any]:
        """Scores of BM25 on one set."""
        return _once(folder, lambda: self._bm25(collection, folder))

    def _bm25(self, collection: Path, folder: Path) -> dict[str, Any]:
        index = folder / "index"
        corpus = str(collection / "corpus.jsonl")
        run_bm25(Bm25Config(corpus=corpus, index=str(index), overwrite=True, quiet=True))
        self._search(collection, index, folder / "bm25.trec", "bm25", None, {})
        found = self._scores(collection, {"bm25": folder / "bm25.trec"})
        return found | {"index_bytes": {"bm25": size_of(index)}, "seconds": {}}

    def mean_pooling(self, collection: Path, folder: Path, base: Path) -> dict[str, Any]:
        """Scores of the base model as sentence-transformers uses it: mean of the last hidden states, unit length."""
        return _once(folder, lambda: self._mean_pooling(collection, folder / "dense.trec", base))

    def _mean_pooling(self, collection: Path, run: Path, base: Path) -> dict[str, Any]:
        documents = mean_pooled_run(collection, base, run)
        found = self._scores(collection, {"dense": run})
        return found | {"index_bytes": {"dense": documents}, "seconds": {}}

    def fused(
        self, collection: Path, folder: Path, bm25: Path, dense: Path, method: str
    ) -> dict[str, Any]:
        """Scores of two run files fused, by a key of :data:`FUSIONS`."""
        return _once(
            folder, lambda: self._fused(collection, folder / "fused.trec", bm25, dense, method)
        )

    def _fused(
        self, collection: Path, run: Path, bm25: Path, dense: Path, method: str
    ) -> dict[str, Any]:
        run.parent.mkdir(parents=True, exist_ok=True)
        write_run(run, fuse_runs(FUSIONS[method], read_run(dense), read_run(bm25), 1000))
        return self._scores(collection, {"fused": run}) | {"index_bytes": {}, "seconds": {}}

    def _search(
        self,
        collection: Path,
        index: Path,
        run: Path,
        mode: str,
        model: Path | None,
        options: dict[str, Any],
    ) -> None:
        if run.is_file():
            return
        run.parent.mkdir(parents=True, exist_ok=True)
        settings: dict[str, Any] = {
            "index": [str(index)],
            "topics": str(collection / "queries.jsonl"),
            "output": str(run),
            "qrels": str(collection / "qrels" / "test.tsv"),
            mode: True,
            "quiet": True,
        }
        if mode != "bm25":
            settings |= {"model": str(model), **self.search, **options}
        search(checked(SearchConfig, "search", **settings))

    def _scores(self, collection: Path, runs: dict[str, Path]) -> dict[str, Any]:
        """``queries`` (ids), ``scores`` (mode -> measure -> mean), ``per_query`` (mode -> measure -> values)."""
        qrels = read_qrels(collection / "qrels" / "test.tsv")
        results = {
            mode: evaluate(qrels, read_run(path), self.measures) for mode, path in runs.items()
        }
        queries = sorted(next(iter(results.values())).per_query)
        scores = {}
        per_query = {}
        for mode, result in results.items():
            scores[mode] = dict(result.mean)
            by_measure = {}
            for measure in result.mean:
                values = [result.per_query[qid][measure] for qid in queries]
                by_measure[measure] = [round(value, DIGITS) for value in values]
            per_query[mode] = by_measure
        return {"queries": queries, "scores": scores, "per_query": per_query}


def _once(folder: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of ``make``, computed once and kept in ``folder``."""
    done = folder / "scores.json"
    if not done.is_file():
        write_json(done, make())
    return dict(json.loads(done.read_text(encoding="utf-8")))


def mean_pooled_run(collection: Path, base: Path, run: Path, hits: int = 1000) -> int:
    """Write a run of exhaustive search by mean-pooled vectors of ``base``, compared by their cosine, in float32.
    Returns the bytes of the vectors."""
    encoder = mean_pooling_encoder(base)
    documents = list(read_collection(collection / "corpus.jsonl"))
    judged = read_qrels(collection / "qrels" / "test.tsv")
    queries = [q for q in read_topics(str(collection / "queries.jsonl")) if q.qid in judged]
    stored = _unit(encoder.encode_collection(documents).cls)
    found = {}
    asked = _unit(encoder.encode_queries([q.text for q in queries]).cls)
    for query, scores in zip(queries, asked @ stored.T, strict=True):
        best = np.argsort(-scores, kind="stable")[:hits]
        found[query.qid] = [Hit(documents[i].docid, float(scores[i])) for i in best]
    run.parent.mkdir(parents=True, exist_ok=True)
    write_run(run, found, "mean-pooling")
    return int(stored.nbytes)


def mean_pooling_encoder(base: Path) -> TextEncoder:
    """An encoder of ``base`` whose vectors are means over the tokens of at most 256 word pieces."""
    import torch

    from dupmae_ir.device import pick_device
    from dupmae_ir.models.checkpoints.loading import load_model
    from dupmae_ir.models.checkpoints.model_config import ModelConfig
    from dupmae_ir.models.inference.encoder import TextEncoder

    model, tokenizer, _ = load_model(base, need_ot=False)
    model.pooling = "mean"
    length = min(LENGTH, model.lm.config.max_position_embeddings)
    device = pick_device("auto")[0]
    settings = EncoderSettings(document_length=length, query_length=length)
    return TextEncoder(
        base,
        ModelConfig(),
        settings,
        model,
        tokenizer,
        ("cls",),
        device,
        torch.float32,
        torch.float32,
    )


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def index_bytes(index: Path) -> dict[str, int]:
    """Bytes that each mode reads: the vectors, Lucene's impacts, and for hybrid both and the forward index."""
    parts = {name: size_of(index / name) for name in ("cls", "ot", "forward")}
    hybrid = {"hybrid": sum(parts.values())} if parts["cls"] and parts["ot"] else {}
    return {k: v for k, v in {"dense": parts["cls"], "impact": parts["ot"], **hybrid}.items() if v}


def size_of(folder: Path) -> int:
    """Bytes of all files in ``folder``; 0 if it does not exist."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
