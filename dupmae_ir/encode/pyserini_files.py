"""Files for stock Pyserini: encoded queries, and representations of documents.

Encoded queries, for its command line, which cannot load our encoders (its Python API can):

* ``DIR/queries.jsonl`` for ``pyserini.search.lucene --impact --encoder DIR/queries.jsonl --min-idf -1 ...``
* ``DIR/embedding.pkl`` for ``pyserini.search.faiss --encoded-queries DIR ...``
* ``DIR/topics.tsv``: the same topics for both, as ``qid<TAB>text``

``python -m dupmae_ir.pyserini MODULE ...`` runs any stock module on the Java that this package found. Pyserini reads
dense queries only from a pickle, so one is written for it; this package never reads one.

Representations, which ``pyserini.index.lucene --collection JsonVectorCollection`` reads: ``FOLDER/ot/*.jsonl`` contain
impacts (``"vector": {term: integer}``), ``FOLDER/cls/*.jsonl`` the dense vectors (``"vector": [float, ...]``), one file
per window, each line ``{"id", "contents", "vector"}`` with title and text in ``contents``. Dense lines repeat the id as
``docid``, where Anserini's ``JsonDenseVectorCollection`` (Lucene's flat and HNSW indexes) looks for it. The folder
appears at once, when the encoding is complete.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from dupmae_ir.console import one_line
from dupmae_ir.encode.pyserini_encoders import DupmaeQueryEncoder, impact_dicts
from dupmae_ir.encode.queries import QueriesConfig, QueriesResult
from dupmae_ir.encode.windows import EncodedWindow, Window
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.index.changes.object_store import local_index
from dupmae_ir.index.format.manifest import read_meta
from dupmae_ir.io.jobs import Job, work_folder
from dupmae_ir.io.publishing import atomic_write, move_into_place, read_json_object, write_json
from dupmae_ir.io.topics import read_topics
from dupmae_ir.types import Document, Query

BATCH = 256
WORK = "work.json"


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
    """Write one file for each part of the encoder, atomically.

    Returns the number of ``queries`` and the paths of the ``files``.
    """
    folder = Path(folder)
    # Pyserini looks encoded queries up by their text in the topics file, stripped.
    texts = [one_line(t.text) for t in topics]
    if odd := next((t.qid for t in topics if t.qid != t.qid.strip() or "\t" in t.qid), None):
        raise InputError(f"topic id {odd!r} cannot be written to a tsv file")
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    files = [folder / "topics.tsv"]
    with atomic_write(files[0]) as f:
        f.writelines(f"{t.qid}\t{text}\n" for t, text in zip(topics, texts, strict=True))
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
        rows = [row for batch in batches for row in encoder.dense.encode_batch(batch)]
        frame = pandas.DataFrame({"id": [t.qid for t in topics], "text": texts, "embedding": rows})
        with atomic_write(files[-1], "wb") as f:
            frame.to_pickle(f)
    return {"queries": len(topics), "files": [str(f) for f in files]}


class JsonlFolder:
    """Representation files that are being written: beside ``target``, and moved there by :meth:`publish`.

    ``work`` is the id of the encoding they belong to; a finished folder records it.
    """

    def __init__(self, target: Path, work: str, overwrite: bool = False) -> None:
        self.target, self.work = target, work
        self.aside = work_folder(target)
        existing = jsonl_work(target)
        self.done = existing == work
        occupied = target.exists() and (not target.is_dir() or any(target.iterdir()))
        if occupied and not self.done and not (overwrite and existing):
            tip = "add `overwrite` to replace it" if existing else "name another folder"
            raise UsageError(f"`jsonl` {target}: already exists; {tip}")
        if read_json_object(self.aside / WORK).get("work") != work and not self.done:
            shutil.rmtree(self.aside, ignore_errors=True)
            write_json(self.aside / WORK, {"work": work})

    def has(self, number: int) -> bool:
        """Whether the files of window ``number`` exist."""
        return self.done or any(self.aside.glob(f"*/{_name(number)}"))

    def write(self, window: Window, encoded: EncodedWindow, terms: Sequence[str] | None) -> None:
        """Write the files of one window, each atomically; writing a window again replaces them."""
        if self.done:
            return
        parts: dict[str, Iterator[list[float] | dict[str, int]]] = {}
        if encoded.cls is not None:
            parts["cls"] = (row.tolist() for row in encoded.cls)
        if encoded.impacts is not None and terms is not None:
            parts["ot"] = impact_dicts(encoded.impacts, terms)
        for kind, vectors in parts.items():
            with atomic_write(self.aside / kind / _name(window.number)) as f:
                for document, vector in zip(window.documents, vectors, strict=True):
                    f.write(line_of(document, vector) + "\n")

    def publish(self) -> None:
        """Move the complete folder into place. Calling it again after a kill is harmless."""
        if not self.done:
            move_into_place(self.aside, self.target)
            self.done = True

    def discard(self) -> None:
        """Remove unfinished files."""
        shutil.rmtree(self.aside, ignore_errors=True)


def line_of(document: Document, vector: list[float] | dict[str, int]) -> str:
    """One line in the format of Pyserini's own writer."""
    contents = f"{document.title}\n{document.text}" if document.title else document.text
    row = {"id": document.docid, "contents": contents, "vector": vector}
    if isinstance(vector, list):
        row = {"docid": document.docid, **row}
    return json.dumps(row, ensure_ascii=False)


def jsonl_work(target: Path) -> str | None:
    """The id of the encoding that a finished folder belongs to; None for other folders."""
    return read_json_object(target / WORK).get("work")


def _name(number: int) -> str:
    return f"part-{number:06d}.jsonl"
