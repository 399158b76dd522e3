"""``python -m dupmae_ir.index bm25|dense|postings|show``: see ``--help``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from dupmae_ir.config import parse
from dupmae_ir.console import Parser, dispatch, megabytes, say
from dupmae_ir.index.run import (
    Bm25Config,
    DenseConfig,
    PostingsConfig,
    ShowConfig,
    build,
    build_dense,
    postings,
    show,
    show_extras,
)

BM25_PURPOSE = """
Index a collection for BM25 as Anserini does by default (Porter stemming, k1 0.9, b 0.4, title and text in one field):
the baseline of every table. Stock pyserini.search.lucene --bm25 reads the result.
"""
POSTINGS_PURPOSE = """
Lay out the impacts of an index by term once more, for 'search --engine postings': the hits, scores and order of Lucene,
many times faster for whole topic sets and deep lists, without Java. Postings of an index that was since made anew are
refused; run this again then.
"""
EXAMPLES = """
python -m dupmae_ir.index bm25 --corpus corpus.jsonl --index indexes/mine-bm25
python -m dupmae_ir.index dense --index indexes/mine --kind sq8
python -m dupmae_ir.index postings --index indexes/mine
python -m dupmae_ir.index show indexes/mine --verify
"""
DENSE_PURPOSE = """
Build a smaller dense index beside the flat one, from its stored vectors. search --dense-index KIND uses it; the scores
it reports are always those of the stored float32 vectors.

  sq8        a quarter of the bytes, all of them read; the lists stay certified exact
  ivf-sq8    the same codes in lists, of which a search reads the nearest: approximate
  hnsw-sq8   the same codes in a graph of neighbours: approximate, slow to build
"""
SHOW_PURPOSE = "Print what an index folder holds and check its parts against each other."


def main(argv: list[str] | None = None) -> int:
    return dispatch("index", VERBS, EXAMPLES, argv)


def _bm25(argv: list[str]) -> int:
    examples = "python -m dupmae_ir.index bm25 --corpus corpus.jsonl --index indexes/mine-bm25"
    config = parse(Parser("index bm25", BM25_PURPOSE, examples), Bm25Config, argv)
    summary = build(config)
    return _told(config, summary, f"{summary['index']}: {summary['documents']:,} documents")


def _dense(argv: list[str]) -> int:
    examples = (
        "python -m dupmae_ir.index dense --index indexes/mine --kind sq8\n"
        "python -m dupmae_ir.search --index indexes/mine --topics queries.jsonl --dense-index sq8 --output run.trec"
    )
    config = parse(Parser("index dense", DENSE_PURPOSE, examples), DenseConfig, argv)
    meta = build_dense(config)
    settings = "".join(f", {name} {v:,} ({meta['reasons'][name]})" for name, v in meta["parameters"].items())
    size = f"{megabytes(meta['bytes'])}, {100 * meta['bytes'] / (4 * meta['dim'] * meta['documents']):.0f} % of flat"
    return _told(config, meta, f"{config.index}: {meta['kind']} of {meta['documents']:,} documents, {size}{settings}")


def _postings(argv: list[str]) -> int:
    examples = "python -m dupmae_ir.index postings --index indexes/mine"
    config = parse(Parser("index postings", POSTINGS_PURPOSE, examples), PostingsConfig, argv)
    summary = postings(config)
    size = megabytes(summary["bytes"])
    return _told(config, summary, f"{summary['index']}: postings of {summary['documents']:,} documents, {size}")


def _told(config: Bm25Config | DenseConfig | PostingsConfig, summary: dict[str, Any], sentence: str) -> int:
    """What was built, as JSON where that is asked for, and in a sentence. The command's status."""
    if config.json:
        print(json.dumps(summary))
    say(sentence, config.quiet)
    return 0


def _show(argv: list[str]) -> int:
    examples = "python -m dupmae_ir.index show indexes/mine --verify"
    config = parse(Parser("index show", SHOW_PURPOSE, examples), ShowConfig, argv)
    meta = show(config)
    if config.json:
        print(json.dumps(meta, ensure_ascii=False))
    elif not config.quiet:
        print(config.index)
        rows = [*_shown(meta, config.verify), *show_extras(config).items()]
        print("\n".join(f"  {name.ljust(18)}{value}" for name, value in rows))
    return 0


def _shown(meta: dict[str, Any], verified: bool) -> Iterator[tuple[str, str]]:
    """What a person wants to know of an index, in words."""
    encoder, versions = meta.get("encoder") or {}, meta.get("versions") or {}
    yield "documents", f"{meta['documents']:,} ({meta['empty_documents']:,} without impacts)"
    if meta["dim"] is not None:
        yield "vectors", f"{meta['dim']} wide, float32, inner product"
    if meta["scale"] is not None:
        yield "impacts", f"{meta['postings']:,}, scale {meta['scale']:g}, {meta['clipped']:,} clipped at 255"
    if encoder:
        yield "encoder", f"{encoder.get('name')} ({str(encoder.get('digest'))[:12]})"
        lengths = f"{encoder.get('document_length')} / {encoder.get('query_length')} word pieces"
        yield "document / query", f"{lengths}, top {encoder.get('top_k')}, {encoder.get('dtype')}"
    for source in meta.get("inputs") or []:
        yield "input", f"{source['path']} ({source['documents']:,} documents)"
    yield "made", f"{meta.get('created')} by dupmae_ir {versions.get('dupmae_ir')}, Pyserini {versions.get('pyserini')}"
    yield "digest", f"{meta['digest'][:12]} ({'every byte checked' if verified else 'not read; --verify reads it'})"


VERBS = {
    "bm25": ("a collection to a Lucene BM25 index, Anserini's defaults: the baseline", _bm25),
    "dense": ("a smaller dense index beside the flat one: sq8, ivf-sq8 or hnsw-sq8", _dense),
    "postings": ("impacts by term, for fast search of whole topic sets without Java", _postings),
    "show": ("what an index folder holds, and whether it is whole", _show),
}


if __name__ == "__main__":
    sys.exit(main())
