"""Files of encoded queries for stock Pyserini, whose command line cannot load our encoders (its Python API can).

* ``DIR/queries.jsonl`` for ``pyserini.search.lucene --impact --encoder DIR/queries.jsonl --min-idf -1 ...``
* ``DIR/embedding.pkl`` for ``pyserini.search.faiss --encoded-queries DIR ...``
* ``DIR/topics.tsv``: the same topics for both, as ``qid<TAB>text``

``python -m dupmae_ir.pyserini MODULE ...`` runs any stock module on the Java that this package found. Pyserini reads
dense queries only from a pickle, so one is written for it; this package never reads one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import jsonlines
import pandas

from dupmae_ir.console import one_line
from dupmae_ir.encode.pyserini_encoders import DupmaeQueryEncoder
from dupmae_ir.encode.queries import QueriesConfig, QueriesResult
from dupmae_ir.errors import InputError
from dupmae_ir.index.changes.object_store import local_index
from dupmae_ir.index.format.manifest import read_meta
from dupmae_ir.io.jobs import Job
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.io.topics import read_topics
from dupmae_ir.types import Query

BATCH = 256


def run(config: QueriesConfig) -> QueriesResult:
    """Encode ``config.topics``, write the files, and return their names and the number of queries."""
    topics = read_topics(config.topics)
    inputs = {"topics": topics_digest(topics), "index": read_meta(local_index(config.index))["digest"]}
    with Job(config.output, "encode.queries", {"cap": config.cap}, inputs, resumable=False, quiet=config.quiet) as job:
        if result := job.finished():
            return cast("QueriesResult", result)
        encoder = DupmaeQueryEncoder.for_index(config.index, config.model, cap=config.cap, device=config.device)
        made = job.begin() / "queries"
        written = write_queries(encoder, topics, made)
        files = [Path(file).name for file in written["files"]]
        return cast("QueriesResult", job.publish(made, {"queries": len(topics), "files": files}))


def topics_digest(topics: Sequence[Query]) -> str:
    """Hex sha256 of the ids and texts, each with its length."""
    sha256 = hashlib.sha256()
    for topic in topics:
        for piece in topic:
            raw = piece.encode("utf-8", "replace")
            sha256.update(b"%d:" % len(raw) + raw)
    return sha256.hexdigest()


def write_queries(encoder: DupmaeQueryEncoder, topics: Sequence[Query], folder: str | Path) -> QueriesResult:
    """Write the files for the parts that the encoder has; each appears whole or not at all.

    Returns the number of ``queries`` and the paths of the ``files``.
    """
    folder = Path(folder)
    # Pyserini looks encoded queries up by their text in the topics file, stripped.
    texts = [one_line(t.text) for t in topics]
    files = [_write_tsv(folder, topics, texts)]
    if encoder.encoder.terms is not None:
        files.append(_write_impacts(folder, encoder, texts))
    if encoder.encoder.dim is not None:
        files.append(_write_vectors(folder, encoder, topics, texts))
    return {"queries": len(topics), "files": [str(f) for f in files]}


def _write_tsv(folder: Path, topics: Sequence[Query], texts: Sequence[str]) -> Path:
    if odd := next((t.qid for t in topics if t.qid != t.qid.strip() or "\t" in t.qid), None):
        raise InputError(f"topic id {odd!r} cannot be written to a tsv file")
    with atomic_write(folder / "topics.tsv") as f:
        f.writelines(f"{t.qid}\t{text}\n" for t, text in zip(topics, texts, strict=True))
    return folder / "topics.tsv"


def _write_impacts(folder: Path, encoder: DupmaeQueryEncoder, texts: Sequence[str]) -> Path:
    with atomic_write(folder / "queries.jsonl") as f, jsonlines.Writer(f) as lines:
        for start in range(0, len(texts), BATCH):
            batch = list(texts[start : start + BATCH])
            for text, vector in zip(batch, encoder.impact.encode_batch(batch), strict=True):
                lines.write({"contents": text, "vector": vector})
    return folder / "queries.jsonl"


def _write_vectors(folder: Path, encoder: DupmaeQueryEncoder, topics: Sequence[Query], texts: Sequence[str]) -> Path:
    rows: list[object] = []
    for start in range(0, len(texts), BATCH):
        rows.extend(encoder.dense.encode_batch(texts[start : start + BATCH]))
    frame = pandas.DataFrame({"id": [t.qid for t in topics], "text": list(texts), "embedding": rows})
    with atomic_write(folder / "embedding.pkl", "wb") as f:
        frame.to_pickle(f)
    return folder / "embedding.pkl"
