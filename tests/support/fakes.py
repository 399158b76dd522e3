"""Synthetic stand-ins of every collection that can be downloaded, for tests without a network.

``python tests/support/fakes.py FOLDER`` writes ``FOLDER/HOST/PATH``, which any web server can serve, and
``FOLDER/catalogue.toml``, the catalogue that describes them:

    python -m http.server 8000 --directory FOLDER &
    dupmae-ir collections get beir-14 --mirror http://127.0.0.1:8000 --catalogue FOLDER/catalogue.toml

``FOLDER/licensed/NAME`` are stand-ins of three licensed sets (:func:`put_licensed`). Robust04 has none, because its
judgements are not available here.

The archives have the layout of the real ones. Topics and judgements are real, restricted to 20 to 30 queries per test
and to the documents kept. These are the best judged documents of each query, with synthetic texts of query words and
noise, so that retrieval is neither trivial nor impossible. DPR's queries are replaced by BEIR's, with synthetic
answers. The output is the same on every run.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import random
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dupmae_ir.collections import (
    Cache,
    Test,
    TestCollection,
    find,
    load,
    names,
    qrels_digest,
    topics_digest,
)
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "topics-and-qrels"
QUERIES = {"dev": 30, "dl19": 20, "dl20": 20, "test": 30}  #: queries kept per test
#: judged documents kept per query: relevant, not relevant
RELEVANT = 10
OTHERS = 4
NOISE = 300  #: unjudged documents; more than the 256 texts that pre-training holds out
OMITTED = ("beir-robust04", "demo")
DPR_QUERIES = {"dpr-nq": "nq", "dpr-trivia": "hotpotqa"}  #: BEIR's queries instead of DPR's
# ArguAna's judgements contain a document that is not in its corpus (beir issue 101).
DANGLING = {
    "beir-arguana": (
        "test-free-speech-debate-yfsdfkhbwu-con03a",
        "test-free-speech-debate-yfsdfkhbwu-con03b",
    )
}


@dataclass
class StandIn:
    """The content of one stand-in."""

    collection: TestCollection
    queries: dict[str, dict[str, str]] = field(default_factory=dict)  #: test -> query id -> text
    qrels: dict[str, dict[str, dict[str, int]]] = field(
        default_factory=dict
    )  #: test -> query id -> docid -> grade
    answers: dict[str, list[str]] = field(default_factory=dict)
    documents: dict[str, tuple[str, str]] = field(default_factory=dict)  #: docid -> (title, text)


def write_standins(folder: Path, shared: Path = SHARED, only: Iterable[str] | None = None) -> Path:
    """Write the files for the collections in ``only`` (default: all); returns the catalogue's path."""
    made = [stand_in(find(name), shared) for name in only or names() if name not in OMITTED]
    _share_passages([one for one in made if one.collection.family == "dpr"])
    files = _archives([one for one in made if not one.collection.licensed])
    for url, content in files.items():
        _write(folder / url.partition("://")[2], content)
    for one in made:
        if one.collection.licensed:
            for name, content in _beir(one, "").items():
                _write(folder / "licensed" / one.collection.name / name, content)
    catalogue = folder / "catalogue.toml"
    _write(catalogue, "\n".join(line for one in made for line in _entry(one, files)).encode())
    return catalogue


def put_licensed(folder: Path, cache: Path) -> list[str]:
    """Copy the stand-ins of the licensed sets to where ``get`` expects them; returns their names."""
    root = Cache.of(load(folder / "catalogue.toml"), cache).root
    shutil.copytree(folder / "licensed", root / "licensed", dirs_exist_ok=True)
    return sorted(path.name for path in (folder / "licensed").iterdir())


def stand_in(collection: TestCollection, shared: Path = SHARED) -> StandIn:
    """The stand-in of one collection: queries, judgements and documents."""
    one = StandIn(collection)
    for test in collection.tests.values():
        topics, qrels = _originals(collection, test, shared)
        # Collections with the same judgements (with and without titles) get the same queries and texts.
        draw = random.Random(f"{test.qrels_digest or collection.name} {test.name}")
        chosen = draw.sample(
            sorted(q for q, found in qrels.items() if max(found.values()) > 0), QUERIES[test.name]
        )
        if collection.name in DANGLING and DANGLING[collection.name][0] not in chosen:
            chosen[0] = DANGLING[collection.name][0]
        one.queries[test.name] = {qid: topics[qid] for qid in chosen}
        one.qrels[test.name] = {qid: _kept(qrels[qid]) for qid in chosen}
    _add_documents(one)
    if collection.family == "dpr":
        _use_answers(one)
    return one


def _originals(
    collection: TestCollection, test: Test, shared: Path
) -> tuple[dict[str, str], Mapping[str, Mapping[str, int]]]:
    """The real topics and judgements of a test."""
    if collection.family == "msmarco":
        topics, qrels = (
            Path(collection.sources[f"{test.name}-{part}"].url).name for part in ("topics", "qrels")
        )
    else:
        name = DPR_QUERIES.get(collection.name) or collection.name.removeprefix("beir-")
        topics = f"topics.beir-v1.0.0-{name}.test.tsv.gz"
        qrels = f"qrels.beir-v1.0.0-{name}.test.txt"
    return {q.qid: q.text for q in read_topics(shared / topics)}, read_qrels(shared / f"{qrels}.gz")


def _kept(judged: Mapping[str, int]) -> dict[str, int]:
    """The best documents of a query, and a few that are not relevant."""
    ranked = sorted(judged.items(), key=lambda item: (-item[1], item[0]))
    good = [item for item in ranked if item[1] > 0][:RELEVANT]
    return dict(good + [item for item in ranked if item[1] <= 0][:OTHERS])


def _add_documents(one: StandIn) -> None:
    """Add a text of query words for every judged document, and unjudged documents."""
    words: dict[str, list[str]] = {}
    texts = {qid: text for queries in one.queries.values() for qid, text in queries.items()}
    for qrels in one.qrels.values():
        for qid, judged in qrels.items():
            for docid, grade in judged.items():
                draw = random.Random(f"{qid} {docid}")
                terms = texts[qid].split()[:60]
                share = max(
                    1, round(len(terms) * (0.35 + 0.15 * min(grade, 3) if grade > 0 else 0.15))
                )
                words.setdefault(docid, []).extend(draw.sample(terms, share))
    pool = sorted({word for text in texts.values() for word in text.split()})
    for number in range(NOISE):
        words[_free_id(words, number)] = random.Random(f"noise {number}").sample(
            pool, min(6, len(pool))
        )
    words.pop(DANGLING.get(one.collection.name, ("", ""))[1], None)
    for docid in sorted(words):
        draw = random.Random(docid)
        text = words[docid] + [_noise_word(draw) for _ in range(draw.randint(15, 40))]
        draw.shuffle(text)
        one.documents[docid] = (
            " ".join(_noise_word(draw) for _ in range(3)).capitalize(),
            " ".join(text) + ".",
        )
    if one.collection.remove_query:
        one.documents |= {qid: ("", text) for qid, text in texts.items()}


def _free_id(taken: Mapping[str, Any], number: int) -> str:
    """An unused id in the style of the collection."""
    prefix = "D" if next(iter(taken)).startswith("D") and next(iter(taken))[1:].isdecimal() else ""
    return f"{prefix}{90_000_000 + number}"


def _noise_word(draw: random.Random) -> str:
    return "".join(
        draw.choice("bdfgklmnprstvz") + draw.choice("aeiou") for _ in range(draw.randint(2, 3))
    )


def _use_answers(one: StandIn) -> None:
    """Convert to DPR's form: queries are numbered from 0 and have answers; a relevant passage contains one."""
    queries = one.queries["test"]
    qrels = one.qrels["test"]
    for number, qid in enumerate(queries):
        draw = random.Random(f"answer {qid}")
        answers = [
            f"{_noise_word(draw).capitalize()} {_noise_word(draw).capitalize()}" for _ in range(2)
        ]
        answers[1] += '\'s "own"'  # needs quoting in csv
        one.answers[str(number)] = answers
        for docid in qrels[qid]:
            title, text = one.documents[docid]
            one.documents[docid] = title, f'{text} {draw.choice(answers)}, "said" so.'
    one.queries["test"] = {str(number): text for number, text in enumerate(queries.values())}
    one.qrels["test"] = {}


def _share_passages(made: list[StandIn]) -> None:
    """One file of passages for both of DPR's collections, numbered from 1."""
    passages = [document for one in made for _, document in sorted(one.documents.items())]
    for one in made:
        one.documents = {str(number): document for number, document in enumerate(passages, 1)}


def _archives(made: list[StandIn]) -> dict[str, bytes]:
    """URL -> content, for all sources. A file shared by several collections has the content for all of them."""
    topics: dict[str, dict[str, str]] = {}
    members: dict[str, dict[str, bytes]] = {}
    files: dict[str, bytes] = {}
    for one in made:
        sources = {role: source.url for role, source in one.collection.sources.items()}
        role, _, member = one.collection.corpus.partition(":")
        for test in one.collection.tests.values():
            if one.collection.family == "msmarco":
                topics.setdefault(sources[test.topics], {}).update(one.queries[test.name])
                files[sources[test.qrels]] = _trec(one.qrels[test.name])
        if one.collection.family == "beir":
            members.setdefault(sources[role], {}).update(
                _beir(one, member.removesuffix("corpus.jsonl"))
            )
        elif one.collection.family == "dpr":
            files[sources["questions"]] = _answered_queries(one)
            files[sources[role]] = _gzipped(_passages(one.documents))
        else:
            files[sources[role]] = _marco(one, member)
    files |= {
        url: _lines(f"{q}\t{text}" for q, text in found.items()) for url, found in topics.items()
    }
    return files | {url: _zipped(found) for url, found in members.items()}


def _beir(one: StandIn, prefix: str) -> dict[str, bytes]:
    """BEIR's three files under ``prefix``. As in BEIR, queries.jsonl also has a query that the test does not judge."""
    queries = {**one.queries["test"], "train-only": "a query of another split"}
    rows = [
        f"{q}\t{d}\t{grade}" for q, found in one.qrels["test"].items() for d, grade in found.items()
    ]
    return {
        f"{prefix}corpus.jsonl": _json(
            {"_id": d, "title": title, "text": text, "metadata": {}}
            for d, (title, text) in one.documents.items()
        ),
        f"{prefix}queries.jsonl": _json(
            {"_id": q, "text": text, "metadata": {}} for q, text in queries.items()
        ),
        f"{prefix}qrels/test.tsv": _lines(["query-id\tcorpus-id\tscore", *rows]),
    }


def _marco(one: StandIn, member: str) -> bytes:
    """MS MARCO's corpora: a tar of a tsv, gzipped JSON lines with titles, a gzipped tsv of id, url, title, body."""
    documents = one.documents.items()
    if member:
        return _tarred(member, _lines(f"{d}\t{text}" for d, (_, text) in documents))
    if "titled" in one.collection.name:
        return _gzipped(
            _json({"docid": d, "title": title, "text": text} for d, (title, text) in documents)
        )
    return _gzipped(
        _lines(f"{d}\thttp://example.org/{d}\t{title}\t{text}" for d, (title, text) in documents)
    )


def _passages(documents: Mapping[str, tuple[str, str]]) -> bytes:
    """DPR's tsv: id, text, title, texts quoted as csv does."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter="\t", lineterminator="\n")
    writer.writerow(["id", "text", "title"])
    writer.writerows([docid, text, title] for docid, (title, text) in documents.items())
    return out.getvalue().encode()


def _answered_queries(one: StandIn) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter="\t", lineterminator="\n")
    writer.writerows([text, str(one.answers[q])] for q, text in one.queries["test"].items())
    return out.getvalue().encode()


def _entry(one: StandIn, files: Mapping[str, bytes]) -> Iterable[str]:
    """The catalogue entry of one collection, line by line."""
    yield f"[{one.collection.name}]"
    yield f"documents = {len(one.documents)}"
    for role, source in one.collection.sources.items():
        content = files[source.url]
        yield f"sources.{role}.size = {len(content)}"
        for kind in ("md5", "sha256"):
            yield f'sources.{role}.{kind} = "{hashlib.new(kind, content, usedforsecurity=False).hexdigest()}"'
    for name, test in one.collection.tests.items():
        qrels = one.qrels[name]
        yield f"tests.{name}.queries = {len(one.queries[name])}"
        yield f"tests.{name}.judgements = {sum(map(len, qrels.values()))}"
        yield f"tests.{name}.dangling = {int(one.collection.name in DANGLING)}"
        yield f'tests.{name}.topics_digest = "{topics_digest(one.queries[name])}"'
        if not test.answers:
            yield f'tests.{name}.qrels_digest = "{qrels_digest(qrels)}"'
    yield ""


def _trec(qrels: Mapping[str, Mapping[str, int]]) -> bytes:
    return _lines(f"{q} 0 {d} {grade}" for q, found in qrels.items() for d, grade in found.items())


def _json(records: Iterable[dict[str, Any]]) -> bytes:
    return _lines(json.dumps(record, ensure_ascii=False) for record in records)


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _gzipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def _tarred(name: str, content: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return _gzipped(out.getvalue())


def _zipped(members: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/support/fakes.py FOLDER")
    if not SHARED.is_dir():
        sys.exit(f"the real topics and judgements were not found ({SHARED})")
    print(write_standins(Path(sys.argv[1])))
