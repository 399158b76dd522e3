"""``python -m dupmae_ir.finetune.convert``: published training data as the files that fine-tuning reads."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dupmae_ir.config import option, parse
from dupmae_ir.console import Parser, guarded, progress, say
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.types import Document, Hit

PURPOSE = """
Turn published training data into what finetune reads: pairs with whole passages or, where negatives are ids of a
collection, a mined file with its record. Whatever is left out is counted and named. The output appears whole or not
at all; the same input gives the same bytes.
"""
EXAMPLES = """
dupmae-ir finetune.convert --format dpr --input biencoder-nq-train.json --negatives 30 --output nq.jsonl.gz
dupmae-ir finetune.convert --format msmarco-qrels --input qrels.train.tsv --queries queries.train.tsv \\
    --collection collection.tsv --titles titles.tsv --output msmarco.jsonl.gz
dupmae-ir finetune.convert --format st-hard-negatives --input msmarco-hard-negatives.jsonl.gz \\
    --queries queries.train.tsv --collection collection.tsv --scores scores.tsv --output mined.jsonl
"""
USES: dict[str, tuple[str, ...]] = {
    "msmarco-qrels": ("queries", "collection", "titles", "kind"),
    "msmarco-triples": ("queries", "collection", "scores", "kind"),
    "dpr": ("kind",),
    "beir": ("kind",),
    "st-hard-negatives": ("queries", "collection", "systems", "scores"),
    "tevatron": ("kind",),
    "tsv": ("kind",),
    "titles": ("titles",),
}
"""Which of the options that not all formats have a format knows."""
NEEDS: dict[str, tuple[str, ...]] = {
    "msmarco-qrels": ("queries", "collection"),
    "st-hard-negatives": ("queries", "collection"),
    "titles": ("titles",),
}
SHOWN = 3  #: examples that are named of everything left out


@dataclass(frozen=True)
class ConvertConfig:
    """Everything that ``python -m dupmae_ir.finetune.convert`` can be told."""

    format: str = option(
        help="what the input is: judgements (MS MARCO's, or any); MS MARCO's triples, of ids (with --queries and "
        "--collection) or of texts; DPR's arrays (NQ, TriviaQA); a BEIR folder; sentence-transformers' negatives of MS "
        "MARCO; Tevatron's lines; query<TAB>passage; or a collection that wants --titles",
        group="input",
        choices=tuple(USES),
    )
    input: str = option(help="the file (for beir the folder), gzipped or not", group="input", metavar="PATH")
    output: str = option(help="JSON lines to write, .jsonl or .jsonl.gz", group="output", metavar="FILE")
    queries: str | None = option(None, "texts of the queries, where the input has ids", group="input", metavar="FILE")
    collection: str | None = option(None, "the passages, where the input has ids", group="input", metavar="PATH")
    titles: str | None = option(
        None, "id<TAB>title lines, for passages that come without, as MS MARCO's", group="input", metavar="FILE"
    )
    scores: str | None = option(
        None,
        "a teacher's scores, lines of qid, pid and score or JSON, written to OUTPUT.scores.jsonl as finetune "
        "--scores wants them",
        group="input",
        metavar="FILE",
    )
    split: str = option("train", "of a BEIR folder's judgements", group="input")
    systems: tuple[str, ...] = option(
        (), "of st-hard-negatives, whose negatives are taken; without it, all", group="input", metavar="NAME"
    )
    positives: int = option(0, "at most so many of each query, in their order; 0 keeps all", group="output")
    negatives: int = option(0, "... and so many negatives, hard ones first; 0 keeps all", group="output")
    unknown: str = option(
        "refuse",
        "ids without a text and passages without a score: end with an error, or skip and count them",
        group="input",
        choices=("refuse", "skip"),
    )
    kind: str = option("", "noted on every pair, for finetune --cap", group="output")
    quiet: bool = option(False, "no progress, only errors", group="output")
    json: bool = option(False, "print the summary as JSON on standard output", group="output")


def run(config: ConvertConfig) -> dict[str, Any]:
    """Convert, write ``config.output`` whole or not at all, and return the counts.

    Raises :class:`InputError` naming file and line for what cannot be read, and in one line with counts for unknown
    ids; nothing is written then.
    """
    _check(config)
    from dupmae_ir.io.lines import json_lines

    tally = Tally()
    made = _CONVERSIONS[_result(config)](config, tally)
    lines = 0
    with ExitStack() as files, progress("converting", "lines", quiet=config.quiet) as bar:
        # Published in the reverse order: scores, then the record, and the lines last.
        write = files.enter_context(json_lines(config.output))
        teach = files.enter_context(json_lines(scores_path(config.output))) if config.scores else None
        for line in made.lines():
            write(line)
            if teach:
                teach(made.taught)
            lines += 1
            bar.update()
        if config.unknown == "refuse":
            tally.refuse_unknown(config)
        if not lines:
            raise InputError(f"{config.input}: nothing in it can be trained on ({tally or 'it is empty'})")
        made.finish({"lines": lines, **tally.counts})
    say(f"{config.output}: {lines:,} lines; {tally}", config.quiet)
    return {"output": config.output, "lines": lines, **tally.counts}


def scores_path(output: str | Path) -> Path:
    """Where the teacher's scores that belong to ``output`` are written."""
    return Path(f"{output}.scores.jsonl")


class Tally:
    """What was kept and what was left out, with a few examples of the latter."""

    UNKNOWN = ("unknown_queries", "unknown_positives", "unknown_negatives", "without_score")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}

    def add(self, what: str, count: int = 1) -> None:
        if count:
            self.counts[what] = self.counts.get(what, 0) + count

    def note(self, what: str, example: str) -> None:
        """One more, by name."""
        self.add(what)
        examples = self._examples.setdefault(what, [])
        if len(examples) < SHOWN:
            examples.append(example)

    def refuse_unknown(self, config: ConvertConfig) -> None:
        if told := ", ".join(self._told(u) for u in self.UNKNOWN if u in self.counts):
            raise InputError(f"{config.input}: {told}; give the files they belong to, or --unknown skip")

    def __str__(self) -> str:
        return ", ".join(map(self._told, self.counts))

    def __bool__(self) -> bool:
        return bool(self.counts)

    def _told(self, what: str) -> str:
        count, examples = self.counts[what], self._examples.get(what)
        more = ", ..." if examples and count > len(examples) else ""
        return f"{count:,} {what.replace('_', ' ')}" + (f" ({', '.join(examples)}{more})" if examples else "")


class _Conversion(ABC):
    """One run: rows of the input to lines of the output."""

    taught: Mapping[str, Any]
    """The teacher's scores of the line that came last."""

    def __init__(self, config: ConvertConfig, tally: Tally) -> None:
        self.config, self.tally = config, tally

    @abstractmethod
    def lines(self) -> Iterator[dict[str, Any]]:
        """The lines of the output, in the order of the input."""

    def finish(self, counts: Mapping[str, int]) -> None:  # noqa: B027 - most have nothing to add
        """Called when all lines are written and before they are published."""

    def rows(self) -> Iterator[Any]:
        from dupmae_ir.finetune.data import formats
        from dupmae_ir.io.qrels import read_qrels

        config = self.config
        if config.format == "msmarco-triples":
            by_id = config.collection is not None
            return formats.id_triples(config.input, self.queries) if by_id else formats.text_triples(config.input)
        if config.format == "st-hard-negatives":
            return formats.st_hard_negatives(config.input, self.queries, config.systems)
        if config.format in ("msmarco-qrels", "beir"):
            return formats.judged(read_qrels(config.input, config.split), self.queries, config.input)
        whole = {"dpr": formats.dpr, "tevatron": formats.tevatron, "tsv": formats.text_pairs}
        return whole[config.format](config.input)

    @cached_property
    def queries(self) -> dict[str, str]:
        from dupmae_ir.io.topics import read_topics

        return {q.qid: q.text for q in read_topics(Path(self.config.queries or _beir_queries(self.config.input)))}

    @cached_property
    def passages(self) -> Any:
        """The positives that the input knows by id."""
        from dupmae_ir.finetune.data.mined import Passages

        wanted = {p for row in self.rows() for p in row.positives}
        return Passages(self.config.collection or self.config.input, wanted)

    @cached_property
    def titles(self) -> Any:
        from dupmae_ir.finetune.data.mined import Passages

        return Passages(self.config.titles) if self.config.titles else None

    def answerable(self) -> Iterator[tuple[Any, dict[int, Document]]]:
        """The rows that can be trained on, each with its positives by text key."""
        for row in self.rows():
            name = f"{row.qid or row.query} at {row.where}"
            if row.query is None:
                self.tally.note("unknown_queries", row.qid)
            elif not row.query.strip():
                self.tally.note("queries_without_text", name)
            elif answers := self._answers(row):
                yield row, answers
            else:
                self.tally.note("queries_without_positive", name)

    def _answers(self, row: Any) -> dict[int, Document]:
        from dupmae_ir.finetune.data.mined import text_key

        answers: dict[int, Document] = {}
        for positive in row.positives:
            document = positive if isinstance(positive, Document) else self.passages.get(positive)
            if document is None:
                self.tally.note("unknown_positives", f"{positive} of query {row.qid}")
            elif not document.joined().strip():
                self.tally.add("empty_passages")
            elif answers.setdefault(text_key(document), document) is not document:
                self.tally.add("duplicates")
        return answers

    def titled(self, document: Document) -> Document:
        found = self.titles.get(document.docid) if self.titles else None
        if found is None or not found.text:
            return document
        self.tally.add("with_title")
        return document._replace(title=found.text)


class _Pairs(_Conversion):
    """A line for every positive; its query's negatives go with each."""

    def lines(self) -> Iterator[dict[str, Any]]:
        from dupmae_ir.io.collections import Seen

        seen, config = Seen(), self.config
        for row, answers in self.answerable():
            negatives = [_plain(d) for d in _first(self._negatives(row, answers), config.negatives)]
            fresh = 0
            for positive in _first(list(answers.values()), config.positives):
                pair = {"query": row.query, "positive": _plain(self.titled(positive)), "negatives": negatives}
                if seen.add(json.dumps(pair)):
                    self.tally.add("duplicates")
                    continue
                fresh += 1
                yield {"qid": row.qid, **pair, "kind": config.kind}
            self.tally.add("queries", min(fresh, 1))
            self.tally.add("positives", fresh)
            self.tally.add("negatives", len(negatives) if fresh else 0)

    def _negatives(self, row: Any, answers: Mapping[int, Document]) -> list[Document]:
        """Those with a text that no positive and no other negative has."""
        from dupmae_ir.finetune.data.mined import text_key

        ids = {d.docid for d in answers.values() if d.docid}
        kept: dict[int, Document] = {}
        for document in row.negatives:
            key = text_key(document)
            if not document.joined().strip():
                self.tally.add("empty_passages")
            elif key in answers or document.docid in ids:
                self.tally.add("positives_as_negatives")
            elif kept.setdefault(key, document) is not document:
                self.tally.add("duplicates")
        return list(kept.values())


class _Mined(_Conversion):
    """A line for every query, as mining writes it, with the teacher's scores if there are any."""

    def lines(self) -> Iterator[dict[str, Any]]:
        from dupmae_ir.io.collections import Seen

        seen = Seen()
        for row, answers in self.answerable():
            if seen.add(row.qid):
                raise InputError(f"{row.where}: query {row.qid} comes a second time; sort the lines by query")
            negatives = self._negatives(row, answers)
            positives = list(answers.values())
            if self.teacher is not None:
                scores = self.teacher.get(row.qid) or {}
                positives = [p for p in positives if self._has_score(p.docid, row.qid, scores)]
                negatives = [n for n in negatives if self._has_score(n, row.qid, scores)]
                if not positives:
                    self.tally.note("queries_without_positive", row.qid)
                    continue
            positives, negatives = _first(positives, self.config.positives), _first(negatives, self.config.negatives)
            if self.teacher is not None:
                kept = (*(p.docid for p in positives), *negatives)
                self.taught = {"qid": row.qid, "scores": {d: scores[d] for d in kept}}
            for what, count in (("queries", 1), ("positives", len(positives)), ("negatives", len(negatives))):
                self.tally.add(what, count)
            yield {
                "qid": row.qid,
                "query": row.query,
                "positives": [_plain(p) for p in positives],
                "negatives": negatives,
                "scores": [0.0] * len(negatives),
                "ranks": list(range(1, len(negatives) + 1)),
                "dropped": {},
            }

    def finish(self, counts: Mapping[str, int]) -> None:
        """Write the record. Older lines go first: lines that are there always have their own record."""
        from dupmae_ir.finetune.data.mined import inputs_digest
        from dupmae_ir.io.jobs import record_path
        from dupmae_ir.io.publishing import sha256_file, write_json

        config = self.config
        files = {n: getattr(config, n) for n in ("input", "queries", "scores")}
        settings = {
            "format": config.format,
            "systems": list(config.systems),
            "positives": config.positives,
            "negatives": config.negatives,
            "unknown": config.unknown,
            **{n: sha256_file(path) if path else None for n, path in files.items()},
        }
        Path(config.output).unlink(missing_ok=True)
        write_json(
            record_path(config.output),
            {
                "collection": config.collection,
                "pool": False,
                "collection_digest": inputs_digest(i.sha256 for i in self.passages.inputs),
                "settings": settings,
                "counts": counts,
            },
        )

    @cached_property
    def keys(self) -> Any:
        """docid -> text key of the whole collection."""
        from dupmae_ir.finetune.data.mined import survey
        from dupmae_ir.io.collections import Collection

        return survey(Collection(str(self.config.collection)), lambda *_: None)

    @cached_property
    def teacher(self) -> Any:
        """Query id -> docid -> score; None without --scores."""
        from dupmae_ir.finetune.data.formats import teacher_scores
        from dupmae_ir.finetune.data.mined import Records

        return Records(teacher_scores(self.config.scores)) if self.config.scores else None

    def _negatives(self, row: Any, answers: Mapping[int, Document]) -> list[str]:
        """Ids that the collection knows, without positives, their copies and copies of each other."""
        from dupmae_ir.finetune.mine.run import hard_negatives

        known = [n for n in row.negatives if self._is_known(n, row.qid)]
        hits = [Hit(docid, 0.0) for docid in known]
        kept, dropped = hard_negatives(hits, set(row.positives), answers.keys(), self.keys.get)
        self.tally.add("positives_as_negatives", dropped["positive_id"] + dropped["positive_text"])
        self.tally.add("duplicates", dropped["duplicate"])
        return [c.docid for c in kept]

    def _is_known(self, docid: str, qid: str) -> bool:
        known = self.keys.get(docid) is not None
        if not known:
            self.tally.note("unknown_negatives", f"{docid} of query {qid}")
        return known

    def _has_score(self, docid: str, qid: str, scores: Mapping[str, float]) -> bool:
        if docid not in scores:
            self.tally.note("without_score", f"{docid} of query {qid}")
        return docid in scores


class _Titled(_Conversion):
    """A collection with its titles."""

    def lines(self) -> Iterator[dict[str, Any]]:
        from dupmae_ir.io.collections import read_collection

        for document in read_collection(self.config.input):
            document = self.titled(document)
            yield {"_id": document.docid, "title": document.title, "text": document.text}


_CONVERSIONS: dict[str, type[_Conversion]] = {"pairs": _Pairs, "mined": _Mined, "collection": _Titled}


def _result(config: ConvertConfig) -> str:
    """What comes out: negatives that are ids of a collection need a mined file."""
    if config.format == "titles":
        return "collection"
    by_id = config.format == "st-hard-negatives" or (config.format == "msmarco-triples" and config.collection)
    return "mined" if by_id else "pairs"


def _check(config: ConvertConfig) -> None:
    for name in ("queries", "collection", "titles", "scores", "systems", "kind"):
        if getattr(config, name) and name not in USES[config.format]:
            tip = "; give the collection its titles first (--format titles)" if name == "titles" else ""
            raise UsageError(f"--format {config.format} does not know --{name}{tip}")
    if missing := next((n for n in NEEDS.get(config.format, ()) if not getattr(config, n)), None):
        raise UsageError(f"--format {config.format} wants --{missing}")
    if config.format == "msmarco-triples":
        _check_triples(config)
    if config.positives < 0 or config.negatives < 0:
        raise UsageError("--positives and --negatives must be 0 or more")
    if not config.output.endswith((".jsonl", ".jsonl.gz")) or Path(config.output).is_dir():
        raise UsageError(f"--output {config.output}: name a file that ends in .jsonl or .jsonl.gz")
    for path in (config.input, config.scores):
        _check_readable(path, folder=config.format == "beir")


def _check_triples(config: ConvertConfig) -> None:
    if bool(config.queries) != bool(config.collection):
        raise UsageError("triples of ids want --queries and --collection, triples of texts neither")
    if config.scores and not config.collection:
        raise UsageError("--scores name passages by id; triples of texts have none")
    if config.kind and config.collection:
        raise UsageError("--kind is of pairs; triples of ids become a mined file")


def _check_readable(path: str | None, folder: bool) -> None:
    if path is None:
        return
    if path.removesuffix(".gz").endswith((".pkl", ".pickle")):
        raise UsageError(f"{path}: a pickle can run anything; write its content as lines of qid, pid and score first")
    if not Path(path).exists():
        raise InputError(f"{path}: no such file or folder")
    if Path(path).is_dir() != folder:
        raise InputError(f"{path}: wants a {'BEIR folder' if folder else 'file, not a folder'}")


def _beir_queries(folder: str) -> Path:
    plain = Path(folder) / "queries.jsonl"
    zipped = plain.with_suffix(".jsonl.gz")
    return zipped if zipped.is_file() and not plain.is_file() else plain


def _first(values: list[Any], count: int) -> list[Any]:
    return values[:count] if count else values


def _plain(document: Document) -> dict[str, str]:
    return {"id": document.docid, "title": document.title, "text": document.text}


def main(argv: list[str] | None = None) -> int:
    parser = Parser("finetune.convert", PURPOSE, EXAMPLES)
    return guarded(lambda: _main(parse(parser, ConvertConfig, argv)), parser.prog)


def _main(config: ConvertConfig) -> int:
    summary = run(config)
    if config.json:
        sys.stdout.write(json.dumps(summary) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
