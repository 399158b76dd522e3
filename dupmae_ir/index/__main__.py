"""``python -m dupmae_ir.index bm25|show``: see ``--help``."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dupmae_ir.config import option, parse
from dupmae_ir.console import Parser, guarded, progress, say
from dupmae_ir.errors import UsageError
from dupmae_ir.registry import suggest
from dupmae_ir.types import Document

VERBS = {
    "bm25": "a collection to a Lucene BM25 index, Anserini's defaults: the baseline",
    "show": "what an index folder holds, and whether it is whole",
}
BM25_PURPOSE = """
Index a collection for BM25 as Anserini does by default (Porter stemming, k1 0.9, b 0.4, title and text in one field):
the baseline of every table. Stock pyserini.search.lucene --bm25 reads the result.
"""
SHOW_PURPOSE = "Print what an index folder holds and check its parts against each other."


@dataclass(frozen=True)
class Bm25Config:
    """Everything that ``python -m dupmae_ir.index bm25`` can be told."""

    corpus: str = option(
        help="collection: BEIR corpus.jsonl, Pyserini JSONL, MS MARCO tsv, .gz of these, a folder of them, or - for "
        "standard input", metavar="PATH",
    )  # fmt: skip
    index: str = option(help="index folder to make", metavar="FOLDER")
    fields: tuple[str, ...] = option(
        (), "parts of a document, in order: JSON keys, else pieces of 'contents', else tsv columns after the id; "
        "'_' is ignored", metavar="NAME",
    )  # fmt: skip
    docid_field: str | None = option(None, "JSON key of the id, if not id, _id or docid", metavar="NAME")
    delimiter: str = option("\\n", "what splits 'contents' into --fields (\\n and \\t are understood)", metavar="TEXT")
    heap: str | None = option(None, "memory for Java, as 4g; a quarter of the machine's if not given", metavar="SIZE")
    overwrite: bool = option(False, "replace an older BM25 index, once the new one is complete")
    quiet: bool = option(False, "no progress, only errors")
    json: bool = option(False, "print the summary as JSON on standard output")


@dataclass(frozen=True)
class ShowConfig:
    """Everything that ``python -m dupmae_ir.index show`` can be told."""

    index: str = option(help="index folder to look at", metavar="FOLDER", positional=True)
    verify: bool = option(False, "also read every byte and compare with the digest of when it was made")
    quiet: bool = option(False, "print nothing; the exit status says whether the index is whole")
    json: bool = option(False, "print meta.json's content as JSON")


def build(config: Bm25Config) -> dict[str, Any]:
    """Make the BM25 index and return a summary; an older one stays until the new one is complete."""
    from dupmae_ir import pyserini
    from dupmae_ir.index.bm25 import build_bm25
    from dupmae_ir.io.atomic import replace_folder
    from dupmae_ir.io.collections import Collection
    from dupmae_ir.io.lock import exclusive

    target = Path(config.index).absolute()
    collection = Collection(config.corpus, config.fields, config.docid_field, _unescaped(config.delimiter))
    _check_target(target, config.overwrite)
    aside = target.with_name(f".{target.name}.building")
    with exclusive(target.with_name(f".{target.name}.lock"), f"writing {target}"):
        pyserini.start_jvm(config.heap)
        shutil.rmtree(aside, ignore_errors=True)
        try:
            with progress("bm25", "documents", quiet=config.quiet) as bar:
                documents = build_bm25(_counted(collection, bar), aside)
            replace_folder(aside, target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return {"index": config.index, "documents": documents}


def show(config: ShowConfig) -> dict[str, Any]:
    """Open the index, which checks it, and return its meta. Raises what :meth:`IndexFolder.open` raises."""
    from dupmae_ir.index.folder import IndexFolder

    index = IndexFolder.open(config.index)
    if config.verify:
        index.verify()
    return index.meta


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


def _counted(documents: Any, bar: Any) -> Iterator[Document]:
    for document in documents:
        yield document
        bar.update(1)


def _unescaped(delimiter: str) -> str:
    return delimiter.replace("\\n", "\n").replace("\\t", "\t")


def _check_target(target: Path, overwrite: bool) -> None:
    """Take the place of nothing, an empty folder, or (asked for) a Lucene index."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not target.is_dir() or not any(target.glob("segments_*")):
        raise UsageError(f"{target}: already there and no BM25 index; name another --index")
    if not overwrite:
        raise UsageError(f"{target}: already there; add --overwrite to replace it, or name another --index")


if __name__ == "__main__":
    sys.exit(main())
