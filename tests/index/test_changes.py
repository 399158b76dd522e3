"""Changes of an index: kills at every step, readers, refusals, damage, and what stock Pyserini reads."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.mutable_index import (
    SCALE,
    TOPICS,
    Living,
    at_once,
    hashing,
    lists,
    real_texts,
    write_documents,
)

from dupmae_ir import pyserini
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.errors import IndexMismatch, UnknownName, UsageError
from dupmae_ir.index.__main__ import main as index_main
from dupmae_ir.index.config import AddConfig, CompactConfig, VerifyConfig
from dupmae_ir.index.format.manifest import read_manifest
from dupmae_ir.index.format.verification import problems
from dupmae_ir.index.index import Index
from dupmae_ir.index.run import verify
from dupmae_ir.io.jobs import COMPLETE, work_folder
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.testing import HashingEncoder

pytestmark = pytest.mark.jvm
POOL = real_texts()
START = POOL[:20]
NEW = POOL[20:26]
EDITED = [document._replace(text="quite another text") for document in START[3:6]]


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index ``I`` of 20 documents, with postings and codes."""
    where = tmp_path_factory.mktemp("begun")
    Living(where, START)
    return where


@pytest.fixture
def living(begun: Path, tmp_path: Path) -> Living:
    """A copy of that index."""
    return copied(begun, tmp_path)


def copied(begun: Path, where: Path) -> Living:
    where.mkdir(parents=True, exist_ok=True)
    shutil.copytree(begun / "I", where / "I")
    living = Living.__new__(Living)
    living.where = where
    living.index = where / "I"
    living.documents = {document.docid: document for document in START}
    return living


def hidden(folder: Path) -> list[str]:
    """What commands leave beside or inside an index until they are done."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob(".*"))


# Kills: every change of the file system is an audit event of Python. A process that is killed there leaves the files as
# they are then, and its locks and open files end with it, so a copy of the files is what the next process finds. A
# forked process could not use Java; tests/campaign kills real processes, at random moments.

ENDED = 1 << 30
"""The id of no process; temporary files are named after the process that writes them."""


class Snapshots:
    """Copies a folder before every change of the file system."""

    CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.truncate")

    def __init__(self) -> None:
        self.where: Path | None = None
        self.taken: list[Path] = []
        sys.addaudithook(self)

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        where = self.where
        if where is None or not (event in self.CHANGES or self._writes(event, args)):
            return
        self.where = None  # the copy is not a step
        self.taken.append(where.with_name(f"{where.name}-{len(self.taken)}"))
        shutil.copytree(where, self.taken[-1], symlinks=True)
        for path in list(self.taken[-1].rglob(f".*.{os.getpid()}.*")):
            path.rename(path.with_name(path.name.replace(f".{os.getpid()}.", f".{ENDED}.")))
        self.where = where

    def _writes(self, event: str, args: tuple[Any, ...]) -> bool:
        if event != "open" or not str(args[0]).startswith(str(self.where)):
            return False
        return bool(args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))

    def during(self, change: Callable[[], object], where: Path) -> list[Path]:
        """The copies of ``where`` before each step of ``change``, in folders next to it."""
        self.where = where
        self.taken = []
        try:
            change()
        finally:
            self.where = None
        return self.taken


SNAPSHOTS = Snapshots()
CHANGES: dict[str, Callable[[Living], dict[str, Any]]] = {
    "add": lambda living: living.add(NEW),
    "update": lambda living: living.update([*EDITED, *NEW[:2]]),
    "sync": lambda living: living.sync([*START[1:10], *EDITED[:0], *NEW]),
    "delete": lambda living: living.delete([START[2].docid, START[7].docid]),
    "compact": lambda living: living.compact(),
}


def prepared(begun: Path, where: Path, name: str) -> Living:
    living = copied(begun, where)
    if name == "compact":
        living.update([*EDITED, *NEW[:2]])
        living.delete([START[0].docid])
    return living


def state(folder: Path) -> tuple[int, str]:
    index = Index.open(folder)
    return index.documents, index.meta["digest"]


def named_segments(living: Living) -> set[str]:
    """The folders of the segments that the manifest names."""
    return {Path(record.path).name for record in read_manifest(living.index).segments}


def segments_on_disk(living: Living) -> set[str]:
    """The folders of segments that there are."""
    return {path.name for path in (living.index / "segments").iterdir() if path.is_dir()}


def check_links(living: Living) -> None:
    """What stock Pyserini reads is the first segment, through links that survive a move of the index."""
    first = read_manifest(living.index).segments[0].path
    for part in ("cls", "ot"):
        assert (living.index / part).readlink() == Path(first, part)


@pytest.mark.nightly
@pytest.mark.parametrize("name", CHANGES)
def test_a_kill_at_every_step(name: str, begun: Path, tmp_path: Path) -> None:
    """It leaves the old or the new generation, and the same change ends what was begun and removes what is left."""
    change = CHANGES[name]
    living = prepared(begun, tmp_path / "killed", name)
    before = state(living.index)
    snapshots = SNAPSHOTS.during(lambda: change(living), living.where)
    after = state(living.index)
    assert len(snapshots) > 10
    for snapshot in snapshots:
        shutil.rmtree(living.where)
        shutil.copytree(snapshot, living.where, symlinks=True)
        assert state(snapshot / "I") in (before, after), snapshot
        assert lists(
            snapshot / "I", hashing(), "lucene", "flat", "impact", 5
        )  # readers can open and search it
        living.documents = {document.docid: document for document in START}
        change(living)
        assert state(living.index) == after, snapshot
        assert hidden(living.where) == [], snapshot
        assert segments_on_disk(living) == named_segments(living), snapshot
        check_links(living)
        shutil.rmtree(snapshot)


def test_a_killed_add_keeps_its_windows_through_other_changes(
    living: Living, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two windows are encoded, the third one fails; deletion and compaction leave them; the same command ends it."""
    count = [0]
    encoding = HashingEncoder.encode_documents

    def failing(self: HashingEncoder, texts: list[str]) -> Any:
        count[0] += 1
        if count[0] == 3:
            raise KeyboardInterrupt
        return encoding(self, texts)

    monkeypatch.setattr(HashingEncoder, "encode_documents", failing)
    more = POOL[20:60]
    with pytest.raises(KeyboardInterrupt):
        living.add(more)
    for document in more:
        del living.documents[document.docid]
    work = work_folder(living.index)
    windows = sorted(path.name for path in work.glob("window-*"))
    assert len(windows) == 2
    living.delete([START[0].docid])
    living.compact()
    capsys.readouterr()
    living.add(NEW[:1])  # another change: its own window is removed, the others stay
    capsys.readouterr()
    assert sorted(path.name for path in work.glob("window-*")) == windows
    living.delete([NEW[0].docid])
    count[0] = 100
    result = living.add(more)
    assert result["resumed"] == 32
    assert count[0] == 101
    assert hidden(living.where) == []
    expected = at_once(living.where / "expected", living.documents.values(), hashing())
    assert lists(living.index, hashing(), "lucene", "flat", "hybrid", 9) == lists(
        expected, hashing(), "lucene", "flat", "hybrid", 9
    )


def test_restart_discards_saved_windows(living: Living, monkeypatch: pytest.MonkeyPatch) -> None:
    work = work_folder(living.index)
    monkeypatch.setattr("dupmae_ir.encode.changes.build_index", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        living.add(NEW)
    monkeypatch.undo()
    assert list(work.glob("window-*"))
    corpus = write_documents(living.where / "c.jsonl", NEW)
    flags = ["--index", str(living.index), "--corpus", corpus, "--quiet"]
    assert index_main(["add", *flags, "--restart"]) == 0
    assert not work.exists()


def test_a_reader_keeps_its_generation(living: Living) -> None:
    """Parts that it opens only after the index was compacted are those of its generation."""
    ways = [
        ("lucene", "flat", "hybrid"),
        ("postings", "flat", "impact"),
        ("lucene", "rotated", "dense"),
    ]
    before = [lists(living.index, hashing(), *way, 9) for way in ways]
    plain = Index.open(living.index)
    living.update([*EDITED, *NEW])
    living.delete([START[0].docid])
    between = [lists(living.index, hashing(), *way, 9) for way in ways]
    segmented = Index.open(living.index)
    assert between != before
    living.compact()
    assert [lists(plain, hashing(), *way, 9) for way in ways] == before
    assert [lists(segmented, hashing(), *way, 9) for way in ways] == between
    after = [lists(living.index, hashing(), *way, 9) for way in ways]
    assert after == between  # a compaction changes no answer
    living.delete([NEW[0].docid])
    assert len(segments_on_disk(living) - named_segments(living)) == 2  # still read
    assert segmented.texts
    assert segmented.texts.get(0).docid == START[0].docid
    del plain, segmented
    gc.collect()
    living.add([NEW[0]])
    assert segments_on_disk(living) == named_segments(living)
    check_links(living)


def test_two_compactions_with_readers_of_each(living: Living) -> None:
    opened = []
    answers = []
    for n in range(2):
        opened.append(Index.open(living.index))
        answers.append(lists(living.index, hashing(), "lucene", "flat", "impact", 9))
        living.delete([START[n].docid])
        living.compact()
    assert len(segments_on_disk(living) - named_segments(living)) == 2
    assert [lists(index, hashing(), "lucene", "flat", "impact", 9) for index in opened] == answers


def test_add_refuses_other_documents_of_known_ids_and_skips_the_same(living: Living) -> None:
    before = state(living.index)
    with pytest.raises(
        UsageError, match=r"already has a document .* with other contents; nothing was added"
    ):
        living.add([*NEW, *EDITED])
    assert (state(living.index), hidden(living.where)) == (before, [])
    result = living.add([*NEW[:2], *START[:4]])
    assert (result["added_now"], result["unchanged_now"]) == (2, 4)
    assert living.add([*NEW[:2], *START[:4]])["status"] == COMPLETE


def test_a_change_of_the_title_or_of_metadata_is_a_change(living: Living) -> None:
    changed = [
        START[0]._replace(title="another"),
        START[1]._replace(metadata={"module": "other"}),
        START[2],
    ]
    result = living.update(changed)
    assert (result["updated_now"], result["unchanged_now"]) == (2, 1)
    texts = Index.open(living.index).texts
    assert texts
    column = texts.column("module")
    assert [column.values[code] for code in column.codes[20:]] == [
        START[0].metadata["module"],
        "other",
    ]


def test_delete_refuses_unknown_ids(living: Living) -> None:
    before = state(living.index)
    living.documents["zz"] = living.documents["yy"] = START[0]
    with pytest.raises(UnknownName, match="has no document 'zz' and 1 more; nothing was deleted"):
        living.delete([START[0].docid, "zz", "yy"])
    assert state(living.index) == before
    flags = ["--index", str(living.index), "--ids", START[1].docid, "zz", "--quiet"]
    assert index_main(["delete", *flags]) == 2
    assert index_main(["delete", *flags, "--ignore-unknown"]) == 0
    assert state(living.index)[0] == 19


def test_ids_from_a_file(living: Living, capsys: pytest.CaptureFixture[str]) -> None:
    path = living.where / "ids.txt"
    path.write_text(f"{START[1].docid}\n\n{START[2].docid}\n")
    assert (
        index_main(["delete", "--index", str(living.index), "--ids-file", str(path), "--quiet"])
        == 0
    )
    assert state(living.index)[0] == 18
    for wrong, message in (
        ("a b\n", ":1: 'a b' contains white space"),
        ("\n", "no document ids in it"),
    ):
        path.write_text(wrong)
        assert index_main(["delete", "--index", str(living.index), "--ids-file", str(path)]) == 2
        assert message in capsys.readouterr().err
    assert index_main(["delete", "--index", str(living.index)]) == 2
    assert "--ids" in capsys.readouterr().err


def test_another_model_is_refused(living: Living, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state(living.index)
    monkeypatch.setattr(
        "dupmae_ir.encode.changes.load_encoder", lambda *_, **__: HashingEncoder(seed=1)
    )
    with pytest.raises(IndexMismatch, match="is another model"):
        living.add(NEW)
    monkeypatch.setattr(
        "dupmae_ir.encode.changes.load_encoder", lambda *_, **__: HashingEncoder(top_k=5)
    )
    with pytest.raises(IndexMismatch, match="has another top_k than"):
        living.add(NEW)
    assert (state(living.index), hidden(living.where)) == (before, [])


def test_an_emptied_index(living: Living, capsys: pytest.CaptureFixture[str]) -> None:
    """It finds nothing, can be compacted, and takes documents again; its postings and codes are then built again."""
    ways = [
        ("lucene", "flat", "hybrid"),
        ("postings", "flat", "impact"),
        ("lucene", "rotated", "dense"),
    ]
    living.delete([document.docid for document in START])
    assert all(hits == [] for way in ways for _, hits, _ in lists(living.index, hashing(), *way, 9))
    living.compact()
    assert Index.open(living.index).documents == 0
    assert all(hits == [] for way in ways for _, hits, _ in lists(living.index, hashing(), *way, 9))
    assert problems(living.index) == []
    living.add(NEW)
    expected = at_once(living.where / "expected", NEW, hashing())
    for way in ways:
        assert lists(living.index, hashing(), *way, 9) == lists(expected, hashing(), *way, 9)
    assert problems(living.index) == []


def test_sync_refuses_a_collection_that_shares_nothing(
    living: Living, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_documents(living.where / "c.jsonl", NEW)
    flags = ["sync", "--index", str(living.index), "--corpus", corpus, "--quiet"]
    assert index_main(flags) == 2
    assert "has none of the 20 documents" in capsys.readouterr().err
    assert index_main([*flags, "--replace-all"]) == 0
    assert state(living.index)[0] == len(NEW)


def test_clipped_weights_are_counted_and_noted(
    living: Living, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_documents(living.where / "c.jsonl", [NEW[0]._replace(text="word " * 60)])
    assert index_main(["add", "--index", str(living.index), "--corpus", corpus, "--json"]) == 0
    printed, errors = capsys.readouterr()
    assert '"clipped_now": 1' in printed
    assert f"above the highest that the scale of {living.index} can store ({SCALE:g}" in errors


def test_what_cannot_be_changed(living: Living, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = write_documents(living.where / "c.jsonl", NEW)
    assert index_main(["add", "--index", str(living.where / "none"), "--corpus", corpus]) == 2
    assert "no such index" in capsys.readouterr().err
    shard = living.where / "shard"
    encode(
        EncodeConfig(
            corpus=corpus, index=str(shard), model="testing:hashing", shard="0/1", quiet=True
        )
    )
    living.delete([START[0].docid])
    with pytest.raises(IndexMismatch, match=r"this needs an index in one piece.*index compact"):
        Index.open(living.index).only_segment  # noqa: B018
    again = EncodeConfig(
        corpus=corpus, index=str(living.index), model="testing:hashing", quiet=True
    )
    with pytest.raises(
        IndexMismatch, match="was changed since it was encoded, by dupmae-ir index delete"
    ):
        encode(again)


def test_damage_in_a_segment_is_found(living: Living) -> None:
    living.update(EDITED)
    assert verify(VerifyConfig(index=str(living.index)))["documents"] == 20
    second = living.index / read_manifest(living.index).segments[1].path
    for path in (
        second / "docid",
        second / "forward/impacts.npy",
        living.index / "segments/deleted-000001.npy",
    ):
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        found = problems(living.index)
        assert any(path.name in problem for problem in found), path
        with pytest.raises(IndexMismatch, match=path.name):
            lists(living.index, hashing(), "postings", "flat", "hybrid", 9)
        path.write_bytes(whole)
    shutil.rmtree(second)
    with pytest.raises(IndexMismatch, match=f"{second.name}.* is missing"):
        Index.open(living.index)
    assert any(second.name in problem for problem in problems(living.index))


def test_show_names_what_stock_pyserini_reads(
    living: Living, capsys: pytest.CaptureFixture[str]
) -> None:
    living.update(EDITED)
    assert index_main(["show", str(living.index)]) == 0
    shown = capsys.readouterr().out
    assert "2 of 20, 3 rows" in shown
    assert "reads the first segment only" in shown
    living.compact()
    assert index_main(["show", str(living.index)]) == 0
    assert "first segment" not in capsys.readouterr().out


def test_postings_and_codes_of_all_segments(living: Living) -> None:
    """Built for an index that has segments already; and one that is missing in a segment is named."""
    living.update(EDITED)
    for segment in Index.open(living.index).segments:
        shutil.rmtree(segment.path / "postings")
    assert index_main(["postings", "--index", str(living.index), "--quiet"]) == 0
    assert index_main(["dense", "--index", str(living.index), "--quiet"]) == 0
    expected = at_once(living.where / "expected", living.documents.values(), hashing())
    found = lists(living.index, hashing(), "postings", "flat", "hybrid", 9)
    assert found == lists(expected, hashing(), "postings", "flat", "hybrid", 9)
    found = lists(living.index, hashing(), "lucene", "rotated", "dense", 9)
    assert found == lists(expected, hashing(), "lucene", "flat", "dense", 9)


def test_stock_pyserini_reads_a_compacted_index(living: Living) -> None:
    living.update([*EDITED, *NEW])
    living.delete([START[0].docid])
    living.compact()
    encoder = hashing()
    queries = encoder.encode_queries([topic.text for topic in TOPICS])
    stock = pyserini.FaissSearcher(str(living.index / "cls"), None)
    found = stock.batch_search(queries.cls, [topic.qid for topic in TOPICS], k=9)
    for qid, hits, _ in lists(living.index, encoder, "lucene", "flat", "dense", 9):
        assert [hit.docid for hit in found[qid]] == [hit.docid for hit in hits]
    impacts = [
        {
            encoder.terms[i]: int(np.rint(w * SCALE))
            for i, w in zip(row.indices, row.data, strict=True)
        }
        for row in queries.ot
    ]

    class Known(pyserini.QueryEncoder):
        def encode(self, query: str, **_: Any) -> dict[str, int]:
            return impacts[int(query)]

    lucene = pyserini.LuceneImpactSearcher(str(living.index / "ot"), Known(), min_idf=-1)
    assert lucene.num_docs == len(living.documents)
    for n, (_, hits, _) in enumerate(
        lists(living.index, encoder, "lucene", "flat", "impact", 9, raw_impacts=True)
    ):
        found = lucene.search(str(n), 9)
        # Ties are in another order where they are cut at rank nine; the scores are the same.
        assert [round(hit.score) for hit in found] == [hit.score for hit in hits]


def test_a_link_to_an_index_is_followed(living: Living) -> None:
    link = living.where / "link"
    link.symlink_to(living.index)
    config = AddConfig(
        index=str(link), corpus=write_documents(living.where / "c.jsonl", NEW), quiet=True
    )
    from dupmae_ir.encode.changes import run_add
    from dupmae_ir.index.changes.changes import run_compact as compact

    reader = Index.open(link)
    run_add(config)
    opened = Index.open(link)
    assert len(opened.segments) == 2
    compact(CompactConfig(index=str(link), quiet=True))
    assert link.is_symlink()
    assert Index.open(living.index).documents == 26
    assert len(reader.docids) == 20


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="lists the open files of Linux")
def test_small_segments_keep_few_files_open(living: Living) -> None:
    for document in NEW:
        living.add([document])
    before = _open_files()
    searcher = Searcher.open(living.index, hashing(), impact_search="postings", threads=1)
    assert searcher.search("sort a list", 3, filter='module != "heapq"')
    # The vectors, their codes, and the list of ids, which is locked by every reader.
    assert _open_files() - before <= 3 * (1 + len(NEW))


def test_segments_share_their_terms(living: Living) -> None:
    living.add(NEW)
    first, second = Index.open(living.index).segments
    assert second.terms
    assert first.terms is second.terms


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
