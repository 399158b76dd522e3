"""``python -m dupmae_ir.finetune.mine``: hard negatives for every query, from BM25 or from a model's own search.

A negative is a passage that the search ranks high and that is no positive of the query: neither by id nor, since
collections hold copies, by text. Nothing is sampled unless asked for: the trainer draws from the whole list, as the
papers do from the top 200.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Collection as Ids
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dupmae_ir.config import option, parse
from dupmae_ir.console import Parser, guarded, progress, say
from dupmae_ir.device import DTYPES, ENGINES, processors
from dupmae_ir.errors import CheckpointError, InputError, UsageError
from dupmae_ir.types import Document, Hit, Query

PURPOSE = """
Mine hard negatives: search with BM25 or with a model, and keep what is found but is no positive of the query (by id
or by text) and no copy of another negative. Reads pairs, or topics with judgements. Writes a line per query, and
beside it a record that names the collection. Interrupted, the same command resumes.
"""
EXAMPLES = """
python -m dupmae_ir.finetune.mine --pairs train.jsonl --by bm25 --output mined/bm25.jsonl
python -m dupmae_ir.finetune.mine --pairs train.jsonl --collection corpus.jsonl --by model --model models/stage1 \\
    --output mined/stage1.jsonl
python -m dupmae_ir.finetune.mine --topics nq/queries.jsonl --qrels nq --collection nq --by bm25 --output mined/nq.jsonl
"""
PARTS = {"hybrid": "cls,ot", "dense": "cls", "impact": "ot"}
WINDOW = 512  #: queries searched between two saves


@dataclass(frozen=True)
class MineConfig:
    """Everything that ``python -m dupmae_ir.finetune.mine`` can be told."""

    output: str = option(help="JSON lines to write; OUTPUT.meta.json says how", group="what", metavar="FILE")
    by: str = option(help="what searches", group="what", choices=("bm25", "model"))
    pairs: tuple[str, ...] = option((), "files of pairs, JSON lines or TSV", group="what", metavar="FILE")
    topics: str | None = option(None, "or queries, with --qrels and --collection", group="what", metavar="FILE")
    qrels: str | None = option(
        None, "their judgements (TREC or BEIR) or a BEIR folder; above 0 is a positive", group="what", metavar="PATH"
    )
    split: str = option("train", "of a BEIR folder's judgements", group="what")
    collection: str | None = option(
        None,
        "what is searched, as encode reads it; without it, the passages of the pairs, written to OUTPUT.passages.jsonl",
        group="what",
        metavar="PATH",
    )
    unknown: str = option(
        "refuse",
        "positives that the collection lacks: end with an error, or skip and count them",
        group="what",
        choices=("refuse", "skip"),
    )
    depth: int = option(200, "hits of each query that are looked at", group="negatives")
    skip_top: int = option(0, "... but not the first so many, which may be unjudged answers", group="negatives")
    negatives: int = option(
        0, "draw so many of each list; 0 = keep all, for the trainer to draw from", group="negatives"
    )
    remove_query: bool = option(False, "drop the document whose id is the topic's (ArguAna, Quora)", group="negatives")
    seed: int = option(0, "of the draw", group="negatives")
    model: str | None = option(None, "model folder for --by model", group="search", metavar="FOLDER")
    parts: str = option("hybrid", "what of the model to search by", group="search", choices=tuple(PARTS))
    document_length: int | None = option(
        None, "word pieces kept per passage; without it, the model's own", group="search"
    )
    query_length: int | None = option(None, "... and per query", group="search")
    dtype: str | None = option(None, "arithmetic; without it, float32", group="search", choices=DTYPES)
    k1: float = option(0.9, "BM25: saturation of term counts", group="search")
    b: float = option(0.4, "BM25: length normalisation, 0 to 1", group="search")
    engine: str = option(
        "lucene",
        "what finds passages by their impacts; postings are made when asked for, and by auto where numba is "
        "installed: the same negatives, much faster",
        group="running",
        choices=ENGINES,
    )
    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps", group="running", metavar="NAME")
    threads: int = option(0, "CPU threads; 0 is one per processor", group="running")
    quiet: bool = option(False, "no progress, only errors", group="output")
    json: bool = option(False, "print the summary as JSON on standard output", group="output")


class Candidate(NamedTuple):
    """A hit that may serve as a negative; rank 1 is the first hit of the search."""

    docid: str
    score: float
    rank: int


@dataclass
class Question:
    """A query and its positives: ids, and the passages as far as they are known."""

    qid: str
    text: str
    positives: dict[str, Document | None] = field(default_factory=dict)


def hard_negatives(
    hits: Sequence[Hit], positives: Ids[str], answers: Ids[int], key: Callable[[str], int | None], skip_top: int = 0
) -> tuple[list[Candidate], dict[str, int]]:
    """The hits after the first ``skip_top`` that are no positive by id, none by text and no copy of one before.

    ``answers`` are the text keys of the positives, ``key`` gives that of a hit. Also returns how many fell for which
    reason, positives among the first ``skip_top`` included.
    """
    dropped = {"positive_id": 0, "positive_text": 0, "duplicate": 0}
    kept: list[Candidate] = []
    seen: set[int | None] = set()
    for rank, hit in enumerate(hits, 1):
        text = key(hit.docid)
        if hit.docid in positives:
            dropped["positive_id"] += 1
        elif text in answers:
            dropped["positive_text"] += 1
        elif rank > skip_top:
            if text in seen:
                dropped["duplicate"] += 1
                continue
            seen.add(text)
            kept.append(Candidate(hit.docid, hit.score, rank))
    return kept, dropped


def run(config: MineConfig) -> dict[str, Any]:
    """Mine, write ``config.output`` and its record, and return the record's counts.

    A finished output with the same settings is left as it is; other settings are refused. Raises
    :class:`DupmaeError` subclasses.
    """
    from dupmae_ir.io.jobs import Job

    _check(config)
    with Job(config.output, "finetune.mine", _settings(config), quiet=config.quiet) as job:
        return job.finished() or _Mining(config, job)()


class _Mining:
    """One run: from the questions to the file."""

    def __init__(self, config: MineConfig, job: Any) -> None:
        self.config, self.job, self.target = config, job, job.target
        self.counts: dict[str, int] = {}
        self.collection_digest = ""
        self.started = time.monotonic()

    def __call__(self) -> dict[str, Any]:
        from dupmae_ir.io.resumable_jsonl import ResumableJsonl

        config = self.config
        self.folder = self.job.begin()
        questions = _judged(config, self.counts) if config.topics else _paired(config, self.counts)
        pool = None if config.collection else self._write_pool()
        source = config.collection or str(pool)
        keys = self._survey(source, questions)
        questions = self._with_positives(questions, keys)
        growing = ResumableJsonl(self.folder / "lines.jsonl", len(questions), WINDOW)
        if growing.done:
            say(f"resuming after {growing.done:,} of {len(questions):,} queries", config.quiet)
        if growing.done < len(questions):
            self._search(source, questions, keys, growing)
        extra: dict[str, Any] = {
            "collection": pool.name if pool else config.collection,
            "pool": pool is not None,
            "collection_digest": self.collection_digest,
        }
        counts = self._counts(growing)
        self._report(counts)
        seconds = round(time.monotonic() - self.started, 1)
        return self.job.publish(growing.path, counts, extra) | {"seconds": seconds}

    def _write_pool(self) -> Path:
        """The passages of the pairs as a collection."""
        from dupmae_ir.io.publishing import atomic_write

        path = self.target.with_name(f"{self.target.name}.passages.jsonl")
        with atomic_write(path) as f:
            for docid, document in _pool(self.config.pairs).items():
                row = {"_id": docid, "title": document.title, "text": document.text}
                f.write(json.dumps(row, ensure_ascii=False) + "\n")
        return path

    def _survey(self, source: str, questions: Iterable[Question]) -> Any:
        """One pass over the collection: text keys of all, and the positives that only their ids are known of."""
        from dupmae_ir.finetune.data.mined import inputs_digest, survey
        from dupmae_ir.io.collections import Collection

        wanted: dict[str, list[Question]] = {}
        for question in questions:
            for docid, document in question.positives.items():
                if document is None:
                    wanted.setdefault(docid, []).append(question)
        with progress("read", "passages", quiet=self.config.quiet) as bar:

            def look(document: Document, _: int) -> None:
                for question in wanted.get(document.docid, ()):
                    question.positives[document.docid] = document
                bar.update()

            collection = Collection(source)
            keys = survey(collection, look)
        self.collection_digest = inputs_digest(i.sha256 for i in collection.inputs)
        return keys

    def _with_positives(self, questions: list[Question], keys: Any) -> list[Question]:
        """The questions that can be trained on. What the collection lacks is refused where only its id is known."""
        from dupmae_ir.finetune.data.mined import counted

        config = self.config
        unknown = [f"{d} of query {q.qid}" for q in questions for d in q.positives if keys.get(d) is None]
        if unknown:
            where = f"not in {config.collection}"
            what = counted(unknown, f"positive is {where}", f"positives are {where}")
            if config.qrels and config.unknown == "refuse":
                raise InputError(f"{config.qrels}: {what}; give the collection they belong to, or --unknown skip")
            say(f"note: {what}", config.quiet)
        for question in questions:
            question.positives = {d: p for d, p in question.positives.items() if p is not None}
        bare = [q.qid for q in questions if not q.positives]
        if bare:
            what = counted(bare, "query has no positive and is left out", "queries have no positive and are left out")
            say(f"note: {what}", config.quiet)
        kept = [q for q in questions if q.positives]
        if not kept:
            raise InputError(f"{config.qrels or config.pairs[0]}: no query has a positive; nothing to mine")
        self.counts |= {
            "queries": len(kept),
            "positives": sum(len(q.positives) for q in kept),
            "unknown_positives": len(unknown),
            "queries_without_positive": len(bare),
        }
        return kept

    def _search(self, source: str, questions: list[Question], keys: Any, growing: Any) -> None:
        config = self.config
        search = (_bm25 if config.by == "bm25" else _by_model)(config, source, self.folder)
        with progress("mine", "queries", len(questions), config.quiet, growing.done) as bar:
            for start in range(growing.done, len(questions), WINDOW):
                window = questions[start : start + WINDOW]
                found = search([Query(q.qid, q.text) for q in window])
                growing.append([self._line(q, found[q.qid], keys) for q in window])
                bar.update(len(window))

    def _line(self, question: Question, hits: Sequence[Hit], keys: Any) -> dict[str, Any]:
        from dupmae_ir.finetune.data.mined import text_key

        config = self.config
        documents = [d for d in question.positives.values() if d is not None]
        positives = {*question.positives, *([question.qid] if config.remove_query else [])}
        answers = {text_key(d) for d in documents}
        # What the collection has under a positive's id may differ from the pair's own text.
        answers |= {k for d in question.positives if (k := keys.get(d)) is not None}
        kept, dropped = hard_negatives(hits, positives, answers, keys.get, config.skip_top)
        if 0 < config.negatives < len(kept):
            drawn = random.Random(f"{config.seed} {question.qid}").sample(kept, config.negatives)
            kept = sorted(drawn, key=lambda c: c.rank)
        return {
            "qid": question.qid,
            "query": question.text,
            "positives": [{"id": i, "title": d.title, "text": d.text} for i, d in question.positives.items() if d],
            "negatives": [c.docid for c in kept],
            "scores": [float(f"{c.score:.6g}") for c in kept],
            "ranks": [c.rank for c in kept],
            "dropped": dropped,
        }

    def _counts(self, growing: Any) -> dict[str, Any]:
        """Summed over the finished lines, so that a resumed run counts the same."""
        total: Counter[str] = Counter()
        bare: list[str] = []
        for row in growing.rows():
            total.update({f"dropped_{k}": n for k, n in row["dropped"].items()} | {"negatives": len(row["negatives"])})
            if not row["negatives"]:
                bare.append(row["qid"])
        return {**self.counts, **total, "queries_without_negative": len(bare), "without_negative": bare[:10]}

    def _report(self, counts: Mapping[str, Any]) -> None:
        from dupmae_ir.finetune.data.mined import counted

        c = {k: f"{v:,}" for k, v in counts.items() if isinstance(v, int)}
        say(
            f"{self.config.output}: {c['negatives']} negatives of {c['queries']} queries; dropped "
            f"{c['dropped_positive_id']} positives, {c['dropped_positive_text']} copies of positives and "
            f"{c['dropped_duplicate']} duplicates",
            self.config.quiet,
        )
        if bare := counts["queries_without_negative"]:
            what = counted(counts["without_negative"], "query has no negative", "queries have no negative", bare)
            say(f"note: {what}", self.config.quiet)


def _judged(config: MineConfig, counts: dict[str, int]) -> list[Question]:
    """The judged topics. Topics without judgements belong to another split; judgements without a topic are counted."""
    from dupmae_ir.finetune.data.mined import counted
    from dupmae_ir.io.qrels import read_qrels
    from dupmae_ir.io.topics import read_topics

    assert config.topics
    assert config.qrels
    topics, qrels = read_topics(config.topics), read_qrels(config.qrels, config.split)
    absent = sorted(set(qrels) - {t.qid for t in topics})
    if len(absent) == len(qrels):
        raise InputError(f"{config.qrels}: judges none of the {len(topics):,} topics of {config.topics}")
    if absent:
        where = f"not in {config.topics}"
        what = counted(absent, f"judged query is {where}", f"judged queries are {where}")
        say(f"note: {what}", config.quiet)
    counts["judged_without_topic"] = len(absent)
    return [
        Question(t.qid, t.text, {d: None for d, grade in qrels[t.qid].items() if grade > 0})
        for t in topics
        if t.qid in qrels
    ]


def _paired(config: MineConfig, counts: dict[str, int]) -> list[Question]:
    """The pairs by query: one question for each distinct text, under an id made of it."""
    from dupmae_ir.finetune.data.pairs import read_pairs

    questions: dict[str, Question] = {}
    pairs = 0
    for path in config.pairs:
        for pair in read_pairs(path):
            pairs += 1
            question = questions.setdefault(pair.query, Question(f"q-{_digest(pair.query)}", pair.query))
            question.positives.setdefault(_id_of(pair.positive), pair.positive)
    counts["pairs"] = pairs
    return list(questions.values())


def _pool(paths: Iterable[str]) -> dict[str, Document]:
    """Every passage of the pairs by id, in order of appearance. One id with two texts is refused."""
    from dupmae_ir.finetune.data.pairs import read_pairs

    pool: dict[str, Document] = {}
    for path in paths:
        for pair in read_pairs(path):
            for document in (pair.positive, *pair.negatives):
                docid = _id_of(document)
                if pool.setdefault(docid, document)[1:] != document[1:]:
                    raise InputError(f"{path}: id {docid!r} names two different passages; make the ids unique")
    return pool


def _id_of(document: Document) -> str:
    """The passage's own id, else one made of its words."""
    return document.docid or f"p-{_digest(document.title + chr(0) + document.text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


Search = Callable[[Sequence[Query]], Mapping[str, Sequence[Hit]]]


def _bm25(config: MineConfig, source: str, folder: Path) -> Search:
    from dupmae_ir.index.bm25 import BM25Searcher
    from dupmae_ir.index.config import Bm25Config
    from dupmae_ir.index.run import run_bm25

    index = folder / "bm25"
    if not index.exists():  # it appears whole or not at all
        run_bm25(Bm25Config(corpus=source, index=str(index), quiet=config.quiet))
    searcher = BM25Searcher(index, config.k1, config.b)
    return lambda queries: searcher.search(queries, config.depth, config.threads or processors())


def _by_model(config: MineConfig, source: str, folder: Path) -> Search:
    from dupmae_ir.encode.config import EncodeConfig
    from dupmae_ir.encode.run import run as encode
    from dupmae_ir.search.searcher import Searcher

    index = str(folder / "index")
    encode(
        EncodeConfig(
            corpus=source,
            index=index,
            model=config.model,
            parts=PARTS[config.parts],
            device=config.device,
            document_length=config.document_length,
            dtype=config.dtype,
            threads=config.threads,
            quiet=config.quiet,
        )
    )
    if config.parts != "dense":
        _lay_out(config, index)
    searcher = Searcher.open(
        index, device=config.device, query_length=config.query_length, threads=config.threads, engine=config.engine
    )

    def search(queries: Sequence[Query]) -> dict[str, list[Hit]]:
        answers: Iterator[Any] = searcher.answers(queries, config.depth, config.parts)
        return {answer.query.qid: answer.hits for answer in answers}

    return search


def _lay_out(config: MineConfig, folder: str) -> None:
    """The postings of the index, for an engine that wants them: it is ours, so nobody else will make them."""
    from importlib.util import find_spec

    from dupmae_ir.index.config import PostingsConfig
    from dupmae_ir.index.postings import folder_of
    from dupmae_ir.index.run import run_postings

    wanted = config.engine == "postings" or (config.engine == "auto" and find_spec("numba") is not None)
    if wanted and not folder_of(folder).exists():  # it appears whole or not at all
        run_postings(PostingsConfig(folder, quiet=config.quiet))


def _settings(config: MineConfig) -> dict[str, Any]:
    """What decides the lines, files by their content. Values that the way of searching leaves out are None."""
    from dupmae_ir.finetune.data.mined import inputs_digest
    from dupmae_ir.io.collections import count_and_digest

    by_model = config.by == "model"
    return {
        "pairs": _files(config.pairs),
        "topics": _files([config.topics]),
        "qrels": _files([config.qrels]),
        "split": config.split if config.topics else None,
        "collection": inputs_digest(d for _, d in count_and_digest(config.collection)) if config.collection else None,
        "unknown": config.unknown,
        "by": config.by,
        "depth": config.depth,
        "skip_top": config.skip_top,
        "negatives": config.negatives,
        "seed": config.seed if config.negatives else None,
        "remove_query": config.remove_query,
        "model": _model_digest(config.model) if by_model else None,
        **{n: getattr(config, n) if by_model else None for n in ("parts", "document_length", "query_length", "dtype")},
        **{n: None if by_model else getattr(config, n) for n in ("k1", "b")},
    }


def _files(paths: Iterable[str | None]) -> str | None:
    """A digest of files; of a folder of judgements, all in it; names of Pyserini's topics stand for themselves."""
    from dupmae_ir.io.publishing import sha256_file

    whole = hashlib.sha256()
    for path in [Path(p) for p in paths if p is not None]:
        inner = sorted([*path.glob("*.tsv"), *path.glob("qrels/*.tsv")]) if path.is_dir() else [path]
        for file in inner:
            whole.update((sha256_file(file) if file.is_file() else file.name).encode())
    return whole.hexdigest() if any(p is not None for p in paths) else None


def _model_digest(model: str | None) -> str:
    from dupmae_ir.models.checkpoints.folder import folder_digest

    assert model
    if model.startswith("testing:"):
        return model
    if not Path(model).is_dir():
        raise CheckpointError(f"{model}: no such model folder; give one that encode can read")
    return folder_digest(model)


def _check(config: MineConfig) -> None:
    judged = (config.topics, config.qrels)
    if bool(config.pairs) == any(judged):
        raise UsageError("give either --pairs, or --topics and --qrels with --collection")
    if any(judged) and not (all(judged) and config.collection):
        raise UsageError("--topics, --qrels and --collection go together")
    if config.collection == "-":
        raise UsageError("--collection - (standard input) can be read once only; give a file")
    if (config.by == "model") != (config.model is not None):
        raise UsageError("--by model needs --model FOLDER, and --model is for --by model only")
    if config.engine != "lucene" and config.by != "model":
        raise UsageError("--engine belongs to --by model; BM25 is Lucene's")
    if not 0 <= config.skip_top < config.depth:
        raise UsageError(f"--skip-top {config.skip_top} must be 0 or more and below --depth {config.depth}")
    if config.negatives < 0 or config.threads < 0:
        raise UsageError("--negatives and --threads must be 0 or more")
    if Path(config.output).is_dir():
        raise UsageError(f"{config.output} is a folder; name a file to write")


def main(argv: list[str] | None = None) -> int:
    return guarded(lambda: _main(argv), "dupmae-ir finetune.mine")


def _main(argv: list[str] | None) -> int:
    config = parse(Parser("finetune.mine", PURPOSE, EXAMPLES), MineConfig, argv)
    summary = run(config)
    if config.json:
        sys.stdout.write(json.dumps(summary) + "\n")
    return 0
