"""``python -m dupmae_ir.index bm25|show``: see ``--help``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from dupmae_ir.config import parse
from dupmae_ir.console import Parser, guarded, say
from dupmae_ir.index.run import Bm25Config, ShowConfig, build, show
from dupmae_ir.registry import suggest

VERBS = {
    "bm25": "a collection to a Lucene BM25 index, Anserini's defaults: the baseline",
    "show": "what an index folder holds, and whether it is whole",
}
BM25_PURPOSE = """
Index a collection for BM25 as Anserini does by default (Porter stemming, k1 0.9, b 0.4, title and text in one field):
the baseline of every table. Stock pyserini.search.lucene --bm25 reads the result.
"""
SHOW_PURPOSE = "Print what an index folder holds and check its parts against each other."


def main(argv: list[str] | None = None) -> int:
    verb, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if verb in ("-h", "--help"):
        return _help()
    if verb == "bm25":
        return guarded(lambda: _bm25(rest), "dupmae-ir index bm25")
    if verb == "show":
        return guarded(lambda: _show(rest), "dupmae-ir index show")
    known = ", ".join(VERBS)
    print(f"dupmae-ir index: no command named {verb!r}; there are {known}.{suggest(verb, VERBS)}", file=sys.stderr)
    return 2


def _help() -> int:
    lines = "\n".join(f"  {verb.ljust(6)}{line}" for verb, line in VERBS.items())
    print(
        "usage: dupmae-ir index COMMAND ...\n\n"
        f"commands:\n{lines}\n\n"
        "examples:\n"
        "  python -m dupmae_ir.index bm25 --corpus corpus.jsonl --index indexes/mine-bm25\n"
        "  python -m dupmae_ir.index show indexes/mine --verify\n\n"
        "Both take --quiet and --json; dupmae-ir index COMMAND --help says more."
    )
    return 0


def _bm25(argv: list[str]) -> int:
    examples = "python -m dupmae_ir.index bm25 --corpus corpus.jsonl --index indexes/mine-bm25"
    config = parse(Parser("index bm25", BM25_PURPOSE, examples), Bm25Config, argv)
    summary = build(config)
    if config.json:
        print(json.dumps(summary))
    say(f"{summary['index']}: {summary['documents']:,} documents", config.quiet)
    return 0


def _show(argv: list[str]) -> int:
    examples = "python -m dupmae_ir.index show indexes/mine --verify"
    config = parse(Parser("index show", SHOW_PURPOSE, examples), ShowConfig, argv)
    meta = show(config)
    if config.json:
        print(json.dumps(meta, ensure_ascii=False))
    elif not config.quiet:
        print(config.index)
        print("\n".join(f"  {name.ljust(18)}{value}" for name, value in _shown(meta, config.verify)))
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


if __name__ == "__main__":
    sys.exit(main())
