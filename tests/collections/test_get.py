"""From a mirror to a collection that is ready: every family, every way it can go wrong, and again after a kill."""

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
from standins import StandIn, put_licensed, stand_in

from dupmae_ir.collections import GROUPS, Licensed, Place, Ready, WrongCollection, find, get, load, ready, state
from dupmae_ir.errors import EnvironmentProblem, InputError, UnknownName, UsageError
from dupmae_ir.io.collections import read_collection
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.types import Document

NOBODY = "http://127.0.0.1:9"  #: the discard port: nothing listens there


@pytest.fixture
def where(mirror, tmp_path) -> dict:
    """What ``get`` has to be told to use the mirror."""
    return {"cache": tmp_path / "cache", "catalogue": mirror.catalogue, "mirror": mirror.url, "quiet": True}


def here(where: dict) -> dict:
    """The same for ``ready``."""
    return {"cache": where["cache"], "catalogue": where["catalogue"]}


def place(where: dict) -> Place:
    return Place.of(load(where["catalogue"]), where["cache"])


def expected(name: str, shared_data: Path) -> StandIn:
    return stand_in(find(name), shared_data / "topics-and-qrels")


def holds(one: Ready, what: StandIn, documents: list[Document]) -> None:
    """The collection on disk, read with the toolkit's readers, is what was put on the mirror."""
    assert sorted(read_collection(one.corpus)) == sorted(documents)
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
def test_one_of_each_family_from_download_to_readers(name, corpus, parts, where, mirror, shared_data):
    what = expected(name, shared_data)
    documents = [Document(d, parts(*both)[1], parts(*both)[0]) for d, both in what.documents.items()]
    assert ready(name, **here(where)) is None
    assert state(find(name, where["catalogue"]), place(where)) == "missing"
    one = get(name, **where)
    assert one.corpus.name == corpus
    holds(one, what, [d._replace(text=d.text.strip(), title=d.title.strip()) for d in documents])
    asked = len(mirror.asked)
    # Again: nothing is fetched, nothing is written.
    before = {path: path.stat().st_mtime_ns for path in one.folder.rglob("*")}
    assert get(name, **{**where, "mirror": NOBODY}) == one == ready(name, **here(where))
    assert len(mirror.asked) == asked
    assert {path: path.stat().st_mtime_ns for path in one.folder.rglob("*")} == before
    assert state(find(name, where["catalogue"]), place(where)) == "ready"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves files open
def test_beirs_own_loader_reads_it(where, shared_data):
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


def test_dpr_keeps_answers_loses_csv_quotes_and_shares_its_passages(where, mirror, shared_data):
    nq = get("dpr-nq", **where)
    trivia = get("dpr-trivia", **where)
    assert sum("psgs_w100" in path for path in mirror.asked) == 1
    assert nq.corpus.samefile(trivia.corpus)
    what = expected("dpr-nq", shared_data)
    answers = {r["_id"]: r["answers"] for r in map(json.loads, nq.answers.read_text().splitlines())}
    assert answers == what.answers
    assert [q.qid for q in read_topics(nq.queries)] == [str(i) for i in range(30)]
    passages_of = [expected(name, shared_data).documents.values() for name in ("dpr-nq", "dpr-trivia")]
    texts = [(d.title, d.text) for d in read_collection(nq.corpus)]
    assert sorted(texts) == sorted(both for found in passages_of for both in found)
    assert all(any(answer in text for _, text in texts for answer in found) for found in answers.values())
    assert any('"own"' in text for _, text in texts)
    with pytest.raises(UsageError, match="has no judgements: a passage counts by the strings in"):
        nq.qrels("test")


def test_unknown_tests_get_a_suggestion(where):
    one = get("msmarco-passage", **where)
    with pytest.raises(UnknownName, match=r"no test of msmarco-passage named 'dl2'.*Did you mean 'dl20'"):
        one.qrels("dl2")


def test_an_archive_stays_until_its_last_collection(where, mirror):
    target = place(where).download(find("beir-cqadupstack-tex").sources["archive"])
    for name in GROUPS["cqadupstack"]:
        assert target.exists() == (name != GROUPS["cqadupstack"][0])
        get(name, **where)
    assert not target.exists()
    assert sum("cqadupstack" in path for path in mirror.asked) == 1


def test_stand_ins_lie_apart(where):
    get("beir-scifact", **where)
    assert ready("beir-scifact", cache=where["cache"]) is None
    changed = where["cache"].parent / "changed.toml"
    changed.write_text(where["catalogue"].read_text() + "\n")
    assert ready("beir-scifact", cache=where["cache"], catalogue=changed) is None


def altered(where: dict, tmp_path: Path, name: str, text: str) -> dict:
    """``where`` with other expectations of one collection."""
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
        ("documents = 5183", r"\d+ documents where 5,183 are expected"),
        ("tests.test.queries = 300", "30 judged queries in test where 300 are expected"),
        ("tests.test.judgements = 339", r"\d+ judgements in test where 339 are expected"),
        ('tests.test.topics_digest = "ab"', r"other topics in test \(digest [0-9a-f]{64}, expected ab\)"),
        ('tests.test.qrels_digest = "ab"', r"other judgements in test \(digest [0-9a-f]{64}, expected ab\)"),
    ],
)
def test_another_count_or_digest_is_refused(where, tmp_path, text, message):
    told = altered(where, tmp_path, "beir-scifact", text)
    with pytest.raises(WrongCollection, match=message) as e:
        get("beir-scifact", **told)
    archive = place(told).download(find("beir-scifact").sources["archive"])
    assert str(archive) in str(e.value)
    assert archive.exists()
    assert "\n" not in str(e.value)
    assert ready("beir-scifact", **here(told)) is None
    assert not place(told).folder(find("beir-scifact")).exists()


def test_another_checksum_is_refused(where, tmp_path):
    told = altered(where, tmp_path, "beir-scifact", f'sources.archive.md5 = "{"0" * 32}"')
    with pytest.raises(EnvironmentProblem, match=f"md5 [0-9a-f]{{32}}, expected {'0' * 32}") as e:
        get("beir-scifact", **told)
    assert "\n" not in str(e.value)
    assert state(find("beir-scifact", told["catalogue"]), place(told)) == "missing"


def test_an_archive_of_something_else_is_refused(where, tmp_path, mirror):
    """The right bytes by the catalogue's checksum, but without the files."""
    source = find("beir-scifact").sources["archive"]
    archive = mirror.folder / find("beir-nq").sources["archive"].url.partition("://")[2]
    unknown = 'sources.archive.md5 = ""\nsources.archive.sha256 = ""\nsources.archive.size = {}'
    told = altered(where, tmp_path, "beir-scifact", unknown.format(archive.stat().st_size))
    target = place(told).download(source)
    target.parent.mkdir(parents=True)
    shutil.copy(archive, target)
    with pytest.raises(InputError, match="holds no file of those wanted"):
        get("beir-scifact", **told)


def test_without_a_network_one_line_says_which_file_to_put_where(where, mirror):
    source = find("beir-scifact").sources["archive"]
    target = place(where).download(source)
    with pytest.raises(EnvironmentProblem) as e:
        get("beir-scifact", **{**where, "mirror": NOBODY})
    assert f"put scifact.zip (from {source.url}) at {target}" in str(e.value)
    assert "\n" not in str(e.value)
    assert state(find("beir-scifact", where["catalogue"]), place(where)) == "missing"
    shutil.copy(mirror.folder / source.url.partition("://")[2], target)
    assert state(find("beir-scifact", where["catalogue"]), place(where)) == "part"
    assert get("beir-scifact", **{**where, "mirror": NOBODY}).manifest.queries == 30


def test_licensed_collections_say_how_to_get_them_and_use_what_was_put_there(where, mirror, shared_data):
    collection = find("beir-trec-news", where["catalogue"])
    folder = place(where).licensed(collection)
    assert state(collection, place(where)) == "licensed"
    with pytest.raises(Licensed, match="cannot be downloaded: apply for the Washington Post") as e:
        get("beir-trec-news", **where)
    assert str(folder) in str(e.value)
    assert "\n" not in str(e.value)
    assert mirror.asked == []
    assert put_licensed(mirror.folder, where["cache"]) == ["beir-bioasq", "beir-signal1m", "beir-trec-news"]
    assert state(collection, place(where)) == "part"
    what = expected("beir-trec-news", shared_data)
    holds(get("beir-trec-news", **where), what, [Document(d, t, title) for d, (title, t) in what.documents.items()])
    assert (folder / "corpus.jsonl").is_file()
    (place(where).licensed(find("beir-bioasq")) / "queries.jsonl").unlink()
    with pytest.raises(Licensed, match=r"queries.jsonl: no such file; the folder wants BEIR's layout"):
        get("beir-bioasq", **where)


def test_a_local_folder_is_measured_once_and_again_when_it_changes(tmp_path, shared_data):
    folder = tmp_path / "mine"
    shutil.copytree(shared_data / "cacm", folder)
    cache = tmp_path / "cache"
    collection = find(f"local:{folder}")
    assert (collection.family, collection.title, collection.tests["test"].queries) == ("local", "mine", 52)
    one = get(collection.name, cache=cache)
    assert (one.manifest.documents, one.manifest.tests["test"]["judgements"]) == (3204, 741)
    assert one.corpus == folder / "corpus.jsonl"
    assert one.qrels("test") == folder / "qrels" / "test.tsv"
    assert not (folder / "manifest.json").exists()
    assert ready(collection.name, cache=cache) == one
    with open(folder / "corpus.jsonl", "a") as file:
        file.write('{"_id": "more", "text": "one more"}\n')
    assert ready(collection.name, cache=cache).manifest.documents == 3205


@pytest.mark.parametrize(
    ("gone", "message"),
    [("corpus.jsonl", "no such file"), ("queries.jsonl", "no such file"), ("qrels/test.tsv", r"no qrels/\*.tsv")],
)
def test_a_local_folder_that_is_none_is_one_line(tmp_path, shared_data, gone, message):
    folder = tmp_path / "mine"
    shutil.copytree(shared_data / "cacm", folder)
    (folder / gone).unlink()
    with pytest.raises(InputError, match=message):
        get(f"local:{folder}", cache=tmp_path / "cache")
    with pytest.raises(InputError, match="no such folder"):
        get(f"local:{tmp_path / 'nowhere'}", cache=tmp_path / "cache")


def test_the_demonstration_is_a_collection(tmp_path):
    one = get("demo", cache=tmp_path, quiet=True)
    assert one.manifest.documents > 1000
    assert not one.manifest.stand_in
    assert one.folder.name.startswith("demo-python-")
    assert ready("demo", cache=tmp_path) == one


RUN = """
import importlib, json, os, signal, sys
from dupmae_ir.collections import get
name, told, stop = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
if stop:
    module, _, what = stop.partition(":")
    module = importlib.import_module(f"dupmae_ir.collections.{module}")
    setattr(module, what, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
print(get(name, quiet=True, **told).manifest.documents)
"""


def started(name: str, where: dict, stop: str = "") -> subprocess.Popen[str]:
    told = {key: str(value) for key, value in where.items() if key != "quiet"}
    command = [sys.executable, "-c", RUN, name, json.dumps(told), stop]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    "stop", ["sources:unpack", "convert:_linked", "prepare:measure", "prepare:move_into_place", "prepare:discard"]
)
def test_killed_on_the_way_and_run_again(stop, where):
    process = started("beir-cqadupstack-gis", where, stop)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    collection = find("beir-cqadupstack-gis", where["catalogue"])
    assert state(collection, place(where)) == ("ready" if stop.endswith("discard") else "part")
    one = get(collection.name, **where)
    assert one.manifest.documents == collection.documents
    assert [path.name for path in one.folder.parent.iterdir() if "making" in path.name] == []


def test_killed_in_the_middle_of_a_download_and_run_again(where, mirror):
    mirror.half.set()
    process = started("msmarco-doc", where)
    target = place(where).download(find("msmarco-doc").sources["dev-topics"])
    part = target.with_name(f"{target.name}.part")
    deadline = time.monotonic() + 30
    while not part.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.communicate(timeout=30)
    mirror.half.clear()
    assert part.exists()
    collection = find("msmarco-doc", where["catalogue"])
    assert state(collection, place(where)) == "part"
    assert get("msmarco-doc", **where).manifest.documents == collection.documents


def test_two_at_once_do_it_once(where, mirror):
    both = [started("beir-fiqa", where) for _ in range(2)]
    outputs = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert sum("fiqa" in path for path in mirror.asked) == 1
