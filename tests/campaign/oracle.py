"""Certified lists against float64 sums that numpy computes from the vectors and impacts, without the package's scoring.

Collections of four kinds: documents in several languages, whose vectors have the weight of their language, in an index
that grows, is updated, loses documents and is compacted; the same with a small encoder; drawn vectors of several widths
in windows of several sizes, searched by their codes, as one index and as several; and indexes in Qdrant, Milvus and
PostgreSQL, searched with the folder and with the record alone. Every list must be certified and contain the documents
of the highest sums, equal sums in the order of ids, with conditions, ids and masks, with weights of the two parts, for
each way to search impacts and each dense index.

What a document contributes is remembered when it is first seen, so an index that changes its other documents is found.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from support.mutable_index import Living

from dupmae_ir.__main__ import main as dupmae_ir
from dupmae_ir.encode.run import encoder_record
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.format.rotated import build_rotated
from dupmae_ir.index.format.texts import StoredDocument
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings import kernels
from dupmae_ir.index.postings.format import export_postings
from dupmae_ir.models import load_encoder
from dupmae_ir.models.language_detection import language_of_document
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.testing import HashingEncoder
from dupmae_ir.types import Document, Encoder, Hit, Query
from tests.campaign.records import Record, Records, counted, sum_of
from tests.campaign.servers import _urls as server_urls

TITLE = (
    "Oracle: certified lists against float64 sums of languages, growing indexes, codes and servers"
)
TOLERANCE = 1e-12
"""Of a sum in float64, relative to the sum of the absolute values of its terms."""
WORDS = {
    "en": "the lock of a thread waits for queue heap tree list sort dates month parse line error file",
    "de": "das Schloss der Faden wartet auf Schlange Haufen Baum Liste sortieren Monate Zeile Fehler Datei",
    "fr": "le verrou du fil attend la file tas arbre liste trier dates mois ligne erreur fichier",
    "es": "el cerrojo del hilo espera la cola montón árbol lista ordenar fechas mes línea error archivo",
    "ru": "замок потока ждёт очередь куча дерево список сортировка дата месяц строка ошибка файл",
}
LANGUAGES = [*WORDS, "en", "en", "en"]
"""Most documents are in the language of the index."""
WAYS: list[tuple[str, dict[str, Any]]] = [
    ("dense", {"dense_index": "flat"}),
    ("dense", {"dense_index": "rotated", "batch_size": 1}),
    ("impact", {"impact_search": "lucene"}),
    ("impact", {"impact_search": "postings"}),
    ("hybrid", {"impact_search": "lucene", "dense_index": "rotated", "batch_size": 1}),
    ("hybrid", {"impact_search": "postings", "dense_index": "flat"}),
    ("hybrid", {"impact_search": "postings", "dense_index": "rotated", "batch_size": 1}),
    ("hybrid", {"impact_search": "postings", "dense_index": "rotated", "threads": 2}),
]
assert kernels  # loaded, so that small collections are searched by compiled loops too


class Contribution(NamedTuple):
    """What a document has to offer: its vector (d,) and impacts (V,), in float64."""

    cls: np.ndarray
    ot: np.ndarray


class Restriction(NamedTuple):
    """A restriction of a search, and the documents that satisfy it."""

    name: str
    arguments: dict[str, Any]
    docids: set[str]


@dataclass
class Counts:
    """Lists compared, and what is wrong with those that are. ``end``: when to begin no more of them."""

    end: float
    lists: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.end


def run(seconds: float, seed: int, records: Records) -> None:
    """New collections of every kind until the time is over."""
    end = time.monotonic() + seconds
    number = 0
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        urls = dict(server_urls(folder, stack))
        while time.monotonic() < end:
            for kind in ("languages", "segments", "codes", "codes", *urls):
                if time.monotonic() > end:
                    return
                rng = random.Random(f"{seed} {number}")
                number += 1
                counts = Counts(end)
                with tempfile.TemporaryDirectory(dir=folder) as trial:
                    if kind == "codes":
                        _codes(Path(trial), rng, counts)
                    elif kind in urls:
                        _served(Path(trial), rng, urls[kind], counts)
                    else:
                        _growing(Path(trial), rng, kind == "languages", counts)
                records.add(
                    collection=kind,
                    seed=f"{seed} {number - 1}",
                    lists=counts.lists,
                    wrong=len(counts.problems),
                    words=counts.problems[:1],
                )


def table(records: Sequence[Record]) -> str:
    """Lists and those that differ, by kind of collection."""
    counts = {"indexes": len, "lists": sum_of("lists"), "wrong": sum_of("wrong")}
    return counted(records, "collection", counts, "collection")


def is_wrong(record: Record) -> bool:
    """Whether a list was not the exact one."""
    return record["wrong"] > 0


def problem_of(
    hits: Sequence[Hit], k: int, scores: dict[str, float], slack: dict[str, float], positive: bool
) -> str:
    """What is wrong with the ``k`` best documents; empty if nothing is. ``positive``: only such scores are hits."""
    eligible = [docid for docid in scores if not positive or scores[docid] > 0]
    listed = [hit.docid for hit in hits]
    if len(set(listed)) != len(listed) or not set(listed) <= set(eligible):
        return "a document is there twice, or should not be"
    if len(listed) != min(k, len(eligible)):
        return f"{len(listed)} hits of {min(k, len(eligible))}"
    for hit in hits:
        if abs(hit.score - scores[hit.docid]) > slack[hit.docid]:
            return f"{hit.docid}: {hit.score!r} and not {scores[hit.docid]!r}"
    keys = [(-hit.score, hit.docid) for hit in hits]
    if keys != sorted(keys):
        return "the order is wrong"
    if not listed:
        return ""
    last = hits[-1]
    for docid in set(eligible) - set(listed):
        room = slack[docid] + slack[last.docid]
        if scores[docid] > last.score + room:
            return f"{docid} is missing, with {scores[docid]!r}"
    return ""


class Summed(NamedTuple):
    """Sums of one query: docid -> dense and impact score, and the sum of the absolute values of the dense one."""

    dense: dict[str, float]
    impact: dict[str, float]
    size: dict[str, float]


def summed(
    encoder: Encoder, scale: float, queries: Sequence[Query], known: dict[str, Contribution]
) -> dict[str, Summed]:
    """Text of a query -> its sums over ``known``: docid -> what the document has. ``encoder``: of an opened index,
    whose statistics the weights of words depend on."""
    docids = list(known)
    cls = np.array([known[docid].cls for docid in docids])
    ot = np.array([known[docid].ot for docid in docids])
    # The limits of an impact in a query: of computed and of learned weights.
    highest = 8191 if encoder.settings.ot == "lexical" else 255
    sums = {}
    for query in queries:
        encoded = encoder.encode_queries([query.text])
        vector = np.asarray(encoded.cls)[0].astype(np.float64)
        row = np.asarray(encoded.ot.toarray())[0].astype(np.float64)  # type: ignore[union-attr]
        impact = ot @ np.minimum(np.rint(row * scale), highest) / scale**2
        columns = (cls @ vector, impact, np.abs(cls) @ np.abs(vector))
        sums[query.text] = Summed(
            *(dict(zip(docids, column.tolist(), strict=True)) for column in columns)
        )
    return sums


def compare(
    searcher: Searcher,
    sums: dict[str, Summed],
    queries: Sequence[Query],
    mode: str,
    restriction: Restriction,
    counts: Counts,
    what: str,
) -> None:
    """Compare the lists of a searcher with the sums of the documents that satisfy a restriction."""
    dense_weight, impact_weight = searcher.part_weights if mode == "hybrid" else (1.0, 1.0)
    if mode == "impact":
        dense_weight = 0.0
    if mode == "dense":
        impact_weight = 0.0
    for k in (1, 10, len(sums[queries[0].text].dense)):
        if counts.over:
            return
        for answer in searcher.answers(queries, k, mode, **restriction.arguments):
            counts.lists += 1
            dense, impact, size = sums[answer.query.text]
            scores = {}
            slack = {}
            for docid in restriction.docids:
                weighted_impact = impact_weight * impact[docid]
                scores[docid] = dense_weight * dense[docid] + weighted_impact
                slack[docid] = TOLERANCE * (dense_weight * size[docid] + weighted_impact)
            problem = problem_of(answer.hits, k, scores, slack, mode == "impact")
            if answer.report is None or not answer.report.exact:
                problem = problem or "not certified"
            if problem:
                counts.problems.append(
                    f"{what}, {mode} {searcher.part_weights}, {restriction.name}, {k}, "
                    f"{answer.query.text!r}: {problem}"
                )


def _remember(
    index: Index, known: dict[tuple[str, str], Contribution], texts: dict[str, str]
) -> str:
    """Add the contributions of new documents to ``known``, by id and text; what changed of an old one is a problem."""
    for segment, _, live in index.slices():
        for number in np.flatnonzero(live).tolist():
            docid = segment.docids[number]
            ids, impacts = segment.forward.row(number)
            ot = np.zeros(len(index.terms))
            ot[ids] = impacts
            new = Contribution(np.asarray(segment.vectors[number], np.float64), ot)
            old = known.setdefault((docid, texts[docid]), new)
            if (old.cls != new.cls).any() or (old.ot != new.ot).any():
                return f"{docid} is another document after a change of others"
    return ""


def _text(rng: random.Random, language: str, count: int) -> str:
    return " ".join(rng.choices(WORDS[language].split(), k=count))


def _document(rng: random.Random, docid: str, languages: bool) -> Document:
    language = rng.choice(LANGUAGES) if languages else rng.choice([*WORDS])
    metadata: dict[str, Any] = {"year": rng.choice((1999, 2000.5, 2001, "2000"))}
    if languages:
        metadata["lang"] = language
    elif rng.random() < 0.3:
        metadata = {}
    text = _text(rng, language, rng.choice((0, 1, 3, 20)))
    return Document(docid, text, _text(rng, language, rng.randrange(3)), metadata)


def _queries(rng: random.Random) -> list[Query]:
    texts = [_text(rng, rng.choice([*WORDS]), count) for count in (1, 3, 12)]
    texts.append(f"{_text(rng, 'en', 3)} {_text(rng, rng.choice([*WORDS]), 3)}")
    return [Query(f"q{n}", text) for n, text in enumerate(texts)]


def _restrictions(rng: random.Random, documents: dict[str, Document]) -> list[Restriction]:
    docids = set(rng.sample(sorted(documents), rng.randrange(1, len(documents) + 1)))

    def year(document: Document) -> Any:
        return (document.metadata or {}).get("year")

    late = {
        d
        for d, document in documents.items()
        if isinstance(year(document), float | int) and year(document) >= 2000
    }
    return [
        Restriction("all", {}, set(documents)),
        Restriction("ids", {"within": sorted(docids)}, docids),
        Restriction("year >= 2000", {"filter": "year >= 2000"}, late),
    ]


def _weights(rng: random.Random) -> dict[str, Any]:
    """Weights of the two parts, as the index has them or drawn."""
    if rng.random() < 0.5:
        return {}
    return {"dense_weight": rng.choice((0.25, 1e-3, 3.0)), "impact_weight": rng.choice((0.5, 7.0))}


def _growing(folder: Path, rng: random.Random, languages: bool, counts: Counts) -> None:
    """An index that is changed three times, and searched after each change in every way."""
    first = [_document(rng, f"d{n}", languages) for n in range(rng.randrange(20, 60))]
    first[0] = first[0]._replace(text="the lock of a thread waits", metadata={"year": 2001})
    living = Living(folder, first, "default" if languages else "testing:hashing")
    encoder: Encoder = HashingEncoder()
    if languages:
        # The language of the index is that of most of its first documents.
        encoder = load_encoder("default", language=Index.open(living.index).language)
    known: dict[tuple[str, str], Contribution] = {}
    for change in range(3):
        if change:
            _change(rng, living, languages)
        index = Index.open(living.index)
        texts = {docid: document.joined() for docid, document in living.documents.items()}
        problem = _remember(index, known, texts)
        if languages:
            problem = problem or _wrong_vector(rng, index, living, known, encoder)
        if problem:
            counts.problems.append(problem)
        contributions = {docid: known[docid, text] for docid, text in texts.items()}
        queries = _queries(rng)
        sums = None
        for mode, settings in WAYS:
            if counts.over:
                return
            if change and settings.get("dense_index") == "rotated":
                # A segment that was added has no codes until they are built.
                settings = settings | {"dense_index": "auto"}
            searcher = Searcher.open(index, encoder, **settings)
            if sums is None:
                sums = summed(searcher.encoder, float(index.scale or 1.0), queries, contributions)
            for restriction in _restrictions(rng, living.documents):
                weighted = searcher.with_settings(**(_weights(rng) if mode == "hybrid" else {}))
                what = f"change {change}, {settings}"
                compare(weighted, sums, queries, mode, restriction, counts, what)


def _change(rng: random.Random, living: Living, languages: bool) -> None:
    new = [_document(rng, f"n{rng.random()}", languages) for _ in range(rng.randrange(1, 20))]
    docids = rng.sample(sorted(living.documents), 4)
    living.add(new)
    living.update([_document(rng, docid, languages) for docid in docids[:2]])
    living.delete(docids[2:])
    if rng.random() < 0.4:
        living.compact()


def _wrong_vector(
    rng: random.Random,
    index: Index,
    living: Living,
    known: dict[tuple[str, str], Contribution],
    encoder: Encoder,
) -> str:
    """Whether a vector is not that of the text alone, times the recorded factor of the document's language."""
    record = index.meta["encoder"]
    for docid in rng.sample(sorted(living.documents), 5):
        document = living.documents[docid]
        language = (document.metadata or {}).get("lang")
        if language is None:
            language = language_of_document(document.joined(), record["language"])
        factor = np.float32(record["languages"].get(language, 1.0))
        alone = np.asarray(encoder.encode_documents([document.joined()]).cls)[0] * factor
        stored = known[docid, document.joined()].cls
        if np.abs(alone - stored).max() > 1e-5 * max(1e-9, float(np.abs(alone).max())):
            return f"{docid}: its vector is not that of the text times the weight of {language}"
    return ""


def _codes(folder: Path, rng: random.Random, counts: Counts) -> None:
    """Drawn vectors and impacts, in windows of a drawn size, as one index and as three."""
    drawn = np.random.default_rng(rng.randrange(2**31))
    dim = rng.choice((8, 100, 128, 130, 300))
    terms = rng.choice((40, 300))
    count = rng.choice((70, 400, 1500))
    encoder = HashingEncoder(dim=dim, vocabulary=terms)
    spread = rng.choice((0.0, 1.0, 3.0))
    scales = np.exp(-spread * np.arange(dim) / dim)
    cls = (drawn.standard_normal((count, dim)) * scales).astype(np.float32)
    if rng.random() < 0.5:
        # Rows that are equal, or differ in the last bit.
        half = count // 2
        cls[:half] = cls[drawn.integers(half, count, half)]
        cls[: half // 2] = np.nextafter(cls[: half // 2], np.float32(9))
    density = rng.choice((0.02, 0.3))
    ot = np.where(drawn.random((count, terms)) < density, drawn.integers(1, 256, (count, terms)), 0)
    ids = [f"d{n}" for n in drawn.permutation(count)]
    years = drawn.integers(1990, 2010, count)
    window = rng.choice((64, 256, 1 << 16))
    contributions = {
        docid: Contribution(cls[row].astype(np.float64), ot[row].astype(np.float64))
        for row, docid in enumerate(ids)
    }

    def write(name: str, rows: np.ndarray) -> Path:
        documents = [StoredDocument(ids[row], "", "", {"year": int(years[row])}) for row in rows]
        matrix = sp.csr_matrix(ot[rows].astype(np.uint8))
        path = folder / name
        with IndexBuilder(path, dim=dim, terms=encoder.terms, scale=10.0, texts=True) as builder:
            builder.add_impacts([ids[row] for row in rows], cls[rows], matrix, documents=documents)
            builder.finish({"encoder": encoder_record(encoder, " ")})
        segment = Index.open(path).only_segment
        export_postings(segment, window)
        build_rotated(segment)
        return path

    whole = [write("I", np.arange(count))]
    parts = [write(f"I{n}", rows) for n, rows in enumerate(np.array_split(np.arange(count), 3))]
    mask = drawn.random(count) < drawn.random()
    within = sorted(docid for docid, kept in zip(ids, mask, strict=True) if kept) or [ids[0]]
    late = {docid for docid, year in zip(ids, years, strict=True) if year >= 2000}
    restrictions = [
        Restriction("all", {}, set(ids)),
        Restriction("ids", {"within": within}, set(within)),
        Restriction("year >= 2000", {"filter": "year >= 2000"}, late),
    ]
    queries = [Query(f"q{n}", f"a{rng.random()} b{rng.random()} c {n}") for n in range(4)]
    sums = summed(encoder, 10.0, queries, contributions)
    for folders in (whole, parts):
        index = Index.open(*folders)
        for mode, settings in WAYS:
            searcher = Searcher.open(index, encoder, **settings)
            for restriction in restrictions:
                weighted = searcher.with_settings(**(_weights(rng) if mode == "hybrid" else {}))
                what = f"{len(folders)} of width {dim}, window {window}, {settings}"
                compare(weighted, sums, queries, mode, restriction, counts, what)


def _served(folder: Path, rng: random.Random, url: str, counts: Counts) -> None:
    """An index in a server, with the folder and with its record, before and after a change."""
    documents = [_document(rng, f"d{n}", False) for n in range(rng.randrange(20, 50))]
    documents[0] = documents[0]._replace(text="the lock", metadata={"year": 2001})
    living = Living(folder, documents)
    known: dict[tuple[str, str], Contribution] = {}
    table = ["--table", "oracle", "--quiet"]
    for change in range(2):
        if change:
            _change(rng, living, False)
        if dupmae_ir(["servers", "load", "--index", str(living.index), "--to", url, *table]):
            # milvus-lite may lose its server after a while; what was compared until then counts.
            return
        record = folder / f"record{change}"
        words = ["--to", str(record), "--record", "--quiet"]
        assert dupmae_ir(["index", "push", str(living.index), *words]) == 0
        texts = {docid: document.joined() for docid, document in living.documents.items()}
        problem = _remember(Index.open(living.index), known, texts)
        if problem:
            counts.problems.append(problem)
        contributions = {docid: known[docid, text] for docid, text in texts.items()}
        restrictions = _restrictions(rng, living.documents)
        queries = _queries(rng)
        encoder = HashingEncoder()
        scale = float(Index.open(living.index).scale or 1.0)
        sums = summed(encoder, scale, queries, contributions)
        for opened in (living.index, record):
            searcher = Searcher.open(opened, server=url, table="oracle")
            try:
                for restriction in restrictions:
                    for mode in ("dense", "impact", "hybrid"):
                        weighted = searcher
                        if mode == "hybrid":
                            weighted = searcher.with_settings(**_weights(rng))
                        what = f"{url.partition(':')[0]}, change {change}, {opened.name}"
                        compare(weighted, sums, queries, mode, restriction, counts, what)
            finally:
                # A folder of Qdrant takes one client at a time.
                assert searcher.server is not None
                searcher.server.table.close()
    assert dupmae_ir(["servers", "drop", "--from", url, *table]) == 0
