"""``python -m dupmae_ir.finetune.convert``: published training data as the files that fine-tuning reads."""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dupmae_ir.config import option, parse
from dupmae_ir.console import Parser, guarded, progress, say
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.types import Document

PURPOSE = """
Turn published training data into what finetune reads: pairs with whole passages, or, where negatives are ids of a
collection, a mined file with its record. What is dropped is counted; nothing is guessed.
"""
EXAMPLES = """
dupmae-ir finetune.convert --format dpr --input biencoder-nq-train.json --output nq.jsonl.gz
dupmae-ir finetune.convert --format msmarco-qrels --input qrels.train.tsv --queries queries.train.tsv \\
    --collection collection.tsv --output msmarco.jsonl.gz
dupmae-ir finetune.convert --format st-hard-negatives --input msmarco-hard-negatives.jsonl.gz \\
    --queries queries.train.tsv --collection collection.tsv --output mined.jsonl
"""
FORMATS = (
    "msmarco-qrels", "msmarco-triples", "text-triples", "dpr", "beir", "st-hard-negatives", "tevatron", "titles",
)
BY_ID = ("msmarco-triples", "st-hard-negatives")
"""Formats whose negatives are ids: they become mined files."""


@dataclass(frozen=True)
class ConvertConfig:
    """Everything that ``python -m dupmae_ir.finetune.convert`` can be told."""

    format: str = option(
        help="what the input is: judgements (MS MARCO, or any qrels); triples of ids or of texts; DPR's arrays (NQ, "
        "TriviaQA); a BEIR folder; sentence-transformers' mined negatives of MS MARCO; Tevatron's lines; or a "
        "collection that only needs its titles", group="input", choices=FORMATS,
    )
    input: str = option(help="the file (a folder for beir)", group="input", metavar="PATH")
    output: str = option(help="JSON lines to write; .gz compresses", group="output", metavar="FILE")
    queries: str | None = option(None, "texts of the queries, where the input has ids", group="input", metavar="FILE")
    collection: str | None = option(
        None, "the passages, where the input has ids", group="input", metavar="PATH"
    )
    titles: str | None = option(
        None, "id<TAB>title lines: MS MARCO's passages come without titles", group="input", metavar="FILE"
    )
    split: str = option("train", "of a BEIR folder's judgements", group="input")
    systems: tuple[str, ...] = option(
        (), "of st-hard-negatives, those whose negatives are taken (default: all)", group="input"
    )
    unknown: str = option(
        "refuse", "ids that queries or collection lack: end with an error, or skip and count them", group="input",
        choices=("refuse", "skip"),
    )
    kind: str = option("", "noted on every pair, for finetune --cap", group="output")
    quiet: bool = option(False, "no progress, only errors", group="output")
    json: bool = option(False, "print the summary as JSON on standard output", group="output")


def run(config: ConvertConfig) -> dict[str, Any]:
    """Convert, write ``config.output`` whole or not at all, and return the counts."""
    _check(config)
    counts: Counter[str] = Counter()
    job = _Conversion(config, counts)
    if config.format == "titles":
        rows = job.titled()
    elif config.format in BY_ID:
        rows = job.mined()
    else:
        rows = job.pairs()
    written = _write(Path(config.output), rows, config.quiet)
    if not written:
        Path(config.output).unlink()
        raise InputError(f"{config.input}: nothing in it can be trained on ({_told(counts)})")
    if config.format in BY_ID:
        job.write_record(written)
    say(f"{config.output}: {written:,} lines; {_told(counts)}", config.quiet)
    return {"output": config.output, "lines": written, **counts}


class _Conversion:
    """One run: rows of the input to lines of the output."""

    def __init__(self, config: ConvertConfig, counts: Counter[str]) -> None:
        self.config, self.counts = config, counts
        self.unknown: list[str] = []
        self.inputs: list[Any] = []

    def titled(self) -> Iterator[dict[str, Any]]:
        """The collection with its titles."""
        from dupmae_ir.io.collections import read_collection

        titles = self._titles()
        for document in read_collection(self.config.input):
            title = titles.get(document.docid, document.title)
            self.counts["with a title"] += bool(title)
            yield {"_id": document.docid, "title": title, "text": document.text}

    def pairs(self) -> Iterator[dict[str, Any]]:
        """A line for every positive; the negatives go along with the first."""
        passages = self._passages() if self.config.collection or self.config.format == "beir" else None
        for row in self._rows():
            if not self._usable(row):
                continue
            answers = [d for d in (self._whole(p, passages, row) for p in row.positives) if d is not None]
            negatives = self._kept_negatives(row, answers)
            if not answers:
                self.counts["queries without a positive"] += 1
                continue
            self.counts["queries"] += 1
            for n, positive in enumerate(answers):
                self.counts["positives"] += 1
                line = {"qid": row.qid, "query": row.query, "positive": _plain(positive)}
                if negatives and not n:
                    line["negatives"] = [_plain(d) for d in negatives]
                yield {**line, "kind": self.config.kind} if self.config.kind else line
        self._refuse_unknown()

    def mined(self) -> Iterator[dict[str, Any]]:
        """A line for every query, as mining writes it."""
        passages = self._passages()
        seen: set[str] = set()
        for row in self._rows():
            if not self._usable(row):
                continue
            if row.qid in seen:
                raise InputError(f"{row.where}: query {row.qid} comes a second time; sort the lines by query")
            seen.add(row.qid)
            answers = [d for d in (self._whole(p, passages, row) for p in row.positives) if d is not None]
            if not answers:
                self.counts["queries without a positive"] += 1
                continue
            negatives = self._known_negatives(row, {d.docid for d in answers} | set(map(str, row.positives)), passages)
            self.counts.update({"queries": 1, "positives": len(answers), "negatives": len(negatives)})
            yield {
                "qid": row.qid, "query": row.query, "positives": [_plain(d) for d in answers], "negatives": negatives,
                "scores": [0.0] * len(negatives), "ranks": list(range(1, len(negatives) + 1)), "dropped": {},
            }  # fmt: skip
        self._refuse_unknown()

    def write_record(self, lines: int) -> None:
        """The record that makes a mined file of it."""
        from dupmae_ir.finetune.growing import meta_path
        from dupmae_ir.finetune.mined import inputs_digest
        from dupmae_ir.io.atomic import sha256_file, write_json

        config = self.config
        write_json(meta_path(config.output), {
            "collection": config.collection, "pool": False,
            "collection_digest": inputs_digest(i.sha256 for i in self.inputs),
            "settings": {"format": config.format, "input": sha256_file(config.input), "systems": list(config.systems)},
            "counts": {"lines": lines, **self.counts},
        })  # fmt: skip

    def _rows(self) -> Iterator[Any]:
        from dupmae_ir.finetune import formats
        from dupmae_ir.io.qrels import read_qrels

        config = self.config
        if config.format == "dpr":
            return formats.dpr(config.input)
        if config.format == "tevatron":
            return formats.tevatron(config.input)
        if config.format == "text-triples":
            return formats.text_triples(config.input)
        queries = self._queries()
        if config.format == "st-hard-negatives":
            return formats.st_hard_negatives(config.input, config.systems, queries)
        if config.format == "msmarco-triples":
            return formats.id_triples(config.input, queries)
        return formats.judged(read_qrels(config.input, config.split), queries, config.input)

    def _queries(self) -> dict[str, str]:
        from dupmae_ir.io.topics import read_topics

        source = self.config.queries or Path(self.config.input) / "queries.jsonl"
        return {q.qid: q.text for q in read_topics(str(source))}

    def _titles(self) -> dict[str, str]:
        from dupmae_ir.io.lines import numbered_lines

        titles = {}
        for number, line in numbered_lines(str(self.config.titles)):
            docid, tab, title = line.partition("\t")
            if not tab:
                raise InputError(f"{self.config.titles}:{number}: wants id<TAB>title")
            titles[docid] = title.strip()
        return titles

    def _passages(self) -> Any:
        from dupmae_ir.finetune.mined import Passages

        passages = Passages(self.config.collection or self.config.input)
        self.inputs = passages.inputs
        return passages

    def _usable(self, row: Any) -> bool:
        if row.query.strip():
            return True
        self._note(f"text of query {row.qid or '?'} ({row.where})", "queries without a text")
        return False

    def _whole(self, positive: Document | str, passages: Any, row: Any) -> Document | None:
        if isinstance(positive, Document):
            return positive if positive.joined().strip() else None
        if positive not in passages:
            self._note(f"{positive} of query {row.qid}", "unknown positives")
            return None
        return passages[positive]

    def _kept_negatives(self, row: Any, answers: list[Document]) -> list[Document]:
        """Whole negatives without copies of positives or of each other."""
        from dupmae_ir.finetune.mined import text_key

        known = {text_key(d) for d in answers}
        kept = []
        for document in row.negatives:
            key = text_key(document)
            if key in known:
                self.counts["negatives that are positives or copies"] += 1
            elif document.joined().strip():
                known.add(key)
                kept.append(document)
        self.counts["negatives"] += len(kept)
        return kept

    def _known_negatives(self, row: Any, answers: set[str], passages: Any) -> list[str]:
        kept = []
        for docid in row.negatives:
            if docid in answers:
                self.counts["negatives that are positives or copies"] += 1
            elif docid not in passages:
                self._note(f"{docid} of query {row.qid}", "unknown negatives")
            else:
                kept.append(docid)
        return kept

    def _note(self, what: str, kind: str) -> None:
        self.counts[kind] += 1
        self.unknown.append(what)

    def _refuse_unknown(self) -> None:
        from dupmae_ir.finetune.mined import counted

        if self.unknown and self.config.unknown == "refuse":
            what = counted(self.unknown, "id is unknown", "ids are unknown")
            raise InputError(
                f"{self.config.input}: {what}; give the queries and the collection they belong to, or --unknown skip"
            )


def _check(config: ConvertConfig) -> None:
    wants: dict[str, tuple[str, ...]] = {
        "msmarco-qrels": ("queries", "collection"), "msmarco-triples": ("queries", "collection"),
        "st-hard-negatives": ("queries", "collection"), "titles": ("titles",),
    }  # fmt: skip
    for name in wants.get(config.format, ()):
        if not getattr(config, name):
            raise UsageError(f"--format {config.format} wants --{name}")
    if config.titles and config.format != "titles":
        raise UsageError("--titles: first give the collection its titles (--format titles), then use it as collection")
    if config.systems and config.format != "st-hard-negatives":
        raise UsageError("--systems are of --format st-hard-negatives")
    if config.input.endswith((".pkl", ".pickle", ".pkl.gz")):
        raise UsageError(f"{config.input}: a pickle runs whatever it holds; write its content as JSON lines first")
    if not Path(config.input).exists():
        raise InputError(f"{config.input}: no such file or folder")


def _write(path: Path, rows: Iterator[dict[str, Any]], quiet: bool) -> int:
    from dupmae_ir.io.atomic import atomic_write

    count = 0
    with atomic_write(path, "wb") as raw, progress("converting", "lines", quiet=quiet) as bar:
        # No name and no time in the header: the same input gives the same bytes.
        zipped = gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else None
        out: Any = zipped or raw
        for row in rows:
            out.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
            count += 1
            bar.update()
        if zipped is not None:
            zipped.close()
    return count


def _plain(document: Document) -> dict[str, str]:
    return {"id": document.docid, "title": document.title, "text": document.text}


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{n:,} {what}" for what, n in counts.items() if n) or "nothing"


def main(argv: list[str] | None = None) -> int:
    parser = Parser("finetune.convert", PURPOSE, EXAMPLES)
    return guarded(lambda: _main(parse(parser, ConvertConfig, argv)), parser.prog)


def _main(config: ConvertConfig) -> int:
    summary = run(config)
    if config.json:
        print(json.dumps(summary))  # noqa: T201 - the command's result
    return 0


if __name__ == "__main__":
    sys.exit(main())
