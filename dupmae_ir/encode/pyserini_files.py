"""Files for stock Pyserini: encoded queries, and representations of documents.

Encoded queries, for its command line, which cannot load our encoders (its Python API can):

* ``DIR/queries.jsonl`` for ``pyserini.search.lucene --impact --encoder DIR/queries.jsonl --min-idf -1 ...``
* ``DIR/embedding.pkl`` for ``pyserini.search.faiss --encoded-queries DIR ...``
* ``DIR/topics.tsv``: the same topics for both, as ``qid<TAB>text``

``python -m dupmae_ir.pyserini MODULE ...`` runs any stock module on the Java that this package found. Pyserini reads
dense queries only from a pickle, so one is written for it; this package never reads one.

Representations, which ``pyserini.index.lucene --collection JsonVectorCollection`` reads: :func:`representation_lines`
gives ``{"id", "contents", "vector"}``, with title and text in ``contents``. The vector of the part ``ot`` is
``{term: integer}``; lines of the part ``cls`` repeat the id as ``docid``, where Anserini's
``JsonDenseVectorCollection`` (Lucene's flat and HNSW indexes) looks for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from dupmae_ir.console import one_line
from dupmae_ir.encode.pyserini_encoders import DupmaeQueryEncoder, impact_dicts
from dupmae_ir.encode.queries import QueriesConfig, QueriesResult
from dupmae_ir.errors import InputError
from dupmae_ir.index.changes.object_store import local_index
from dupmae_ir.index.format.manifest import read_meta
from dupmae_ir.index.format.texts import StoredDocument
from dupmae_ir.index.index import Index
from dupmae_ir.io.jobs import Job
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.io.topics import read_topics
from dupmae_ir.types import Query

BATCH = 256


def run(config: QueriesConfig) -> QueriesResult:
    """Encode ``config.topics``, write the files, and return their names and the number of queries."""
    topics = read_topics(config.topics)
    inputs = {
        "topics": topics_digest(topics),
        "index": read_meta(local_index(config.index))["digest"],
    }
    with Job(
        config.output,
        "encode.queries",
        {"cap": config.cap},
        inputs,
        resumable=False,
        quiet=config.quiet,
    ) as job:
        result = job.finished()
        if result:
            return cast("QueriesResult", result)
        encoder = DupmaeQueryEncoder.for_index(
            config.index, config.model, cap=config.cap, device=config.device
        )
        folder = job.begin() / "queries"
        written = write_queries(encoder, topics, folder)
        # Names alone: the folder is moved when it is published.
        files = [Path(file).name for file in written["files"]]
        return cast("QueriesResult", job.publish(folder, {"queries": len(topics), "files": files}))


def topics_digest(topics: Sequence[Query]) -> str:
    """Hex sha256 of the ids and texts, each with its length."""
    sha256 = hashlib.sha256()
    for topic in topics:
        for piece in topic:
            raw = piece.encode("utf-8", "replace")
            sha256.update(b"%d:" % len(raw) + raw)
    return sha256.hexdigest()


def write_queries(
    encoder: DupmaeQueryEncoder, topics: Sequence[Query], folder: str | Path
) -> QueriesResult:
    """Write one file for each part of the encoder, atomically.

    Returns the number of ``queries`` and the paths of the ``files``.
    """
    folder = Path(folder)
    # Pyserini looks encoded queries up by their text in the topics file, stripped.
    texts = [one_line(topic.text) for topic in topics]
    for topic in topics:
        if topic.qid != topic.qid.strip() or "\t" in topic.qid:
            raise InputError(f"topic id {topic.qid!r} cannot be written to a tsv file")
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    files = [folder / "topics.tsv"]
    with atomic_write(files[0]) as f:
        for topic, text in zip(topics, texts, strict=True):
            f.write(f"{topic.qid}\t{text}\n")
    if encoder.encoder.terms is not None:
        import jsonlines  # encoding runs without it

        files.append(folder / "queries.jsonl")
        with atomic_write(files[-1]) as f, jsonlines.Writer(f) as lines:
            for batch in batches:
                for text, vector in zip(batch, encoder.impact.encode_batch(batch), strict=True):
                    lines.write({"contents": text, "vector": vector})
    if encoder.encoder.dim is not None:
        import pandas  # takes 0.3 s, which an encoding run does not need

        files.append(folder / "embedding.pkl")
        rows: list[object] = []
        for batch in batches:
            rows.extend(encoder.dense.encode_batch(batch))
        qids = [topic.qid for topic in topics]
        # Pyserini reads these columns.
        frame = pandas.DataFrame({"id": qids, "text": texts, "embedding": rows})
        with atomic_write(files[-1], "wb") as f:
            frame.to_pickle(f)
    return {"queries": len(topics), "files": [str(f) for f in files]}


def representation_lines(index: Index, part: str) -> Iterator[str]:
    """The documents of an index as lines of Pyserini's representation files; ``part`` is ``cls`` or ``ot``."""
    for segment, _, live in index.slices():
        for row in np.flatnonzero(live).tolist():
            stored = StoredDocument(segment.docids[row], "", "", {})
            if segment.texts:
                stored = segment.texts.get(row)
            contents = stored.text
            if stored.title:
                contents = f"{stored.title}\n{stored.text}"
            line: dict[str, object] = {"id": stored.docid, "contents": contents}
            if part == "cls":
                line = {"docid": stored.docid, **line, "vector": segment.vectors[row].tolist()}
            else:
                (line["vector"],) = impact_dicts(
                    segment.forward.matrix(np.array([row])), index.terms
                )
            yield json.dumps(line, ensure_ascii=False)
