"""Preparing collections from a mirror: every family, every error, and recovery after a kill."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.fakes import StandIn, put_licensed, stand_in

from dupmae_ir.collections import (
    GROUPS,
    Cache,
    PreparedCollection,
    find,
    find_prepared,
    get,
    load,
    state,
)
from dupmae_ir.errors import (
    EnvironmentProblem,
    InputError,
    Licensed,
    UnknownName,
    UsageError,
    WrongCollection,
)
from dupmae_ir.io.collections import read_collection
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.types import Document

UNREACHABLE = "http://127.0.0.1:9"  #: the discard port: nothing listens there


@pytest.fixture
def where(mirror, tmp_path) -> dict:
    """Arguments with which ``get`` uses the mirror."""
    return {
        "cache": tmp_path / "cache",
        "catalogue": mirror.catalogue,
        "mirror": mirror.url,
        "quiet": True,
    }


def local(where: dict) -> dict:
    """The same arguments for ``find_prepared``."""
    return {"cache": where["cache"], "catalogue": where["catalogue"]}


def folders(where: dict) -> Cache:
    return Cache.of(load(where["catalogue"]), where["cache"])


def expected(name: str, shared_data: Path) -> StandIn:
    return stand_in(find(name), shared_data / "topics-and-qrels")


def holds(one: PreparedCollection, what: StandIn, documents: list[Document]) -> None:
    """Check that the collection, read with the toolkit's readers, is the one on the mirror."""
    assert sorted(d[:3] for d in read_collection(one.corpus)) == sorted(d[:3] for d in documents)
    assert {q.qid: q.text for q in read_topics(one.queries)} == {
        qid: " ".join(text.split()) if "\t" in text else text.strip()
        for queries in what.queries.values()
        for qid, text in queries.items()
    }
    for test, qrels in what.qrels.items():
        assert read_qrels(one.qrels(test)) == qrels
    assert one.manifest.stand_in
    assert one.manifest.documents == len(documents)
    assert json.loads((one.folder / "manifest.json").read_text())["name"] == one.name
    for name, entry in one.manifest.files.items():
        assert hashlib.sha256((one.folder / name).read_bytes()).hexdigest() == entry["sha256"]


@pytest.mark.parametrize(
    ("name", "corpus", "parts"),
    [
        ("msmarco-passage", "corpus.tsv", lambda title, text: ("", text)),
        ("msmarco-passage-titled", "corpus.jsonl.gz", lambda title, text: (title, text)),
        ("msmarco-doc", "corpus.tsv.gz", lambda title, text: (title, text)),
        ("beir-arguana", "corpus.jsonl", lambda title, text: (title, text)),
        ("beir-cqadupstack-android", "corpus.jsonl", lambda title, text: (title, text)),
        ("beir-dbpedia-entity", "corpus.jsonl", lambda title, text: (title, text)),
        ("beir-trec-covid", "corpus.jsonl", lambda title, text: (title, text)),
    ],
)
def test_one_collection_of_each_family(name, corpus, parts, where, mirror, shared_data):
    what = expected(name, shared_data)
    documents = [
        Document(d, parts(*both)[1], parts(*both)[0]) for d, both in what.documents.items()
    ]
    assert find_prepared(name, **local(where)) is None
    assert state(find(name, where["catalogue"]), folders(where)) == "missing"
    one = get(name, **where)
    assert one.corpus.name == corpus
    holds(one, what, [d._replace(text=d.text.strip(), title=d.title.strip()) for d in documents])
    requests = len(mirror.requested)
    # A second call downloads nothing and writes nothing.
    before = {path: path.stat().st_mtime_ns for path in one.folder.rglob("*")}
    assert (
        get(name, **{**where, "mirror": UNREACHABLE}) == one == find_prepared(name, **local(where))
    )
    assert len(mirror.requested) == requests
    assert {path: path.stat().st_mtime_ns for path in one.folder.rglob("*")} == before
    assert state(find(name, where["catalogue"]), folders(where)) == "ready"


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # BEIR's loader leaves files open
def test_beirs_loader_reads_the_folder(where, shared_data):
    from beir.datasets.data_loader import GenericDataLoader

    what = expected("beir-quora", shared_data)
    one = get("beir-quora", **where)
    corpus, queries, qrels = GenericDataLoader(str(one.folder)).load(split="test")
    assert {d: (doc["title"], doc["text"]) for d, doc in corpus.items()} == what.documents
    assert (queries, qrels) == (what.queries["test"], what.qrels["test"])


def test_queries_that_no_test_judges_are_left_out(where):
    one = get("beir-scifact", **where)
    assert "train-only" not in {q.qid for q in read_topics(one.queries)}


def test_arguanas_dangling_judgement_is_counted(where):
    one = get("beir-arguana", **where)
    assert one.manifest.tests["test"]["dangling"] == 1
    assert get("beir-scifact", **where).manifest.tests["test"]["dangling"] == 0


def test_dpr_has_answers_no_csv_quotes_and_shared_passages(where, mirror, shared_data):
    nq = get("dpr-nq", **where)
    trivia = get("dpr-trivia", **where)
    assert sum("psgs_w100" in path for path in mirror.requested) == 1
    assert nq.corpus.samefile(trivia.corpus)
    what = expected("dpr-nq", shared_data)
    answers = {r["_id"]: r["answers"] for r in map(json.loads, nq.answers.read_text().splitlines())}
    assert answers == what.answers
    assert [q.qid for q in read_topics(nq.queries)] == [str(i) for i in range(30)]
    passages_of = [
        expected(name, shared_data).documents.values() for name in ("dpr-nq", "dpr-trivia")
    ]
    texts = [(d.title, d.text) for d in read_collection(nq.corpus)]
    assert sorted(texts) == sorted(both for found in passages_of for both in found)
    assert all(
        any(answer in text for _, text in texts for answer in found) for found in answers.values()
    )
    assert any('"own"' in text for _, text in texts)
    with pytest.raises(UsageError, match="has no judgements; evaluate with the answer strings in"):
        nq.qrels("test")


def test_unknown_tests_get_a_suggestion(where):
    one = get("msmarco-passage", **where)
    with pytest.raises(
        UnknownName, match=r"no test of msmarco-passage named 'dl2'.*Did you mean 'dl20'"
    ):
        one.qrels("dl2")


def test_an_archive_is_kept_until_its_last_collection_is_prepared(where, mirror):
    target = folders(where).download(find("beir-cqadupstack-tex").sources["archive"])
    for name in GROUPS["cqadupstack"]:
        assert target.exists() == (name != GROUPS["cqadupstack"][0])
        get(name, **where)
    assert not target.exists()
    assert sum("cqadupstack" in path for path in mirror.requested) == 1


def test_stand_ins_have_a_separate_folder(where):
    get("beir-scifact", **where)
    assert find_prepared("beir-scifact", cache=where["cache"]) is None
    modified = where["cache"].parent / "modified.toml"
    modified.write_text(where["catalogue"].read_text() + "\n")
    assert find_prepared("beir-scifact", cache=where["cache"], catalogue=modified) is None


def altered(where: dict, tmp_path: Path, name: str, text: str) -> dict:
    """``where`` with a catalogue that expects other facts of one collection."""
    path = tmp_path / "altered.toml"
    head, _, rest = where["catalogue"].read_text().partition(f"[{name}]\n")
    lines = text.splitlines()
    keys = {line.partition(" =")[0] for line in lines}
    own, mark, after = rest.partition("\n\n")
    kept = [line for line in own.splitlines() if line.partition(" =")[0] not in keys]
    path.write_text(f"{head}[{name}]\n" + "\n".join([*kept, *lines]) + mark + after)
    return {**where, "catalogue": path}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("documents = 5183", r"\d+ documents, expected 5,183"),
        ("tests.test.queries = 300", "30 judged queries in test, expected 300"),
        ("tests.test.judgements = 339", r"\d+ judgements in test, expected 339"),
        (
            'tests.test.topics_digest = "ab"',
            r"different topics in test \(digest [0-9a-f]{64}, expected ab\)",
        ),
        (
            'tests.test.qrels_digest = "ab"',
            r"different judgements in test \(digest [0-9a-f]{64}, expected ab\)",
        ),
    ],
)
def test_another_count_or_digest_is_refused(where, tmp_path, text, message):
    changed = altered(where, tmp_path, "beir-scifact", text)
    with pytest.raises(WrongCollection, match=message) as e:
        get("beir-scifact", **changed)
    archive = folders(changed).download(find("beir-scifact").sources["archive"])
    assert str(archive) in str(e.value)
    assert archive.exists()
    assert "\n" not in str(e.value)
    assert find_prepared("beir-scifact", **local(changed)) is None
    assert not folders(changed).folder(find("beir-scifact")).exists()


def test_another_checksum_is_refused(where, tmp_path):
    changed = altered(where, tmp_path, "beir-scifact", f'sources.archive.md5 = "{"0" * 32}"')
    with pytest.raises(EnvironmentProblem, match=f"md5 [0-9a-f]{{32}}, expected {'0' * 32}") as e:
        get("beir-scifact", **changed)
    assert "\n" not in str(e.value)
    assert state(find("beir-scifact", changed["catalogue"]), folders(changed)) == "missing"


def test_an_archive_of_something_else_is_refused(where, tmp_path, mirror):
    """The checksum is the catalogue's, but the archive has other files."""
    source = find("beir-scifact").sources["archive"]
    archive = mirror.folder / find("beir-nq").sources["archive"].url.partition("://")[2]
    unknown = 'sources.archive.md5 = ""\nsources.archive.sha256 = ""\nsources.archive.size = {}'
    changed = altered(where, tmp_path, "beir-scifact", unknown.format(archive.stat().st_size))
    target = folders(changed).download(source)
    target.parent.mkdir(parents=True)
    shutil.copy(archive, target)
    with pytest.raises(InputError, match="holds no file of those wanted"):
        get("beir-scifact", **changed)


def test_a_failed_download_names_the_file_to_place_by_hand(where, mirror):
    source = find("beir-scifact").sources["archive"]
    target = folders(where).download(source)
    with pytest.raises(EnvironmentProblem) as e:
        get("beir-scifact", **{**where, "mirror": UNREACHABLE})
    assert f"put scifact.zip (from {source.url}) at {target}" in str(e.value)
    assert "\n" not in str(e.value)
    assert state(find("beir-scifact", where["catalogue"]), folders(where)) == "missing"
    shutil.copy(mirror.folder / source.url.partition("://")[2], target)
    assert state(find("beir-scifact", where["catalogue"]), folders(where)) == "part"
    assert get("beir-scifact", **{**where, "mirror": UNREACHABLE}).manifest.queries == 30


def test_licensed_collections_are_prepared_from_files_placed_by_hand(where, mirror, shared_data):
    collection = find("beir-trec-news", where["catalogue"])
    folder = folders(where).licensed(collection)
    assert state(collection, folders(where)) == "licensed"
    with pytest.raises(Licensed, match="cannot be downloaded: apply for the Washington Post") as e:
        get("beir-trec-news", **where)
    assert str(folder) in str(e.value)
    assert "\n" not in str(e.value)
    assert mirror.requested == []
    assert put_licensed(mirror.folder, where["cache"]) == [
        "beir-bioasq",
        "beir-signal1m",
        "beir-trec-news",
    ]
    assert state(collection, folders(where)) == "part"
    what = expected("beir-trec-news", shared_data)
    holds(
        get("beir-trec-news", **where),
        what,
        [Document(d, t, title) for d, (title, t) in what.documents.items()],
    )
    assert (folder / "corpus.jsonl").is_file()
    (folders(where).licensed(find("beir-bioasq")) / "queries.jsonl").unlink()
    with pytest.raises(
        Licensed, match=r"queries.jsonl: no such file; the folder must have BEIR's layout"
    ):
        get("beir-bioasq", **where)


def test_the_embedded_collection(tmp_path):
    one = get("demo", cache=tmp_path, quiet=True)
    assert one.manifest.documents > 1000
    assert not one.manifest.stand_in
    assert one.folder.name.startswith("demo-python-")
    assert find_prepared("demo", cache=tmp_path) == one


RUN = """
import importlib, json, os, signal, sys
from dupmae_ir.collections import get
name, arguments, stop = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
if stop:
    module, _, what = stop.partition(":")
    module = importlib.import_module(f"dupmae_ir.collections.{module}")
    setattr(module, what, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
print(get(name, quiet=True, **arguments).manifest.documents)
"""


def started(name: str, where: dict, stop: str = "") -> subprocess.Popen[str]:
    arguments = {key: str(value) for key, value in where.items() if key != "quiet"}
    command = [sys.executable, "-c", RUN, name, json.dumps(arguments), stop]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    "stop",
    [
        "convert:unpack",
        "convert:_link",
        "prepare:collect_facts",
        "prepare:move_into_place",
        "prepare:discard_download",
    ],
)
def test_a_killed_run_is_recovered(stop, where):
    process = started("beir-cqadupstack-gis", where, stop)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    collection = find("beir-cqadupstack-gis", where["catalogue"])
    assert state(collection, folders(where)) == (
        "ready" if stop.endswith("discard_download") else "part"
    )
    one = get(collection.name, **where)
    assert one.manifest.documents == collection.documents
    assert [path.name for path in one.folder.parent.iterdir() if path.name.endswith(".work")] == []


def test_a_run_killed_during_a_download_is_resumed(where, mirror):
    mirror.half.set()
    process = started("msmarco-doc", where)
    target = folders(where).download(find("msmarco-doc").sources["dev-topics"])
    part = target.with_name(f"{target.name}.part")
    deadline = time.monotonic() + 30
    while not part.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.communicate(timeout=30)
    mirror.half.clear()
    assert part.exists()
    collection = find("msmarco-doc", where["catalogue"])
    assert state(collection, folders(where)) == "part"
    assert get("msmarco-doc", **where).manifest.documents == collection.documents


def test_a_kill_between_two_renames_is_recovered(where):
    """The older folder, moved aside, is restored and needs no download."""
    folder = get("beir-scifact", **where).folder
    folder.rename(folder.with_name(f".{folder.name}.999999999.old"))
    assert get("beir-scifact", **{**where, "mirror": UNREACHABLE}).folder == folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_two_processes_prepare_a_collection_once(where, mirror):
    both = [started("beir-fiqa", where) for _ in range(2)]
    outputs = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert sum("fiqa" in path for path in mirror.requested) == 1
