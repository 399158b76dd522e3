"""``dupmae-ir finetune.convert``: rows of published formats become lines of pairs or of mined negatives."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

from dupmae_ir.command import Command
from dupmae_ir.config import OutputOptions, input_option, output_option
from dupmae_ir.console import progress
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.finetune import formats
from dupmae_ir.finetune.data import (
    MAX_EXAMPLES,
    HardNegative,
    IdTable,
    Passages,
    Records,
    counted,
    files_digest,
    hard_negatives,
    mined_line,
    passage_object,
    text_key,
    write_file,
)
from dupmae_ir.finetune.formats import PublishedRow
from dupmae_ir.io.collections import LinesCollection, Seen, read_collection
from dupmae_ir.io.jobs import Job
from dupmae_ir.io.lines import json_lines
from dupmae_ir.io.publishing import combined_digest, move_into_place
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.types import Document, Hit

T = TypeVar("T")
FORMATS = (
    "msmarco-qrels",
    "msmarco-triples",
    "dpr",
    "beir",
    "st-hard-negatives",
    "tevatron",
    "tsv",
    "titles",
)
REQUIRED: dict[str, tuple[str, ...]] = {
    "msmarco-qrels": ("queries", "collection"),
    "st-hard-negatives": ("queries", "collection"),
    "titles": ("titles",),
}
"""Format -> the options it cannot do without."""

PAIR_FORMATS = ("msmarco-qrels", "msmarco-triples", "dpr", "beir", "tevatron", "tsv")
"""Formats that may become pairs."""
_BY_ID = ("format=msmarco-qrels", "format=msmarco-triples", "format=st-hard-negatives")


@dataclass(frozen=True, kw_only=True)
class ConvertConfig(OutputOptions):
    r"""Convert published training data to the formats that finetune reads: pairs with complete passages or, where
    negatives are ids of a collection, a mined file. Whatever is left out is counted and named. The same input gives the
    same bytes.

    Examples:
        dupmae-ir finetune.convert --format dpr --input biencoder-nq-train.json --negatives 30 --output nq.jsonl.gz
        dupmae-ir finetune.convert --format msmarco-qrels --input qrels.train.tsv --queries queries.train.tsv \
            --collection collection.tsv --titles titles.tsv --output msmarco.jsonl.gz
        dupmae-ir finetune.convert --format st-hard-negatives --input msmarco-hard-negatives.jsonl.gz \
            --queries queries.train.tsv --collection collection.tsv --scores scores.tsv --output mined.jsonl
    """

    format: str = input_option(
        help="format of the input: msmarco-qrels = judgements (MS MARCO's or any); msmarco-triples = MS MARCO's "
        "triples, of ids (with --queries and --collection) or of texts; dpr = DPR's arrays (NQ, TriviaQA); beir = a "
        "BEIR folder; st-hard-negatives = sentence-transformers' negatives of MS MARCO; tevatron = Tevatron's lines; "
        "tsv = query<TAB>passage; titles = a collection that gets its --titles",
        choices=FORMATS,
    )
    input: str = input_option(help="the file (for beir the folder), gzipped or not", metavar="PATH")
    output: str = output_option(help="JSON lines to write, .jsonl or .jsonl.gz", metavar="FILE")
    queries: str | None = input_option(
        None, "texts of the queries, for an input of ids", metavar="FILE", only_with=_BY_ID
    )
    collection: str | None = input_option(
        None, "the passages, for an input of ids", metavar="PATH", only_with=_BY_ID
    )
    titles: str | None = input_option(
        None,
        "id<TAB>title lines for passages without a title, such as MS MARCO's; for a mined file, convert the collection "
        "with --format titles first",
        metavar="FILE",
        only_with=("format=msmarco-qrels", "format=titles"),
    )
    scores: str | None = input_option(
        None,
        "a teacher's scores, lines of qid, pid and score or JSON; written to OUTPUT.scores.jsonl in the format of "
        "finetune --scores",
        metavar="FILE",
        only_with=("format=msmarco-triples", "format=st-hard-negatives"),
    )
    split: str = input_option("train", "split of a BEIR folder's judgements")
    systems: tuple[str, ...] = input_option(
        (),
        "systems whose negatives are taken (default: all)",
        metavar="NAME",
        only_with="format=st-hard-negatives",
    )
    margin: float | None = input_option(
        None,
        "leave out negatives whose cross-encoder score is above the lowest positive's minus N (BEIR's script: 3)",
        metavar="N",
        at_least=0,
        only_with="format=st-hard-negatives",
    )
    per_system: int = input_option(
        0,
        "keep the first N negatives of each system that no earlier system has (BEIR's script: 5); 0 = all",
        at_least=0,
        only_with="format=st-hard-negatives",
    )
    positives: int = output_option(
        0, "keep at most the first N positives per query; 0 = all", at_least=0
    )
    negatives: int = output_option(
        0, "keep at most the first N negatives per query, hard ones first; 0 = all", at_least=0
    )
    unknown: str = input_option(
        "refuse",
        "ids without a text and passages without a score: end with an error, or skip and count them",
        choices=("refuse", "skip"),
    )
    kind: str = output_option(
        "",
        "stored with every pair, for finetune --cap",
        only_with=tuple(f"format={name}" for name in PAIR_FORMATS),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in REQUIRED.get(self.format, ()):
            if not getattr(self, name):
                raise UsageError(f"`format` {self.format} requires `{name}`")
        if not self.output.endswith((".jsonl", ".jsonl.gz")):
            raise UsageError(
                f"`output` {self.output}: name a file that ends in .jsonl or .jsonl.gz"
            )
        if self.format != "msmarco-triples":
            return
        if bool(self.queries) != bool(self.collection):
            raise UsageError(
                "triples of ids require `queries` and `collection`, triples of texts neither"
            )
        if self.scores and not self.collection:
            raise UsageError("`scores` refer to passages by id; triples of texts have none")
        if self.kind and self.collection:
            raise UsageError("`kind` applies to pairs; triples of ids become a mined file")

    @property
    def result(self) -> str:
        """``pairs``, ``collection``, or ``mined`` where negatives are ids of a collection."""
        if self.format == "titles":
            return "collection"
        if self.format == "st-hard-negatives":
            return "mined"
        if self.format == "msmarco-triples" and self.collection:
            return "mined"
        return "pairs"


FILES = ("input", "queries", "collection", "titles", "scores")
UNKNOWN = ("unknown_queries", "unknown_positives", "unknown_negatives", "without_score")
"""Counts of ids without a text and of passages without a score."""


def run(config: ConvertConfig) -> dict[str, object]:
    """Convert, write ``config.output`` and its record, and return the counts.

    Raises :class:`InputError` naming file and line for what cannot be read, and in one line with counts for unknown
    ids; see :mod:`dupmae_ir.io.jobs` for what a second run returns.
    """
    for path in filter(None, (config.input, config.scores)):
        if path.removesuffix(".gz").endswith((".pkl", ".pickle")):
            raise UsageError(
                f"{path}: a pickle may run any code; convert it to lines of qid, pid and score first"
            )
        if not Path(path).exists():
            raise InputError(f"{path}: no such file or folder")
        if Path(path).is_dir() != (config.format == "beir"):
            expected = "BEIR folder" if config.format == "beir" else "file, not a folder"
            raise InputError(f"{path}: expected a {expected}")
    digests = {"input": lambda path: files_digest(path, ("*.jsonl*", "qrels/*.tsv"))}
    return write_file(config, "finetune.convert", FILES, lambda job: _convert(config, job), digests)


def scores_path(output: str | Path) -> Path:
    """Where the teacher's scores that belong to ``output`` are written."""
    return Path(f"{output}.scores.jsonl")


def _convert(config: ConvertConfig, job: Job) -> dict[str, object]:
    target = job.begin() / Path(config.output).name
    conversion = Conversion(config)
    line_count = 0
    with ExitStack() as files, progress("convert", "lines", quiet=config.quiet) as bar:
        write = files.enter_context(json_lines(target))
        write_scores = None
        if config.scores:
            write_scores = files.enter_context(json_lines(scores_path(target)))
        for line in conversion.lines():
            write(line)
            if write_scores is not None:
                write_scores(conversion.teacher_line)
            line_count += 1
            bar.update()
        conversion.check(line_count)
    # Before the job publishes: a kill in between leaves no output without its scores.
    if config.scores:
        move_into_place(scores_path(target), scores_path(config.output))
    return job.publish(target, {"lines": line_count, **conversion.counts}, conversion.record())


class AnswerableRow(NamedTuple):
    """A row with its query, and its positives by text key."""

    row: PublishedRow
    query: str
    answers: dict[int, Document]


class Conversion:
    """Converts the rows of the input to lines of the output, and counts what is kept and left out."""

    def __init__(self, config: ConvertConfig) -> None:
        self.config = config
        self.counts: dict[str, int] = {}
        #: A few examples of what is left out, by the name of its count.
        self.examples: dict[str, list[str]] = {}
        #: The teacher's scores that belong to the last line.
        self.teacher_line: Mapping[str, object] = {}

    def lines(self) -> Iterator[Mapping[str, object]]:
        """The lines of the output, in the order of the input."""
        if self.config.result == "collection":
            return self._collection_lines()
        if self.config.result == "pairs":
            return self._pair_lines()
        return self._mined_lines()

    def record(self) -> dict[str, object]:
        """For negatives by id, the collection that they belong to, as mining records it."""
        if self.config.result != "mined":
            return {}
        digest = combined_digest(file.sha256 for file in self.passages.inputs)
        return {"collection": self.config.collection, "pool": False, "collection_digest": digest}

    def check(self, line_count: int) -> None:
        """Raise :class:`InputError` for unknown ids, unless they are skipped, and for an output without lines."""
        unknown = [name for name in UNKNOWN if name in self.counts]
        if unknown and self.config.unknown == "refuse":
            counts = self._describe_counts(unknown)
            raise InputError(
                f"{self.config.input}: {counts}; give the files they belong to, or `unknown` skip"
            )
        if not line_count:
            reason = self._describe_counts(self.counts) or "it is empty"
            raise InputError(f"{self.config.input}: nothing in it can be trained on ({reason})")

    def _describe_counts(self, names: Iterable[str]) -> str:
        """``5 unknown queries (a, b, c, ...), 2 duplicates``."""
        counts = []
        for name in names:
            words = name.replace("_", " ")
            counts.append(counted(self.examples.get(name, []), words, words, self.counts[name]))
        return ", ".join(counts)

    def _count(self, name: str, count: int = 1, example: str = "") -> None:
        if count:
            self.counts[name] = self.counts.get(name, 0) + count
        examples = self.examples.setdefault(name, [])
        if example and len(examples) < MAX_EXAMPLES:
            examples.append(example)

    def _rows(self) -> Iterator[PublishedRow]:
        config = self.config
        if config.format == "msmarco-triples" and config.collection:
            return formats.id_triples(config.input, self.queries)
        if config.format == "st-hard-negatives":
            return formats.st_hard_negatives(
                config.input, self.queries, config.systems, config.margin, config.per_system
            )
        if config.format in ("msmarco-qrels", "beir"):
            qrels = read_qrels(config.input, config.split)
            return formats.judged(qrels, self.queries, config.input)
        readers = {
            "msmarco-triples": formats.text_triples,
            "dpr": formats.dpr,
            "tevatron": formats.tevatron,
            "tsv": formats.text_pairs,
        }
        return readers[config.format](config.input)

    @cached_property
    def queries(self) -> dict[str, str]:
        """Query texts by id."""
        if self.config.queries:
            path = Path(self.config.queries)
        else:
            path = formats.beir_queries(self.config.input)
        return {query.qid: query.text for query in read_topics(path)}

    @cached_property
    def passages(self) -> Passages:
        """The positives that the input names by id."""
        # A first pass over the input, so that only the passages that are needed are kept.
        ids = set()
        for row in self._rows():
            for positive in row.positives:
                if isinstance(positive, str):
                    ids.add(positive)
        return Passages(self.config.collection or self.config.input, ids)

    @cached_property
    def titles(self) -> Passages | None:
        """Titles by docid, as texts; None if no file of titles is given."""
        if not self.config.titles:
            return None
        return Passages(self.config.titles)

    @cached_property
    def keys(self) -> IdTable:
        """Text keys of the complete collection by docid."""
        collection = LinesCollection(str(self.config.collection))
        return IdTable((document.docid, text_key(document)) for document in collection)

    @cached_property
    def teacher(self) -> Records | None:
        """Scores by docid, by query id; None if no file of scores is given."""
        if not self.config.scores:
            return None
        return Records(formats.teacher_scores(self.config.scores))

    def _answerable(self) -> Iterator[AnswerableRow]:
        """The rows with a query and a positive."""
        for row in self._rows():
            name = f"{row.qid or row.query} at {row.where}"
            if row.query is None:
                self._count("unknown_queries", example=row.qid)
                continue
            if not row.query.strip():
                self._count("queries_without_text", example=name)
                continue
            answers = self._answers(row)
            if not answers:
                self._count("queries_without_positive", example=name)
                continue
            yield AnswerableRow(row, row.query, answers)

    def _answers(self, row: PublishedRow) -> dict[int, Document]:
        """The positives of a row by text key."""
        answers: dict[int, Document] = {}
        for positive in row.positives:
            document: Document | None
            if isinstance(positive, Document):
                document = positive
            else:
                document = self.passages.get(positive)
            if document is None:
                self._count("unknown_positives", example=f"{positive} of query {row.qid}")
            elif not document.joined().strip():
                self._count("empty_passages")
            elif answers.setdefault(text_key(document), document) is not document:
                self._count("duplicates")
        return answers

    def _titled(self, document: Document) -> Document:
        """The passage with the title that the file of titles has for it, if any."""
        if self.titles is None:
            return document
        title = self.titles.get(document.docid)
        if title is None or not title.text:
            return document
        self._count("with_title")
        return document._replace(title=title.text)

    def _collection_lines(self) -> Iterator[Mapping[str, object]]:
        """The passages of the input with their titles."""
        for document in map(self._titled, read_collection(self.config.input)):
            yield {"_id": document.docid, "title": document.title, "text": document.text}

    def _pair_lines(self) -> Iterator[Mapping[str, object]]:
        """A line for every positive, each with the negatives of its query."""
        config = self.config
        seen = Seen()
        for row, query, answers in self._answerable():
            passages = _first(self._negative_passages(row, answers), config.negatives)
            negatives = [passage_object(passage) for passage in passages]
            pair_count = 0
            for positive in _first(list(answers.values()), config.positives):
                pair = {
                    "query": query,
                    "positive": passage_object(self._titled(positive)),
                    "negatives": negatives,
                }
                if seen.add(json.dumps(pair)):
                    self._count("duplicates")
                    continue
                pair_count += 1
                yield {"qid": row.qid, **pair, "kind": config.kind}
            self._count("queries", min(pair_count, 1))
            self._count("positives", pair_count)
            self._count("negatives", len(negatives) if pair_count else 0)

    def _negative_passages(
        self, row: PublishedRow, answers: Mapping[int, Document]
    ) -> list[Document]:
        """The negatives whose text is neither a positive's nor an earlier negative's."""
        positive_ids = {positive.docid for positive in answers.values() if positive.docid}
        negatives: dict[int, Document] = {}
        for document in row.negatives:
            if not isinstance(document, Document):
                continue
            key = text_key(document)
            if not document.joined().strip():
                self._count("empty_passages")
            elif key in answers or document.docid in positive_ids:
                self._count("positives_as_negatives")
            elif negatives.setdefault(key, document) is not document:
                self._count("duplicates")
        return list(negatives.values())

    def _mined_lines(self) -> Iterator[Mapping[str, object]]:
        """A line for every query in the format of mining; ``teacher_line`` has its scores if there is a teacher."""
        seen = Seen()
        for row, query, answers in self._answerable():
            if seen.add(row.qid):
                raise InputError(
                    f"{row.where}: query {row.qid} occurs twice; sort the lines by query"
                )
            negatives = self._negative_ids(row, answers)
            positives = {positive.docid: positive for positive in answers.values()}
            if self.teacher is not None:
                scores = self.teacher.get(row.qid) or {}
                for docid in (*positives, *negatives):
                    if docid not in scores:
                        self._count("without_score", example=f"{docid} of query {row.qid}")
                scored_positives = {}
                for docid, positive in positives.items():
                    if docid in scores:
                        scored_positives[docid] = positive
                positives = scored_positives
                negatives = [docid for docid in negatives if docid in scores]
                if not positives:
                    self._count("queries_without_positive", example=row.qid)
                    continue
            positives = dict(_first(list(positives.items()), self.config.positives))
            negatives = _first(negatives, self.config.negatives)
            if self.teacher is not None:
                line_scores = {docid: scores[docid] for docid in (*positives, *negatives)}
                self.teacher_line = {"qid": row.qid, "scores": line_scores}
            self._count("queries")
            self._count("positives", len(positives))
            self._count("negatives", len(negatives))
            ranked = [HardNegative(docid, 0.0, rank) for rank, docid in enumerate(negatives, 1)]
            yield mined_line(row.qid, query, positives, ranked)

    def _negative_ids(self, row: PublishedRow, answers: Mapping[int, Document]) -> list[str]:
        """The ids that the collection contains, without positives, their copies and copies of each other."""
        hits = []
        for docid in map(str, row.negatives):
            if self.keys.get(docid) is not None:
                hits.append(Hit(docid, 0.0))
            else:
                self._count("unknown_negatives", example=f"{docid} of query {row.qid}")
        negatives, dropped = hard_negatives(
            hits, set(map(str, row.positives)), answers.keys(), self.keys.get
        )
        self._count("positives_as_negatives", dropped["positive_id"] + dropped["positive_text"])
        self._count("duplicates", dropped["duplicate"])
        return [negative.docid for negative in negatives]


def _first(values: list[T], count: int) -> list[T]:
    """The first ``count`` values; all of them for 0."""
    if not count:
        return values
    return values[:count]


def summarize(config: ConvertConfig, result: Mapping[str, object]) -> str:
    """The closing line: lines written, and every count."""
    counts = []
    for name, value in result.items():
        if isinstance(value, int) and name != "lines":
            counts.append(f"{value:,} {name.replace('_', ' ')}")
    return f"{config.output}: {result['lines']:,} lines; {', '.join(counts)}"


main = Command(
    "finetune.convert", ConvertConfig, "dupmae_ir.finetune.convert:run", summarize=summarize
)

if __name__ == "__main__":
    main.exit()
