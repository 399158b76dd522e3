"""Encoded queries for stock Pyserini, which can plug in our encoders from Python but not from its command line.

``python -m dupmae_ir.encode.queries --topics T --index I --output DIR`` writes

* ``DIR/queries.jsonl`` for ``pyserini.search.lucene --impact --encoder DIR/queries.jsonl --min-idf -1 ...``
* ``DIR/embedding.pkl`` for ``pyserini.search.faiss --encoded-queries DIR ...``
* ``DIR/topics.tsv``: the same topics for both, as ``qid<TAB>text``

``python -m dupmae_ir.pyserini MODULE ...`` runs any stock module on the Java that this package found.

Pyserini reads dense queries from a pickle only, so one is written for it; nothing in this package ever reads one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dupmae_ir.config import option, parse
from dupmae_ir.console import Parser, guarded, say
from dupmae_ir.encode.pyserini_encoders import DupmaeQueryEncoder
from dupmae_ir.errors import InputError
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.types import Query

PURPOSE = "Encode topics with the encoder of an index, into the files that stock Pyserini commands read."
EXAMPLES = """
python -m dupmae_ir.encode.queries --topics queries.tsv --index indexes/mine --output encoded
python -m dupmae_ir.pyserini pyserini.search.lucene --impact --index indexes/mine/ot --topics encoded/topics.tsv \\
    --encoder encoded/queries.jsonl --min-idf -1 --output impact.trec
python -m dupmae_ir.pyserini pyserini.search.faiss --index indexes/mine/cls --topics encoded/topics.tsv \\
    --encoded-queries encoded --output dense.trec
"""
BATCH = 256


@dataclass(frozen=True)
class QueriesConfig:
    """Everything that ``python -m dupmae_ir.encode.queries`` can be told."""

    topics: str = option(help="topics file (tsv, jsonl, BEIR queries.jsonl) or a Pyserini name", metavar="TOPICS")
    index: str = option(help="index folder that will be searched", metavar="FOLDER")
    output: str = option(help="folder for the files", metavar="FOLDER")
    model: str | None = option(None, "model folder, when it is no longer where the index was made", metavar="FOLDER")
    cap: int = option(1024, "strongest impacts kept of each query; Lucene takes at most 1,024")
    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps", metavar="NAME")
    quiet: bool = option(False, "only errors")
    json: bool = option(False, "print the summary as JSON on standard output")


def run(config: QueriesConfig) -> dict[str, Any]:
    """Encode ``config.topics`` and write the files; returns what was written."""
    from dupmae_ir.io.topics import read_topics

    topics = read_topics(config.topics)
    encoder = DupmaeQueryEncoder.for_index(config.index, config.model, cap=config.cap, device=config.device)
    return write_queries(encoder, topics, config.output)


def write_queries(encoder: DupmaeQueryEncoder, topics: Sequence[Query], folder: str | Path) -> dict[str, Any]:
    """Write the files of the module's text, as far as the encoder has the parts; each appears whole or not at all."""
    folder = Path(folder)
    texts = [_one_line(t) for t in topics]
    files = {"topics.tsv": _write_tsv(folder, topics, texts)}
    if encoder.encoder.terms is not None:
        files["queries.jsonl"] = _write_impacts(folder, encoder, texts)
    if encoder.encoder.dim is not None:
        files["embedding.pkl"] = _write_vectors(folder, encoder, topics, texts)
    return {"queries": len(topics), "files": [str(f) for f in files.values()]}


def _one_line(topic: Query) -> str:
    """Pyserini looks encoded queries up by their text, as it stands in the topics file, stripped."""
    return " ".join(topic.text.split())


def _write_tsv(folder: Path, topics: Sequence[Query], texts: Sequence[str]) -> Path:
    if odd := next((t.qid for t in topics if t.qid != t.qid.strip() or "\t" in t.qid), None):
        raise InputError(f"topic id {odd!r} cannot stand in a tsv file")
    with atomic_write(folder / "topics.tsv") as f:
        f.writelines(f"{t.qid}\t{text}\n" for t, text in zip(topics, texts, strict=True))
    return folder / "topics.tsv"


def _write_impacts(folder: Path, encoder: DupmaeQueryEncoder, texts: Sequence[str]) -> Path:
    with atomic_write(folder / "queries.jsonl") as f:
        for start in range(0, len(texts), BATCH):
            batch = list(texts[start : start + BATCH])
            for text, vector in zip(batch, encoder.impact.encode_batch(batch), strict=True):
                f.write(json.dumps({"contents": text, "vector": vector}) + "\n")
    return folder / "queries.jsonl"


def _write_vectors(folder: Path, encoder: DupmaeQueryEncoder, topics: Sequence[Query], texts: Sequence[str]) -> Path:
    import pandas  # type: ignore[import-untyped]

    rows: list[Any] = []
    for start in range(0, len(texts), BATCH):
        rows.extend(encoder.dense.encode_batch(texts[start : start + BATCH]))
    frame = pandas.DataFrame({"id": [t.qid for t in topics], "text": list(texts), "embedding": rows})
    with atomic_write(folder / "embedding.pkl", "wb") as f:
        frame.to_pickle(f)
    return folder / "embedding.pkl"


def main(argv: list[str] | None = None) -> int:
    return guarded(lambda: _main(argv), "dupmae-ir encode.queries")


def _main(argv: list[str] | None) -> int:
    config = parse(Parser("encode.queries", PURPOSE, EXAMPLES), QueriesConfig, argv)
    summary = run(config)
    if config.json:
        sys.stdout.write(json.dumps(summary) + "\n")
    say(f"{summary['queries']} queries in {', '.join(summary['files'])}", config.quiet)
    return 0


if __name__ == "__main__":
    sys.exit(main())
